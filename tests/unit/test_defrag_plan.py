"""The planner of merges, by rules that hold for whatever list of chunks: and the bound of how often a byte is written."""

from __future__ import annotations

from math import floor, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore import DefragPolicy, InvalidArgument
from chunkstore.config import KIB, MIB
from chunkstore.upkeep.defrag_plan import DefragChunk, DefragRun, plan_runs, rank, requests_of
from tests.support.data import refused

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


def test_tiers() -> None:
    policy, target = DefragPolicy(), 128 * MIB

    def plan(sizes: list[int], *, growing: bool = False) -> list[DefragRun]:
        return plan_runs(listed(sizes), policy, target, growing=growing)

    assert [rank(size, target, 8) for size in (target + 1, target, 16 * MIB + 1, 16 * MIB, 2 * MIB, 1, 0)] == [
        0, 0, 0, 1, 2, 9, 0,
    ]  # fmt: skip
    assert plan([64 * KIB] * 7) == []
    assert plan([64 * KIB] * 8) == [(0, 8)]
    assert plan([64 * KIB] * 10_000) == [*((at, at + 2048) for at in range(0, 8192, 2048)), (8192, 10_000)]
    # The last merge waits for a full chunk where more is to come, and for nothing where no more can come.
    assert plan([16 * MIB] * 7 + [8 * MIB] * 1, growing=True) == []
    assert plan([16 * MIB] * 8, growing=True) == [(0, 8)]
    assert plan([8 * MIB] * 9 + [target], growing=True) == [(0, 9)]
    # A large one does not move for the sake of small ones, unless they are many.
    assert plan([9 * MIB, *[64 * KIB] * 8]) == [(1, 9)]
    assert plan([9 * MIB, *[64 * KIB] * 200]) == [(0, 201)]


@pytest.mark.parametrize(
    ("dead", "length", "moves"),
    [(8 * MIB, 8 * MIB, True), (8 * MIB, 8 * MIB + 1, False), (8 * MIB - 1, 1, False), (100 * MIB, 28 * MIB, True)],
)
def test_a_first_chunk_moves_where_half_of_it_and_8_mib_are_dead(dead: int, length: int, moves: bool) -> None:
    runs = plan_runs(listed([length, 128 * MIB], dead=dead), DefragPolicy(), 128 * MIB, growing=True)
    assert runs == ([(0, 1)] if moves else [])
    assert plan_runs(listed([length], dead=dead, stays=frozenset([0])), DefragPolicy(), 128 * MIB, growing=True) == []


def test_policies_and_costs() -> None:
    assert requests_of(100, 10 * MIB, DefragPolicy(verify=False)) == 103
    assert requests_of(100, 10 * MIB, DefragPolicy()) == 106
    refused(
        InvalidArgument,
        lambda: DefragPolicy(fanout=1),
        lambda: DefragPolicy(fanout=8.0),  # type: ignore[arg-type]
        lambda: DefragPolicy(fanout=100, run_chunks_max=99),
        lambda: DefragPolicy(run_chunks_max=10_001),
        lambda: DefragPolicy(run_bytes_max=0),
        lambda: DefragPolicy(age_s_min=-1.0),
        lambda: DefragPolicy(age_s_min=float("nan")),
        lambda: DefragPolicy(verify=1),  # type: ignore[arg-type]
    )
