"""What a broker says of its topics: the JSON of ``pulsar-admin topics info-internal`` and ``stats-internal``.

info-internal has each ledger's uuid, which is there from the moment an attempt begins; stats-internal says which are complete. Ledger ids
are unique in a cluster, so the two are joined by them. Promises: bounded, checked, refused in words. Leaves out: files of two clusters.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from chunkstore import runtime
from chunkstore.config import MIB
from chunkstore.errors import Conflict, InvalidArgument
from chunkstore.pulsar.bucket_objects import UUID_PATTERN, topic_name

__all__ = ["LIVE_BYTES_MAX", "LiveDocument", "LiveFiles", "read_live"]

LIVE_BYTES_MAX: Final = 64 * MIB
_UUID = re.compile(UUID_PATTERN)
_SPACE: Final = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class LiveDocument:
    """One topic: its ledgers with the uuids that info-internal names. ``topic`` is None where the file does not say."""

    topic: str | None
    ledgers: dict[int, str | None]


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """All files together. ``uuids``: of each ledger that has one; ``complete``: whether stats-internal says that its offload is;
    ``taken_ms``: when the oldest file was written."""

    documents: list[LiveDocument] = field(default_factory=list)
    uuids: dict[int, str] = field(default_factory=dict)
    complete: dict[int, bool] = field(default_factory=dict)
    taken_ms: int = 0

    @property
    def ledgers(self) -> frozenset[int]:
        """All ledgers that a file lists."""
        return frozenset(ledger for document in self.documents for ledger in document.ledgers)


def read_live(names: Sequence[str]) -> LiveFiles:
    """What these files say: each is FILE or TOPIC=FILE, and holds one document, several, or a list of them.

    A partitioned topic's documents name its partitions. Else a topic without an offloaded ledger needs TOPIC=. Raises ``InvalidArgument``
    (a file that cannot be read, or says something else; a stats-internal without its info-internal) and ``Conflict`` (two uuids for one
    ledger: files of two clusters, or of different times).
    """
    live, times_ms, used = LiveFiles(), [0] * (not names), list[set[int]]()
    for name in names:
        topic, equals, path = name.partition("=")
        if not equals or "://" not in topic_name(topic):
            topic, path = "", name
        try:
            with open(path, "rb") as file:
                raw = file.read(LIVE_BYTES_MAX + 1)
                times_ms.append(runtime.label_ms(os.fstat(file.fileno()).st_mtime_ns))
            if len(raw) > LIVE_BYTES_MAX:
                raise _refused(path, f"more than {LIVE_BYTES_MAX} bytes")
            for named, document in _documents(raw.decode()):
                used.append(_take_in(live, path, topic_name(topic or named) or None, document))
        except OSError as error:
            raise _refused(path, error.strerror or "cannot be read") from error
        except (ValueError, RecursionError) as error:
            raise _refused(path, f"no JSON: {error}") from error
    # stats-internal loads a topic, which opens a new ledger: that one alone may be missing in an info-internal of before.
    unknown = {ledger for ledger, is_done in live.complete.items() if is_done} - live.ledgers
    unknown |= set[int]().union(*(ledgers for ledgers in used if live.ledgers.isdisjoint(ledgers)))
    if unknown:
        text = f"ledger {min(unknown)} is in a stats-internal only, which has no uuids; give its info-internal with --live, too"
        raise InvalidArgument(text, argument="--live")
    return replace(live, taken_ms=min(times_ms))


def _refused(path: str, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{path}: {what}; --live takes the output of info-internal and stats-internal", argument="--live"
    )


def _documents(text: str) -> Iterator[tuple[str, Any]]:
    """(topic or "", document). Raises ``ValueError``, ``RecursionError``."""
    decoder, at = json.JSONDecoder(), 0
    while (at := _SPACE.match(text, at).end()) < len(text):  # type: ignore[union-attr]  # it matches everywhere
        value, at = decoder.raw_decode(text, at)
        for document in value if isinstance(value, list) else [value]:
            partitions = document.get("partitions") if isinstance(document, dict) else None
            yield from partitions.items() if isinstance(partitions, dict) else [("", document)]


def _take_in(live: LiveFiles, path: str, topic: str | None, document: Any) -> set[int]:
    """Returns the ledgers that have entries by a stats-internal."""
    rows = document.get("ledgers") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise _refused(path, "a document without 'ledgers'")
    found, used = LiveDocument(topic, {}), set[int]()
    for row in rows:
        ledger = row.get("ledgerId") if isinstance(row, dict) else None
        if type(ledger) is not int or ledger < 0:
            raise _refused(path, "a ledger without 'ledgerId'")
        if "offloaded" in row:
            live.complete[ledger] = live.complete.get(ledger, False) or row["offloaded"] is True
            if row.get("entries") != 0:
                used.add(ledger)
            continue
        uuid = row.get("offloadedContextUuid")
        if uuid is not None and not (isinstance(uuid, str) and _UUID.fullmatch(uuid)):
            raise _refused(path, f"{uuid!r} is not a uuid")
        found.ledgers[ledger] = uuid
        if uuid is not None and live.uuids.setdefault(ledger, uuid) != uuid:
            remedy = "give files of one cluster, all of the same time"
            raise Conflict(f"ledger {ledger} in {path}", expected=live.uuids[ledger], found=uuid, remedy=remedy)
    if found.ledgers:
        live.documents.append(found)
    return used
