"""Transactions: what consumers get, wherever the marker is, and what is told of those without one."""

from __future__ import annotations

from typing import Any

import pytest

from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.message_batches import message_batches
from chunkstore.codec.pulsar.messages import Transactions, iter_messages, scan_transactions
from chunkstore.errors import Damaged
from tests.support.pulsar_entries import marker, message, single
from tests.support.pulsar_messages import arrow_rows


def sent(at: tuple[int, int], txn: int, *content: bytes) -> Entry:
    pieces: Any = [single(item) for item in content] if len(content) > 1 else content[0]
    return message(pieces, at=at, txn_most=0, txn_least=txn)


ENTRIES = [
    message(b"plain", at=(1, 0)),
    sent((1, 1), 1, b"committed"),
    sent((1, 2), 2, b"aborted", b"aborted too"),
    sent((1, 3), 3, b"open"),
    marker(21, (0, 1), (1, 4)),
    marker(30, (0, 3), (1, 5)),  # of something else: no end of a transaction
    marker(22, (0, 2), (9, 0)),
    message(b"last", at=(9, 1)),
]


def test_consumers_get_what_was_committed() -> None:
    found = iter_messages(ENTRIES)
    assert [row.payload for row in found] == [b"plain", b"committed", b"last"]
    summary = found.summary
    assert (summary.messages_aborted, summary.messages_open, summary.markers) == (2, 1, 3)
    assert found.transactions.those("open") == message_batches(ENTRIES).transactions.those("open") == {(0, 3)}
    assert [row.payload for row in arrow_rows(message_batches(ENTRIES))] == [b"plain", b"committed", b"last"]


def test_all_messages_come_with_their_state() -> None:
    assert [(row.payload, row.txn, row.txn_state) for row in iter_messages(ENTRIES, transactions="all")] == [
        (b"plain", None, None),
        (b"committed", (0, 1), "committed"),
        (b"aborted", (0, 2), "aborted"),
        (b"aborted too", (0, 2), "aborted"),
        (b"open", (0, 3), "open"),
        (b"last", None, None),
    ]


def test_a_damaged_marker_ends_no_transaction() -> None:
    flipped = bytearray(ENTRIES[4].payload)
    at = flipped.index(b"\xa0\x01\x15")  # field 20, 21: as an abort it would be 22
    flipped[at + 2] = 22
    entries = [*ENTRIES[:4], Entry(1, 4, bytes(flipped))]
    assert scan_transactions(entries).state((0, 1)) == "open"
    with pytest.raises(Damaged, match="CRC32C"):
        list(iter_messages(entries))
    assert scan_transactions([Entry(1, 0, b"nonsense")]) == Transactions()
