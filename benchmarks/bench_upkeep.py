"""What upkeep costs those who do not ask for it: readers of what is merged all the time, memory of passes over very many chunks, and
bytes of the journal.

* A range is merged over and over, without any grace, under readers: threads of the owner, threads at a replica beside it, and a process
  of its own with a replica. Wrong answers and errors are counted; the 99th percentile while nothing is merged is measured in between.
* Passes over a segment of a million chunks, in the order in which they leave it behind, each in a fresh process: anonymous memory above
  what the open container has. Chunks are files of 64 bytes that were never written (holes): names, lengths and CRCs are real.
* Journal bytes for each chunk that a merge removes, and its collection forgets: rows of block borders do not occur in chunks so small.

``python -m benchmarks.bench_upkeep [--dir DIR] [--quick]``
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import chunkstore
from benchmarks.harness import Report, in_fresh_process, median, scratch, time_s, tuned
from benchmarks.merged_readers import Readers, fill, merge_again, readers_elsewhere
from chunkstore.changes import Attach
from chunkstore.changes.sessions import SessionChunk
from chunkstore.checksum import crc32c
from chunkstore.config import KIB, RollingPolicy
from chunkstore.records.names import session_chunk_id

__all__ = ["main"]

_CHUNK_BYTES: Final = 64
_PER_COMMIT: Final = 5_000
_PASSES: Final[dict[str, Callable[[chunkstore.ChunkedSegmentStorage], object]]] = {
    "a quick check": lambda store: store.check("quick"),
    "an existence check": lambda store: store.check("exists"),
    "a sweep that deletes": lambda store: store.sweep(delete=True, age_s_min=0),
    "a scrub": lambda store: store.scrub(),
    "planning a merge": lambda store: store.defrag(dry_run=True),
    "a merge of all": lambda store: store.defrag(),
    "collecting all": lambda store: store.collect(),
}
_PASS_MIB_MAX: Final = 50


def settings_for(cache: Path, **others: Any) -> chunkstore.Settings:
    """Nothing is done by itself, nothing is kept for anybody."""
    return tuned(cache_dir=str(cache), gc_grace_s=0, collect_s=0, **others)


# ---- readers


def readers(report: Report, path: Path, merges: int, pause_s: float) -> None:
    """100 readers of one range that is merged so often, in turns with normal times, and with times in which a thread of the owner's process
    computes and does nothing else: what any work in Python costs the others."""
    root, rounds = (path / "root").as_uri(), 5
    with (
        chunkstore.open(root, settings=settings_for(path / "owner")) as store,
        chunkstore.open_replica(root, settings=settings_for(path / "replica")) as replica,
    ):
        fill(store)
        replica.refresh()
        with readers_elsewhere(root, path / "elsewhere", 32, pause_s) as elsewhere:
            groups: dict[str, Any] = {
                "at the owner": Readers(store.read, 34, pause_s),
                "at a replica beside it": Readers(replica.read, 34, pause_s),
                "in another process": elsewhere,
            }
            took_s = 0.0
            for _ in range(rounds):
                for phase in ("normal", "merging", "computing"):
                    for group in groups.values():
                        group.enter(phase)
                    began_s = time_s()
                    if phase == "merging":
                        for _ in range(merges // rounds):
                            merge_again(store)
                        took_s = time_s() - began_s
                    elif phase == "computing":
                        while time_s() - began_s < 2:
                            sum(range(100))
                    else:
                        time.sleep(max(2.0, took_s))
            found = {name: group.end() for name, group in groups.items()}
        assert not [item for item in store.check("deep") if item.severity == "damage"]
    wrong = sum(sum(seen["wrong"].values()) for seen in found.values())
    reads = sum(len(seen["took_s"]["merging"]) for seen in found.values())
    what = f"100 readers of a range that is merged {merges} times without grace"
    said = "; ".join(sorted({text for seen in found.values() for text in seen["wrong"]})[:3])
    report.add(f"{what}: wrong answers and errors", wrong, "answers", at_most=0, detail=said or f"{reads} reads")
    for name, seen in found.items():
        normal_ms, merging_ms, computing_ms = (
            _p99_ms(seen["took_s"][phase]) for phase in ("normal", "merging", "computing")
        )
        detail = f"{normal_ms:.1f} ms normally, {merging_ms:.1f} while merging, {computing_ms:.1f} beside a thread that only computes"
        if name == "in another process":
            report.add(f"their p99 {name}, to normal", merging_ms / normal_ms, "ratio", at_most=2, detail=detail)
        else:
            report.add(f"their p99 {name}, above normal", merging_ms - normal_ms, "ms", at_most=10, detail=detail)


def _p99_ms(took_s: list[float]) -> float:
    return sorted(took_s)[len(took_s) * 99 // 100] * 1e3


# ---- passes


def build(path: Path, chunks: int) -> None:
    """One segment of so many chunks, journal and snapshots collected."""
    root = path / "root"
    crc = crc32c(bytes(_CHUNK_BYTES))
    settings = settings_for(path / "cache", lease_s=0)
    with chunkstore.open(root.as_uri(), settings=settings) as store, store.session("bench") as session:
        store.create("s", rolling=RollingPolicy(chunk_size_bytes_max=64 * KIB))
        for first in range(0, chunks, _PER_COMMIT):
            numbers = range(first, min(chunks, first + _PER_COMMIT))
            made = [SessionChunk(session_chunk_id(session.id, number, number), _CHUNK_BYTES, crc) for number in numbers]
            for chunk in made:
                make_hole(f"{root}/{store._container.names.chunk(chunk.id)}")
            store.commit([Attach("s", session.id, tuple(made))])
    with chunkstore.open(root.as_uri(), settings=settings) as store:
        store.snapshot()
        store.collect()


def make_hole(path: str) -> None:
    """A file of a chunk's length to which nothing was ever written."""
    try:
        file = os.open(path, os.O_CREAT | os.O_WRONLY)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path))
        file = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.ftruncate(file, _CHUNK_BYTES)
    os.close(file)


def anonymous_mib() -> float:
    """Anonymous memory, without walking the page tables of what is mapped."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) / 1024


def child_pass(path: str, name: str) -> None:
    """In a fresh process: make one pass; its time and processor time, and memory at most above that before it."""
    ending, peak = threading.Event(), 0.0

    def watch() -> None:
        nonlocal peak
        while not ending.wait(0.005):
            peak = max(peak, anonymous_mib())

    with chunkstore.open(
        (Path(path) / "root").as_uri(), settings=settings_for(Path(path) / "cache", lease_s=0)
    ) as store:
        before = anonymous_mib()
        watcher = threading.Thread(target=watch)
        watcher.start()
        began_s, began_processor_s = time_s(), time.process_time()
        _PASSES[name](store)
        spent_s, processor_s = time_s() - began_s, time.process_time() - began_processor_s
        ending.set()
        watcher.join()
    print(json.dumps({"mib": peak - before, "before": before, "s": spent_s, "processor_s": processor_s}))


def passes(report: Report, path: Path, chunks: int) -> None:
    """Memory of each pass over all chunks, and the time of a quick check."""
    build(path, chunks)
    for name in _PASSES:
        count = 3 if name == "a quick check" else 1
        found = [in_fresh_process("benchmarks.bench_upkeep", "--child", path, name) for _ in range(count)]
        took = f"{median([item['s'] for item in found]):.1f} s"
        processor_s = median([item["processor_s"] for item in found])
        detail = f"{took}, {processor_s:.1f} s of processor time"
        report.add(
            f"memory of {name}, {chunks:,} chunks",
            max(item["mib"] for item in found),
            "MiB",
            at_most=_PASS_MIB_MAX,
            detail=detail,
        )
        if name == "a quick check":
            report.add(f"{name} of {chunks:,} chunks, processor time", processor_s, "s", at_most=5, detail=took)


# ---- journal


def journal(report: Report, path: Path) -> None:
    """Journal bytes of merging, and of forgetting what it removed, for each chunk that is removed."""
    for batch in (16, 64, 512):
        with chunkstore.open(
            (path / f"{batch}").as_uri(), settings=settings_for(path / f"cache-{batch}", lease_s=0)
        ) as store:
            store._maintenance.stopping.set()  # no heartbeats: whoever commits all the time writes none
            store.create("small", rolling=RollingPolicy(chunk_size_bytes_max=KIB))
            store.append("small", bytes(1024 * KIB))
            store.seal("small")
            store.create("a segment's name", rolling=RollingPolicy(chunk_size_bytes_max=batch * KIB))
            store.concat("a segment's name", 0, "small")
            written = store._container.current.journal
            before = written.bytes_written
            store.defrag()
            merged = written.bytes_written
            removed = store.collect().chunks
            split = f"{(merged - before) / removed:.0f} of the merge, {(written.bytes_written - merged) / removed:.0f} of the collection"
            total = (written.bytes_written - before) / removed
            report.add(f"journal for each chunk removed, merges of {batch}", total, "bytes", at_most=150, detail=split)


def main() -> None:
    """Run all and save ``results/upkeep.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="a directory on the disk to measure")
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options, _ = parser.parse_known_args()
    if options.child:
        child_pass(*options.child)
        return
    report = Report("upkeep-quick" if options.quick else "upkeep")
    with scratch(options.dir) as path:
        journal(report, path / "journal")
        readers(report, path / "readers", 50 if options.quick else 1_000, 0.02)
        (path / "passes").mkdir()
        passes(report, path / "passes", 20_000 if options.quick else 1_000_000)
        shutil.rmtree(path / "passes")
    report.save()


if __name__ == "__main__":
    main()
