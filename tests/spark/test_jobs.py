"""Jobs without a JVM: planned, run and committed as on Spark, by a runner in this process that pickles what would travel."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import chunkstore
from chunkstore.config import KIB, MIB
from chunkstore.errors import ChunkstoreError, Conflict, Damaged, InvalidArgument, RootUnavailable, SegmentNotFound
from chunkstore.invariants import ORPHANED
from chunkstore.metadata.sinks import encode_sink
from chunkstore.pulsar import LedgerReader
from chunkstore.spark import committing
from chunkstore.spark.jobs.copy import CopyReport, copy_on
from chunkstore.spark.jobs.offload import OffloadedPart, offload_files
from chunkstore.spark.jobs.running import Attempt, grouped
from chunkstore.spark.jobs.scrub import ScrubTotals, scrub_on
from chunkstore.spark.jobs.source_files import find_files, foreign, open_system
from chunkstore.spark.write_options import parse_write_options
from tests.cli.conftest import Call, call
from tests.support.servers.s3server import S3Server
from tests.support.spark_tasks import home, store

__all__ = ["call", "home", "store"]

IDS = count(1)
# The package has functions of these names.
copying, scrubbing = (import_module(f"chunkstore.spark.jobs.{name}") for name in ("copy", "scrub"))


class Killed(BaseException):
    """As if the driver died: nobody is told."""


class Here:
    """``twice``: every task is tried twice, and the second result counts. ``dies_at``: the number of the task at which all ends."""

    def __init__(self, *, twice: bool = False, dies_at: int | None = None) -> None:
        self.twice = twice
        self.dies_at = dies_at
        self.ran = 0

    def __call__(self, call: Callable[[Any, Attempt], Any], tasks: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        assert len(sizes) == len(tasks)
        found = []
        for task in tasks:
            if self.ran == self.dies_at:
                raise Killed
            self.ran += 1
            raw = pickle.dumps(task)
            if self.twice:
                call(pickle.loads(raw), Attempt(next(IDS), 0))
            found.append(pickle.loads(pickle.dumps(call(pickle.loads(raw), Attempt(next(IDS), int(self.twice))))))
        return found


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
                call(task, Attempt(next(IDS), 0))
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


# ---- offload


def lines_of(home: Path) -> list[list[bytes]]:
    """Files with lines of all kinds: empty ones, none at the end, one longer than what is read at one time, and no line at all."""
    (home / "in" / "deep").mkdir(parents=True)
    found = [
        [b"line %d" % number for number in range(3000)],
        [b"", b"x", b"", b""],
        [b"long" * (3 * MIB), b"y" * 100],
        [b"\r", b"last"],
    ]
    names = ["1.txt", "2.txt", "deep/3.txt", "deep/4.txt"]
    for name, lines in zip(names, found, strict=True):
        (home / "in" / name).write_bytes(b"\n".join(lines) + (b"" if name == "deep/4.txt" else b"\n"))
    (home / "in" / "deep" / "5.txt").touch()
    (home / "in" / "_SUCCESS").touch()
    return found


def offloaded(home: Path, run: Here | None = None, topic: str = "t", **more: Any) -> list[OffloadedPart]:
    given = {"path": f"file://{home}/root", "as": "ledger", "topic": topic, "chunkBytes": str(MIB)}
    options = parse_write_options(given, streaming=False)
    return offload_files(run or Here(), find_files([str(home / "in")]), options, **more)


def entries_of(store: chunkstore.ChunkedSegmentStorage, ledger: int) -> list[bytes]:
    return [entry.payload for entry in LedgerReader(store).read("t", ledger)]


def test_lines_of_files_become_ledgers_once(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    lines = lines_of(home)
    planned = offloaded(home, Here(dies_at=0), dry_run=True, part_bytes=1000)
    assert [part.state for part in planned] == ["planned"] * 3
    assert list(store.sessions()) == []
    with pytest.raises(Killed):
        offloaded(home, Here(dies_at=1), part_bytes=1000)
    assert list(store.sessions()) == []  # an interrupted driver gives up what nobody will commit
    assert [item.ledger for item in LedgerReader(store).ledgers("t")] == [0]
    found = offloaded(home, Here(twice=True), part_bytes=1000, ledger=0)
    assert [part.state for part in found] == ["before", "done", "done"]
    assert sum(part.entries or 0 for part in found) == sum(map(len, lines[1:]))
    [before] = offloaded(home, Here(dies_at=0), part_bytes=1000)
    assert (before.part, before.state, before.files) == (2, "before", 5)
    for ledger, wanted in enumerate(lines):
        assert entries_of(store, ledger) == wanted
    assert {item.ledger for item in LedgerReader(store).ledgers("t")} == {0, 1, 2, 3}
    assert list(store.sessions()) == []
    assert all(item.severity != "damage" for item in store.check("deep"))
    with pytest.raises(Conflict, match="ledger"):
        offloaded(home)  # in other parts it is another job, and its ledgers are there


def test_files_become_entries_of_one_ledger(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    (home / "in").mkdir()
    wanted = [bytes([number]) * (number * 10_000) for number in range(20)]
    for number, data in enumerate(wanted):
        (home / "in" / f"{number:03}").write_bytes(data)
    found = offloaded(home, kind="files", ledger=7, part_bytes=600_000, width=3)
    assert len(found) > 2
    assert sum(part.entries or 0 for part in found) == 20
    assert entries_of(store, 7) == wanted
    for more, argument in (
        ({"kind": "words"}, "entries"),
        ({"ledger": -1}, "ledger"),
        ({"part_bytes": 0}, "part_bytes"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            offloaded(home, **more)
        assert caught.value.argument == argument


def test_files_that_change_or_are_not_there(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    (home / "in").mkdir()
    with pytest.raises(InvalidArgument):
        offloaded(home)
    with pytest.raises(InvalidArgument):
        find_files([str(home / "absent")])
    file = home / "in" / "1"
    file.write_bytes(b"one\ntwo\n")

    class Growing(Here):
        def __call__(self, call: Any, tasks: Any, sizes: Any) -> list[Any]:
            with open(file, "ab") as opened:
                opened.write(b"three\n")
            return super().__call__(call, tasks, sizes)

    for kind in ("lines", "files"):
        with pytest.raises(Conflict, match="length"):
            offloaded(home, Growing(), kind=kind)
    assert list(store.segments()) == []
    assert list(store.sessions()) == []


def test_a_name_of_the_users_own_is_done_once(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    (home / "in").mkdir()
    (home / "in" / "1").write_bytes(b"one\n")
    assert [part.state for part in offloaded(home, job="nightly")] == ["done"]
    assert [part.state for part in offloaded(home, Here(dies_at=0), job="nightly")] == ["before"]
    for wrong in ({"ledger": 1}, {"kind": "files"}, {"topic": "other"}):
        with pytest.raises(Conflict, match="nightly"):
            offloaded(home, job="nightly", **wrong)
    (home / "in" / "1").write_bytes(b"another\n")
    with pytest.raises(Conflict, match="name of its own"):
        offloaded(home, job="nightly")
    (home / "in" / "1").unlink()
    (home / "in" / "2").write_bytes(b"two\n")
    with pytest.raises(Conflict, match="nightly"):
        offloaded(home, job="nightly")
    assert entries_of(store, 0) == [b"one"]
    assert list(store.sessions()) == []


def test_files_that_come_behind_are_gone_on_with_under_the_same_name(
    store: chunkstore.ChunkedSegmentStorage, home: Path
) -> None:
    (home / "in").mkdir()

    def night(stop: int, **more: Any) -> list[tuple[Any, ...]]:
        for number in range(stop):
            if not (home / "in" / f"{number:03}").exists():
                (home / "in" / f"{number:03}").write_bytes(b"file %d" % number)
        return [part[:5] for part in offloaded(home, job="nightly", **more)]

    assert night(10, part_bytes=70) == [(0, "done", 10, 0, 9)]  # the last part is not full
    assert night(20, part_bytes=70) == [(0, "before", 10, 0, 9), (1, "done", 10, 10, 19)]
    with pytest.raises(Killed):
        night(26, part_bytes=16, run=Here(dies_at=3))
    assert night(27)[0] == (2, "before", 23, 0, 22)
    assert [entries_of(store, number) for number in range(27)] == [[b"file %d" % number] for number in range(27)]
    (home / "in" / "0005").touch()  # between the others
    with pytest.raises(Conflict, match="nightly"):
        night(28)


def test_two_drivers_of_one_name_with_other_files(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    (home / "in").mkdir()
    (home / "in" / "1").write_bytes(b"one\n")

    class Beside(Here):
        def __call__(self, call: Any, tasks: Any, sizes: Any) -> list[Any]:
            (home / "in" / "2").write_bytes(b"two\n")
            assert [part.state for part in offloaded(home, job="nightly")] == ["done"]
            return super().__call__(call, tasks, sizes)

    with pytest.raises(Conflict, match="another driver"):
        offloaded(home, Beside(), job="nightly")
    assert [part[1:3] for part in offloaded(home, job="nightly")] == [("before", 2)]
    assert [entries_of(store, number) for number in (0, 1)] == [[b"one"], [b"two"]]


def test_rows_of_earlier_versions(
    store: chunkstore.ChunkedSegmentStorage, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not say what was done; a name that is made of the files does."""
    lines = lines_of(home)
    with monkeypatch.context() as patched:
        patched.setattr(committing, "encode_sink", lambda row: encode_sink(row._replace(run=bytes(16))))
        for job, ledger in ((None, 0), ("nightly", 10)):
            with pytest.raises(Killed):
                offloaded(home, Here(dies_at=1), part_bytes=1000, job=job, ledger=ledger)
    assert [part[:3] for part in offloaded(home, part_bytes=1000)][:2] == [(0, "before", 1), (1, "done", 2)]
    assert [entries_of(store, number) for number in range(4)] == lines
    with pytest.raises(Conflict, match="nightly"):
        offloaded(home, part_bytes=1000, job="nightly", ledger=10)


# ---- their files

NAMES = ("a%41.txt", "aA.txt", "b c.txt", "d?e=f.txt", "g#h.txt", "i+j.txt", "ü.txt")


def contents_of(url: str) -> list[bytes]:
    """What an executor reads, in order."""
    found = []
    for file in find_files([url]):
        system, inner = open_system(file.url)
        with system.open_input_stream(inner, compression=None) as stream:
            found.append(stream.read())
        assert len(found[-1]) == file.size_bytes
    return found


def test_names_of_files_below_a_url(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home / "in a%20b"
    (folder / "deep").mkdir(parents=True)
    for name in NAMES:
        (folder / "deep" / name).write_bytes(name.encode())
    wanted = [name.encode() for name in sorted(NAMES)]
    monkeypatch.chdir(home)
    for path in (folder.as_uri(), folder.as_uri() + "/", str(folder), f"{folder}/", folder.name, f"./{folder.name}"):
        assert contents_of(path) == wanted, path
    # Executors have a working directory of their own.
    found = find_files([folder.name])
    monkeypatch.chdir("/")
    for file in found:
        system, inner = open_system(file.url)
        assert system.get_file_info(inner).size == file.size_bytes
    with pytest.raises(InvalidArgument) as caught, foreign("s3://who:secret@bucket/in?secret=1"):
        raise FileNotFoundError("absent")
    assert "secret" not in str(caught.value)


def test_a_directory_of_a_bucket_behind_an_endpoint(moto: S3Server) -> None:
    bucket = moto.make_bucket()
    for name in NAMES:
        moto.client.put_object(Bucket=bucket, Key=f"in b/{name}", Body=name.encode())
    query = f"endpoint_override=127.0.0.1:{moto.port}&scheme=http&region=us-east-1"
    assert contents_of(f"s3://{bucket}/in%20b?{query}") == [name.encode() for name in sorted(NAMES)]
    assert contents_of(f"s3://{bucket}/in%20b/{NAMES[1]}?{query}") == [NAMES[1].encode()]


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

    lake = ["spark", "to-parquet", root, "--lake", "l", "--path", f"file://{home}/lakes", "--dry-run"]
    [found] = call(*lake, "--segments", "a", "--json").lines
    assert found == {"name": "a", "size_bytes": store.info("a").length - store.info("a").start_offset, "rows": None}
    assert b"a" in call(*lake, "--segments-pattern", "a").out
    for wrong, argument in (
        (["--segments", "a", "--option", "segments"], "option"),
        (["--segments", "a", "--option", "SEGMENTS=b"], "SEGMENTS"),
        (["--segments", "a", "--option", "fileBites=1"], "fileBites"),
        (["--segments", "a", "--topic", "t"], "segments"),
        (["--segments", "a", "--schema", "n LONG"], "valueSchema"),
    ):
        assert call(*lake, *wrong, "--json", code=2).error["fields"]["argument"] == argument
    call(*lake, code=2)
    assert not (home / "lakes").exists()


def test_without_pyspark_the_commands_name_the_extra(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyspark", None)
    for verb in (
        ["scrub", "file:///nowhere"],
        ["copy", "file:///a", "file:///b"],
        ["offload", "file:///a", "f", "--topic", "t"],
        ["to-parquet", "file:///a", "--lake", "l", "--path", "file:///b", "--segments", "s"],
    ):
        failed = call("spark", *verb, "--json", code=1)
        assert failed.error["error"] == "Unsupported"
        assert "chunkstore-engine[spark]" in failed.error["message"]
