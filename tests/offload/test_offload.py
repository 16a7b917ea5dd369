"""Ledgers through the engine: writing, completing, crashes, fail-over, reading at owners and replicas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chunkstore
from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.pip76 import SegmentReader, read_index
from chunkstore.codec.pulsar.windows import iter_entries
from chunkstore.errors import BadOffset, Closed, Conflict, Damaged, InvalidArgument, NotOwner, StorageUnavailable
from chunkstore.pulsar import LedgerNotFound, LedgerReader, OffloadWriter, plan
from chunkstore.pulsar.contexts import Stored, iter_contexts
from chunkstore.pulsar.planning import BlockWalk
from chunkstore.pulsar.writer import _Guard
from tests.support.data import problems
from tests.support.pip76 import source_of
from tests.support.worlds import World, world

__all__ = ["world"]

T = "persistent://public/default/orders"
SMALL: dict[str, Any] = {"block_bytes": 4096, "segment_bytes_max": 20_000}


def payload(entry: int) -> bytes:
    return b"entry %d " % entry * (entry % 40)


def write(writer: OffloadWriter, ledger: int, entries: Iterable[int]) -> None:
    for entry in entries:
        writer.append(ledger, entry, payload(entry))


def expected(ledger: int, entries: Iterable[int]) -> list[Entry]:
    return [Entry(ledger, entry, payload(entry)) for entry in entries]


def objects_agree(store: Stored, topic: str = T) -> None:
    """Every complete offload segment is a PIP-76 object with an exact index, read by the codec alone."""
    for context in iter_contexts(store, topic):
        info = store.info(context.data)
        assert info.sealed == context.complete
        assert store.exists(context.index_segment) == context.complete
        if not context.complete:
            continue
        index = read_index(store.read(context.index_segment, 0, context.index_length))
        assert store.info(context.index_segment).sealed
        assert store.info(context.index_segment).length == context.index_length
        assert index.data_length == info.length == context.data_length
        data = store.read(context.data, 0, info.length)
        reader = SegmentReader(source_of(data), index)
        assert [group.ledger for group in index.ledgers] == [item.ledger for item in context.ranges]
        for item in context.ranges:
            entries = list(iter_entries(reader, item.ledger))
            assert (entries[0].entry, entries[-1].entry) == item[1:3]
            assert item.entries in (0, len(entries))


def test_acknowledged_is_what_a_replica_reads_while_writing_goes_on(world: World) -> None:
    with world.open() as store, world.replica() as replica:
        writer = OffloadWriter(store, T, **SMALL)
        reading = LedgerReader(replica)
        with pytest.raises(LedgerNotFound):
            reading.read(T, 1)
        for entry in range(600):
            writer.append(1, entry, payload(entry))
            if entry % 97 == 0 and writer.last_entry(1) >= 0:
                replica.refresh()
                assert list(reading.read(T, 1)) == expected(1, range(writer.last_entry(1) + 1))
        assert writer.last_entry(1) < 599
        writer.flush()
        assert writer.last_entry(1) == 599
        replica.refresh()
        assert reading.ledgers(T)[0].complete is False
        assert list(reading.read(T, 1)) == expected(1, range(600))
        writer.close()
        replica.refresh()
        assert reading.ledgers(T)[0].complete is True
        assert list(reading.read(T, 1)) == expected(1, range(600))


def test_a_successor_goes_on_behind_the_last_block(world: World) -> None:
    old = world.open()
    writer = OffloadWriter(old, T, **SMALL)
    write(writer, 1, range(300))
    write(writer, 2, range(300))
    open_segment = writer.open_segment
    acknowledged = {ledger: writer.last_entry(ledger) for ledger in (1, 2)}
    assert open_segment is not None
    assert acknowledged[1] == 299  # another ledger ends the block
    assert 0 < acknowledged[2] < 299
    world.crash(old)
    world.forget_cache()
    with world.open() as store:
        successor = writer.resume(store)
        assert successor.open_segment == open_segment
        assert {ledger: successor.last_entry(ledger) for ledger in (1, 2)} == acknowledged
        assert successor.last_entry(3) == -1
        with pytest.raises(InvalidArgument):
            successor.append(1, 299, b"")
        zombie = OffloadWriter.__new__(OffloadWriter)
        zombie.__dict__.update(writer.__dict__, _guard=_Guard(T))
        with pytest.raises(NotOwner):
            write(zombie, 2, range(300, 2000))
        write(successor, 2, range(acknowledged[2] + 1, 1000))
        write(successor, 1, range(300, 310))
        successor.close()
        objects_agree(store)
        assert list(LedgerReader(store).read(T, 1)) == expected(1, range(310))
        assert list(LedgerReader(store).read(T, 2)) == expected(2, range(1000))
        assert not problems(store.check("deep"))


def test_what_is_added_but_not_acknowledged_is_not_there() -> None:
    with chunkstore.open("memory://offload-unacknowledged") as store:
        writer = OffloadWriter(store, T)
        writer.append(1, 0, b"x")
        assert (writer.last_entry(1), writer.open_segment, list(store.segments())) == (-1, None, [])
        writer.close()
        assert writer.last_entry(1) == 0
        assert LedgerReader(store).plan(T) == plan(store, T)
        with pytest.raises(Closed):
            writer.append(1, 1, b"")
        with pytest.raises(RuntimeError), OffloadWriter(store, T) as other:
            other.append(1, 1, b"y")
            raise RuntimeError
        assert list(LedgerReader(store).read(T, 1)) == [Entry(1, 0, b"x")]
        OffloadWriter(store, T).close()
        assert len(list(store.segments())) == 2


class FailingAppends:
    """An owner whose appends or commits fail at a chosen call: before anything happened, or after everything did."""

    def __init__(self, store: Any, method: str, at: int, *, after: bool) -> None:
        self._store, self._method, self._left, self._after = store, method, at, after

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if name != self._method:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise StorageUnavailable("out", object="x")
            result = real(*args, **kwargs)
            if self._left == 0:
                raise StorageUnavailable("answer lost", object="x")
            return result

        return call


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("method", "at"), [("append_many", 1), ("append_many", 4), ("commit", 1), ("commit", 2)])
def test_every_interrupted_step_is_found_out_by_the_next_writer(method: str, at: int, *, after: bool) -> None:
    with chunkstore.open(f"memory://offload-interrupted-{method}-{at}-{after}") as store:
        failing: Any = FailingAppends(store, method, at, after=after)
        writer = OffloadWriter(failing, T, **SMALL)
        with pytest.raises(StorageUnavailable):
            write(writer, 1, range(1000))
        with pytest.raises(StorageUnavailable):
            writer.flush()
        writer.close()
        told = writer.last_entry(1)
        successor = writer.resume(store)
        assert successor.last_entry(1) >= told
        write(successor, 1, range(successor.last_entry(1) + 1, 1000))
        successor.close()
        objects_agree(store)
        assert list(LedgerReader(store).read(T, 1)) == expected(1, range(1000))


def test_two_writers_of_a_topic_mix_nothing_up() -> None:
    with chunkstore.open("memory://offload-two-writers") as store:
        one, two = OffloadWriter(store, T, **SMALL), OffloadWriter(store, T, **SMALL)
        one.append(1, 0, b"one")
        two.append(1, 0, b"two")
        one.flush()
        with pytest.raises(Conflict):
            two.flush()
        three = OffloadWriter(store, T, **SMALL)
        three.append(1, 1, b"three")
        three.flush()
        one.append(1, 1, b"one again")
        with pytest.raises(BadOffset):
            one.flush()
        assert [entry.payload for entry in LedgerReader(store).read(T, 1)] == [b"one", b"three"]


def test_damaged_blocks_of_an_open_segment_are_named() -> None:
    with chunkstore.open("memory://offload-damage") as store:
        writer = OffloadWriter(store, T, **SMALL)
        write(writer, 1, range(50))
        writer.flush()
        name = writer.open_segment
        assert name is not None
        length = store.info(name).length
        store.append(name, b"not a block" * 20)
        for call in (lambda: plan(store, T), lambda: BlockWalk(name).go_on(store), writer.resume):
            with pytest.raises(Damaged) as damage:
                call()
            assert damage.value.object == f"segment {name}"
            assert damage.value.position == length


Step = tuple[int, int, int]
STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(0, 3000)), max_size=60)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_whatever_is_written_is_read(steps: list[Step]) -> None:
    """Entries of three ledgers with gaps, by turns; now and then a flush, a completion, or another writer."""
    url = "memory://offload-model"
    with chunkstore.open(url, container=f"c{abs(hash(tuple(steps)))}") as store:
        writer = OffloadWriter(store, T, block_bytes=4096, segment_bytes_max=8000)
        model: dict[int, list[Entry]] = {}
        for action, ledger, size in steps:
            row = model.setdefault(ledger, [])
            writer.append(ledger, (row[-1].entry if row else -1) + 1 + size % 3, b"x" * size)
            row.append(Entry(ledger, (row[-1].entry if row else -1) + 1 + size % 3, b"x" * size))
            if action == 1:
                writer.flush()
            elif action == 2:
                writer.complete()
            elif action == 3:
                writer.flush()
                writer = writer.resume()
        writer.close()
        for ledger, row in model.items():
            assert list(LedgerReader(store).read(T, ledger)) == row
        objects_agree(store)
