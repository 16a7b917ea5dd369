"""Whole ledgers as PIP-17 pairs: what was appended comes back, one by one and as Arrow; blocks, ranges, rules, memory."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.codec.pulsar.arrow import append_batch, read_batches
from chunkstore.codec.pulsar.encoding import EncodedBlock
from chunkstore.codec.pulsar.frames import ENTRY_BYTES_MAX, DataSource, Entry
from chunkstore.codec.pulsar.offload_metadata import Ensemble, LedgerMetadata
from chunkstore.codec.pulsar.pip17 import LedgerEncoder, LedgerObjectReader, read_ledger_index
from chunkstore.codec.pulsar.windows import BlockReader, iter_entries
from chunkstore.errors import Closed, InvalidArgument, Unsupported
from tests.support.pip17 import METADATA, Pair, encode_ledger, minimal_read
from tests.support.pip76 import Sink

Found = TypeVar("Found")
SIZES = st.integers(0, 300) | st.sampled_from([0, 0, 372, 373, 884, 885, 2000, 9000])
BLOCK_SIZES = st.sampled_from([256, 512, 1024, 4096, 1 << 20]) | st.integers(256, 3000)
FULL = LedgerMetadata(
    write_quorum=2,
    ensemble_size=3,
    ensembles=(Ensemble(members=("a:1", "b:2"), first_entry=0), Ensemble(members=(), first_entry=2)),
    digest_type=3,
    ack_quorum=2,
    created_ms=1_700_000_000_000,
    custom=(("z", b"\xff\x00"), ("pulsar/managed-ledger", "t/ns/persistent/töpic".encode()), ("a", b"")),
)


def payloads_of(sizes: list[int]) -> list[bytes]:
    return [bytes([number & 255]) * size for number, size in enumerate(sizes)]


def rows(reader: BlockReader, first: int = 0, last: int | None = None) -> list[Entry]:
    [ledger] = reader.ledgers
    found: list[Entry] = []
    for batch in read_batches(reader, ledger, first, last):
        batch.validate(full=True)
        found += [Entry(row["ledger"], row["entry"], row["payload"]) for row in batch.to_pylist()]
    return found


@given(sizes=st.lists(SIZES, min_size=1, max_size=40), block_max=BLOCK_SIZES)
def test_round_trip(sizes: list[int], block_max: int) -> None:
    payloads = payloads_of(sizes)
    pair = encode_ledger(payloads, metadata=FULL, block_bytes_max=block_max)
    expected = [Entry(-1, entry, payload) for entry, payload in enumerate(payloads)]
    assert pair.entries() == expected
    assert pair.entries(4096) == expected
    assert rows(pair.reader(4096)) == expected
    assert minimal_read(pair.data, pair.index_bytes) == list(enumerate(payloads))
    assert pair.index.metadata == replace(FULL, length=sum(sizes), last_entry=len(sizes) - 1)
    assert pair.index.metadata.topic == "t/ns/persistent/töpic"


@given(sizes=st.lists(SIZES, min_size=1, max_size=40), block_max=BLOCK_SIZES, data=st.data())
def test_ranges(sizes: list[int], block_max: int, data: st.DataObject) -> None:
    pair = encode_ledger(payloads_of(sizes), block_bytes_max=block_max)
    first = data.draw(st.integers(0, len(sizes) + 1))
    last = data.draw(st.none() | st.integers(first, len(sizes) + 2))
    expected = pair.entries()[first : None if last is None else last + 1]
    assert list(iter_entries(pair.reader(4096), -1, first, last)) == expected
    assert rows(pair.reader(4096), first, last) == expected


@given(
    sizes=st.lists(SIZES, min_size=1, max_size=60),
    block_max=BLOCK_SIZES,
    kind=st.sampled_from([pa.binary(), pa.large_binary()]),
    data=st.data(),
)
def test_arrow_writes_the_same_bytes(sizes: list[int], block_max: int, kind: pa.DataType, data: st.DataObject) -> None:
    """However the arrays are cut, and with their ids named or counted."""
    payloads = payloads_of(sizes)
    expected = encode_ledger(payloads, block_bytes_max=block_max)
    array = pa.array([b"unseen", *payloads], kind)[1:]
    sink = Sink()
    encoder = LedgerEncoder(sink, METADATA, block_bytes_max=block_max)
    for begin, end in pairwise(sorted({0, len(sizes), *data.draw(st.lists(st.integers(0, len(sizes)), max_size=3))})):
        ids = begin if data.draw(st.booleans()) else pa.array(range(begin, end), pa.int64())
        append_batch(encoder, ids, array[begin:end])
    assert encoder.finish() == expected.index_bytes
    assert sink.data == expected.data


def encoder_of(**options: int) -> tuple[LedgerEncoder, Sink]:
    sink = Sink()
    return LedgerEncoder(sink, METADATA, **options), sink


def test_gaps_are_unsupported_and_named() -> None:
    encoder, sink = encoder_of()
    too_early: list[Callable[[], object]] = [
        lambda: encoder.append(2, b""),
        lambda: append_batch(encoder, 2, pa.array([b"x"])),
    ]
    for add in too_early:
        with pytest.raises(Unsupported, match="entries 0 to 1 are missing") as caught:
            add()
        assert caught.value.feature == "gaps"
    encoder.append(0, b"zero")
    with pytest.raises(Unsupported, match="entries 1 to 4 are missing"):
        encoder.append(5, b"")
    with pytest.raises(Unsupported, match="entries 1 to 4 are missing"):
        append_batch(encoder, 5, pa.array([b"a", b"b"]))
    with pytest.raises(Unsupported, match="entries 3 to 8 are missing"):
        append_batch(encoder, pa.array([1, 2, 9, 11]), pa.array([b"a", b"b", b"c", b"d"]))
    twice: list[Callable[[], object]] = [
        lambda: encoder.append(0, b""),
        lambda: append_batch(encoder, 0, pa.array([b"", b""])),
        lambda: append_batch(encoder, pa.array([1, 1]), pa.array([b"", b""])),
    ]
    for add in twice:
        with pytest.raises(InvalidArgument):
            add()
    with pytest.raises(InvalidArgument, match="at most"):
        encoder.append(1, memoryview(bytes(ENTRY_BYTES_MAX + 1)))
    append_batch(encoder, pa.array([1, 2]), pa.array([b"a", b"b"]))
    index = encoder.finish()
    assert [entry.payload for entry in Pair(sink.data, index).entries()] == [b"zero", b"a", b"b"]
    for call in (encoder.cut, encoder.finish, lambda: encoder.append(3, b"")):
        with pytest.raises(Closed):
            call()


def test_one_entry_costs_reads_of_one_block() -> None:
    pair = encode_ledger([b"p" * 100] * 5000, block_bytes_max=8192)
    asked: list[tuple[int, int]] = []

    def read(at: int, length: int) -> bytes:
        asked.append((at, length))
        return pair.data[at : at + length]

    reader = LedgerObjectReader(DataSource("data", len(pair.data), read), pair.index, window_bytes=4096)
    [entry] = iter_entries(reader, -1, 4321, 4321)
    assert entry.entry == 4321
    [span] = [span for span in reader.index.spans() if span.first_entry <= 4321 < span.entry_limit]
    assert len(asked) <= 3
    assert all(span.start <= at and at + length <= span.end for at, length in asked)


@pytest.mark.parametrize("by_arrow", [False, True])
def test_memory_is_a_block_for_writing_and_windows_for_reading(by_arrow: bool) -> None:
    """A ledger of 96 MiB in blocks of 4 MiB, through a file."""
    piece = pa.array([b"m" * 1000] * 1000, pa.binary())
    with tempfile.TemporaryFile() as file:

        def sink(block: EncodedBlock) -> None:
            for part in block.buffers:
                file.write(part)

        def read(at: int, length: int) -> bytes:
            file.seek(at)
            return file.read(length)

        def write_all() -> bytes:
            encoder = LedgerEncoder(sink, METADATA, block_bytes_max=4 << 20)
            for number in range(96):
                if by_arrow:
                    append_batch(encoder, number * 1000, piece)
                else:
                    for entry in range(number * 1000, number * 1000 + 1000):
                        encoder.append(entry, b"m" * 1000)
            return encoder.finish()

        index, written = peak_of(write_all)
        source = DataSource("data", file.seek(0, 2), read)
        reader = LedgerObjectReader(source, read_ledger_index(index))
        count, got = peak_of(
            lambda: (
                sum(batch.num_rows for batch in read_batches(reader, -1))
                if by_arrow
                else sum(1 for _ in iter_entries(reader, -1))
            )
        )
    assert count == 96_000
    assert written < 14 << 20, written
    assert got < 6 << 20, got


def peak_of(call: Callable[[], Found]) -> tuple[Found, int]:
    """What ``call`` returns, and the most bytes that Python and Arrow's pool of the moment held meanwhile."""
    usual, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1] + pool.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
