"""Entries of the offset index come with snapshots and are not covered by the state digest: malformed ones are ``Damaged``.

Before, they let ``struct.error`` out of reads; and a list of chunks that contains a cycle was walked for as long as the
segment's row said it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from chunkstore.errors import Damaged
from chunkstore.metadata.codec import encode_row, encode_segment
from chunkstore.metadata.index import rebuild_index, walk
from chunkstore.metadata.keys import chunk_key, segment_key
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.metadata.port import Head, MetadataView, Position
from chunkstore.records.segments import ChunkRecord, SegmentRecord

SEGMENT, RUN = (7).to_bytes(8, "big"), (5).to_bytes(8, "big")
ZERO, HIGH = bytes(8), b"\xff" * 8
CHUNK_ID = bytes(28)


@contextmanager
def view_of(*pairs: tuple[bytes, bytes]) -> Iterator[MetadataView]:
    store = MemoryMetadataCache(bytes(16), "here", shelf=MemoryShelf()).create()
    store.load(sorted(pairs))
    store.finish_load(Head(Position(1, bytes(16), 1, 1, 0), 0))
    with store.view() as view:
        yield view
    store.close(clean=False)


def test_a_well_formed_entry_is_found() -> None:
    with view_of((b"r" + SEGMENT + ZERO, RUN + ZERO), (b"x" + RUN + ZERO, CHUNK_ID)) as view:
        assert view.locate(7, 3) == (CHUNK_ID, 0)
        assert view.count_chunks(7, 0, 5) == 1


@pytest.mark.parametrize(
    "pairs",
    [
        [(b"r" + SEGMENT + ZERO, b"short")],
        [(b"r" + SEGMENT + ZERO, RUN + ZERO + b"long")],
        [(b"r" + SEGMENT, RUN + ZERO)],
        [(b"r" + SEGMENT + ZERO, RUN + HIGH)],
        [(b"r" + SEGMENT + ZERO, RUN + ZERO), (b"x" + RUN, CHUNK_ID)],
        [(b"r" + SEGMENT + ZERO, RUN + ZERO), (b"x" + RUN + ZERO, b"no chunk id")],
        [(b"r" + SEGMENT + ZERO, RUN + ZERO), (b"x" + RUN + ZERO, b"")],
    ],
)
def test_a_malformed_entry_is_damage(pairs: list[tuple[bytes, bytes]]) -> None:
    with view_of(*pairs) as view, pytest.raises(Damaged, match="offset index of segment 7"):
        view.locate(7, 3)


@pytest.mark.parametrize("pair", [(b"r" + SEGMENT + ZERO, b"short"), (b"r" + SEGMENT + ZERO, RUN + HIGH)])
def test_counting_over_a_malformed_entry_is_damage(pair: tuple[bytes, bytes]) -> None:
    with view_of(pair) as view, pytest.raises(Damaged, match="offset index"):
        view.count_chunks(7, 1, 5)


NUMBER_MAX = (1 << 63) - 1


def ring(length: int, chunk_bytes: int = 1) -> tuple[SegmentRecord, dict[bytes, bytes]]:
    """A list whose last chunk leads back to one in the middle."""
    ids = [number.to_bytes(28, "big") for number in range(1, length + 1)]
    rows = {}
    for at, identity in enumerate(ids):
        following = ids[at + 1] if at + 1 < length else ids[length // 2]
        chunk = ChunkRecord("", 0, chunk_bytes, None, b"", following, 7, 1, 2, 1, 5)
        rows[chunk_key(identity)] = encode_row(chunk)
    segment = SegmentRecord("log", 7, 0, 0, NUMBER_MAX, ids[0], ids[-1], 0, 0, 1, 1, NUMBER_MAX, {}, 1, 1)
    return segment, rows


@pytest.mark.parametrize("length", [1, 2, 3, 10, 1000])
def test_a_ring_is_damage(length: int) -> None:
    segment, rows = ring(length)
    seen = 0
    with pytest.raises(Damaged, match="contains a cycle"):
        for _ in walk(rows.get, segment):
            seen += 1
    assert length <= seen <= 4 * length


@pytest.mark.parametrize("change", [{"first_chunk_skip": 1}, {}], ids=["below 0", "beyond all offsets"])
def test_offsets_of_a_hostile_list_are_damage(change: dict[str, int]) -> None:
    segment, rows = ring(8, NUMBER_MAX)
    segment = segment._replace(**change)  # type: ignore[arg-type]
    with (
        view_of(*rows.items(), (segment_key("log"), encode_segment(segment))) as view,
        pytest.raises(Damaged, match="offset"),
    ):
        list(rebuild_index(view))
