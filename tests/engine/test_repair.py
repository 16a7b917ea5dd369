"""Repair of journals that are damaged in any place, judged by a model of what was acknowledged."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import chunkstore
from chunkstore.assembly import journal_records
from chunkstore.changes import Append, Create, TablePut
from chunkstore.config import RollingPolicy
from chunkstore.errors import ChunkstoreError, Damaged
from chunkstore.following import open_replica
from tests.support.merging import merge
from tests.support.repairing import Place, broken

MODES = ("append", "slot")


def flip(place: Place, lsn: int, chance: random.Random) -> None:
    path, begin, end = place.record_at(lsn)
    data = bytearray(path.read_bytes())
    data[chance.randrange(begin, end)] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def remove(place: Place, lsn: int, chance: random.Random) -> None:
    """The record's slot; of a log, everything from it on."""
    path, begin, _ = place.record_at(lsn)
    if place.mode == "slot":
        path.unlink()
    else:
        with path.open("r+b") as file:
            file.truncate(begin + chance.choice((0, 20)))


def zero(place: Place, lsn: int, chance: random.Random) -> None:
    path, begin, end = place.record_at(lsn)
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(end - begin))


@pytest.mark.parametrize("damage", [flip, remove, zero], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("inline", [False, True])
def test_a_record_that_is_damaged(
    inline: bool, mode: str, seed: int, damage: Callable[[Place, int, random.Random], None], tmp_path: Path
) -> None:
    chance = random.Random(f"{mode} {seed} {damage.__name__}")
    place = Place(mode, tmp_path, inline=inline)
    place.live(chance, epochs=chance.randint(1, 4), steps=15, snapshots=False)
    *alone, _ = [record["lsn"] for record in journal_records(place.root) if not record["embedded"]]
    lsn = chance.choice(alone[1:])
    assert isinstance(lsn, int)
    damage(place, lsn, chance)
    told = place.repair(dry_run=True)
    if told.sound:
        # The end of the newest log, which looks like a torn write; or a record that the next OPEN has as well.
        return
    assert told.last_lsn == lsn - 1
    report = place.repair()
    assert report.segments == told.segments and report.last_lsn == told.last_lsn
    place.judge(report)


@pytest.mark.parametrize("damage", [flip, remove, zero], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("mode", MODES)
def test_a_machine_that_has_seen_what_a_repair_cuts_off_goes_on(
    mode: str, damage: Callable[[Place, int, random.Random], None], tmp_path: Path
) -> None:
    """Its cache stands behind the very record that is damaged."""
    place = Place(mode, tmp_path)
    with place.open() as store:
        store.create("a")
        for number in range(5):
            store.append("a", b"%d" % number)
        store._container.current.store.settle()  # type: ignore[attr-defined]
        seen, settings = store._container.current.queue.head.lsn, place.settings(fresh=False)
        shutil.copytree(settings.cache_dir, tmp_path / "copied")  # type: ignore[arg-type]
        store.append("a", b"5")
    with place.open() as store:
        store.append("a", b"6")
    damage(place, seen, random.Random(mode))
    assert not place.repair().sound
    with chunkstore.open(place.root, settings=replace(settings, cache_dir=str(tmp_path / "copied"))) as store:
        assert [found for found in store.report.findings if f"it is at lsn {seen}" in found]
        assert store.read("a", 0, 4) == b"0123"


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mode", MODES)
def test_damaged_bytes_of_appends_cost_only_these(mode: str, seed: int, tmp_path: Path) -> None:
    """As in a chunk: what their records say besides is proven by the CRCs, and what follows still follows."""
    chance = random.Random(f"{mode} {seed}")
    place = Place(mode, tmp_path, inline=True)
    data = [bytes([65 + number]) * 30 for number in range(20)]
    lsns: list[int] = []
    for opened in (data[:12], data[12:]):
        with place.open() as store:
            if not store.exists("a"):
                store.create("a")
            for part in opened:
                store.append("a", part)
                lsns.append(store._container.current.queue.head.lsn)
                store.table("t").put(part[:1], part)
    rotten = sorted(chance.sample(range(18), chance.choice((1, 1, 2, 3))))
    for number, (path, begin, end) in [(number, place.record_at(lsns[number])) for number in rotten]:
        raw = bytearray(path.read_bytes())
        at = raw.index(data[number], begin, end) + chance.randrange(30)
        raw[at] ^= 1 << chance.randrange(8)
        path.write_bytes(raw)
    told = place.repair(dry_run=True)
    assert told.damage.endswith("bytes of appends are damaged in this record") and not told.sound
    report = place.repair()
    assert (report.segments, report.behind, report.unreadable) == ((), 0, ())
    assert place.repair().sound
    with place.open() as store:
        assert store.info("a").length == 600
        for number, part in enumerate(data):
            assert store.table("t").get(part[:1]).value == part  # type: ignore[union-attr]
            if number in rotten:
                with pytest.raises(Damaged):
                    store.read("a", 30 * number, 30)
            else:
                assert store.read("a", 30 * number, 30) == part
        assert store.append("a", b"goes on") == 600
        told_of = {(item.segment, item.severity) for item in store.check("deep")}
        assert told_of == {("a", "damage"), ("", "damage")}, "its bytes, and the record that held them"


@pytest.mark.parametrize("mode", MODES)
def test_damaged_bytes_and_damaged_words(mode: str, tmp_path: Path) -> None:
    """Where a record behind it is lost as well, each is dealt with in its own way; and the last record of all proves nothing of itself."""
    place = Place(mode, tmp_path, inline=True)
    with place.open() as store:
        store.create("a")
        for number in range(9):
            store.append("a", bytes([65 + number]) * 30)
    for number, (path, begin, end) in [(number, place.record_at(lsn)) for lsn, number in ((4, 1), (9, 6))]:
        raw = bytearray(path.read_bytes())
        at = raw.index(bytes([65 + number]) * 30, begin, end)
        for place_of in (at,) if number == 1 else (at, end - 20):
            raw[place_of] ^= 1
        path.write_bytes(raw)
    report = place.repair()
    assert report.last_lsn == 8
    [outcome] = report.segments
    assert outcome.lost == ((180, 270),)
    with place.open() as store:
        assert store.read("a", 60, 120) == b"".join(bytes([65 + number]) * 30 for number in range(2, 6))
        with pytest.raises(Damaged):
            store.read("a", 30, 30)


@pytest.mark.parametrize("hash_too", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_damaged_bytes_in_the_last_record_of_all(mode: str, hash_too: bool, tmp_path: Path) -> None:
    """No record behind it has its hash: it is cut off."""
    place = Place(mode, tmp_path, inline=True)
    with place.open() as store:
        store.create("a")
        for number in range(5):
            store.append("a", bytes([65 + number]) * 30)
        lsn = store._container.current.queue.head.lsn
    path, begin, end = place.record_at(lsn)
    if mode == "slot":
        place.record_at(lsn + 1)[0].unlink()  # its owner was killed, and has not closed it
    raw = bytearray(path.read_bytes()[:end])
    raw[raw.index(b"E" * 30, begin, end)] ^= 1
    raw[end - 5] ^= hash_too
    path.write_bytes(raw)
    report = place.repair()
    assert report.last_lsn == lsn - 1
    assert path.name in report.damage
    with place.open() as store:
        assert store.read("a", 0, 999) == b"".join(bytes([65 + number]) * 30 for number in range(4))


@pytest.mark.parametrize("mode", MODES)
def test_one_lost_record_between_appends_loses_nothing(mode: str, tmp_path: Path) -> None:
    """The records behind it say of the chunks what it said."""
    place = Place(mode, tmp_path)
    store = place.open()
    store.create("a")
    for number in range(9):
        store.append("a", b"%d;" % number * 9)
    store.close()
    flip(place, 6, random.Random(1))
    report = place.repair()
    assert (report.last_lsn, len(report.unreadable)) == (5, 1)
    [outcome] = report.segments
    assert (outcome.kept, outcome.lost) == (((54, 162),), ())
    with place.open() as store:
        assert store.read("a", 0, 999) == b"".join(b"%d;" % number * 9 for number in range(9))
        assert broken(store.check("deep")) == []


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_every_way_to_change_a_segment_is_made_again(mode: str, inline: bool, tmp_path: Path) -> None:
    place = Place(mode, tmp_path, inline=inline)
    store = place.open()
    for name in ("grown", "cut", "emptied", "source", "gone", "reused"):
        store.create(name, attributes={"kept": "as it was"})
        store.append(name, name.encode() * 9)
    cut = store._container.current.queue.head.lsn
    if inline:  # the bytes of a lost record would be lost with it
        store.table("t").put(b"lost", b"")
    store.append("grown", b"tiny")
    store.append("grown", b"x" * 90, writer_id=b"w", event_number=7)
    store.truncate("cut", 20)
    store.append("cut", b"behind the cut")
    store.truncate("emptied", 63)
    store.append("emptied", b"new beginning")
    store.truncate("emptied", 66)
    store.append("source", b" of it")
    store.seal("source")
    store.concat("grown", store.info("grown").length, "source")
    store.delete("gone")
    store.delete("reused")
    store.create("reused")
    store.append("reused", b"another")
    store.commit([Create("made"), Append("made", b"y" * 50), TablePut("t", b"k", b"v")])
    store.update_attributes("made", {"color": "red"})
    store.truncate("made", 45)
    store.seal("made")
    session = store.session("goes on")
    expected = {
        info.name: (info.id, info.start_offset, info.sealed, dict(info.attributes)) for info in store.segments()
    }
    contents = {name: store.read(name, start, 999) for name, (_, start, *_) in expected.items()}
    store.close()
    zero(place, cut + 1, random.Random(1))  # of "grown", which says so again
    report = place.repair()
    assert report.last_lsn == cut and not any(item.lost for item in report.segments) and report.not_applied == ()
    with place.open() as store:
        found = {
            info.name: (info.id, info.start_offset, info.sealed, dict(info.attributes)) for info in store.segments()
        }
        assert found == expected
        assert {name: store.read(name, start, 999) for name, (_, start, *_) in expected.items()} == contents
        row = store.table("t").get(b"k")
        assert row is not None and row.value == b"v"
        session_end = store._container.current.store
        assert session_end.get(b"E" + session.id.to_bytes(8, "big")) is not None
        assert broken(store.check("deep")) == []
        store.collect()
        assert broken(store.check("deep")) == []
    place.check_readers()


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_chunks_replaced_behind_the_cut_are_replaced_again(mode: str, lost: bool, tmp_path: Path) -> None:
    """The old ones may be gone by then, for good; where a new one is lost instead, the old ones stay."""
    place = Place(mode, tmp_path)
    store = place.open()
    for name in ("middle", "end", "head"):
        store.create(name, rolling=RollingPolicy(chunk_size_bytes_max=40))
        for letter in b"abcdef":
            store.append(name, bytes([letter]) * 40)
        store.seal(name)
    cut = store._container.current.queue.head.lsn
    store.create("other")
    store.unseal("end")
    store.commit([merge(store, "middle", 1, 3)])
    store.commit([merge(store, "end", 3, 3, parts=2)])
    store.append("end", b"behind the cut")
    store.truncate("head", 50)
    store.commit([merge(store, "head", 0, 3, leave_head=True)])
    store.commit([merge(store, "head", 0, 2)])
    names = {name: [chunk.name for chunk in store.layout(name)] for name in ("middle", "end", "head")}
    contents = {name: store.read(name, store.info(name).start_offset, 999) for name in names}
    if not lost:
        assert store.collect().chunks == 3 + 3 + 1 + 3 + 2
    store.close()
    if lost:
        for name in ("middle", "end"):
            (place.folder / "root" / names[name][-2 if name == "end" else 1]).unlink()
    zero(place, cut + 1, random.Random(1))
    report = place.repair()
    assert report.last_lsn == cut
    assert [item.segment for item in report.segments if item.lost] == ["end"] * lost
    if lost:
        contents["end"] = contents["end"][:240]
    with place.open() as store:
        assert {name: store.read(name, store.info(name).start_offset, 999) for name in names} == contents
        assert broken(store.check("deep")) == []
        if not lost:
            assert {name: [chunk.name for chunk in store.layout(name)] for name in names} == names
        store.collect()
        assert {name: store.read(name, store.info(name).start_offset, 999) for name in names} == contents
        assert broken(store.check("deep")) == []


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mode", MODES)
def test_snapshots_that_are_damaged_too(mode: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(f"{mode} {seed} snapshots")
    place = Place(mode, tmp_path)
    place.live(chance, epochs=3, steps=12, snapshots=True)
    snapshots = sorted((place.home / "snap").glob("*.sn"))
    last = [record["lsn"] for record in journal_records(place.root)][-1]
    assert isinstance(last, int)
    lsn = chance.randrange(6, last)
    flip(place, lsn, chance)
    good = []
    for path in snapshots:
        if chance.random() < 0.6:
            path.write_bytes(path.read_bytes()[:-7])
        else:
            good.append(int(path.name.split("-")[0], 16))
    told = place.repair(dry_run=True)
    if max(good, default=0) >= lsn or told.sound:
        return  # a snapshot stands for the record
    assert told.last_lsn == lsn - 1
    place.judge(place.repair())


@pytest.mark.parametrize("mode", MODES)
def test_nothing_to_go_on_from(mode: str, tmp_path: Path) -> None:
    """The beginning was collected, and no snapshot can be read: an empty container would be a lie."""
    place = Place(mode, tmp_path)
    for _ in range(3):
        with chunkstore.open(place.root, settings=place.settings(fresh=False)) as store:
            store.append(store.create(f"s{store.epoch}"), b"bytes")
            store.snapshot()
            store.append(f"s{store.epoch}", b"more")
    with chunkstore.open(place.root, settings=place.settings(fresh=False)) as store:
        store.snapshot()
        store.collect()
    for path in (place.home / "snap").glob("*.sn"):
        path.write_bytes(b"rot")
    before = {path: path.read_bytes() for path in place.home.rglob("*") if path.is_file()}
    with pytest.raises(Damaged, match="nothing can be repaired"):
        place.repair()
    assert {path: path.read_bytes() for path in place.home.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("mode", MODES)
def test_an_open_that_is_damaged_or_gone(mode: str, tmp_path: Path) -> None:
    for number, gone in enumerate((False, True)):
        place = Place(mode, tmp_path / str(number))
        place.live(random.Random(5), epochs=3, steps=10, snapshots=False)
        name = place.home / "j" / f"{0:016x}" / f"{2:016x}" / f"{0:016x}.s"
        end = next(r["lsn"] for r in journal_records(place.root) if r["epoch"] == 2 and r["kind"] == "OPEN")
        if gone:
            name.unlink()
        else:
            name.write_bytes(name.read_bytes()[:100])
        report = place.repair()
        assert isinstance(end, int) and report.last_lsn in (end - 1, end - 2)
        place.judge(report)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("behind", [0, 1])
def test_a_merge_through_the_cut_is_the_only_copy_and_is_taken_on(mode: str, behind: int, tmp_path: Path) -> None:
    """It stood for old chunks that are collected, together with bytes whose record is lost."""
    place = Place(mode, tmp_path)
    store = place.open()
    store.create("a", rolling=RollingPolicy(chunk_size_bytes_max=400))
    for letter in b"abc":
        store.create("part")
        store.append("part", bytes([letter]) * 40)
        store.seal("part")
        store.concat("a", store.info("a").length, "part")
    cut = store._container.current.queue.head.lsn
    store.append("a", b"behind the cut")
    store.close()
    store = place.open()
    store.commit([merge(store, "a", 0, 4)])
    store.collect()
    if behind:
        store.append("a", b" and further")
    whole = store.read("a", 0, 400)
    store.close()
    zero(place, cut + 1, random.Random(1))
    report = place.repair()
    assert (report.last_lsn, report.findings) == (cut, ())
    [outcome] = report.segments
    assert (outcome.kept, outcome.lost) == (((120, len(whole)),), ())
    with place.open() as store:
        assert store.read("a", 0, 400) == whole
        assert broken(store.check("deep")) == []
        store.append("a", b"on it goes")
    with place.open() as store:
        assert store.sweep(delete=True, age_s_min=0).deleted == 0
        assert store.read("a", 0, 400) == whole + b"on it goes"


@pytest.mark.parametrize("mode", MODES)
def test_a_rotten_merge_through_the_cut_is_told_and_its_chunk_stays(mode: str, tmp_path: Path) -> None:
    place = Place(mode, tmp_path)
    store = place.open()
    store.create("a", rolling=RollingPolicy(chunk_size_bytes_max=400))
    for letter in b"abc":
        store.create("part")
        store.append("part", bytes([letter]) * 40)
        store.seal("part")
        store.concat("a", store.info("a").length, "part")
    cut = store._container.current.queue.head.lsn
    store.append("a", b"behind the cut")
    store.close()
    store = place.open()
    store.commit([merge(store, "a", 0, 4)])
    store.collect()
    store.close()
    zero(place, cut + 1, random.Random(1))
    orphan = next(path for path in (place.folder / "root/default/d").rglob("*-*") if path.stat().st_size == 134)
    orphan.write_bytes(b"a" * 40 + b"rotten" + orphan.read_bytes()[46:])
    report = place.repair()
    assert report.last_lsn == cut
    assert {(item.segment, item.severity) for item in report.findings} == {("a", "damage")}
    with place.open() as store:
        pass
    with place.open() as store:
        assert store.sweep(age_s_min=0).orphan_bytes == 134
        with pytest.raises(Damaged, match="absent"):
            store.sweep(delete=True, age_s_min=0)
    assert orphan.read_bytes().startswith(b"a" * 40)


@pytest.mark.parametrize("behind", [-9, 0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_the_owner_that_is_cut_off_is_fenced(mode: str, behind: int, tmp_path: Path) -> None:
    place = Place(mode, tmp_path)
    zombie = place.open()
    zombie.create("a")
    zombie.append("a", b"first")
    for _ in range(9):
        zombie.append("a", b"second")
    with open_replica(place.root, settings=place.settings()) as replica:
        seen = replica.refresh()
        zero(place, 3, random.Random(1))
        report = place.repair()
        assert report.last_lsn == 2
        with pytest.raises(ChunkstoreError):
            zombie.append("a", b"never")
        zombie.close()
        with place.open() as store:
            held = store.read("a", 0, 99)
            assert held == b"first" + b"second" * 9
            store.append("a", b"third")
            while store._container.current.queue.head.lsn < seen + behind:
                store.append("a", b"third")
            # It had applied what was cut off.
            assert replica.refresh() == store._container.current.queue.head.lsn
            assert replica.read("a", 0, 999) == store.read("a", 0, 999)
        assert broken(replica.check("deep")) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_name_that_was_freed_by_a_lost_record_stays_taken(mode: str, tmp_path: Path) -> None:
    """The plan says what happens then, though a later segment of that name was deleted, too."""
    place = Place(mode, tmp_path)
    store = place.open()
    store.append(store.create("a"), b"the first one")
    cut = store._container.current.queue.head.lsn
    store.delete("a")
    store.create("a")
    store.delete("a")
    store.append(store.create("a"), b"the third one")
    store.close()
    zero(place, cut + 1, random.Random(1))
    told, report = place.repair(dry_run=True), place.repair()
    assert report.segments == told.segments
    assert [item.reason for item in report.segments if item.lost] == [
        "at the last good record the name belongs to another segment"
    ]
    with place.open() as store:
        assert store.read("a", 0, 99) == b"the first one"


@pytest.mark.parametrize("mode", MODES)
def test_repaired_twice(mode: str, tmp_path: Path) -> None:
    place = Place(mode, tmp_path)
    place.live(random.Random(9), epochs=2, steps=12, snapshots=False)
    flip(place, 8, random.Random(1))
    first = place.repair()
    with place.open() as store:
        store.append(store.create("later"), b"later")
        lsn = store._container.current.queue.head.lsn
        store.append("later", b", and more")
        store.append("later", b", and more")
    for path in (place.home / "snap").glob("*"):
        path.write_bytes(b"rot")
    flip(place, lsn + 1, random.Random(1))
    second = place.repair()
    assert first.last_lsn == 7 and second.last_lsn == lsn
    with place.open() as store:
        assert store.read("later", 0, 99) == b"later, and more, and more"
    place.check_readers()
