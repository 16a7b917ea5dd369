"""A genuine log directory in a container and back: the same records, the same bytes, nothing twice, nothing half."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

import chunkstore
from chunkstore import runtime
from chunkstore.cli.app import main
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.kafka import sources
from chunkstore.kafka.bucket import KafkaBucket
from chunkstore.kafka.container import ContainerSource
from chunkstore.kafka.sources import LogDirectory, Segment
from chunkstore.kafka.storage import RemoteStorageManager
from chunkstore.kafka.tier import Tiered, restore, tier
from tests.kafka.support_logdir import LOG_DIR
from tests.kafka.support_metadata import Store, fresh_root
from tests.kafka.support_tier import Killed, copied_logs, expected_rows, files_below, lines, records_of, spans

ROLLED_FILES = ("log", "index", "timeindex", "txnindex")


def rolled(log_dir: Path, topic: str) -> list[Segment]:
    source = LogDirectory(str(log_dir))
    segments = [each for each in source.listing(topic).segments if each.state == "ROLLED"]
    source.close()
    return segments


def copied_files(log_dir: Path, segments: list[Segment]) -> dict[str, bytes]:
    """What a restored folder has of these segments, by file."""
    found = {}
    for each in segments:
        folder = log_dir / f"{each.topic}-{each.partition}"
        names = [f"{each.start_offset:020d}.{suffix}" for suffix in ROLLED_FILES]
        for name in (*names, f"{each.end_offset + 1:020d}.snapshot", "partition.metadata"):
            if (folder / name).exists():
                found[f"{folder.name}/{name}"] = (folder / name).read_bytes()
    return found


def test_what_consumers_got_is_read_back(root: str, store: Store) -> None:
    done = tier(str(LOG_DIR), store)
    ends: dict[tuple[str, int], int] = {}
    with KafkaBucket(root) as container:
        for each in container.segments():
            ends[each.topic, each.partition] = max(each.end_offset, ends.get((each.topic, each.partition), 0))
        assert done.copied == len(container.segments()) > 20
        assert list(container.verify()) == []
        found = records_of(container)
    assert len(ends) > 5
    assert {len(topic) for topic, _ in ends} >= {len("codecs"), len("transactions")}
    expected = expected_rows("logdir-3.9.records.jsonl")
    for place, end in ends.items():
        rows = [row for row in expected[place] if row["offset"] <= end]
        undecided = [row["offset"] for row, other in zip(rows, found[place], strict=True) if row != other]
        # A transaction whose end is in the active segment is withheld, with all that follows it.
        for row in rows:
            row["committed"] = row["committed"] and row["offset"] < min(undecided, default=end + 1)
        assert found[place] == rows
        assert not undecided or place[0] in ("compacted", "open-transaction", "transactions")


def test_rolled_segments_are_restored_byte_for_byte(tmp_path: Path, store: Store) -> None:
    tier(str(LOG_DIR), store)
    done = restore(store, str(tmp_path / "back"), "[a-z]*")
    found = files_below(tmp_path / "back")
    epochs = {name: data for name, data in found.items() if name.endswith("/leader-epoch-checkpoint")}
    segments = ContainerSource(store, "here").listing().segments
    assert done.segments == len(segments)
    assert {name: data for name, data in found.items() if name not in epochs} == copied_files(LOG_DIR, segments)
    assert len(epochs) == done.partitions
    for name, data in epochs.items():
        rows = data.splitlines()[2:]
        assert (LOG_DIR / name).read_bytes().splitlines()[2:][: len(rows)] == rows
    assert any("meta.properties" in line for line in done.missing)


def test_a_second_run_copies_and_reads_nothing(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    first = tier(str(LOG_DIR), store)
    opened: list[str] = []
    genuine = LogDirectory.log

    def log(source: LogDirectory, segment: Segment) -> object:
        opened.append(segment.state or "")
        return genuine(source, segment)

    monkeypatch.setattr(sources.LogDirectory, "log", log)
    results: list[Tiered] = []

    def watch(done: Tiered) -> bool:
        results.append(done)
        return len(results) < 2

    tier(str(LOG_DIR), store, watch=watch)
    assert [(each.copied, each.present, each.held_back) for each in results] == [(0, first.copied, first.held_back)] * 2
    assert set(opened) == {"ACTIVE"}


def test_only_what_a_pattern_names_is_copied_and_put_back(tmp_path: Path, store: Store) -> None:
    assert tier(str(LOG_DIR), store, "no-such").copied == 0
    tier(str(LOG_DIR), store, "trans*")
    tier(str(LOG_DIR), store, "*")
    topics = {each.topic for each in ContainerSource(store, "here").listing().segments}
    assert "transactions" in topics
    assert not any(topic.startswith("__") for topic in topics)
    restore(store, str(tmp_path), "codec?")
    assert [path.name for path in tmp_path.iterdir()] == ["codecs-0"]


def test_an_open_transaction_and_the_high_watermark_are_bounds(tmp_path: Path, store: Store) -> None:
    logs = copied_logs(tmp_path)
    ends = [each.end_offset for each in rolled(logs, "idempotent")]
    checkpoint = logs / "replication-offset-checkpoint"
    checkpoint.write_text(f"0\n2\nstill-open 0 141\nidempotent 0 {ends[-1]}\n")
    done = tier(str(logs), store)
    found: dict[str, list[int]] = {}
    for each in ContainerSource(store, "here").listing().segments:
        found.setdefault(each.topic, []).append(each.end_offset)
    assert found.keys() == {"still-open", "idempotent"}
    assert max(found["still-open"]) < 60
    assert found["idempotent"] == ends[:-1]
    assert done.held_back > 0
    checkpoint.write_text(f"0\n1\nidempotent 0 {ends[-1] + 1}\n")
    assert tier(str(logs), store).copied == 1


@pytest.mark.parametrize("done", [False, True])
def test_killed_at_each_change_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(LOG_DIR / "open-transaction-0", logs / "open-transaction-0", copy_function=shutil.copyfile)
    shutil.copyfile(LOG_DIR / "replication-offset-checkpoint", logs / "replication-offset-checkpoint")
    whole = [(each.start_offset, each.end_offset) for each in rolled(logs, "open-transaction")]
    files = copied_files(logs, rolled(logs, "open-transaction"))
    left = 0

    def dying(change: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **more: object) -> object:
            nonlocal left
            left -= 1
            made = change(*args, **more) if done or left else None
            if not left:
                raise Killed
            return made

        return call

    for name in ("commit", "append_many"):
        monkeypatch.setattr(ChunkedSegmentStorage, name, dying(getattr(ChunkedSegmentStorage, name)))
    for number in range(1, 1000):
        with chunkstore.open(fresh_root()) as store:
            left = number
            with suppress(Killed):
                tier(str(logs), store)
            killed = not left
            left = 0
            source = ContainerSource(store, "here")
            stored = source.listing().segments
            assert spans(store) == whole[: len(stored)]
            assert all(source.index(each, "offset") is not None for each in stored)
            assert len(RemoteStorageManager(store).copies_under_way()) <= 1
            tier(str(logs), store)
            assert spans(store) == whole
            names = {each.name for each in source.listing().segments}
            assert {each.name for each in store.segments()} == names | {f"{name}-indexes" for name in names}
            assert RemoteStorageManager(store).copies_under_way() == []
            restore(store, str(tmp_path / f"back-{number}"))
        assert files_below(tmp_path / f"back-{number}").items() >= files.items()
        if not killed:
            break
    assert number > 20


def test_a_restore_that_was_killed_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    tier(str(LOG_DIR), store, "codecs")
    genuine, calls = os.fsync, count()

    def fsync(descriptor: int) -> None:
        if next(calls) == 4:
            raise Killed
        genuine(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(Killed):
        restore(store, str(tmp_path))
    assert not (tmp_path / "codecs-0").exists()
    restore(store, str(tmp_path))
    assert files_below(tmp_path).items() >= copied_files(LOG_DIR, rolled(LOG_DIR, "codecs")).items()
    assert [path.name for path in tmp_path.iterdir()] == ["codecs-0"]


def test_the_command_line_copies_lists_and_restores(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    root, back = (tmp_path / "root").as_uri(), str(tmp_path / "back")
    [done] = lines(capsys, "tier", str(LOG_DIR), root, "--topics", "nnn*")
    assert done["copied"] == 0  # its only segment is active
    [done] = lines(capsys, "tier", str(LOG_DIR), root, "--topics", "codecs")
    assert done == {"copied": 3, "bytes": done["bytes"], "present": 0, "held_back": 0, "notes": []}
    [again] = lines(capsys, "tier", str(LOG_DIR), root, "--topics", "codecs")
    assert again == done | {"copied": 0, "bytes": 0, "present": 3}
    listed = lines(capsys, "ls", root)
    assert [(row["topic"], row["state"]) for row in listed] == [("codecs", "COPY_SEGMENT_FINISHED")] * 3
    assert lines(capsys, "verify", root) == [{"ok": True, "findings": []}]
    assert len(lines(capsys, "read", root, "--topic", "codecs", "--until", "5")) == 5
    [restored] = lines(capsys, "restore", root, back)
    assert restored["segments"] == 3
    assert restored["bytes"] == sum(row["bytes"] for row in listed) == done["bytes"]
    lines(capsys, "restore", root, back, code=2)
    lines(capsys, "tier", str(tmp_path / "no-such"), root, code=2)


def test_watching_goes_on_until_it_is_interrupted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    passes, genuine = iter([False, True]), runtime.sleep_s

    def sleep_s(seconds: float) -> None:
        if seconds != 10.0:
            genuine(seconds)
        elif next(passes):
            raise Killed

    monkeypatch.setattr(runtime, "sleep_s", sleep_s)
    with pytest.raises(Killed):
        main(["kafka", "tier", str(LOG_DIR), (tmp_path / "root").as_uri(), "--topics", "codecs", "--watch", "--json"])
    assert [json.loads(line)["copied"] for line in capsys.readouterr().out.splitlines()] == [3, 0]
