"""What the keys of a bucket are: objects of Pulsar's offloaders, by the shape of their keys alone; and the names of topics.

Promises: pure; a listing becomes attempts in constant memory; every other key is passed over. Leaves out: what takes a read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal
from urllib.parse import unquote_plus

from chunkstore_bindings.bucket.port import ObjectInfo

__all__ = ["UUID_PATTERN", "Attempt", "attempts_of", "topic_name"]

UUID_PATTERN: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_KEY = re.compile(rf"((?P<uuid>{UUID_PATTERN})(?:-ledger-(?P<ledger>0|[1-9][0-9]{{0,18}}))?)(?P<index>-index)?")
_MAP_FILE = re.compile(
    rf"((?:(?P<topic>.+)/)?(?P<ledger>[0-9]{{1,19}})-(?P<uuid>{UUID_PATTERN}))/(?:data|(?P<index>index))"
)
_STORED_TOPIC = re.compile(r"([^:]+)/(persistent|non-persistent)/([^/]+)")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to offload: its data object, its index, or both.

    ``format``: "v1" (PIP-17, one ledger), "v2" (PIP-76, ``ledger`` is None: the index names them), "mapfile" (Pulsar's filesystem
    offloader, whose key has the topic). ``key``: that of the data object; of a MapFile its folder.
    """

    key: str
    uuid: str
    format: Literal["v1", "v2", "mapfile"]
    ledger: int | None
    topic: str | None
    data: ObjectInfo | None = None
    index: ObjectInfo | None = None

    @property
    def is_complete(self) -> bool:
        """Whether data and index are there."""
        return self.data is not None and self.index is not None


def attempts_of(listing: Iterable[ObjectInfo]) -> Iterator[Attempt]:
    """The attempts in a bucket's listing, which ascends: an index is the next of these keys after its data."""
    held: Attempt | None = None
    for item in listing:
        found = attempt_at(item.key)
        if found is None:
            continue
        attempt, is_index = found
        if held is not None and held.key != attempt.key:
            yield held
        if held is None or held.key != attempt.key:
            held = attempt
        held = replace(held, index=item) if is_index else replace(held, data=item)
    if held is not None:
        yield held


def attempt_at(key: str) -> tuple[Attempt, bool] | None:
    """The attempt that a key is of, without its objects, and whether it is the key of an index; None for a foreign key."""
    found = _KEY.fullmatch(key)
    if found is not None:
        ledger = None if found["ledger"] is None else int(found["ledger"])
        attempt = Attempt(found[1], found["uuid"], "v2" if ledger is None else "v1", ledger, None)
        return attempt, bool(found["index"])
    found = _MAP_FILE.fullmatch(key)
    if found is None:
        return None
    topic = found["topic"] and topic_name(found["topic"])
    return Attempt(found[1], found["uuid"], "mapfile", int(found["ledger"]), topic), bool(found["index"])


def topic_name(text: str) -> str:
    """A topic as ``persistent://public/ns/T``, given like that or as Pulsar stores it: ``public/ns/persistent/T``, T encoded as in URLs."""
    found = _STORED_TOPIC.fullmatch(text)
    return f"{found[2]}://{found[1]}/{unquote_plus(found[3])}" if found else text
