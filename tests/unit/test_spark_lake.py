"""Lakes without Spark: each row once, whatever runs, ends or is restored between; and nothing counts that no row names."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.backup.in_place import restore_in_place
from chunkstore.changes import TablePut
from chunkstore.errors import (
    ChunkstoreError,
    Conflict,
    Damaged,
    InvalidArgument,
    RolledBack,
    RootRefused,
    SegmentNotFound,
    SegmentTruncated,
    Unsupported,
)
from chunkstore.metadata.keys import SINKS_NAMESPACE
from chunkstore.pulsar import OffloadWriter
from tests.support.spark_ground import MIB, Ground, filled, flip

pytest.importorskip("pyarrow", reason="pyarrow is not installed: lakes are not tested")

from chunkstore.spark import lake_runs
from chunkstore.spark.lake_files import LakeFolder
from chunkstore.spark.lake_frame import plan_lake, spark_url
from chunkstore.spark.owners import AskerDoor
from tests.support.spark_lakes import Killing, Lake, run_until_killed

Store = chunkstore.ChunkedSegmentStorage
TOPIC = "tenant/ns/persistent/orders"


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return Ground(tmp_path)


class Log:
    """Lines in segments, and what a lake of them must have."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.rows: Counter[tuple[Any, ...]] = Counter()

    def add(self, segment: str, count: int = 3) -> None:
        if not self.store.exists(segment):
            self.store.create(segment)
        for number in range(count):
            line = f"{segment} {self.rows.total()} {number}".encode()
            self.rows[segment, self.store.append(segment, line + b"\n"), line] += 1


def lines(ground: Ground, **given: object) -> Lake:
    lake = Lake(ground, segmentsPattern="log-.*", framing="lines")
    lake.given |= given
    return lake


@contextmanager
def refused(kind: type[ChunkstoreError], text: str) -> Iterator[None]:
    with pytest.raises(kind, match=text):
        yield


# Each row once


def test_history_and_the_last_second(ground: Ground, store: Store) -> None:
    log, lake = Log(store), lines(ground)
    log.add("log-a")
    assert lake.new_bytes() == {"log-a": store.info("log-a").length}
    assert sum(file.rows for file in lake.run()) == 3
    assert lake.new_bytes() == {}
    assert lake.run() == []
    assert lake.rows() == log.rows
    log.add("log-a")
    log.add("log-b")
    store.append("log-b", b"a line that has not ended")
    assert lake.rows() == log.rows, "behind the files comes the container"
    assert lake.run()
    store.truncate("log-a", store.info("log-a").length)
    assert lake.rows() == log.rows, "what was exported may go"
    store.append("log-b", b"\n")
    store.seal("log-b")
    log.rows["log-b", store.info("log-b").length - 26, b"a line that has not ended"] += 1
    lake.run()
    store.delete("log-b")
    log.add("log-b", 1)
    assert lake.rows() == log.rows, "another segment of that name is read from its beginning"
    lake.run()
    assert lake.rows() == log.rows
    assert len(lake.plan().files) == 4


def test_merges_between_runs_change_nothing(ground: Ground, store: Store) -> None:
    log, lake = Log(store), lines(ground)
    store.create("log-a")
    merged = 0
    for number in range(3):
        for _ in range(4):  # chunks of their own
            store.create("source")
            store.append("source", b"line\n")
            store.seal("source")
            log.rows["log-a", store.info("log-a").length, b"line"] += 1
            store.concat("log-a", store.info("log-a").length, "source")
        frame = lake.plan() if number else None
        lake.run()
        merged += store.defrag("log-a", policy=chunkstore.DefragPolicy(fanout=2)).bytes_moved
        assert lake.rows() == log.rows
        assert frame is None or lake.rows(frame) == log.rows, "a frame that was made before a run"
    assert merged > 0


def test_pieces_of_segments(ground: Ground, store: Store) -> None:
    filled(store, "a", 2 * MIB + 5, 700_000, seed=3)
    lake = Lake(ground, segments="a", maxBytesPerPartition=MIB)
    assert len(lake.run()) == 3
    store.append("a", b"more")
    assert sorted((offset, len(value)) for _, offset, value in lake.rows()) == [
        (0, MIB),
        (MIB, MIB),
        (2 * MIB, 5),
        (2 * MIB + 5, 4),
    ]
    whole = b"".join(value for _, _, value in sorted(lake.rows()))
    assert whole == store.read("a", 0, store.info("a").length)


def test_topics(ground: Ground, store: Store) -> None:
    entries: Counter[tuple[Any, ...]] = Counter()
    lake = Lake(ground, topic=TOPIC)
    for ledger in (7, 8):
        with OffloadWriter(store, TOPIC) as writer:
            for entry in range(5):
                payload = f"{ledger}:{entry}".encode()
                writer.append(ledger, entry, payload)
                entries[TOPIC, ledger, entry, payload] += 1
        if ledger == 8:
            assert lake.rows() == entries
        assert sum(file.rows for file in lake.run()) == 5
        assert lake.rows() == entries


def test_a_run_takes_what_was_there_when_it_began_in_commits_that_are_bounded(ground: Ground, store: Store) -> None:
    log, lake = Log(store), lines(ground, maxBytesPerTrigger=40, fileBytes=1)
    log.add("log-a", 10)
    was = log.rows.total()
    lake.meanwhile = lambda: log.add("log-a", 1)
    files = lake.run()
    assert sum(file.rows for file in files) == was
    assert manifests(lake) == [1, 2, 3]
    assert lake.rows() == log.rows


def test_files_have_a_bound_and_checksums(ground: Ground, store: Store) -> None:
    filled(store, "a", 8 * MIB, MIB, seed=5)
    lake = Lake(ground, segments="a", fileBytes=2 * MIB)
    files = lake.run()
    assert len(files) == 4
    assert all(file.size_bytes < 3 * MIB and file.rows == 2 for file in files)
    path = next(path for path in lake.objects() if path.name == files[0].name)
    flip(path, MIB)
    with pytest.raises(OSError, match=r"(?i)crc"):
        lake.rows()


def test_what_is_not_written_yet_can_be_kept(ground: Ground, store: Store) -> None:
    log, lake = Log(store), lines(ground, pinProgress=True)
    log.add("log-a")
    lake.new_bytes()
    assert store.pins() == []
    for _ in range(2):
        lake.run()
        [pin] = store.pins()
        assert dict(pin.offsets) == {"log-a": store.info("log-a").length}
        log.add("log-a")
    assert lake.rows() == log.rows
    assert len(store.pins()) == 1


# What ends in the middle


@pytest.mark.parametrize("after", [False, True])
def test_a_run_may_be_killed_at_any_step(
    ground: Ground, store: Store, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    log, lake = Log(store), lines(ground, fileBytes=1, minPartitions=2)
    log.add("log-a")
    lake.run()
    step = 0
    while True:
        step += 1
        log.add("log-a", 1)
        with monkeypatch.context() as patched:
            Killing(patched, step, after=after)
            killed = run_until_killed(lake, clean=True)
        assert lake.rows() == log.rows, step
        if not killed:
            break
    assert step > 4
    log.add("log-a")
    lake.run()
    log.add("log-a")
    lake.run(clean=True)
    assert lake.rows() == log.rows
    named = {url.rpartition("/")[2] for url in lake.plan().files}
    assert {path.name for path in lake.objects() if path.suffix == ".parquet"} == named


def test_of_two_runs_one_wins(ground: Ground, store: Store) -> None:
    log, lake, other = Log(store), lines(ground), lines(ground)
    log.add("log-a")
    for _ in range(2):
        count = len(lake.objects())
        lake.meanwhile = other.run
        with refused(Conflict, "another run was faster"):
            lake.run()
        assert len(lake.objects()) == count + 2, "what lost is gone"
        assert lake.rows() == log.rows
        log.add("log-a")


def test_a_commit_that_was_asked_for_twice_and_overtaken_has_happened(
    ground: Ground, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, lake, other = Log(store), lines(ground), lines(ground)
    log.add("log-a")

    class Door(AskerDoor):
        def put(self, once: TablePut) -> int:
            super().put(once)
            monkeypatch.undo()
            log.add("log-a")
            other.run()
            raise Conflict("row", expected=1, found=2)

    monkeypatch.setattr("chunkstore.spark.lake_runs.AskerDoor", Door)
    monkeypatch.setenv("XDG_CACHE_HOME", str(ground.path / "caches"))
    assert sum(file.rows for file in lake.run()) == 3
    assert lake.rows() == log.rows


def test_tasks_that_fail_leave_nothing(ground: Ground, store: Store) -> None:
    log, lake = Log(store), lines(ground)
    log.add("log-a")

    def fail() -> None:
        raise Unsupported("no", feature="no")

    lake.meanwhile = fail
    with refused(Unsupported, "no"):
        lake.run()
    assert lake.objects() == []
    with refused(InvalidArgument, "no lake 'history'"):
        lake.plan()


# What is not as it was


def test_files_that_are_gone_or_not_where_this_machine_looks(ground: Ground, store: Store) -> None:
    log, lake = Log(store), lines(ground)
    log.add("log-a")
    lake.run()
    log.add("log-a")
    [file] = lake.run()
    path = next(path for path in lake.objects() if path.name == file.name)
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with refused(Damaged, f"has {len(data) - 1} bytes, not {len(data)}"):
        lake.plan()
    path.unlink()
    with refused(Damaged, "is gone"):
        lake.plan()
    path.write_bytes(data)
    assert lake.rows() == log.rows
    [manifest] = [item for item in lake.objects() if item.name.startswith("m0000000002")]
    flip(manifest, 20)
    with refused(Damaged, "not the one that was committed"):
        lake.run()
    manifest.unlink()
    with refused(Damaged, "manifest of lake 'history' is gone"):
        lake.plan()
    flip(path, 5)

    elsewhere = lines(ground)
    elsewhere.name = "elsewhere"
    elsewhere.meanwhile = lambda: shutil.rmtree(elsewhere.folder / "elsewhere")
    with refused(Damaged, "as this machine sees it"):
        elsewhere.run()


def test_a_moved_lake(ground: Ground, store: Store) -> None:
    log, lake = Log(store), lines(ground)
    log.add("log-a")
    lake.run()
    lake.folder.rename(ground.path / "moved")
    with refused(Damaged, "is gone"):
        lake.plan()
    moved = plan_lake("history", ground.url, "default", f"file://{ground.path}/moved")
    assert lake.rows(moved) == log.rows
    lake.url = f"file://{ground.path}/moved"
    with refused(Conflict, "the place of its files"):
        lake.run()


def test_a_lake_does_not_lead_just_anywhere(ground: Ground, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row and its manifest are stored text: they choose no root, and no function."""
    log, lake = Log(store), lines(ground)
    log.add("log-a")
    lake.run()
    opened: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr("chunkstore.spark.lake_frame.open_storage", lambda url, _settings: opened.append(url))
        for named in ((), (f"{lake.url}s",), (f"{lake.url}/history",)):
            with refused(RootRefused, "Settings.foreign_roots"):
                plan_lake("history", ground.url, "default", foreign_roots=named)
    assert opened == []
    assert lake.rows(plan_lake("history", ground.url, "default", lake.url)) == log.rows
    real = LakeFolder.manifest

    def hostile(folder: LakeFolder, *arguments: Any) -> Any:
        found = real(folder, *arguments)
        chosen = {
            "path": "file:///etc",
            "container": "x",
            "mapFunction": "x",
            "foreignRoots": "file:///",
            "lakeOffsets": "x",
        }
        return found._replace(source={**found.source, **chosen})

    expected = lake.plan().options
    monkeypatch.setattr(LakeFolder, "manifest", hostile)
    assert lake.plan().options == expected
    assert (expected["path"], expected["foreignRoots"]) == (ground.url, lake.url)


def test_a_container_that_goes_back_takes_its_lake_along(ground: Ground) -> None:
    with ground.open() as store:
        log, lake = Log(store), lines(ground)
        log.add("log-a")
        lake.run()
        log.add("log-a")
        rows, lsn = log.rows.copy(), _lsn(ground)
        log.add("log-a")
        lake.run()
    restore_in_place(ground.url, lsn=lsn, settings=ground.settings)
    with ground.open() as store:
        assert lake.rows() == rows
        log = Log(store)
        log.rows = rows
        log.add("log-a", 2)
        lake.run(clean=True)
        assert manifests(lake) == [1, 2, 2], "another run with the last one's number may still be at work"
        log.add("log-a", 2)
        lake.run(clean=True)
        assert manifests(lake) == [1, 2, 3]
        assert lake.rows() == log.rows


def manifests(lake: Lake) -> list[int]:
    return [int(path.name[1:11]) for path in lake.objects() if path.suffix == ".json"]


def _lsn(ground: Ground) -> int:
    with ground.replica() as replica:
        return replica.lsn


def test_a_run_that_a_restore_overtakes(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    with ground.open() as store:
        log, lake = Log(store), lines(ground)
        log.add("log-a")
        lake.run()
        lsn, rows = _lsn(ground), log.rows.copy()
    held = [ground.open()]

    def go_back() -> None:
        held.pop().close()
        restore_in_place(ground.url, lsn=lsn, settings=ground.settings)
        held.append(ground.open())

    class Door(AskerDoor):
        def put(self, once: TablePut) -> int:
            go_back()
            return super().put(once)

    try:
        held[0].append("log-a", b"will never have been\n")
        lake.meanwhile = go_back
        with refused(RolledBack, "run it again"):
            lake.run()
        lake.meanwhile = lambda: None
        assert lake.rows() == rows
        assert lake.run() == []
        held[0].append("log-a", b"will never have been\n")
        monkeypatch.setattr("chunkstore.spark.lake_runs.AskerDoor", Door)
        with refused(RolledBack, "restored"):
            lake.run()  # behind the commit
        held[0].append("log-a", b"other lines, longer than those before\n")
        for call in (lake.plan, lake.run):
            with refused(RolledBack, "restored"):
                call()
    finally:
        held.pop().close()


def test_the_row_of_another_container_is_refused(ground: Ground, store: Store, tmp_path: Path) -> None:
    Log(store).add("log-a")
    lake = lines(ground)
    lake.run()
    [entry] = store.table(SINKS_NAMESPACE).scan()
    other = Ground(tmp_path / "other")
    with other.open() as copy:
        copy.table(SINKS_NAMESPACE).put(entry.key, entry.value)
        lake.ground = other
        for call in (lake.plan, lake.run):
            with refused(Conflict, "another name"):
                call()


def test_rows_that_are_gone_before_they_were_written(ground: Ground, store: Store) -> None:
    log, lake = Log(store), lines(ground)
    log.add("log-a")
    lake.run()
    log.add("log-a")
    frame = lake.plan()
    store.truncate("log-a", store.info("log-a").length)
    with refused(SegmentTruncated, "log-a"):
        lake.run()
    with refused(SegmentTruncated, "log-a"):
        lake.rows(frame)
    assert lines(ground, failOnDataLoss=False).run() == []
    assert lake.rows().total() == 3
    with refused(SegmentNotFound, "nix"):
        Lake(ground, "other", segments="nix").run()


def test_rows_of_a_new_segment_that_are_gone_before_they_were_written(ground: Ground, store: Store) -> None:
    log, lake = Log(store), lines(ground)
    log.add("log-a")
    lake.run()
    store.create("log-b")
    store.append("log-b", b"c\nd\ne\n")
    store.truncate("log-b", 4)
    for call in (lake.rows, lake.run):
        with refused(SegmentTruncated, "log-b"):
            call()
    assert sum(file.rows for file in lines(ground, failOnDataLoss=False).run()) == 1
    assert lake.rows() == log.rows + Counter({("log-b", 4, b"e"): 1})


# What is asked for


def test_a_lake_stays_as_it_began(ground: Ground, store: Store) -> None:
    Log(store).add("log-a")
    lake = lines(ground)
    lake.run()
    lake.given["columns"] = "offset"
    with refused(Conflict, "what its rows are"):
        lake.run()
    del lake.given["columns"]
    lake.given["minPartitions"] = 7
    assert lake.run() == []
    with refused(Conflict, "its columns"):
        lake_runs.run_job(lake.job(), "others", lake.write)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"name": "a/b"}, InvalidArgument, "lake name 'a/b'"),
        ({"url": ""}, InvalidArgument, "where do the files go"),
        ({"url": "memory://x"}, Unsupported, "one process"),
        ({"segmentz": "a"}, InvalidArgument, "did you mean 'segments'"),
        ({"pinS": 7}, InvalidArgument, "unknown option 'pinS'"),
        ({"fileBytes": 0}, InvalidArgument, "'fileBytes' must be"),
        ({"lsnAsOf": 7}, InvalidArgument, "unknown option 'lsnAsOf'"),
        ({"ownerIdleS": "soon"}, InvalidArgument, "ownerIdleS"),
        ({"topic": "t"}, InvalidArgument, "give one of the options"),
    ],
)
def test_bad_arguments(change: dict[str, object], kind: type[ChunkstoreError], text: str) -> None:
    given: dict[str, Any] = {"name": "history", "url": "file:///lakes", "segments": "a", **change}
    with refused(kind, text):
        lake_runs.parse_job("file:///root", "default", given.pop("name"), given.pop("url"), given)


def test_no_lake_lies_in_a_container(ground: Ground, store: Store) -> None:
    Log(store).add("log-a")
    for name, url in (("default", ground.url), ("d", f"{ground.url}/default")):
        lake = lines(ground)
        lake.name, lake.url = name, url
        with refused(InvalidArgument, "container's own folder"):
            lake.run()


def test_offsets_that_nobody_made(ground: Ground, store: Store) -> None:
    from chunkstore.spark.options import parse_options
    from chunkstore.spark.stream import tasks_between

    store.create("a")
    options = parse_options({"path": ground.url, "segments": "a", "lakeOffsets": "x"})
    for text in ("x", "[1]", "7", json.dumps([1, 2, 3])):
        with refused(InvalidArgument, "lakeOffsets"):
            tasks_between(options, text)
    with refused(Damaged, "not an offset"):
        tasks_between(options, "[{}, null]")


def test_urls_for_spark() -> None:
    assert spark_url("file:///srv/with%20space/%C3%BC") == "file:///srv/with space/ü"
    assert spark_url("s3://bucket/prefix?endpoint_url=http://x") == "s3a://bucket/prefix"
    assert spark_url("hdfs://name:9870/a") == "webhdfs://name:9870/a"
    with refused(InvalidArgument, "pattern"):
        spark_url("file:///srv/lakes%7Ba%7D")
