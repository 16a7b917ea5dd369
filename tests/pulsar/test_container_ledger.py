"""Ledgers that are ledger-based, streaming, or both; in a container, too, with what Pulsar's own readers want of the objects."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import chunkstore
from chunkstore.buckets import open_bucket
from chunkstore.codec.pulsar.encoding import EncodedBlock
from chunkstore.codec.pulsar.frames import DataSource, Entry
from chunkstore.codec.pulsar.pip17 import LedgerObjectReader
from chunkstore.codec.pulsar.pip76 import SegmentIndex, SegmentReader, read_index
from chunkstore.config import KIB
from chunkstore.pulsar import OffloadWriter, open_ledger
from chunkstore.pulsar.read_handle import LedgerPart, StoredLedger
from chunkstore.pulsar.writer import Filled, SegmentFiller
from tests.support.pip17 import encode_ledger


def payload(ledger: int, entry: int) -> bytes:
    return b"%d:%d " % (ledger, entry) * (entry % 50)


def expected(ledger: int, count: int) -> list[Entry]:
    return [Entry(ledger, entry, payload(ledger, entry)) for entry in range(count)]


class Streamed:
    """Offload segments as pairs of bytes."""

    def __init__(self, size: int = 40_000) -> None:
        self.blocks: list[EncodedBlock] = []
        self.pairs: list[tuple[bytes, bytes, Filled]] = []
        self.filler = SegmentFiller(self.blocks.append, self.complete, segment_bytes_max=size, block_bytes=4 * KIB)

    def complete(self, filled: Filled) -> None:
        data = b"".join(bytes(part) for block in self.blocks for part in block.buffers)
        self.pairs.append((data, filled.index_data, filled))
        self.blocks.clear()

    def indexes(self) -> list[SegmentIndex]:
        return [read_index(index) for _, index, _ in self.pairs]


def test_a_topic_with_ledgers_of_both_kinds(tmp_path: Path) -> None:
    """PIP-76's test plan: ledger 1 was offloaded whole, ledger 2 whole and (from entry 300 on) streaming, 3 streaming."""
    streamed = Streamed()
    for ledger, entries in ((2, range(300, 900)), (3, range(700))):
        for entry in entries:
            streamed.filler.append(ledger, entry, payload(ledger, entry))
    streamed.filler.complete()
    parts: dict[int, list[LedgerPart]] = {1: [], 2: [], 3: []}
    with open_bucket(tmp_path.as_uri()) as bucket:

        def stored(name: str, data: bytes) -> DataSource:
            bucket.put(name, data)
            return DataSource(name, len(data), partial(bucket.read, name))

        for ledger, count in ((1, 500), (2, 600)):
            pair = encode_ledger((payload(ledger, entry) for entry in range(count)), block_bytes_max=8 * KIB)
            source = stored(f"uuid-ledger-{ledger}", pair.data)
            parts[ledger].append(LedgerPart(LedgerObjectReader(source, pair.index, ledger=ledger), 0, count - 1))
        for number, (data, index, filled) in enumerate(streamed.pairs):
            reader = SegmentReader(stored(f"segment-{number}", data), read_index(index))
            for ledger, first, last, _ in filled.ranges:
                parts[ledger].append(LedgerPart(reader, first, last))
        for ledger, count in ((1, 500), (2, 900), (3, 700)):
            with StoredLedger(ledger, parts[ledger], last_add_confirmed=count - 1) as handle:
                assert list(handle.iter_entries()) == expected(ledger, count)
                for first, last in ((299, 301), (310, 499), (count - 1, count - 1)):
                    assert handle.read(first, last) == expected(ledger, count)[first : last + 1]


def test_a_ledger_in_a_container_open_segments_included(tmp_path: Path) -> None:
    root = tmp_path.as_uri()
    with chunkstore.open(root) as store:
        writer = OffloadWriter(store, "t", block_bytes=4 * KIB, segment_bytes_max=20_000)
        for entry in range(1000):
            writer.append(1, entry, payload(1, entry))
            if entry % 7 == 0:
                writer.append(2, entry // 7, payload(2, entry // 7))  # its blocks lie between
        writer.flush()
        with chunkstore.open_replica(root) as replica:
            for reading in (store, replica):
                with open_ledger(reading, "t", 1) as handle:
                    assert (handle.last_add_confirmed, handle.closed, handle.length) == (999, False, None)
                    assert list(handle.iter_entries()) == expected(1, 1000)
                    assert handle.read(50, 149) + handle.read(150, 160) == expected(1, 161)[50:]
                assert open_ledger(reading, "t", 2).read(100, 142) == expected(2, 143)[100:]
        writer.close()
        for ledger, count in ((1, 1000), (2, 143)):
            with open_ledger(store, "t", ledger) as handle:
                assert handle.closed
                assert handle.length == sum(len(item.payload) for item in expected(ledger, count))


@pytest.mark.parametrize("entries_per_segment", [1, 4, 32, 128, 129])
def test_no_segment_begins_with_entry_128(entries_per_segment: int) -> None:
    """A block for each entry; one by one, and as arrays."""
    single, arrays = (Streamed(entries_per_segment * 3144) for _ in range(2))
    for entry in range(140):
        single.filler.append(1, entry, bytes(3000))
    arrays.filler.append_batch(1, 0, pa.array([bytes(3000)] * 140, pa.binary()))
    for streamed in (single, arrays):
        streamed.filler.complete()
        assert len(streamed.pairs) >= 140 // entries_per_segment - 1
        assert all(index.group(1).blocks[0].first_entry != 128 for index in streamed.indexes())
    assert single.pairs == arrays.pairs
