"""The messages of a bucket's topics, one topic after the other: one by one, and as Arrow batches.

Promises: a topic's entries are read as often as needed, and none is kept. Leaves out: which ledgers and attempts there are (``bucket``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.message_entries import MessageSummary, Transactions
from chunkstore.codec.pulsar.messages import Message, iter_messages
from chunkstore.pulsar.read_handle import ReadHandle

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BucketMessages", "Entries", "Run", "batches_of"]

Kept = Literal["committed", "all"]
Strictness = Literal["strict", "lenient"]


@dataclass(frozen=True, slots=True)
class Entries(Iterable[Entry]):
    """The entries of some ledgers, each opened when it is due: from ``first`` to ``last`` (both included) of each. May be read again."""

    ledgers: Sequence[Callable[[], ReadHandle]]
    first: int = 0
    last: int | None = None

    def __iter__(self) -> Iterator[Entry]:
        for opened in self.ledgers:
            with opened() as handle:
                yield from handle.iter_entries(self.first, self.last)


class Run(NamedTuple):
    """A topic (None: not known), those of its entries that are read, and how its transactions ended."""

    topic: str | None
    entries: Entries
    known: Transactions


class BucketMessages(Iterator[Message]):
    """Messages. ``topic``: that of the message that came last; ``summary``: what was left out, complete at the end."""

    def __init__(self, runs: Iterable[Run], transactions: Kept, messages: Strictness) -> None:
        self.topic: str | None = None
        self.summary = MessageSummary()
        self._rows = self._read(runs, transactions, messages)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        return next(self._rows)

    def _read(self, runs: Iterable[Run], transactions: Kept, messages: Strictness) -> Iterator[Message]:
        for run in runs:
            self.topic = run.topic
            found = iter_messages(run.entries, known=run.known, transactions=transactions, messages=messages)
            yield from found
            for item in fields(MessageSummary):
                setattr(self.summary, item.name, getattr(self.summary, item.name) + getattr(found.summary, item.name))


def batches_of(runs: Iterable[Run], transactions: Kept, messages: Strictness) -> pa.RecordBatchReader:
    """The same messages as Arrow batches: the column ``topic``, then those of ``MESSAGE_SCHEMA``."""
    import pyarrow as pa

    from chunkstore.codec.pulsar.message_batches import MESSAGE_SCHEMA, message_batches

    schema = pa.schema([pa.field("topic", pa.string()), *MESSAGE_SCHEMA])

    def batches() -> Iterator[pa.RecordBatch]:
        for run in runs:
            for found in message_batches(run.entries, known=run.known, transactions=transactions, messages=messages):
                topics = pa.array([run.topic], pa.string()).take(pa.nulls(found.num_rows, pa.int8()).fill_null(0))
                yield pa.RecordBatch.from_arrays([topics, *found.columns], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())
