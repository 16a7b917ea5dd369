"""Index files of genuine segments: read, written and rebuilt, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chunkstore.codec.kafka.indexes import (
    AbortedTransaction,
    BatchMark,
    Index,
    OffsetIndex,
    ProducerEntry,
    ProducerStates,
    TimeIndex,
    read_producer_snapshot,
    read_transaction_index,
    rebuild_indexes,
    write_producer_snapshot,
    write_transaction_index,
)
from chunkstore.errors import Damaged
from tests.kafka.support_logdir import FIXTURES, LOG_DIR
from tests.kafka.support_marks import marks_of

LOGS = sorted([*LOG_DIR.glob("*/*.log"), *FIXTURES.glob("remote-log-metadata/*/*.log")])
# What a broker of 3.9.1 made of the log directory without indexes, snapshots and ``.kafka_cleanshutdown``, where it is not what lay
# there: a broker that restarts counts anew from the last index entry, and forgets producers whose last batch is old by its clock.
RECOVERED = {
    name: bytes.fromhex(text) for name, text in json.loads((FIXTURES / "recovered-3.9.json").read_text()).items()
}
# Written to after the recovery, or (KRaft) in appends of several batches.
APPENDED_OTHERWISE = {
    f"{folder}-{partition}/{0:020d}.{suffix}"
    for folder, partition in (("__transaction_state", 0), ("__remote_log_metadata", 1), ("__cluster_metadata", 0))
    for suffix in ("index", "timeindex")
} - {"__transaction_state-0/00000000000000000000.index"}


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


@pytest.mark.parametrize("folder", sorted({log.parent for log in LOGS}), ids=lambda folder: folder.name[-20:])
def test_indexes_rebuilt_from_the_log_alone_are_those_of_a_broker(folder: Path) -> None:
    """From the first segment on, without any snapshot: every file is what the broker wrote, or made anew."""
    producers = ProducerStates()
    logs = sorted(folder.glob("*.log"))
    for number, log in enumerate(logs):
        marks = list(marks_of(log.read_bytes()))
        found = rebuild_indexes(marks, int(log.stem), producers, interval_bytes=1024)
        producers = ProducerStates(read_producer_snapshot(found.snapshot))
        last = marks[-1].last_offset + 1 if marks else 0
        end = logs[number + 1] if number + 1 < len(logs) else log.with_name(f"{last:020d}.log")
        for suffix, made, of in (
            (".index", found.offsets, log),
            (".timeindex", found.timestamps, log),
            (".txnindex", found.transactions, log),
            (".snapshot", found.snapshot, end),
        ):
            name = f"{folder.name}/{of.stem}{suffix}"
            genuine = RECOVERED.get(name, content(of, suffix))
            if name not in APPENDED_OTHERWISE and (genuine or suffix != ".snapshot"):
                assert made == genuine, name


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


def test_batches_that_leave_their_segment_are_damage() -> None:
    for marks in ([(0, 5), (5, 6)], [(0, 1 << 31)], [(-1, 0)], [(3, 2)]):
        batches = [BatchMark(first, last, number, 0) for number, (first, last) in enumerate(marks)]
        with pytest.raises(Damaged, match=r"^l at byte"):
            rebuild_indexes(batches, 0, ProducerStates(), object="l")
