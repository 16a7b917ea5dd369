"""A topic read in runs gives the messages that it gives when it is read at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import pyarrow as pa
import pytest

from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.message_batches import message_batches
from chunkstore.codec.pulsar.messages import Message
from chunkstore.spark.pulsar_runs import run_messages
from tests.support.pulsar_broker import TOPICS, entries_of_topic
from tests.support.pulsar_messages import arrow_rows

COLUMNS = Message._fields


def of_runs(entries: Sequence[Entry], size: int, transactions: Literal["committed", "all"] = "committed") -> list[Any]:
    rows: list[Any] = []
    for begin in range(0, len(entries), size):
        own = entries[begin : begin + size]

        def later(end: int = begin + size) -> Iterator[Entry]:
            return iter(entries[end:])

        batches = [pa.RecordBatch.from_pylist([item._asdict() for item in own])]
        found = run_messages(batches, later, columns=COLUMNS, transactions=transactions, messages="strict")
        rows += arrow_rows(found)
    return sorted(rows, key=lambda row: row[:3])


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("size", [1, 7])
def test_runs_of_a_topic_have_its_messages_once(topic: str, size: int) -> None:
    entries = entries_of_topic(topic)
    for transactions in ("committed", "all"):
        whole = arrow_rows(message_batches(entries, transactions=transactions))
        assert of_runs(entries, size, transactions) == sorted(whole, key=lambda row: row[:3])
