"""Offload segments as pure bytes: the same entries give the same, however they are added, and nothing grows beyond its bounds."""

from __future__ import annotations

from itertools import groupby
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.codec.pulsar.encoding import EncodedBlock
from chunkstore.pulsar import writer as filling
from chunkstore.pulsar.writer import Filled, SegmentFiller

LEDGERS_MAX, BLOCKS_MAX, SEGMENT_BYTES = 3, 5, 20_000

RUN = st.tuples(st.integers(1, 5), st.lists(st.sampled_from([0, 1, 100, 3000, 4200, 9000]), min_size=1, max_size=12))
RUNS = st.lists(RUN, max_size=10)
"""A ledger, and how long its next entries are."""


class Filling:
    """What a filler hands out."""

    def __init__(self) -> None:
        self.blocks: list[EncodedBlock] = []
        self.found: list[tuple[bytes, Filled]] = []
        self.filler = SegmentFiller(self.put, self.complete, segment_bytes_max=SEGMENT_BYTES, block_bytes=4096)

    def put(self, block: EncodedBlock) -> None:
        self.blocks.append(block)

    def complete(self, filled: Filled) -> None:
        data = b"".join(bytes(part) for block in self.blocks for part in block.buffers)
        assert len(data) == filled.data_length
        assert self.blocks[-1].offset < SEGMENT_BYTES, "the block before has not filled it"
        assert len(self.blocks) <= BLOCKS_MAX
        assert len(filled.ranges) <= LEDGERS_MAX
        assert sum(item.entries for item in filled.ranges) == sum(block.entries for block in self.blocks)
        self.found.append((data, filled))
        self.blocks = []


@given(RUNS, st.sets(st.integers(0, 60), max_size=10))
def test_arrays_and_single_entries_give_the_same_bytes(runs: list[tuple[int, list[int]]], cuts: set[int]) -> None:
    entries = [(ledger, size) for ledger, sizes in runs for size in sizes]
    with patch.object(filling, "LEDGERS_MAX", LEDGERS_MAX), patch.object(filling, "BLOCKS_MAX", BLOCKS_MAX):
        compare(entries, cuts)


def compare(entries: list[tuple[int, int]], cuts: set[int]) -> None:
    single, arrays = Filling(), Filling()
    for ledger, size in entries:
        single.filler.append(ledger, single.filler.last_added(ledger) + 1, b"%d" % ledger * size)
    parts = enumerate(entries)
    cut = 0

    def part_of(item: tuple[int, tuple[int, int]]) -> tuple[int, int]:
        nonlocal cut
        cut += item[0] in cuts
        return item[1][0], cut

    for (ledger, _), rows in groupby(parts, part_of):
        payloads = pa.array([b"%d" % ledger * size for _, (_, size) in rows], pa.binary())
        arrays.filler.append_batch(ledger, arrays.filler.last_added(ledger) + 1, payloads)
    for made in (single, arrays):
        made.filler.complete()
        assert made.blocks == []
    assert single.found == arrays.found
