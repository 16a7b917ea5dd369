"""Index files of genuine segments: read and written, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.codec.kafka.indexes import (
    AbortedTransaction,
    Index,
    OffsetIndex,
    ProducerEntry,
    TimeIndex,
    read_producer_snapshot,
    read_transaction_index,
    write_producer_snapshot,
    write_transaction_index,
)
from chunkstore.errors import Damaged
from tests.kafka.support_logdir import FIXTURES, LOG_DIR

LOGS = sorted([*LOG_DIR.glob("*/*.log"), *FIXTURES.glob("remote-log-metadata/*/*.log")])


def content(log: Path, suffix: str) -> bytes:
    path = log.with_suffix(suffix)
    return path.read_bytes() if path.exists() else b""


def rows_of(index: Index) -> list[tuple[int, int]]:
    return [index[number] for number in range(len(index))]


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parent.name[-20:]}/{log.stem}")
def test_genuine_indexes_are_read_and_written(log: Path) -> None:
    base = int(log.stem)
    for kind, suffix in ((OffsetIndex, ".index"), (TimeIndex, ".timeindex")):
        data = content(log, suffix)
        bases = (base, 0) if kind is OffsetIndex else (0, base)
        rows = [(first - bases[0], second - bases[1]) for first, second in rows_of(kind(data, base))]
        assert b"".join(kind.row.pack(*row) for row in rows) == data
    data = content(log, ".txnindex")
    assert write_transaction_index(read_transaction_index(data)) == data
    if data := content(log, ".snapshot"):
        assert write_producer_snapshot(read_producer_snapshot(data)) == data


@pytest.mark.parametrize(
    ("kind", "data", "position"),
    [
        (OffsetIndex, bytes(9), 8),
        (OffsetIndex, bytes.fromhex("0000000100000005" "0000000100000009"), 8),
        (OffsetIndex, bytes.fromhex("0000000100000005" "0000000000000000"), 8),
        (OffsetIndex, bytes.fromhex("00000001ffffffff"), 0),
        (OffsetIndex, bytes.fromhex("ffffffff00000001"), 0),
        (TimeIndex, bytes.fromhex("000000000000000500000005" "000000000000000600000004"), 12),
        (TimeIndex, bytes.fromhex("000000000000000500000005" "000000000000000400000006"), 12),
        (TimeIndex, bytes.fromhex("0000000000000005ffffffff"), 0),
    ],
)  # fmt: skip
def test_rows_that_do_not_ascend_are_damage(kind: type[OffsetIndex], data: bytes, position: int) -> None:
    with pytest.raises(Damaged) as caught:
        kind(data, 0, object="t-0/x.index")
    assert (caught.value.object, caught.value.position) == ("t-0/x.index", position)


def test_snapshots_and_transactions_that_are_damaged() -> None:
    good = write_producer_snapshot([ProducerEntry(1)])
    for wrong in (good[:-1], good[:9], good[:20] + b"\1" + good[21:], b"\0\2" + good[2:], good + bytes(46)):
        with pytest.raises(Damaged, match=r"^s at byte"):
            read_producer_snapshot(wrong, object="s")
    entry = AbortedTransaction(1, 5, 9, 10)
    good = write_transaction_index([entry])
    for wrong in (good[:-1], good * 2, b"\0\1" + good[2:], write_transaction_index([entry._replace(first_offset=10)])):
        with pytest.raises(Damaged, match=r"^x at byte"):
            read_transaction_index(wrong, object="x")
