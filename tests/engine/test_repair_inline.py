"""Repair of containers whose appends lie in records: in front of the cut they stay, behind it they are copied; spills are made again."""

from __future__ import annotations

import random
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chunkstore.changes import Concat, Seal
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.operations import regain
from tests.engine.test_repair import MODES, zero
from tests.support.hooked import in_thread, replace_steps, wait_for
from tests.support.repairing import Place, broken


def contents(store: ChunkedSegmentStorage) -> dict[str, bytes]:
    return {info.name: store.read(info.name, info.start_offset, 99999) for info in store.segments()}


def kinds(store: ChunkedSegmentStorage, name: str) -> list[str]:
    return [chunk.kind for chunk in store.layout(name)]


def lose(place: Place, store: ChunkedSegmentStorage) -> int:
    """Make a record that is damaged later, which nothing needs; the lsn in front of it."""
    cut = store._container.current.queue.head.lsn
    store.table("t").put(b"lost", b"")
    return cut


def blank_records_behind(place: Place, lost: Path, begin: int) -> None:
    """Overwrite what the journal holds behind the damaged record, but for the last slot, which is a SEAL."""
    if place.mode == "append":
        data = lost.read_bytes()
        lost.write_bytes(data[:begin] + bytes(len(data) - begin))
        return
    for other in sorted(lost.parent.glob("*.s"))[:-1]:
        if other.name >= lost.name:
            other.write_bytes(bytes(other.stat().st_size))


@pytest.mark.parametrize("mode", MODES)
def test_extents_behind_the_cut_are_copied(mode: str, tmp_path: Path) -> None:
    """Nothing leads into a record that is history no more, and what is in front of it stays where it is."""
    place = Place(mode, tmp_path, inline=True)
    store = place.open()
    for name in "ab":
        store.create(name)
        for number in range(3):
            store.append(name, b"%d of %s," % (number, name.encode()))
    cut = lose(place, store)
    for number in range(3, 12):
        for name in "abc"[: 2 + (number > 5)]:
            if number == 6 and name == "c":
                store.create(name)
            store.append(name, b"%d of %s," % (number, name.encode()))
    expected = contents(store)
    store.close()
    lost, begin, _ = place.record_at(cut + 1)
    zero(place, cut + 1, random.Random(1))
    report = place.repair()
    assert report.last_lsn == cut and not any(item.lost for item in report.segments) and report.findings == ()
    with place.open() as store:
        assert contents(store) == expected
        assert kinds(store, "a")[:3] == ["inline"] * 3 and set(kinds(store, "a")[3:]) == {"object"}
        assert set(kinds(store, "c")) == {"object"}
        assert broken(store.check("deep")) == []
    blank_records_behind(place, lost, begin)
    with place.open() as store:
        assert contents(store) == expected
        store.append("a", b"goes on")
        assert broken(store.check("deep")) == []


def append_together(store: ChunkedSegmentStorage, first: tuple[str, bytes], *others: tuple[str, bytes]) -> None:
    """A record of one append, and one of the others."""
    began, go = threading.Event(), threading.Event()

    def held(*arguments: Any) -> Any:
        began.set()
        assert go.wait(60)
        return before.append_lines(*arguments)

    before = replace_steps(store, append_lines=held)
    queue = store._container.current.queue
    lsn = queue.head.lsn
    threads = [in_thread(partial(store.append, *first))]
    assert began.wait(60)
    for number, other in enumerate(others):
        threads.append(in_thread(partial(store.append, *other)))
        wait_for(lambda wanted=number + 1: len(queue._queue) == wanted)  # type: ignore[misc]
    replace_steps(store, append_lines=before.append_lines)
    go.set()
    for thread, _ in threads:
        thread.join(60)
    assert queue.head.lsn == lsn + 2


@pytest.mark.parametrize("mode", MODES)
def test_what_is_lost_of_one_segment_costs_no_other_in_the_same_records(mode: str, tmp_path: Path) -> None:
    place = Place(mode, tmp_path, inline=True)
    store = place.open()
    for name in "abc":
        store.create(name)
        store.append(name, b"kept;")
    cut = store._container.current.queue.head.lsn
    store.append("b", b"lost;")
    for number in range(3):
        append_together(
            store, ("c", b"%d;" % number), ("c", b"c"), ("b", b"after that;"), ("a", b"%d;" % number), ("c", b";")
        )
    store.close()
    zero(place, cut + 1, random.Random(1))
    report = place.repair()
    assert report.last_lsn == cut
    assert {item.segment for item in report.segments if item.lost} == {"b"}
    with place.open() as store:
        assert contents(store) == {"a": b"kept;0;1;2;", "b": b"kept;", "c": b"kept;0;c;1;c;2;c;"}
        assert broken(store.check("deep")) == []


@pytest.mark.parametrize("front", [False, True], ids=["new-chunk", "grown-chunk"])
@pytest.mark.parametrize("crossing", [False, True], ids=["up-to-the-cut", "through-the-cut"])
@pytest.mark.parametrize("mode", MODES)
def test_a_spill_behind_the_cut_is_made_again(mode: str, crossing: bool, front: bool, tmp_path: Path) -> None:
    """Its chunk may hold bytes of both sides; a chunk that it made longer has the old length at the cut."""
    place = Place(mode, tmp_path, inline=True)
    store = place.open()
    store.create("a")
    store.append("a", b"first ")
    if front:
        assert place.spill(store, "a") == 1
    store.append("a", b"second ")
    store.append("a", b"third ")
    cut = lose(place, store)
    if crossing:
        store.append("a", b"fourth ")
    store.append("b" if store.create("b") else "", b"another's")
    assert place.spill(store, "a") == 2 + crossing + (not front)
    assert kinds(store, "a") == ["object"]
    store.append("a", b"and what follows")
    expected = contents(store)
    store.close()
    zero(place, cut + 1, random.Random(1))
    report = place.repair()
    assert report.last_lsn == cut and not any(item.lost for item in report.segments) and report.findings == ()
    with place.open() as store:
        assert contents(store) == expected
        assert set(kinds(store, "a")) == {"object"}
        assert broken(store.check("deep")) == []
        store.collect()
        assert broken(store.check("deep")) == []
        store.append("a", b"; on it goes")
    place.check_readers()


@pytest.mark.parametrize(("mode", "front"), [("append", False), ("slot", False), ("slot", True)])
def test_extents_that_a_former_owner_has_collected(mode: str, front: bool, tmp_path: Path) -> None:
    """They were spilled behind the cut, which is entitled to that; history begins with a snapshot that knows them still."""
    place = Place(mode, tmp_path, inline=True)
    store = place.open(fresh=False)
    store.create("a")
    store.append("a", b"first ")
    if front:
        assert place.spill(store, "a") == 1
    for text in (b"second ", b"third "):
        store.append("a", text)
    lsn = store._container.current.queue.head.lsn
    extents = {place.record_at(number)[0] for number in (lsn - 1, lsn)}
    if mode == "append":
        store.close()
        store = place.open(fresh=False)
    store.snapshot()
    cut = lose(place, store)
    assert place.spill(store, "a") == 3 - front
    store.append("a", b"fourth")
    expected = contents(store)
    store.close()
    zero(place, cut + 1, random.Random(1))
    for path in extents:
        path.unlink()
    report = place.repair()
    assert report.last_lsn == cut and not any(item.lost for item in report.segments) and report.findings == ()
    with place.open() as store:
        assert contents(store) == expected
        assert broken(store.check("deep")) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_segment_that_was_spilled_and_spliced_behind_the_cut(mode: str, tmp_path: Path) -> None:
    """Its chunks are no more those of the cut: the target has the bytes, and the source is gone."""
    place = Place(mode, tmp_path, inline=True)
    store = place.open()
    for name in ("target", "source", "untouched"):
        store.create(name)
        store.append(name, name.encode() * 3)
    place.spill(store, "source")
    store.append("source", b", more of it")
    cut = lose(place, store)
    for name in ("source", "untouched"):
        store.seal(name)
        store.concat("target", store.info("target").length, name)
    store.append("target", b" and behind")
    expected = contents(store)
    store.close()
    zero(place, cut + 1, random.Random(1))
    report = place.repair()
    assert report.last_lsn == cut and not any(item.lost for item in report.segments) and report.findings == ()
    with place.open() as store:
        assert contents(store) == expected and list(expected) == ["target"]
        assert broken(store.check("deep")) == []
        store.collect()
        assert broken(store.check("deep")) == []
    place.check_readers()


@pytest.mark.parametrize("mode", MODES)
def test_a_repair_that_ends_between_copies_and_spills_is_continued(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(mode, tmp_path, inline=True)
    store = place.open()
    store.create("a")
    store.append("a", b"first ")
    cut = lose(place, store)
    place.spill(store, "a")
    for text in (b"second ", b"third "):
        store.append("a", text)
    expected = contents(store)
    store.close()
    zero(place, cut + 1, random.Random(1))

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(regain, "spill_again", dies)
        with pytest.raises(KeyboardInterrupt):
            place.repair()
    report = place.repair()
    assert report.continued and not any(item.lost for item in report.segments)
    with place.open() as store:
        assert contents(store) == expected
        assert kinds(store, "a") == ["object", "object"]
        assert broken(store.check("deep")) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_spill_over_the_cut_with_nothing_behind_it(mode: str, tmp_path: Path) -> None:
    """One chunk holds what lies in front of the cut and what was appended behind it, and is the segment's last."""
    place = Place(mode, tmp_path, inline=True)
    store = place.open()
    store.create("a")
    store.append("a", b"in front;")
    cut = lose(place, store)
    store.append("a", b"behind;")
    store.spill()
    expected = contents(store)
    store.close()
    zero(place, cut + 1, random.Random(1))
    report = place.repair()
    assert not [item for item in report.segments if item.lost]
    with place.open() as store:
        assert contents(store) == expected
        assert broken(store.check("deep")) == []


@pytest.mark.parametrize("mode", MODES)
def test_the_name_of_an_empty_source_is_free_for_who_came_behind(mode: str, tmp_path: Path) -> None:
    place = Place(mode, tmp_path, inline=True)
    store = place.open()
    store.create("target")
    store.append("target", b"bytes")
    store.create("name")
    cut = lose(place, store)
    store.commit([Seal("name"), Concat("target", "name")])
    store.create("name")
    store.append("name", b"of another one")
    expected = contents(store)
    store.close()
    zero(place, cut + 1, random.Random(1))
    place.repair()
    with place.open() as store:
        assert contents(store) == expected
        assert broken(store.check("deep")) == []
