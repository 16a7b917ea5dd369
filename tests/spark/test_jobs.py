"""Jobs without a JVM: planned, run and committed as on Spark, by a runner in this process that pickles what would travel."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import chunkstore
from chunkstore.config import KIB
from chunkstore.errors import ChunkstoreError, Conflict, Damaged, InvalidArgument, RootUnavailable, SegmentNotFound
from chunkstore.invariants import ORPHANED
from chunkstore.spark.jobs.copy import CopyReport, copy_on
from chunkstore.spark.jobs.running import Attempt, grouped
from chunkstore.spark.jobs.scrub import ScrubTotals, scrub_on
from tests.cli.conftest import Call, call
from tests.support.spark_jobs import ATTEMPTS, Here, Killed
from tests.support.spark_tasks import home, store

__all__ = ["call", "home", "store"]

# The package has functions of these names.
copying, scrubbing = (import_module(f"chunkstore.spark.jobs.{name}") for name in ("copy", "scrub"))


@pytest.fixture(autouse=True)
def _small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of less than a chunk in a scrub, of about one in a copy."""
    monkeypatch.setattr(scrubbing, "_TASK_BYTES_MIN", 128 * KIB)
    monkeypatch.setattr(copying, "_TASK_BYTES", 200 * KIB)


def fill(store: chunkstore.ChunkedSegmentStorage) -> dict[str, bytes]:
    """Three segments, of chunks of 200 KiB (four blocks), one of them truncated within a chunk and one concatenated."""
    policy = chunkstore.RollingPolicy(chunk_size_bytes_max=200 * KIB)
    data = {}
    for name, size in (("a", 900 * KIB), ("b", 450 * KIB), ("c", 10)):
        store.create(name, rolling=policy)
        data[name] = b"".join(bytes([seed % 251]) * 1000 for seed in range(len(name), size // 1000 + 1))[:size]
        for start in range(0, len(data[name]), 50 * KIB):
            store.append(name, data[name][start : start + 50 * KIB])
    store.seal("c")
    store.concat("b", len(data["b"]), "c")
    data["b"] += data.pop("c")
    store.truncate("a", 300_000)
    store.table("t").put(b"key", b"value")
    return data


def path_of(home: Path, chunk: str) -> Path:
    [found] = (home / "root").rglob(Path(chunk).name)
    return found


def scrubbed(home: Path, run: Here | None = None, **more: Any) -> ScrubTotals:
    return scrub_on(run or Here(), f"file://{home}/root", **more)


# ---- scrub


def test_a_scrub_finds_what_the_stores_own_does(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    fill(store)
    sound = scrubbed(home, width=8)
    assert [(item.segment, item.chunk, item.offset, item.length) for item in sound.chunks] == [
        (name, chunk.name, chunk.offset, chunk.length) for name in "ab" for chunk in store.layout(name)
    ]
    assert {item.state for item in sound.chunks} == {"ok"}
    assert sound.tasks > len(sound.chunks)
    a, b = list(store.layout("a")), list(store.layout("b"))
    rotten, short, absent = a[1], a[2], b[0]
    for chunk, offsets in ((rotten, (70 * KIB, 199 * KIB)), (b[1], (0,))):
        with open(path_of(home, chunk.name), "r+b") as file:
            for offset in offsets:
                file.seek(offset)
                file.write(b"\xff\xfe")
    os.truncate(path_of(home, short.name), 100 * KIB)
    path_of(home, absent.name).unlink()
    for width in (1, 8):
        found = scrubbed(home, width=width)
        states = {item.chunk: item.state for item in found.chunks}
        assert {name: state for name, state in states.items() if state != "ok"} == {
            rotten.name: "damaged", short.name: "damaged", absent.name: "missing", b[1].name: "damaged"
        }  # fmt: skip
    own = store.scrub()
    assert {item.chunk for item in own.findings} == {item.chunk for item in found.bad}
    for row in found.bad:
        for finding in own.findings:
            if finding.chunk == row.chunk and row.chunk != short.name:
                assert finding.message in row.error


def test_a_scrub_of_some_segments_and_of_none(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    fill(store)
    assert {item.segment for item in scrubbed(home, segments=["b"]).chunks} == {"b"}
    planned = scrubbed(home, Here(dies_at=0), dry_run=True)
    assert {item.state for item in planned.chunks} == {"planned"}
    assert planned.size_bytes == scrubbed(home).size_bytes
    for wrong, kind in ((["b", "absent"], SegmentNotFound), ("b", InvalidArgument), ([], InvalidArgument)):
        with pytest.raises(kind):
            scrubbed(home, segments=wrong)
    before = store.info("a").owner_epoch
    store.append("a", b"nobody was fenced")
    assert store.info("a").owner_epoch == before


def test_a_chunk_that_goes_while_it_is_read_is_no_finding(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    fill(store)

    class Meanwhile(Here):
        def __call__(self, call: Any, tasks: Any, sizes: Any) -> list[Any]:
            first = next(iter(store.layout("b")))
            store.truncate("b", first.offset + first.length)
            path_of(home, first.name).unlink()
            return super().__call__(call, tasks, sizes)

    assert scrubbed(home, Meanwhile()).bad == []


def test_an_executor_that_reaches_another_container_says_so(
    store: chunkstore.ChunkedSegmentStorage, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    real = scrubbing.Site

    def elsewhere(*given: Any) -> Any:
        return real(*given)._replace(uuid=b"another container")

    monkeypatch.setattr(scrubbing, "Site", elsewhere)
    with pytest.raises(RootUnavailable):
        scrubbed(home)


# ---- copy


def copied(home: Path, run: Here | None = None, new: str = "new", **more: Any) -> CopyReport:
    return copy_on(run or Here(), f"file://{home}/root", f"file://{home}/{new}", **more)


def check_copy(home: Path, data: dict[str, bytes], orphans: int = 0, new: str = "new") -> None:
    with chunkstore.open(
        f"file://{home}/{new}", settings=chunkstore.Settings(cache_dir=str(home / f"cache-{new}"), gc_grace_s=0)
    ) as made:
        assert {info.name for info in made.segments()} == set(data)
        for name, text in data.items():
            info = made.info(name)
            assert made.read(name, info.start_offset, len(text)) == text[info.start_offset :]
            assert info.length == len(text)
        entry = made.table("t").get(b"key")
        assert entry is not None and entry.value == b"value"
        found = made.check("deep")
        assert [item.invariant for item in found] == [ORPHANED] * orphans
        made.append("a", b"it goes on")


def objects(home: Path, new: str = "new") -> set[str]:
    return {path.name for path in (home / new).rglob("*") if path.is_file() and "/d/" in str(path)}


@pytest.mark.parametrize("twice", [False, True])
def test_a_copy_is_the_same_container_elsewhere(
    store: chunkstore.ChunkedSegmentStorage, home: Path, *, twice: bool
) -> None:
    data = fill(store)
    planned = copied(home, Here(dies_at=0), dry_run=True)
    assert not (home / "new").exists()
    run = Here(twice=twice)
    report = copied(home, run)
    assert report == planned._replace(lsn=report.lsn, tasks=run.ran, copied=True)
    assert run.ran > 4
    assert len(objects(home)) == report.chunks  # a task that is tried again takes what it finds whole
    assert store.pins() == []
    check_copy(home, data)
    with pytest.raises(InvalidArgument) as caught:
        copied(home)
    assert caught.value.argument == "new_root"
    assert store.pins() == []


def test_a_copy_that_was_killed_goes_on_at_its_position(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    data = fill(store)
    with pytest.raises(Killed):
        copied(home, Here(dies_at=3))
    before = objects(home)
    assert before
    with pytest.raises(ChunkstoreError):
        chunkstore.open(f"file://{home}/new", create=False, settings=chunkstore.Settings(cache_dir=str(home / "x")))
    [pin] = store.pins()
    # The source goes on, merges and collects: what the copy needs stays.
    store.append("a", b"later")
    store.truncate("b", 100_000)
    store.defrag()
    store.collect()
    # One of the copies rots, another was never whole.
    rotten, short = sorted(before)[:2]
    for name in (rotten, short):
        [path] = (home / "new").rglob(name)
        if name == short:
            os.truncate(path, 1000)
        else:
            path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(Conflict, match="resume=True"):
        copied(home, Here(dies_at=0))
    report = copied(home, Here(twice=True), resume=True)
    assert report.lsn == pin.lsn
    assert before < objects(home)
    assert len(objects(home)) == report.chunks + 2
    assert store.pins() == []
    check_copy(home, data, orphans=2)


def test_nobody_gets_an_old_state_who_did_not_ask_for_it(
    store: chunkstore.ChunkedSegmentStorage, home: Path, call: Call
) -> None:
    data = fill(store)
    for _ in range(2):
        with pytest.raises(Killed):
            copied(home, Here(dies_at=3), resume=False)
    before = objects(home)
    store.append("a", b"days later")
    data["a"] += b"days later"
    [pin] = store.pins()
    with pytest.raises(Conflict, match=rf"lsn {pin.lsn},.*resume=False"):
        copied(home)
    assert copied(home, dry_run=True).lsn > pin.lsn
    call("spark", "copy", f"file://{home}/root", f"file://{home}/new", "--anew", "--dry-run")
    report = copied(home, resume=False)
    assert report.lsn > pin.lsn
    assert store.pins() == []
    check_copy(home, data, orphans=len(before))


def test_a_copy_that_was_killed_behind_its_last_step_is_there(
    store: chunkstore.ChunkedSegmentStorage, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = fill(store)

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(copying.AskerDoor, "unpin", killed)
        with pytest.raises(Killed):
            copied(home)
    assert len(store.pins()) == 1
    with pytest.raises(InvalidArgument, match="whole") as caught:
        copied(home, resume=True)
    assert caught.value.argument == "new_root"
    assert store.pins() == []
    check_copy(home, data)


def test_an_attempt_beside_another_takes_a_name_of_its_own(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    """The first attempt of each task lives on and has written half of it when the second comes."""
    data = fill(store)

    class Beside(Here):
        def __call__(self, call: Any, tasks: Any, sizes: Any) -> list[Any]:
            seen = objects(home)
            found = []
            for task in tasks:
                call(task, Attempt(next(ATTEMPTS), 0))
                for name in objects(home) - seen:
                    [path] = (home / "new").rglob(name)
                    os.truncate(path, path.stat().st_size // 2)
                found += super().__call__(call, [task], [0])
                seen = objects(home)
            return found

    report = copied(home, Beside())
    assert len(objects(home)) == 2 * report.chunks
    check_copy(home, data, orphans=report.chunks)


def test_a_damaged_chunk_is_never_copied(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    fill(store)
    bad = list(store.layout("b"))[1]
    with open(path_of(home, bad.name), "r+b") as file:
        file.write(b"\xff\xff")
    with pytest.raises(Damaged):
        copied(home)
    with pytest.raises(ChunkstoreError):
        chunkstore.open_replica(f"file://{home}/new")
    copied(home, new="part", segments=["a*"])
    with chunkstore.open_replica(f"file://{home}/part") as part:
        assert [info.name for info in part.segments()] == ["a"]
    path_of(home, bad.name).unlink()
    with pytest.raises(chunkstore.ChunksMissing):
        copied(home, new="other", dry_run=True)
    with pytest.raises(InvalidArgument, match="memory"):
        copy_on(Here(), f"file://{home}/root", "memory://x")


# ---- what they share


def test_tasks_are_neighbours_of_about_one_size() -> None:
    sizes = [3, 3, 3, 100, 1, 1]
    assert grouped("abcdef", sizes, 1, 1000) == [(list("abcd"), 109), (list("ef"), 2)]
    assert grouped("abcdef", sizes, 0, 6) == [(["a", "b"], 6), (["c", "d"], 103), (["e", "f"], 2)]
    assert grouped("", [], 4, 100) == []


# ---- the command line


def test_dry_runs_of_the_commands_start_no_spark(
    store: chunkstore.ChunkedSegmentStorage, home: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_spark(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("chunkstore.spark.jobs.running.session_on", no_spark)
    fill(store)
    root = f"file://{home}/root"
    assert "would be read" in call("spark", "scrub", root, "--dry-run").out.decode()
    found = call("spark", "scrub", root, "a", "--dry-run", "--json").document
    assert found["ok"]
    assert found["chunks"] == len(list(store.layout("a")))
    assert call("spark", "copy", root, f"file://{home}/new", "--dry-run", "--json").document["segments"] == 2
    assert not (home / "new").exists()
    (home / "in").mkdir()
    (home / "in" / "1").write_bytes(b"one\n")
    command = ["spark", "offload", root, str(home / "in"), "--topic", "t", "--dry-run"]
    assert call(*command, "--json").lines[0]["size_bytes"] == 4
    assert b"planned" in call(*command).out
    call(*command, "--entries", "words", code=2)
    call("spark", "copy", root, root, code=2)


def test_without_pyspark_the_commands_name_the_extra(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyspark", None)
    for verb in (
        ["scrub", "file:///nowhere"],
        ["copy", "file:///a", "file:///b"],
        ["offload", "file:///a", "f", "--topic", "t"],
    ):
        failed = call("spark", *verb, "--json", code=1)
        assert failed.error["error"] == "Unsupported"
        assert "chunkstore-engine[spark]" in failed.error["message"]
