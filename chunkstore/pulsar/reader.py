"""``LedgerReader``: one ledger's entries over many offload segments, open ones included, at an owner or a replica.

Promises: entries come once each, in order, and gaps are left out; what was acknowledged before the call is there. Every byte
is checked as the codec says. Leaves out: checksums of chunks (the engine's), following a ledger that grows (call again).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.pip76_reader import SegmentReader
from chunkstore.codec.pulsar.windows import iter_entries
from chunkstore.errors import InvalidArgument
from chunkstore.pulsar.contexts import Stored, check_topic, iter_topics
from chunkstore.pulsar.planning import Block, LedgerRange, TopicPlanner, plan, reader_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LedgerReader", "LedgerSummary"]


class LedgerSummary(NamedTuple):
    """A ledger: its first and last entry, in how many offload segments it lies, its bytes there, whether all are complete. ``entries``:
    how many there are; None: an offload segment does not say so, because it grows, or an earlier version wrote it."""

    topic: str
    ledger: int
    first_entry: int
    last_entry: int
    segments: int
    size_bytes: int
    complete: bool
    entries: int | None = None


class LedgerReader:
    """Reads ledgers from ``store`` (an owner or a replica); holds nothing, so it needs no closing. Thread-safe as the store."""

    def __init__(self, store: Stored) -> None:
        self._store = store

    def topics(self) -> list[str]:
        """The topics, in the order of their bytes. Raises ``Damaged`` and what tables raise."""
        return list(iter_topics(self._store))

    def ledgers(self, topic: str, ledgers: Sequence[int] | None = None, *, sizes: bool = True) -> list[LedgerSummary]:
        """The topic's ledgers (None: all), ascending. Without ``sizes`` those of complete offload segments count as 0, and nothing of
        these is read, not even their index. Raises as ``plan``."""
        parts: dict[int, list[LedgerRange]] = {}
        for item in TopicPlanner(self._store, topic).plan(ledgers, blocks=lambda _part: sizes):
            parts.setdefault(item.ledger, []).append(item)
        return [
            LedgerSummary(
                topic,
                ledger,
                row[0].first_entry,
                row[-1].last_entry,
                len(row),
                sum(item.size_bytes for item in row),
                all(item.complete for item in row),
                sum(item.entries for item in row) if all(item.entries for item in row) else None,
            )
            for ledger, row in parts.items()
        ]

    def plan(self, topic: str, ledgers: Sequence[int] | None = None) -> tuple[LedgerRange, ...]:
        """See ``chunkstore.pulsar.plan``."""
        return plan(self._store, topic, ledgers)

    def read(self, topic: str, ledger: int, first: int = 0, last: int | None = None) -> Iterator[Entry]:
        """The entries ``first`` to ``last`` (both included; ``None``: to the end), one object each.

        Arguments are checked and the plan is made at the call. Raises ``InvalidArgument``, ``LedgerNotFound``; while iterating
        ``Damaged`` at the first byte that is wrong, and what reading raises.
        """
        runs = self._runs(topic, ledger, first, last)
        return (entry for reader in runs for entry in iter_entries(reader, ledger, first, last))

    def read_batches(
        self, topic: str, ledger: int, first: int = 0, last: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """As ``read``, as Arrow record batches of about 1 MiB with the columns ledger, entry and payload. Needs pyarrow."""
        from chunkstore.codec.pulsar.arrow import read_batches

        runs = self._runs(topic, ledger, first, last)
        return (batch for reader in runs for batch in read_batches(reader, ledger, first, last))

    def _runs(self, topic: str, ledger: int, first: int, last: int | None) -> list[SegmentReader]:
        """A reader for each run of neighbouring blocks that may hold wanted entries."""
        check_topic(topic)
        for value, argument in ((first, "first"), (first if last is None else last, "last")):
            if type(value) is not int or value < 0:
                raise InvalidArgument(f"{argument} is an entry id from 0 on, not {value!r}", argument=argument)
        if last is not None and last < first:
            raise InvalidArgument(f"entries {first} to {last}: not a range", argument="last")
        readers: list[SegmentReader] = []
        for item in self.plan(topic, (ledger,)):
            if item.last_entry < first or (last is not None and item.first_entry > last):
                continue
            readers += [reader_of(self._store, item.segment, ledger, run) for run in _neighbours(item.blocks)]
        return readers


def _neighbours(blocks: Sequence[Block]) -> list[list[Block]]:
    runs: list[list[Block]] = []
    for block in blocks:
        if runs and runs[-1][-1].stop == block.start:
            runs[-1].append(block)
        else:
            runs.append([block])
    return runs
