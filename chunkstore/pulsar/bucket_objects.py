"""The attempts to offload that a bucket holds, by the shape of their keys, and what their indexes and user metadata tell of them.

Promises: nothing is changed; a listing becomes attempts in constant memory, and every other key is passed over; an index is read in one
request of its listed size, bounded. Leaves out: which attempt of a ledger counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote_plus

from chunkstore.codec.pulsar.block_index import INDEX_BYTES_MAX, BlockSpan
from chunkstore.codec.pulsar.frames import BLOCK_HEADER_BYTES, PIP76, DataSource
from chunkstore.codec.pulsar.pip17 import LedgerIndex, LedgerObjectReader, read_ledger_index
from chunkstore.codec.pulsar.pip76 import SegmentIndex, SegmentReader, read_index
from chunkstore.codec.pulsar.windows import BlockReader
from chunkstore.errors import Damaged
from chunkstore_bindings.bucket.port import Bucket, ObjectInfo

__all__ = [
    "FORMAT_VERSION_KEY",
    "UUID_PATTERN",
    "Attempt",
    "BucketObjects",
    "Facts",
    "Said",
    "attempt_at",
    "topic_name",
]

FORMAT_VERSION_KEY = "s3managedledgeroffloaderformatversion"
"""User metadata without which brokers refuse an object; its value is "1" for both formats."""
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
    topic: str | None = None
    data: ObjectInfo | None = None
    index: ObjectInfo | None = None

    @property
    def is_complete(self) -> bool:
        """Whether data and index are there."""
        return self.data is not None and self.index is not None


class Said(NamedTuple):
    """A ledger by its metadata: the id that its entries are below, the bytes of all payloads (None: not said), and whether it is closed."""

    limit: int | None
    length: int | None
    closed: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What index and user metadata tell of an attempt; ``error``: why ``index`` is None although there is an object."""

    cluster: str | None = None
    topic: str | None = None
    index: LedgerIndex | SegmentIndex | None = None
    error: Damaged | None = None

    def ledgers(self, attempt: Attempt) -> tuple[int, ...]:
        """The ledgers in the attempt's objects, as far as they are known."""
        if isinstance(self.index, SegmentIndex):
            return tuple(group.ledger for group in self.index.ledgers)
        return () if attempt.ledger is None else (attempt.ledger,)

    def spans(self, ledger: int) -> list[BlockSpan]:
        """The ledger's blocks, ascending."""
        if isinstance(self.index, LedgerIndex):
            return self.index.spans(ledger)
        return [] if self.index is None else [span for span in self.index.spans() if span.ledger == ledger]

    def says(self, ledger: int) -> Said:
        """What the metadata in the index says of a ledger that is in it."""
        if isinstance(self.index, LedgerIndex):
            closed = self.index.is_closed
            return Said(self.index.entry_limit if closed else None, self.index.metadata.length, closed)
        if self.index is None:
            return Said(None, None, closed=False)
        info = self.index.group(ledger).info
        closed = bool(info.entries and info.timestamp_ms)
        return Said(info.entries or None, info.size if closed else None, closed)


class BucketObjects:
    """Reads attempts of an open bucket, by the names that keys have below it."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def attempts(self) -> Iterator[Attempt]:
        """All attempts, complete or not, by key: LIST requests only. An index is the next of these keys after its data."""
        held: Attempt | None = None
        for item in self.bucket.list():
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

    def source(self, item: ObjectInfo) -> DataSource:
        """An object, to be read in ranges."""
        return DataSource(item.key, item.length, partial(self.bucket.read, item.key))

    def metadata(self, attempt: Attempt) -> dict[str, str]:
        """The user metadata of an attempt's index, or else of its data; empty where the bucket keeps none."""
        item = attempt.index or attempt.data
        return dict(self.bucket.head(item.key).metadata) if item is not None and self.bucket.keeps_metadata else {}

    def facts(self, attempt: Attempt, *, cluster: bool = False) -> Facts:
        """What can be known of an attempt without its data; user metadata where the index has no topic, or ``cluster`` is asked for.

        Of a lone v2 object, whose key any program may use, the index is an error unless a block of PIP-76 begins it.
        """
        index: LedgerIndex | SegmentIndex | None = None
        topic, error = attempt.topic, None
        try:
            if attempt.format != "mapfile" and attempt.index is not None:
                item = attempt.index
                raw = self.bucket.read(item.key, 0, min(item.length, INDEX_BYTES_MAX + 1))
                index = (read_index if attempt.ledger is None else read_ledger_index)(raw, object=item.key)
            elif attempt.format == "v2" and attempt.data is not None:
                head = self.bucket.read(attempt.data.key, 0, BLOCK_HEADER_BYTES)
                PIP76.parse(head, object=attempt.data.key, position=0)
        except Damaged as found:
            error = found
        if isinstance(index, LedgerIndex) and index.metadata.topic is not None:
            topic = topic_name(index.metadata.topic)
        stored = self.metadata(attempt) if cluster or topic is None else {}
        if topic is None and "managedledgername" in stored:
            topic = topic_name(stored["managedledgername"])
        return Facts(stored.get("pulsarclustername"), topic, index, error)

    def reader(self, attempt: Attempt, facts: Facts) -> BlockReader:
        """The reader of a complete attempt. Raises ``Damaged`` where index and data object do not belong together."""
        assert attempt.data is not None
        source = self.source(attempt.data)
        if isinstance(facts.index, LedgerIndex):
            assert attempt.ledger is not None
            return LedgerObjectReader(source, facts.index, ledger=attempt.ledger)
        assert facts.index is not None
        return SegmentReader(source, facts.index)


def attempt_at(key: str) -> tuple[Attempt, bool] | None:
    """The attempt that a key is of, without its objects, and whether it is the key of an index; None for a foreign key."""
    if found := _KEY.fullmatch(key):
        ledger = None if found["ledger"] is None else int(found["ledger"])
        return Attempt(found[1], found["uuid"], "v2" if ledger is None else "v1", ledger), bool(found["index"])
    if found := _MAP_FILE.fullmatch(key):
        topic = found["topic"] and topic_name(found["topic"])
        return Attempt(found[1], found["uuid"], "mapfile", int(found["ledger"]), topic), bool(found["index"])
    return None


def topic_name(text: str) -> str:
    """A topic as ``persistent://public/ns/T``, given like that or as Pulsar stores it: ``public/ns/persistent/T``, T encoded as in URLs."""
    found = _STORED_TOPIC.fullmatch(text)
    return f"{found[2]}://{found[1]}/{unquote_plus(found[3])}" if found else text
