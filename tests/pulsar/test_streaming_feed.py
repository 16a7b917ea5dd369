"""Keeping a stream going: reading again what was refused, from cache and ledger, segment after segment, and switching."""

from __future__ import annotations

from itertools import pairwise

from chunkstore.pulsar.contexts import iter_contexts
from chunkstore.pulsar.ledgers import Position
from chunkstore.pulsar.streaming_offloader import StreamingOffloader, stream_directory
from tests.pulsar.support_streaming import SMALL, TOPIC, ListedLedger, ListedSource, entry_of, stored_entries
from tests.support.data import problems
from tests.support.worlds import World, world

__all__ = ["world"]


def ledger_of(ledger: int, entries: int, size: int = 1000, *, closed: bool = True) -> ListedLedger:
    return ListedLedger([entry_of(ledger, number, size) for number in range(entries)], closed=closed)


def entries_of(source: ListedSource) -> list[object]:
    return [entry for _, item in sorted(source.found.items()) for entry in item.entries]


def test_every_entry_gets_in_once_over_many_segments_and_full_buffers(world: World) -> None:
    source = ListedSource(ledger_of(1, 1500), ledger_of(4, 700), ledger_of(5, 1))
    with world.open() as store:
        results = stream_directory(store, TOPIC, source, policy=SMALL, close=True)
        assert len(results) > 2
        for one, other in pairwise(results):
            assert other[1:3] == (one.end_ledger_id, one.end_entry_id + 1)
        assert results[-1][3:] == (5, 0)
        assert source.found[1].reads > 1  # its buffer was full
        assert not any(item.is_open for item in source.found.values())
        assert stored_entries(store) == entries_of(source)
        assert stream_directory(store, TOPIC, source, policy=SMALL, close=True) == []
        assert not problems(store.check("deep"))


def test_without_close_everything_is_stored_and_the_next_call_goes_on(world: World) -> None:
    source = ListedSource(ledger_of(1, 10, closed=False))
    with world.open() as store:
        assert stream_directory(store, TOPIC, source, policy=SMALL) == []
        assert stored_entries(store) == entries_of(source)
        assert iter_contexts(store, TOPIC)[0].status == "Assigned"
    source = ListedSource(ledger_of(1, 20), ledger_of(2, 3))
    with world.open() as store:
        [result] = stream_directory(store, TOPIC, source, policy=SMALL, close=True)
        assert result[1:] == (1, 0, 2, 2)
        assert stored_entries(store) == entries_of(source)


def test_back_to_ledger_based_the_segment_ends_with_its_ledger(world: World) -> None:
    source = ListedSource(ledger_of(1, 10), ledger_of(2, 10))
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
