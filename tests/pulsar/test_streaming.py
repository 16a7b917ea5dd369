"""Streaming offload: the contract of a handle, its buffer, its ends, what is left after crashes, and segment after segment."""

from __future__ import annotations

import uuid
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chunkstore
from chunkstore import runtime
from chunkstore.codec.pulsar.frames import Entry
from chunkstore.config import KIB, MIB
from chunkstore.errors import Closed, Conflict, DeadlineExceeded, InvalidArgument, Unsupported
from chunkstore.pulsar.contexts import iter_contexts
from chunkstore.pulsar.ledgers import MemorySource, Position
from chunkstore.pulsar.read_handle import ReadHandle
from chunkstore.pulsar.streaming import (
    OfferResult,
    OffloadException,
    OffloadHandle,
    OffloadResult,
    StreamingPolicy,
    streaming_offload,
)
from chunkstore.pulsar.streaming_offloader import StreamingOffloader, stream_directory
from tests.pulsar.support_streaming import SMALL, TOPIC, WAIT_S, Gate, entry_of, source_of, stored_entries
from tests.support.clock import stopped_clock
from tests.support.data import problems
from tests.support.worlds import World, world

__all__ = ["world"]

SUCCESS, FULL = OfferResult.SUCCESS, OfferResult.BUFFER_FULL
CLOSED, WRONG = OfferResult.SEGMENT_CLOSED, OfferResult.NOT_CONSECUTIVE
UUID = uuid.UUID("0a1b2c3d-0000-4000-8000-00000000000f")


def stream(store: Any, policy: StreamingPolicy = SMALL, topic: str = TOPIC) -> OffloadHandle:
    return streaming_offload(store, topic, policy=policy)


def result_of(handle: OffloadHandle) -> OffloadResult:
    return handle.get_offload_result_async().result(WAIT_S)


def failure_of(handle: OffloadHandle) -> OffloadException:
    error = handle.get_offload_result_async().exception(WAIT_S)
    assert isinstance(error, OffloadException)
    return error


def take(handle: OffloadHandle, entry: Entry) -> OfferResult:
    """Offer until it is decided."""
    while (outcome := handle.offer_entry(entry)) is FULL:
        handle.wait_for_room(len(entry.payload), WAIT_S)
    return outcome


def test_only_success_is_true() -> None:
    assert [bool(outcome) for outcome in (SUCCESS, FULL, CLOSED, WRONG)] == [True, False, False, False]


def test_a_segment_from_its_assignment_to_its_result(world: World) -> None:
    with world.open() as store:
        handle = streaming_offload(store, TOPIC, str(UUID), {"bucket": "b"}, policy=SMALL)
        assert (handle.last_offered(), handle.is_open, iter_contexts(store, TOPIC)) == (None, True, [])
        for entry in [*(entry_of(3, number) for number in range(50)), entry_of(7, 0), entry_of(7, 1)]:
            assert take(handle, entry) is SUCCESS
        assert handle.last_offered() == Position(7, 1)
        with pytest.raises(InvalidArgument, match="at most"):
            handle.offer_entry(Entry(7, 2, bytes(129 * MIB)))
        assert (handle.close(), handle.close(), handle.can_offer(1)) == (True, False, False)
        assert handle.offer_entry(entry_of(7, 2)) is CLOSED
        assert result_of(handle) == OffloadResult(str(UUID), 3, 0, 7, 1)
        [context] = iter_contexts(store, TOPIC)
        assert (context.status, context.begin, context.end, context.failures) == ("Offloaded", (3, 0), (7, 1), 0)
        assert context.driver == (("bucket", "b"),)
        assert 0 < context.assigned_ms <= context.offloaded_ms
        assert stored_entries(store) == [entry_of(3, number) for number in range(50)] + [entry_of(7, 0), entry_of(7, 1)]
        assert not problems(store.check("deep"))


def test_wrong_arguments_are_refused(world: World) -> None:
    with world.open() as store:
        for policy in (
            StreamingPolicy(0),
            StreamingPolicy(1, 0),
            StreamingPolicy(1, 1, 1),
            StreamingPolicy(1, 1, MIB, 2 * MIB),
        ):
            with pytest.raises(InvalidArgument):
                stream(store, policy)
        for driver in ({"a": 1}, {"a": "x" * 9000}, {"a": "\ud800"}, {str(at): "" for at in range(65)}, 7):
            with pytest.raises(InvalidArgument):
                streaming_offload(store, TOPIC, driver_metadata=driver)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            streaming_offload(store, TOPIC, "no uuid")


# The buffer


def test_a_storage_that_hangs_never_holds_an_offer_up_and_bytes_are_bounded(world: World) -> None:
    with world.open() as store:
        gate: Any = Gate(store)
        gate.opened = runtime.event()
        handle = stream(gate)
        outcomes, number, held_bytes = list[OfferResult](), 0, 0
        while not outcomes or outcomes[-1]:
            outcomes.append(handle.offer_entry(entry_of(1, number, 1000)))
            held_bytes += (12 + len(entry_of(1, number, 1000).payload)) * bool(outcomes[-1])
            number += 1
        assert outcomes[-1] is FULL
        assert handle.held_bytes == held_bytes <= SMALL.write_buffer_bytes
        assert not handle.can_offer(1000)
        with pytest.raises(DeadlineExceeded):
            handle.wait_for_room(1000, 0.01)
        # What was refused is the next one, and no later ledger passes it.
        assert [handle.offer_entry(entry_of(*at, 1)) for at in ((1, number), (2, 0))] == [WRONG, WRONG]
        gate.opened.set()
        for again in range(number - 1, number + 20):
            assert take(handle, entry_of(1, again, 1000)) is SUCCESS
        handle.suspend(WAIT_S)
        assert handle.held_bytes == 0
        assert stored_entries(store) == [entry_of(1, at, 1000) for at in range(number + 20)]


# Ends


def test_a_segment_ends_by_its_size(world: World) -> None:
    with world.open() as store:
        handle = stream(store)
        number = 0
        while take(handle, entry_of(1, number, 16 * KIB)):
            number += 1
        sizes = [12 + len(entry_of(1, at, 16 * KIB).payload) for at in range(number)]
        assert sum(sizes[:-1]) < MIB <= sum(sizes)
        assert result_of(handle)[1:] == (1, 0, 1, number - 1)


def test_a_segment_ends_by_the_clock(world: World) -> None:
    with stopped_clock() as clock, world.open() as store:
        handle = stream(store)
        clock.now_s += 3600  # the time begins with the first entry
        assert handle.offer_entry(entry_of(1, 0)) is SUCCESS
        clock.now_s += 599
        assert handle.offer_entry(entry_of(1, 1)) is SUCCESS
        clock.now_s += 1
        assert handle.offer_entry(entry_of(1, 2)) is CLOSED
        assert result_of(handle)[1:] == (1, 0, 1, 1)


# Going on


def test_a_suspended_segment_goes_on_with_its_uuid(world: World) -> None:
    with world.open() as store:
        handle = streaming_offload(store, TOPIC, UUID, policy=SMALL)
        take(handle, entry_of(1, 0))
        handle.suspend(WAIT_S)
        handle.suspend(WAIT_S)
        assert failure_of(handle).error == "Suspended"
        assert iter_contexts(store, TOPIC)[0].status == "Assigned"
        with pytest.raises(Conflict):
            streaming_offload(store, TOPIC, "00" * 16, policy=SMALL)
    with world.open() as store:
        handle = streaming_offload(store, TOPIC, UUID, policy=SMALL)
        assert handle.last_offered() == Position(1, 0)
        take(handle, entry_of(1, 1))
        handle.close()
        assert result_of(handle) == OffloadResult(str(UUID), 1, 0, 1, 1)


@pytest.mark.parametrize("happens", [False, True])
@pytest.mark.parametrize("at", range(7))
def test_a_new_owner_resumes_the_same_segment_and_loses_nothing(at: int, happens: bool, tmp_path: Any) -> None:
    """The calls: assignment, four blocks, completion."""
    world = World("memory", "slot", tmp_path)
    old = world.open()
    gate = Gate(old)
    gate.fails_at, gate.happens = at, happens
    handle = stream(gate, StreamingPolicy(1, 10, 64 * KIB, 8 * KIB))
    entries = [entry_of(1, number, 400) for number in range(60)]
    taken = 0
    while taken < len(entries) and take(handle, entries[taken]):
        taken += 1
    handle.close()
    if at < 6:
        assert failure_of(handle).error == "StorageUnavailable"
    else:
        result_of(handle)
        assert gate.calls == 6
    stored = stored_entries(old) if iter_contexts(old, TOPIC) and iter_contexts(old, TOPIC)[0].data_length else None
    before = iter_contexts(old, TOPIC)
    world.crash(old)
    world.forget_cache()
    with world.open() as store:
        if before and not before[0].complete:
            assert before[0].status == ("Assigned" if not handle.uuid else "Failed")
        after = stream(store)
        last = after.last_offered()
        for number in range(0 if last is None else last.entry + 1, 60):
            assert take(after, entries[number]) is SUCCESS
        if before and not before[0].complete:
            after.close()
            assert result_of(after).uuid == before[0].data.rpartition("/")[2]
            assert len(iter_contexts(store, TOPIC)) == 1
        else:
            after.suspend(WAIT_S)
        assert stored_entries(store) == entries
        assert stored is None or stored == entries[: len(stored)]
        assert not problems(store.check("deep"))


def test_a_failure_is_recorded_and_the_next_attempt_clears_it(world: World) -> None:
    with world.open() as store:
        for failures in (1, 2):
            gate: Any = Gate(store)
            gate.fails_at = 2 - failures  # the first block; the assignment was the first call of the first handle
            handle = stream(gate)
            take(handle, entry_of(1, 0))
            handle.close()
            assert failure_of(handle).error == "StorageUnavailable"
            [context] = iter_contexts(store, TOPIC)
            assert (context.status, context.failures) == ("Failed", failures)
        handle = stream(store)
        assert iter_contexts(store, TOPIC)[0].status == "Assigned"
        assert [take(handle, entry_of(*at)) for at in ((2, 0), (1, 1), (1, 0))] == [WRONG, WRONG, SUCCESS]
        handle.close()
        result_of(handle)
        [context] = iter_contexts(store, TOPIC)
        assert (context.status, context.failures) == ("Offloaded", 2)


# Against a model


def follows(taken: list[tuple[int, int]], ledger: int, entry: int) -> bool:
    last = taken[-1] if taken else (-1, -1)
    return ledger >= 0 and ((ledger, entry) == (last[0], last[1] + 1) or (ledger > last[0] and entry == 0))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(-1, 4), st.integers(0, 5)),
            st.sampled_from(["next", "next", "next ledger", "again", "close", "suspend", "next handle"]),
        ),
        max_size=40,
    )
)
def test_any_offers_equal_a_model(steps: list[Any]) -> None:
    with chunkstore.open(f"memory://streaming-{runtime.token(8).hex()}") as store:
        handle, taken, is_open = stream(store), list[tuple[int, int]](), True
        for step in steps:
            ledger, entry = taken[-1] if taken else (-1, -1)
            if step == "close":
                assert handle.close() == is_open
                is_open = False
            elif step == "suspend":
                handle.suspend(WAIT_S)
                is_open = False
            elif step == "next handle" and not is_open:
                handle.get_offload_result_async().exception(WAIT_S)
                handle, is_open = stream(store), True
            elif step != "next handle":
                at = {"next": (ledger, entry + 1), "next ledger": (ledger + 1, 0), "again": (ledger, abs(entry))}.get(
                    step, step
                )
                expected = (SUCCESS if follows(taken, *at) else WRONG) if is_open else CLOSED
                assert handle.offer_entry(entry_of(*at)) is expected
                taken += [at] if expected else []
        handle.suspend(WAIT_S)
        if taken:
            assert [(found.ledger, found.entry) for found in stored_entries(store)] == taken


# Segment after segment


def entries_of(source: MemorySource) -> list[Entry]:
    return [Entry(key, entry, data) for key, row in sorted(source.entries.items()) for entry, data in enumerate(row)]


class CachedSource(MemorySource):
    """Entries of ledger 1 from 300 on are cached; ``opened``: the ledgers that were read."""

    hits = misses = 0

    def __init__(self, source: MemorySource) -> None:
        super().__init__(source.entries)
        self.opened: list[ReadHandle] = []

    def open(self, ledger: int) -> ReadHandle:
        self.opened.append(super().open(ledger))
        return self.opened[-1]

    def cached(self, ledger: int, first: int, last: int) -> list[Entry] | None:
        if ledger != 1 or first < 300:
            self.misses += ledger == 1
            return None
        self.hits += 1
        return super().open(ledger).read(first, last)


def test_every_entry_gets_in_once_over_many_segments_and_full_buffers(world: World) -> None:
    source = CachedSource(source_of({1: 1500, 4: 700, 5: 1}))
    with world.open() as store:
        results = stream_directory(store, TOPIC, source, policy=SMALL, close=True)
        assert len(results) > 2
        for one, other in pairwise(results):
            assert other[1:3] == (one.end_ledger_id, one.end_entry_id + 1)
        assert results[-1][3:] == (5, 0)
        assert stored_entries(store) == entries_of(source)
        assert source.misses > 1  # its buffer was full
        assert source.hits > 0
        for handle in source.opened:
            with pytest.raises(Closed):
                handle.read(0, 0)
        assert stream_directory(store, TOPIC, source, policy=SMALL, close=True) == []
        assert not problems(store.check("deep"))


def test_without_close_everything_is_stored_and_the_next_call_goes_on(world: World) -> None:
    source = source_of({1: 10}, closed_ms={1: None})
    with world.open() as store:
        assert stream_directory(store, TOPIC, source, policy=SMALL) == []
        assert stored_entries(store) == entries_of(source)
        assert iter_contexts(store, TOPIC)[0].status == "Assigned"
    source = source_of({1: 20, 2: 3})
    with world.open() as store:
        [result] = stream_directory(store, TOPIC, source, policy=SMALL, close=True)
        assert result[1:] == (1, 0, 2, 2)
        assert stored_entries(store) == entries_of(source)


def test_streams_have_one_format() -> None:
    with chunkstore.open("memory://streaming-format") as store, pytest.raises(Unsupported, match="v2"):
        stream_directory(store, TOPIC, source_of({1: 1}), format="v1")


def test_back_to_ledger_based_the_segment_ends_with_its_ledger(world: World) -> None:
    source = source_of({1: 10, 2: 10})
    with world.open() as store:
        offloader = StreamingOffloader(store, TOPIC, source, policy=SMALL)
        for ledger, last in ((1, None), (2, 4), (2, None)):
            offloader.feed(ledger, last)
        result = offloader.offload_now()
        assert result is not None
        assert result[1:] == (1, 0, 2, 9)
        [context] = iter_contexts(store, TOPIC)
        assert (context.status, context.end) == ("Offloaded", Position(2, 9))
        offloader.close()
