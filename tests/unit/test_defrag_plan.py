"""The planner of merges, by rules that hold for whatever list of chunks: and the bound of how often a byte is written."""

from __future__ import annotations

from math import floor, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore import DefragPolicy
from chunkstore.config import MIB
from chunkstore.upkeep.defrag_plan import DefragChunk, DefragRun, plan_runs, rank

TARGET = 1000


def listed(lengths: list[int], *, dead: int = 0, stays: frozenset[int] = frozenset()) -> list[DefragChunk]:
    chunks, offset = [], dead
    for number, length in enumerate(lengths):
        chunks.append(
            DefragChunk(b"%d" % number, offset, length, 0 if number else dead, number not in stays and length > 0)
        )
        offset += length
    return chunks


def merged(lengths: list[int], runs: list[DefragRun]) -> list[int]:
    """The lengths behind the merges."""
    result, at = list[int](), 0
    for first, last in runs:
        result += [*lengths[at:first], sum(lengths[first:last])]
        at = last
    return result + lengths[at:]


@given(
    st.lists(st.one_of(st.integers(0, 12), st.integers(0, 1200)), max_size=60),
    st.sampled_from([2, 3, 8]),
    st.sampled_from([8, 10_000]),
    st.booleans(),
    st.frozensets(st.integers(0, 59), max_size=3),
)
def test_what_a_plan_may_do(
    lengths: list[int], fanout: int, chunks_max: int, growing: bool, stays: frozenset[int]
) -> None:
    policy = DefragPolicy(fanout=fanout, run_chunks_max=chunks_max)
    chunks = listed(lengths, stays=stays)
    runs = plan_runs(chunks, policy, TARGET, growing=growing)
    behind = 0
    for first, last in runs:
        assert behind <= first
        assert fanout <= last - first <= chunks_max
        behind = last
        assert all(chunk.free for chunk in chunks[first:last])
        size = sum(lengths[first:last])
        assert size <= TARGET
        assert rank(size, TARGET, fanout) < min(rank(length, TARGET, fanout) for length in lengths[first:last])
    if stays or chunks_max < 10_000:
        return
    # Nothing is left to do, and of neighbours of one rank fewer than ``fanout``.
    left = merged(lengths, runs)
    assert plan_runs(listed(left), policy, TARGET, growing=growing) == []
    ranks = [rank(length, TARGET, fanout) for length in left]
    for at in range(len(left) - fanout + 1):
        same = set(ranks[at : at + fanout])
        assert same == {0} or len(same) > 1 or (growing and same == {1})


@given(
    st.integers(2, 9),
    st.integers(1, 40),
    st.lists(st.integers(0, 3), min_size=1, max_size=300),
    st.booleans(),
)
def test_a_byte_is_written_so_often_at_most(fanout: int, append: int, pauses: list[int], wait: bool) -> None:
    """Appends of ``append`` bytes or more, and a pass behind any number of them: no byte is moved more often than proven."""
    policy = DefragPolicy(fanout=fanout, run_chunks_max=max(fanout, 50))
    chunks: list[tuple[int, int]] = []
    for pause in pauses:
        chunks += [(append + pause, 0)]
        if pause:
            continue
        lengths = [length for length, _ in chunks]
        for first, last in reversed(plan_runs(listed(lengths), policy, TARGET, growing=wait)):
            moved = 1 + max(times for _, times in chunks[first:last])
            chunks[first:last] = [(sum(lengths[first:last]), moved)]
    assert max(times for _, times in chunks) <= floor(log(TARGET / append, fanout) + 1e-9)


@pytest.mark.parametrize(
    ("dead", "length", "moves"),
    [(8 * MIB, 8 * MIB, True), (8 * MIB, 8 * MIB + 1, False), (8 * MIB - 1, 1, False), (100 * MIB, 28 * MIB, True)],
)
def test_a_first_chunk_moves_where_half_of_it_and_8_mib_are_dead(dead: int, length: int, moves: bool) -> None:
    runs = plan_runs(listed([length, 128 * MIB], dead=dead), DefragPolicy(), 128 * MIB, growing=True)
    assert runs == ([(0, 1)] if moves else [])
    assert plan_runs(listed([length], dead=dead, stays=frozenset([0])), DefragPolicy(), 128 * MIB, growing=True) == []
