"""Whole segments: what was appended comes back, one by one and as Arrow, in any window; writers' rules; ranges and gaps."""

from __future__ import annotations

from itertools import pairwise
from struct import unpack_from

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.codec.pulsar.arrow import append_batch, read_batches
from chunkstore.codec.pulsar.frames import ENTRY_BYTES_MAX, Entry
from chunkstore.codec.pulsar.offload_metadata import LedgerInfo
from chunkstore.codec.pulsar.pip76 import SegmentEncoder
from chunkstore.codec.pulsar.windows import iter_entries
from chunkstore.errors import Closed, InvalidArgument
from tests.support.pip76 import Encoded, Sink, encode

ENTRY_SIZES = st.integers(0, 300) | st.sampled_from([0, 3956, 3957, 4000, 9000])


@st.composite
def entry_lists(draw: st.DrawFn) -> list[Entry]:
    """Entries in the order of writing: ledgers may be gone back to, ids have gaps."""
    last: dict[int, int] = {}
    entries: list[Entry] = []
    for _ in range(draw(st.integers(1, 5))):
        ledger = draw(st.sampled_from([0, 7, 9, (1 << 63) - 1]))
        for size in draw(st.lists(ENTRY_SIZES, min_size=1, max_size=20)):
            entry = last.get(ledger, draw(st.sampled_from([-1, 126, 1 << 40]))) + draw(
                st.sampled_from([1, 1, 1, 2, 70000])
            )
            last[ledger] = entry
            entries.append(Entry(ledger, entry, bytes([len(entries) & 255]) * size))
    return entries


def rows(batches: list[pa.RecordBatch]) -> list[Entry]:
    return [Entry(row["ledger"], row["entry"], row["payload"]) for batch in batches for row in batch.to_pylist()]


def by_arrow(encoded: Encoded, window_bytes: int = 1 << 20) -> list[Entry]:
    reader = encoded.reader(window_bytes)
    return rows([batch for ledger in reader.ledgers for batch in read_batches(reader, ledger)])


@given(entries=entry_lists(), block_max=st.sampled_from([4096, 8192, 1 << 20]), padded=st.booleans())
def test_round_trip(entries: list[Entry], block_max: int, padded: bool) -> None:
    encoded = encode(entries, block_bytes_max=block_max, block_bytes_min=4096 if padded else 0)
    expected = sorted(entries, key=lambda entry: entry[:2])
    assert encoded.entries() == expected
    assert encoded.entries(4096) == expected
    assert by_arrow(encoded) == expected
    assert by_arrow(encoded, 4096) == expected


@given(entries=entry_lists(), block_max=st.sampled_from([4096, 8192, 1 << 20]))
def test_positions_are_exact(entries: list[Entry], block_max: int) -> None:
    encoded = encode(entries, block_bytes_max=block_max)
    spans = encoded.index.spans()
    assert encoded.index.data_length == len(encoded.data)
    assert [span.start for span in spans] == [0, *(span.end for span in spans[:-1])]
    for span in spans:
        magic, header, length, first, ledger = unpack_from(">Iqqqq", encoded.data, span.start)
        assert (magic, header, length) == (0x26A66D32, 128, span.end - span.start)
        assert (first, ledger) == (span.first_entry, span.ledger)
        assert encoded.data[span.start + 36 : span.start + 128] == bytes(92)
    for span in spans[:-1]:
        assert encoded.data[span.end - 4 : span.end] == b"\xfe\xdc\xde\xad"
    parts = sorted((block.offset, block.part) for group in encoded.index.ledgers for block in group.blocks)
    assert [part for _, part in parts] == list(range(1, len(parts) + 1))


@given(entries=entry_lists(), data=st.data())
def test_ranges(entries: list[Entry], data: st.DataObject) -> None:
    encoded = encode(entries, block_bytes_max=4096)
    ledger = data.draw(st.sampled_from(sorted({entry.ledger for entry in entries})))
    ids = [entry.entry for entry in entries if entry.ledger == ledger]
    near = st.sampled_from(ids).flatmap(lambda entry: st.integers(max(0, entry - 2), entry + 2))
    first = data.draw(near)
    last = data.draw(st.none() | near.map(lambda entry: max(entry, first)))
    expected = [
        entry
        for entry in entries
        if entry.ledger == ledger and first <= entry.entry <= (1 << 63 if last is None else last)
    ]
    for window in (4096, 1 << 20):
        reader = encoded.reader(window)
        assert list(iter_entries(reader, ledger, first, last)) == expected
        assert rows(list(read_batches(reader, ledger, first, last))) == expected


@given(
    entries=entry_lists().map(lambda entries: [entry for entry in entries if entry.ledger == entries[0].ledger]),
    block_max=st.sampled_from([4096, 1 << 20]),
    kind=st.sampled_from([pa.binary(), pa.large_binary(), pa.string()]),
    data=st.data(),
)
def test_arrow_writes_the_same_bytes(
    entries: list[Entry], block_max: int, kind: pa.DataType, data: st.DataObject
) -> None:
    """However the arrays are cut or chunked."""
    if kind == pa.string():
        entries = [entry._replace(payload=b"a" * len(entry.payload)) for entry in entries]
    expected = encode(entries, block_bytes_max=block_max)
    # A slice in front, so that arrays have an offset.
    payloads = pa.array([b"unseen", *(entry.payload for entry in entries)], pa.binary()).cast(kind)[1:]
    ids = pa.array([-5, *(entry.entry for entry in entries)], pa.int64())[1:]
    sink = Sink()
    encoder = SegmentEncoder(sink, block_bytes_max=block_max)
    encoder.begin_ledger(entries[0].ledger)
    cuts = sorted({0, len(entries), *data.draw(st.lists(st.integers(0, len(entries)), max_size=3))})
    for begin, end in pairwise(cuts):
        part, part_ids = payloads[begin:end], ids[begin:end]
        if data.draw(st.booleans()):
            part = pa.chunked_array([part[: len(part) // 2], part[len(part) // 2 :]])
        dense = part_ids[-1].as_py() - part_ids[0].as_py() == len(part_ids) - 1
        append_batch(encoder, part_ids[0].as_py() if dense else part_ids, part)
    index = encoder.finish()
    assert sink.data == expected.data
    assert index == expected.index_bytes


def encoder_of(**options: int) -> tuple[SegmentEncoder, Sink]:
    sink = Sink()
    return SegmentEncoder(sink, **options), sink


def test_blocks_are_cut_at_their_size() -> None:
    encoder, sink = encoder_of(block_bytes_max=4096)
    encoder.begin_ledger(5)
    for number in range(100):
        encoder.append(number, bytes(100))
        assert encoder.pending_bytes + encoder.length <= (number + 1) * 112 + len(sink.blocks) * 132
    encoder.finish()
    assert [block.entries for block in sink.blocks] == [35, 35, 30]
    assert [block.length for block in sink.blocks] == [128 + 35 * 112 + 4, 128 + 35 * 112 + 4, 128 + 30 * 112]
    assert [(block.first_entry, block.last_entry) for block in sink.blocks] == [(0, 34), (35, 69), (70, 99)]
    exact, sink = encoder_of(block_bytes_max=4096)
    exact.begin_ledger(5)
    exact.append(0, bytes(4096 - 128 - 4 - 12 - 12))
    exact.append(1, b"")
    assert not sink.blocks
    exact.append(2, b"")
    assert [block.length for block in sink.blocks] == [4096]


def test_refused_calls_change_nothing() -> None:
    encoder, sink = encoder_of()
    with pytest.raises(InvalidArgument, match="begin_ledger"):
        encoder.append(0, b"")
    for ledger in (-1, 1 << 63):
        with pytest.raises(InvalidArgument):
            encoder.begin_ledger(ledger)
    with pytest.raises(InvalidArgument, match="info of ledger 2"):
        encoder.begin_ledger(1, LedgerInfo(ledger=2))
    with pytest.raises(InvalidArgument):
        encoder.begin_ledger(1, LedgerInfo(ledger=1, size=1 << 63))
    encoder.begin_ledger(1, LedgerInfo(ledger=1, entries=9, timestamp_ms=7))
    encoder.append(5, b"five")
    for entry in (-1, 4, 5, 1 << 63):
        with pytest.raises(InvalidArgument, match="follow"):
            encoder.append(entry, b"")
    with pytest.raises(InvalidArgument, match="at most"):
        encoder.append(6, memoryview(bytes(ENTRY_BYTES_MAX + 1)))
    with pytest.raises(InvalidArgument, match="has not begun"):
        encoder.describe(LedgerInfo(ledger=2))
    with pytest.raises(InvalidArgument):
        encoder.describe(LedgerInfo(ledger=1, size=1 << 63))
    bad: list[tuple[object, object]] = [
        (6, [b"x"]),
        (6, pa.array([b"x", None])),
        (6, pa.array([1])),
        (5, pa.array([b"x"])),
        ((1 << 63) - 1, pa.array([b"x", b"y"])),
        (pa.array([6, 6]), pa.array([b"x", b"y"])),
        (pa.array([6, 7, 8]), pa.array([b"x", b"y"])),
        (pa.array([6, None]), pa.array([b"x", b"y"])),
        (pa.array([6.0, 7.0]), pa.array([b"x", b"y"])),
        (pa.array([5, 7]), pa.array([b"x", b"y"])),
    ]
    for entries, payloads in bad:
        with pytest.raises(InvalidArgument):
            append_batch(encoder, entries, payloads)
    with pytest.raises(InvalidArgument):
        encoder.append_framed(5, 5, 1, b"")
    append_batch(encoder, 6, pa.array([], pa.binary()))
    index = encoder.finish()
    assert Encoded(sink.data, index).entries() == [Entry(1, 5, b"five")]
    assert Encoded(sink.data, index).index.group(1).info == LedgerInfo(ledger=1, entries=9, timestamp_ms=7)
    for call in (encoder.cut, encoder.finish, lambda: encoder.append(9, b""), lambda: encoder.begin_ledger(2)):
        with pytest.raises(Closed):
            call()
    for options in (
        {"block_bytes_max": 100},
        {"block_bytes_min": -1},
        {"block_bytes_max": 4096, "block_bytes_min": 4097},
    ):
        with pytest.raises(InvalidArgument):
            encoder_of(**options)


def test_wrong_ranges_and_ledgers() -> None:
    reader = encode([Entry(3, 5, b"x")]).reader()
    for arguments in ((4,), (3, -1), (3, 6, 5)):
        with pytest.raises(InvalidArgument):
            list(iter_entries(reader, *arguments))
    assert list(iter_entries(reader, 3, 6)) == []
    assert list(iter_entries(reader, 3, 0, 4)) == []
    with pytest.raises(InvalidArgument):
        encode([Entry(3, 5, b"x")]).reader(100)
