"""``StoredLedger``: what it gives, what it requests for that, and what it does with hints, threads and damage."""

from __future__ import annotations

import random
from array import array
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.codec.pulsar.frames import Entry
from chunkstore.config import KIB, MIB
from chunkstore.errors import Closed, Damaged, InvalidArgument
from chunkstore.pulsar import cursors, read_handle
from chunkstore.pulsar.cursors import OffsetCache
from chunkstore.pulsar.read_handle import StoredLedger
from tests.pulsar.support_ledgers import LEDGER, Part, handle_of, v1_part, v2_part


@pytest.fixture(autouse=True)
def offsets(monkeypatch: pytest.MonkeyPatch) -> OffsetCache:
    cache = OffsetCache()
    monkeypatch.setattr(cursors, "OFFSETS", cache)
    return cache


@pytest.fixture(autouse=True)
def resting(monkeypatch: pytest.MonkeyPatch) -> cursors.Resting:
    resting = cursors.Resting()
    monkeypatch.setattr(read_handle, "RESTING", resting)
    return resting


def entry(number: int, payload: bytes) -> Entry:
    return Entry(LEDGER, number, payload)


def large(count: int, size: int, seed: int = 0) -> list[bytes]:
    chance = random.Random(seed)
    return [chance.randbytes(chance.randint(size // 2, size * 3 // 2)) for _ in range(count)]


@st.composite
def ledgers(draw: st.DrawFn) -> tuple[list[Entry], list[Part]]:
    """The entries of a ledger, and parts that cover them all; several of either format may hold the same entries."""
    window_bytes = draw(st.sampled_from([4 * KIB, 1 << 20]))
    dense = draw(st.booleans())
    steps = draw(st.lists(st.just(1) if dense else st.integers(1, 3), min_size=1, max_size=60))
    ids = [sum(steps[:number]) - 1 for number in range(1, len(steps) + 1)]
    size = draw(st.sampled_from([0, 10, 700, 9000]))
    chance = random.Random(draw(st.integers(0, 9)))
    entries = [entry(number, chance.randbytes(chance.randint(0, size))) for number in ids]
    block = draw(st.sampled_from([4 * KIB, 64 * KIB]))
    edges = sorted({0, len(ids), *draw(st.lists(st.integers(0, len(ids)), max_size=3))})
    parts = []
    for begin, end in pairwise(edges):
        begin = max(0, begin - draw(st.integers(0, 10)))  # overlaps the one before
        others = [Entry(9, number, b"another ledger's") for number in range(draw(st.integers(0, 1)))]
        both = entries[begin : (begin + end) // 2] + others + entries[(begin + end) // 2 : end]
        parts.append(v2_part(both, block_bytes_max=block, window_bytes=window_bytes))
    if ids == list(range(len(ids))):
        whole = v1_part((item.payload for item in entries), block_bytes_max=block, window_bytes=window_bytes)
        parts.insert(draw(st.integers(0, len(parts))), whole)
    return entries, parts


@given(ledgers(), st.data())
def test_a_read_is_a_slice_of_the_ledger(ledger: tuple[list[Entry], list[Part]], data: st.DataObject) -> None:
    """Two threads, each at places of its own, going on or not, with hints of all earlier reads."""
    entries, parts = ledger
    last = entries[-1].entry
    handle = handle_of(*parts)
    bounds = st.tuples(st.integers(0, last), st.integers(0, last)).map(sorted)
    plans = [data.draw(st.lists(st.one_of(bounds, st.none()), max_size=6)) for _ in range(2)]

    def run(plan: list[list[int] | None]) -> None:
        at = 0
        for bound in plan:
            first, stop = bound or (at, min(at + 7, last))
            found = handle.read(first, stop)
            assert found == [item for item in entries if first <= item.entry <= stop]
            at = stop + 1 if stop < last else 0

    with handle, ThreadPoolExecutor(2) as pool:
        list(pool.map(run, plans))
        assert list(handle.iter_entries()) == entries
        rows = [row for batch in handle.read_batches() for row in batch.to_pylist()]
        assert rows == [item._asdict() for item in entries]


@pytest.mark.parametrize("last", [8, 10])
def test_a_part_that_has_less_than_it_promises_is_damaged(last: int) -> None:
    part, _ = v2_part([entry(number, b"x") for number in (1, 2, 9)], block_bytes_max=4 * KIB)
    handle = StoredLedger(LEDGER, [part._replace(first=0, last=last)], last_add_confirmed=last)
    for low, high in ((0, last), (last, last), (0, 0)):
        with pytest.raises(Damaged, match="missing"):
            handle.read(low, high)
    assert [item.entry for item in handle.read(1, 2)] == [1, 2]


@pytest.mark.parametrize("bounds", [(-1, 3), (3, 2), (0, 10), (10, 10)])
def test_a_range_that_is_none_is_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(InvalidArgument):
        handle_of(v1_part([b""] * 10, block_bytes_max=4 * KIB)).iter_entries(*bounds)
    assert list(StoredLedger(LEDGER, [], last_add_confirmed=-1).iter_entries()) == []


PAYLOADS = large(700, 64 * KIB)
"""Some 44 MiB, in blocks of 16 MiB."""


@pytest.fixture(params=["v1", "v2"])
def ledger(request: pytest.FixtureRequest) -> Part:
    if request.param == "v1":
        return v1_part(PAYLOADS, block_bytes_max=16 * MIB)
    return v2_part([entry(*item) for item in enumerate(PAYLOADS)], block_bytes_max=16 * MIB)


def test_a_closed_handle_reads_no_more_and_holds_nothing(ledger: Part, resting: cursors.Resting) -> None:
    handle = handle_of(ledger)
    entries = handle.iter_entries()
    next(entries)
    handle.read(100, 120)
    handle.close()
    handle.close()
    with pytest.raises(Closed):
        handle.read(0, 1)
    with pytest.raises(Closed):
        list(entries)
    assert not resting.cursors


def test_hints_that_are_wrong_cost_a_scan_and_nothing_else(offsets: OffsetCache) -> None:
    """An object whose payloads look like blocks and entries, and a cache that says anything of it."""
    chance = random.Random(3)
    inner = v1_part([b"inner"] * 40, block_bytes_max=4 * KIB).counted.data
    payloads = [inner[: chance.randint(0, len(inner))] for _ in range(700)]
    ledger = v1_part(payloads, block_bytes_max=64 * KIB, window_bytes=4 * KIB)
    reader, source = ledger.part.reader, ledger.part.reader.source
    assert len(reader.spans(LEDGER)) > 3
    for _ in range(300):
        number = chance.randrange(700)
        [span] = reader.spans(LEDGER, number, number)
        key = (source[:2], span.start)
        offsets.forget(key)
        position = chance.choice([chance.randrange(source.length), span.start, span.end - 5, span.end, 1 << 40])
        offsets._blocks[key] = array("q", [chance.randint(span.first_entry, number)]), array("q", [position])
        offsets.positions += 1
        handle = handle_of(ledger)
        stop = min(699, number + chance.choice([0, 3, 60]))
        assert [item.payload for item in handle.read(number, stop)] == payloads[number : stop + 1]
        handle.close()


def test_damage_is_found_where_hints_lead_to_it(ledger: Part) -> None:
    with handle_of(ledger) as handle:
        assert sum(1 for _ in handle.iter_entries()) == len(PAYLOADS)
    at = ledger.counted.data.index(PAYLOADS[400]) - 12
    ledger.counted.data = ledger.counted.data[:at] + b"\x7f" * 12 + ledger.counted.data[at + 12 :]
    with pytest.raises(Damaged) as caught:
        handle_of(ledger).read(400, 400)
    assert caught.value.position == at
