"""Merging and scrubbing as jobs of the optimiser: in steps, by themselves, and past what is damaged."""

from __future__ import annotations

from pathlib import Path

import chunkstore
from chunkstore.config import DefragPolicy, OptimiserPolicy, RollingPolicy, Settings, Tuning
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.metadata.reserved import BEGINNING, find_mark
from chunkstore.upkeep.jobs import DefragJob, Step
from chunkstore.upkeep.scrub import ScrubJob
from tests.support.data import pattern
from tests.support.hooked import wait_for

LARGE = RollingPolicy(chunk_size_bytes_max=1000)


def fragmented(store: ChunkedSegmentStorage, *names: str) -> None:
    """Segments of 20 chunks of 10 bytes, which may have 1,000."""
    for name in names:
        store.create(name, rolling=LARGE)
        for number in range(20):
            part = f"{name}+"
            store.create(part, rolling=LARGE)
            store.append(part, pattern(number * 10, 10))
            store.seal(part)
            store.concat(name, number * 10, part)


def chunks(store: ChunkedSegmentStorage, name: str) -> int:
    return len([*store.layout(name)])


def a_step(job: DefragJob | ScrubJob) -> tuple[Step, bool]:
    step = Step(float("inf"), lambda: True)  # begins nothing more behind its first piece
    return step, job.step(step)


def open_in(folder: Path, optimiser: OptimiserPolicy | None = None) -> ChunkedSegmentStorage:
    settings = Settings(cache_dir=str(folder / "cache"), lease_s=0, gc_grace_s=0, tuning=Tuning(collect_s=0))
    return chunkstore.open(f"file://{folder}/root", settings=settings, optimiser=optimiser)


def rot(folder: Path, store: ChunkedSegmentStorage, name: str) -> None:
    chunk = next(iter(store.layout(name))).name
    file = folder / "root" / chunk
    data = file.read_bytes()
    file.chmod(0o600)
    file.write_bytes(bytes((data[0] ^ 1,)) + data[1:])


def test_segments_are_merged_one_after_another(tmp_path: Path) -> None:
    with open_in(tmp_path) as store:
        fragmented(store, "a", "b", "c")
        job = DefragJob(store._container, store._context, DefragPolicy())
        dry = Step(float("inf"), lambda: False, dry_run=True)
        assert not job.step(dry)
        assert dry.moved_bytes == 3 * 200
        seen = [[chunks(store, name) for name in "abc"]]
        more = True
        while more:
            _, more = a_step(job)
            seen.append([chunks(store, name) for name in "abc"])
        assert seen[0] == [20, 20, 20]
        assert seen[1][0] < 20 and seen[1][1:] == [20, 20], "one segment in a step that is told to leave off"
        assert max(seen[-1]) <= 8
        assert all(store.read(name, 0, 999) == pattern(0, 200) for name in "abc")
        assert a_step(job)[0].moved_bytes == 0


def test_what_is_damaged_is_left_alone_and_named_once(tmp_path: Path) -> None:
    with open_in(tmp_path) as store:
        fragmented(store, "a", "b")
        rot(tmp_path, store, "a")
        job = DefragJob(store._container, store._context, DefragPolicy())
        found: list[str] = []
        for _ in range(8):
            step, _ = a_step(job)
            found += step.findings
        assert len(found) == 1 and "'a'" in found[0]
        assert chunks(store, "b") <= 8
        assert store.read("b", 0, 999) == pattern(0, 200)


def test_scrubbing_goes_on_where_it_was_and_rests_for_a_day(tmp_path: Path) -> None:
    with open_in(tmp_path) as store:
        fragmented(store, "a")
        rot(tmp_path, store, "a")
        job = ScrubJob(store._container, store._context, bytes_pass=55)
        read = 0
        found: list[str] = []
        for _ in range(40):
            step, _ = a_step(job)
            read += step.done.get("read_bytes", 0)
            found += step.findings
        assert 190 <= read <= 210, "once, and no more within the day"
        assert len(found) == 1 and "segment 'a', [0, 10)" in found[0]
        mark = store._container.look(find_mark)
        assert mark is not None and mark.position == BEGINNING


def test_both_by_themselves(tmp_path: Path) -> None:
    policy = OptimiserPolicy(defrag=DefragPolicy(), scrub_bytes_s=1e6, interval_s=0.05)
    with open_in(tmp_path, optimiser=policy) as store:
        fragmented(store, "a")
        wait_for(lambda: chunks(store, "a") <= 8 and store.optimiser.figures()["moved_bytes"]["defrag"] >= 100)
        assert store.read("a", 0, 999) == pattern(0, 200)
        store.optimiser.pause()
        assert set(store.optimiser.figures()["errors"].values()) == {0}
