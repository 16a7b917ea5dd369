"""The attempts to offload that a bucket holds, and what their indexes and user metadata tell of them.

Promises: nothing is changed; an index is read in one request of its listed size, bounded. Leaves out: which attempt of a ledger counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from chunkstore.codec.pulsar.block_index import INDEX_BYTES_MAX, BlockSpan
from chunkstore.codec.pulsar.frames import BLOCK_HEADER_BYTES, PIP76, DataSource
from chunkstore.codec.pulsar.pip17_index import LedgerIndex, read_ledger_index
from chunkstore.codec.pulsar.pip17_reader import LedgerObjectReader
from chunkstore.codec.pulsar.pip76_index import SegmentIndex, read_index
from chunkstore.codec.pulsar.pip76_reader import SegmentReader
from chunkstore.codec.pulsar.windows import BlockReader
from chunkstore.errors import Damaged
from chunkstore.pulsar.catalog import Attempt, attempts_of, topic_name
from chunkstore_bindings.bucket.port import Bucket, ObjectInfo

__all__ = ["FORMAT_VERSION_KEY", "BucketObjects", "Facts", "Said"]

FORMAT_VERSION_KEY = "s3managedledgeroffloaderformatversion"
"""User metadata without which brokers refuse an object; its value is "1" for both formats."""
_CLOSED = 3


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
            metadata = self.index.metadata
            closed = metadata.state == _CLOSED and metadata.last_entry is not None
            return Said((metadata.last_entry or 0) + 1 if closed else None, metadata.length, closed)
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
        """All attempts, complete or not, by key: LIST requests only."""
        return attempts_of(self.bucket.list())

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
