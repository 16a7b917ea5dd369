"""Views and the offset index: the first half of ``metadata_contract``, which is the class to inherit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chunkstore.errors import Closed, Damaged, InvalidArgument
from chunkstore.metadata.index import IndexComparison, check_index, rebuild_index
from chunkstore.metadata.port import GENESIS, Commit, Head, MetadataCache, MetadataStore, MetadataView, Totals
from chunkstore.metadata.retained import all_extents, inline_chunks
from chunkstore.metadata.rows import COUNTED, changed
from chunkstore.records.segments import ACTIVE, CLOSED
from tests.support.metadata_history import History, Segment, World

EVERYTHING = (b"", b"\xff")
_INDEX_KEY = Struct(">cQQ")
_FIXTURES_STAY = (HealthCheck.function_scoped_fixture, HealthCheck.differing_executors, HealthCheck.too_slow)
_ROWS_STOP = b"U"  # behind the last kind of row, before the index

Step = tuple[int, int, int, int]
steps: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(st.integers(0, 15), st.integers(0, 99), st.integers(0, 99), st.integers(1, 50)), max_size=40
)


def compare(view: MetadataView, world: World) -> None:
    """Whether a view holds exactly what the world says: rows, digest, and an index that finds every byte."""
    assert dict(view.scan(b"", _ROWS_STOP)) == world.history.rows
    assert view.head.position == world.history.position
    assert view.head.digest == world.history.digest
    segments = world.segments.values()
    rows = (row for kind in COUNTED for row in view.scan(bytes((kind,)), bytes((kind + 1,))))
    assert changed(Totals(0, 0, 0, 0, 0), ((key[0], None, value) for key, value in rows)) == view.totals
    assert view.totals == Totals(
        segments=len(segments),
        chunks=sum(len(segment.chunks) for segment in segments),
        live_bytes=sum(segment.length - segment.start for segment in segments),
        dead_head_bytes=sum(segment.start - segment.first for segment in segments),
        garbage_bytes=0,
    )
    for segment in world.segments.values():
        places = segment.places()
        for offset, chunk in places:
            for probe in {max(offset, segment.start), offset + chunk.length - 1}:
                assert view.locate(segment.id, probe) == (chunk.id, offset)
        assert list(check_index(view, segment.record())) == []
        assert list(inline_chunks(view, segment.record())) == [
            (offset, chunk.id) for offset, chunk in places if chunk.record
        ]
        background = IndexComparison(view, segment.record())
        for chunk in segment.chunks:
            background.meet(chunk.id, chunk.length)
        assert background.agrees()
        begins = [offset for offset, _ in places]
        for start in {segment.first, segment.start, *begins[1:3], segment.length}:
            for stop in {segment.start, *begins[-2:], segment.length}:
                expected = sum(start <= begin < stop for begin in begins)
                if start >= segment.first:
                    assert view.count_chunks(segment.id, start, stop) == expected
        if not places:
            assert view.count_chunks(segment.id, segment.start, segment.start + 1000) == 0


def _step(world: World, step: Step) -> Commit:
    """One change, chosen by numbers; whatever they are, it is a possible one."""
    kind, first, second, length = step
    ids = sorted(world.segments)
    if not ids or kind == 0:
        return world.create()
    segment: Segment = world.segments[ids[first % len(ids)]]
    count = len(segment.chunks)
    if kind > 11:
        return world.lines(*_appends(ids, step), epoch=1 + second % 2)
    if kind in (1, 2, 3):
        state = ACTIVE if kind == 2 and first % 2 else CLOSED
        return world.append(segment.id, length, *([second + 1] if kind == 2 else []), session=kind == 3, state=state)
    if kind == 4 and count:
        return world.grow(segment.id, length)
    if kind in (5, 6):
        sources = [other for other in ids if other != segment.id and world.segments[other].start == 0]
        if sources:
            return world.concat(segment.id, sources[second % len(sources)])
    if kind == 7 and segment.length > segment.start:
        return world.truncate(segment.id, segment.start + 1 + second % (segment.length - segment.start))
    if kind == 8 and len(ids) > 1:
        return world.delete(segment.id)
    if kind == 9 and world.removed:
        return world.collect(1 + second % len(world.removed))
    if kind in (10, 11) and count:
        at = second % count
        return world.replace(segment.id, at, 1 + length % (count - at), 1 + length % 3, leave_head=kind == 11)
    return world.append(segment.id, length)


def _appends(ids: Sequence[int], step: Step) -> Iterator[tuple[int, int, bytes]]:
    """Appends by line to a few segments, each with some that follow one another."""
    kind, first, second, length = step
    for number in range(1 + length % 7):
        segment_id = ids[(first + number // (1 + second % 4)) % len(ids)]
        yield (
            segment_id,
            1 + (length * (number + 1)) % 13,
            (b"", b"w", b"writer-2")[(second + number) % 3 if kind > 13 else 0],
        )


def run_script(store: MetadataStore, script: Sequence[Step], *, batch: int, verify: bool) -> World:
    """Make the script's commits, apply them ``batch`` at a time, and compare after each batch."""
    world = World()
    commits: list[Commit] = []
    for number, step in enumerate(script):
        commits.append(_step(world, step))
        if len(commits) >= batch or number == len(script) - 1:
            assert store.apply(commits, verify=verify)
            commits = []
            with store.view() as view:
                compare(view, world)
                extents = {chunk.id for chunk in world.removed if chunk.record}
                assert extents <= set(all_extents(view)), "of garbage, too"
    return world


class MetadataBasics(ABC):
    """Views and the offset index, and the fixtures of both halves."""

    container: bytes = bytes(range(16))
    address = "file:///where/the/root/is default"

    @abstractmethod
    def make_cache(self, folder: Path, container: bytes, address: str, role: str) -> MetadataCache:
        """A cache whose stores live below ``folder``."""

    @pytest.fixture
    def cache(self, tmp_path: Path) -> Iterator[MetadataCache]:
        """The owner's cache of one container."""
        cache = self.make_cache(tmp_path / "cache", self.container, self.address, "owner")
        yield cache
        cache.close()

    @pytest.fixture
    def store(self, cache: MetadataCache) -> Iterator[MetadataStore]:
        """A new store at genesis."""
        store = cache.create()
        yield store
        store.close(clean=False)

    # Views

    def test_views_show_one_point_of_history(self, store: MetadataStore) -> None:
        history = History()
        assert store.apply([history.commit([(b"S%d" % n, b"0") for n in range(3, 600, 3)])], verify=False)
        before = dict(history.rows)
        head = store.head()
        with store.view() as view:
            assert view.head == head
            halfway = view.scan(*EVERYTHING)
            seen = [next(halfway) for _ in range(100)]
            changes = [(b"S%d" % n, None if n % 2 else b"new") for n in range(600)]
            assert store.apply([history.commit(changes)], verify=True)
            with store.view() as later:
                assert dict(later.scan(*EVERYTHING)) == history.rows
                assert store.apply([history.commit([(b"S1", b"late")])], verify=False)
                assert later.get(b"S1") is None
            assert seen + list(halfway) == sorted(before.items())
            assert dict(view.scan(*EVERYTHING)) == before
            assert view.get(b"S3") == b"0"
            assert view.get(b"S2") is None
            assert view.head == head
        assert store.get(b"S1") == b"late"

    def test_scan_is_in_key_order_and_half_open(self, store: MetadataStore) -> None:
        history = History()
        keys = [b"S", b"S\x00", b"Sa", b"Sa\x00", b"Sb", b"S\xff", b"C" + bytes(28), b"T", b"G" + bytes(10)]
        assert store.apply([history.commit([(key, key) for key in keys])], verify=True)
        keys.sort()
        with store.view() as view:
            assert [key for key, _ in view.scan(*EVERYTHING)] == keys
            for start in [b"", *keys, b"S\x01", b"\xff"]:
                for stop in [b"", *keys, b"Sb\x00", b"\xff"]:
                    expected = [(key, key) for key in keys if start <= key < stop]
                    assert list(view.scan(start, stop)) == expected

    def test_floor_is_the_last_row_at_or_below(self, store: MetadataStore) -> None:
        history = History()
        keys = [b"S", b"S\x00", b"Sa", b"Sb", b"S\xff", b"T"]
        assert store.apply([history.commit([(key, key) for key in keys])], verify=True)
        with store.view() as view:
            assert store.apply([history.commit([(b"Sa", None), (b"Sc", b""), (b"C" + bytes(28), b"")])], verify=True)
            for probe in [b"", b"R", *keys, b"Sa\x00", b"Sbb", b"Sd", b"\xff"]:
                below = max((key for key in keys if key <= probe), default=None)
                assert view.floor(probe) == (None if below is None else (below, below))
        with store.view() as view:
            assert view.floor(b"Sa") == (b"S\x00", b"S\x00")
            assert view.floor(b"R") == (b"C" + bytes(28), b"")
            assert view.floor(b"9") is None

    def test_a_closed_view_says_so(self, store: MetadataStore) -> None:
        view = store.view()
        view.close()
        view.close()
        for call in (
            lambda: view.get(b"S"),
            lambda: list(view.scan(*EVERYTHING)),
            lambda: view.floor(b"S"),
            lambda: view.locate(1, 0),
            lambda: view.count_chunks(1, 0, 1),
        ):
            with pytest.raises(Closed):
                call()

    def test_bad_arguments_of_the_index(self, store: MetadataStore) -> None:
        with store.view() as view:
            for segment_id, offset in ((1, -1), (-1, 0), (1 << 64, 0), (1, 1 << 64)):
                with pytest.raises(InvalidArgument):
                    view.locate(segment_id, offset)
            with pytest.raises(InvalidArgument):
                view.count_chunks(1, -1, 5)

    # The offset index

    @given(script=steps, batch=st.sampled_from([1, 2, 5, 40]), verify=st.booleans())
    @settings(max_examples=80, deadline=None, suppress_health_check=_FIXTURES_STAY)
    def test_any_history_of_segments(self, cache: MetadataCache, script: list[Step], batch: int, verify: bool) -> None:
        store = cache.create()
        try:
            world = run_script(store, script, batch=batch, verify=verify)
            with store.view() as view:
                self._rebuild_says_the_same(cache, view, world)
        finally:
            cache.discard(store)

    def _rebuild_says_the_same(self, cache: MetadataCache, view: MetadataView, world: World) -> None:
        """An index derived from the lists alone finds the same chunks, also in what happens next."""
        rebuilt = cache.create()
        try:
            rebuilt.load([*view.scan(b"", _ROWS_STOP), *rebuild_index(view)])
            rebuilt.finish_load(view.head)
            with rebuilt.view() as other:
                compare(other, world)
            for segment_id in sorted(world.segments):
                assert rebuilt.apply([world.append(segment_id, 3)], verify=True)
            with rebuilt.view() as other:
                compare(other, world)
        finally:
            cache.discard(rebuilt)

    # Lines

    @given(script=steps)
    @settings(max_examples=40, deadline=None, suppress_health_check=_FIXTURES_STAY)
    def test_one_batch_or_one_by_one(self, cache: MetadataCache, script: list[Step]) -> None:
        """The same history is the same rows, index entries, totals and digest, however it is applied."""
        world = World()
        commits = [world.create(), *(_step(world, step) for step in script)]
        found = []
        for batch in (1, 3, len(commits)):
            for verify in (True, False):
                store = cache.create()
                for begin in range(0, len(commits), batch):
                    assert store.apply(commits[begin : begin + batch], verify=verify)
                with store.view() as view:
                    found.append((view.head, view.totals, list(view.scan(*EVERYTHING))))
                cache.discard(store)
        assert found[0][0].digest == world.history.digest
        assert all(item == found[0] for item in found)

    @pytest.mark.parametrize("batch", [1, 3])
    @pytest.mark.parametrize(
        ("number", "change"),
        [
            (0, {"segment_id": 2}), (1, {"offset": 11}), (1, {"offset": 9}), (1, {"name": b"segment-2"}),
            (1, {"name": b"nothing"}), (0, {"joined": True}), (2, {"segment_id": 3, "name": b"sealed"}),
            (2, {"joined": True}),
        ],
    )  # fmt: skip
    def test_lines_that_cannot_be(self, store: MetadataStore, number: int, change: dict[str, Any], batch: int) -> None:
        """Nothing of the record is applied, nor of those that come with it; the right one is applied later."""
        world = World()
        first = [world.create(), world.create(), world.create("sealed"), world.seal(3)]
        assert store.apply(first, verify=True)
        before, good = store.head(), [world.lines((1, 10, b"w"), (1, 5, b""), (2, 7, b"w")) for _ in range(batch)]
        last = good[-1].lines
        assert last is not None
        lines = list(last.lines)
        lines[number] = lines[number]._replace(**change)
        with pytest.raises(Damaged):
            store.apply([*good[:-1], good[-1]._replace(lines=last._replace(lines=lines))], verify=True)
        assert store.head() == before
        assert store.apply(good, verify=True)
        assert store.head() == Head(world.history.position, world.history.digest)

    def test_a_changed_line_is_noticed_by_the_next_digest(self, store: MetadataStore) -> None:
        world = World()
        commits = [world.create(), world.lines((1, 10, b"")), world.create()]
        lines = commits[1].lines
        assert lines is not None
        wrong = [lines.lines[0]._replace(crc32c=lines.lines[0].crc32c ^ 1)]
        with pytest.raises(Damaged, match="digest") as caught:
            store.apply([commits[0], commits[1]._replace(lines=lines._replace(lines=wrong)), commits[2]], verify=True)
        assert caught.value.position == 3
        assert store.head().position == GENESIS

    def test_a_hundred_concats_deep(self, store: MetadataStore) -> None:
        world = World()
        commits = [world.create(), world.append(1, 10)]
        inner = 1
        for _ in range(100):
            commits.append(world.create())
            outer = max(world.segments)
            commits += [world.append(outer, 3), world.concat(outer, inner), world.append(outer, 2)]
            inner = outer
        for commit in commits:
            assert store.apply([commit], verify=True)
        assert len(world.segments[inner].chunks) == 201
        with store.view() as view:
            compare(view, world)

    def test_dead_extents_go_with_their_chunks(self, store: MetadataStore) -> None:
        world = World()
        for commit in (
            world.create(),
            world.append(1, *[1] * 50),
            world.create(),
            world.append(2, *[1] * 50, session=True),
        ):
            assert store.apply([commit], verify=True)
        assert self._extents(store) == 100
        for commit in (world.truncate(1, 20), world.truncate(2, 20), world.collect(40)):
            assert store.apply([commit], verify=False)
        assert self._extents(store) == 60
        commits = [
            world.concat(1, _create_and_fill(world, store)),
            world.delete(1),
            world.delete(2),
            world.collect(999),
        ]
        assert store.apply(commits, verify=True)
        assert self._extents(store) == 0
        with store.view() as view:
            assert list(view.scan(*EVERYTHING)) == []

    @staticmethod
    def _extents(store: MetadataStore) -> int:
        with store.view() as view:
            return sum(1 for _ in view.scan(b"x", b"y"))

    def test_check_index_finds_what_is_wrong(self, cache: MetadataCache) -> None:
        world = World()
        commits = [world.create(), world.append(1, 10, 10, 10)]
        good, bad = cache.create(), cache.create()
        assert good.apply(commits, verify=True)
        with good.view() as view:
            pairs = dict(view.scan(*EVERYTHING))
            lost = _INDEX_KEY.pack(b"x", 1, 10)
            bad.load(sorted((key, value) for key, value in pairs.items() if key != lost))
            bad.finish_load(view.head)
        with bad.view() as view:
            findings = list(check_index(view, world.segments[1].record()))
        chunk = world.segments[1].chunks[1].id
        assert [offset for offset, _ in findings[:2]] == [10, 19]
        assert all(f"the list chunk {chunk.hex()}" in message for _, message in findings[:2])
        assert "2 chunks" in findings[2][1]
        good.close(clean=False)
        bad.close(clean=False)


def _create_and_fill(world: World, store: MetadataStore) -> int:
    """A new segment with chunks of its own, applied; answers its id."""
    assert store.apply([world.create()], verify=True)
    segment_id = max(world.segments)
    assert store.apply([world.append(segment_id, 1, 2, 3)], verify=True)
    return segment_id
