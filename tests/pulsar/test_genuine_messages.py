"""What a genuine broker offloaded, message by message; that it is what consumers got ``test_bucket_reading`` shows."""

from __future__ import annotations

import pytest

from chunkstore.codec.pulsar import message_batches as arrow
from chunkstore.codec.pulsar.message_batches import message_batches
from chunkstore.codec.pulsar.messages import Message, iter_messages, scan_transactions
from tests.support.pulsar_broker import TOPICS, entries_of_topic, seen_by_consumer
from tests.support.pulsar_messages import arrow_rows


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("width_min", [0, 1 << 30])
def test_arrow_has_the_same_rows(topic: str, width_min: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_WIDTH_MIN", width_min)
    entries = entries_of_topic(topic)
    expected = list(iter_messages(entries, transactions="all"))
    assert arrow_rows(message_batches(entries, transactions="all")) == expected
    states = {row.txn_state for row in expected}
    assert states == ({None, "committed", "aborted"} if topic == "indexed/txn" else {None})
    kept = [row for row in expected if row.txn_state != "aborted"]
    assert arrow_rows(message_batches(entries)) == kept
    for name in Message._fields:
        assert arrow_rows(message_batches(entries, columns=[name])) == [(getattr(row, name),) for row in kept]


def test_there_are_26_topics() -> None:
    assert len(TOPICS) == 26


def test_aborted_messages_are_counted() -> None:
    entries = entries_of_topic("indexed/txn")
    known = scan_transactions(entries)
    assert (len(known.those("committed")), len(known.those("aborted")), len(known.those("open"))) == (4, 2, 0)
    found = iter_messages(iter(entries), known=known)
    assert (len(list(found)), found.summary.messages_aborted, found.summary.markers) == (36, 11, 6)


def test_encrypted_entries_stay_raw() -> None:
    entries = {(entry.ledger, entry.entry): entry.payload for entry in entries_of_topic("indexed/encrypted")}
    rows = list(iter_messages(entries_of_topic("indexed/encrypted")))
    sealed = [row for row in rows if row.encrypted]
    assert [(row.entry, row.batch_index, row.batch_size, row.raw) for row in sealed] == [
        (0, -1, 4, True), (1, -1, 4, True), (2, -1, 2, True), (3, -1, 0, True), (4, -1, 0, True),
    ]  # fmt: skip
    for row in sealed:
        assert row.payload
        assert entries[row.ledger, row.entry].endswith(row.payload)
        assert (row.key, row.properties) == (None, {}) or not row.batch_size
    seen = {(row["ledger"], row["entry"]): row for row in reversed(seen_by_consumer("indexed/encrypted"))}
    for row in sealed:
        want = seen[row.ledger, row.entry]
        assert (row.producer, row.sequence_id, row.publish_time) == (
            want["producer"],
            want["sequence_id"],
            want["publish_time"],
        )
        assert (row.compression, row.encryption_keys, row.broker_time) == ("LZ4", 1, want["broker_time"])
