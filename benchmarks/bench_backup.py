"""Exports: records a second against a plain pass over the same rows, and memory. Backups: copying against a plain loop over the binding,
links, and what a second one of an unchanged container costs. Restoring, against the same loop.

``python -m benchmarks.bench_backup [--dir DIR] [--quick]``
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import chunkstore
from benchmarks.big import build, open_big
from benchmarks.harness import Report, anonymous_kib, in_fresh_process, median, scratch, time_s
from chunkstore import backup
from chunkstore.config import KIB, MIB, Tuning
from chunkstore.engine.reading import context_of
from chunkstore.metadata.keys import CHUNK
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkHandle, ChunkStorage
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_bindings.wrappers.metered import MeteredChunkStorage

__all__ = ["main"]

_child = partial(in_fresh_process, "benchmarks.bench_backup", "--child")


def child_export(path: str) -> None:
    """In a fresh process: a pass over the chunk rows, an export, a pass over that; times and memory."""
    with open_big(Path(path)) as store:
        began_kib, began = anonymous_kib(), time_s()
        with context_of(store).store().view() as view:
            rows = sum(1 for _ in view.scan(CHUNK, b"D"))
        scanned, cpu_began = time_s(), time.process_time()
        report = backup.export(store, Path(path) / "export")
        exported, cpu_s = time_s(), time.process_time() - cpu_began
        kib = anonymous_kib()
        store.unpin("export-export")
    read_began, cpu_began = time_s(), time.process_time()
    found = backup.read_export(report.path)
    assert sum(1 for _ in found) == report.rows
    assert rows == report.chunks
    read_s, read_cpu_s = time_s() - read_began, time.process_time() - cpu_began
    os.unlink(report.path)
    export_s = exported - scanned - read_s
    answer = {
        "scan_s": scanned - began,
        "export_s": export_s,
        "read_s": read_s,
        "kib": kib - began_kib,
        "cpu_s": cpu_s - read_cpu_s,
    }
    print(json.dumps({**answer, "file_bytes": report.file_bytes}))


def exports(report: Report, path: Path, chunks: int, rounds: int) -> None:
    """Export of so many chunk records. What is read back is measured apart, and left out."""
    build(path, chunks)
    found: list[dict[str, Any]] = [_child("export", path) for _ in range(rounds)]
    export_s, scan_s, read_s = (median([item[name] for item in found]) for name in ("export_s", "scan_s", "read_s"))
    detail = f"{export_s:.2f} s, {found[0]['file_bytes'] / 1e6:.0f} MB; read back in {read_s:.2f} s"
    report.add(f"export of {chunks:,} chunk records", chunks / export_s, "records/s", at_least=400_000, detail=detail)
    cpu_s = median([item["cpu_s"] for item in found])
    report.add("... in processor time", chunks / cpu_s, "records/s", at_least=400_000)
    report.add("... against a plain pass over these rows", export_s / scan_s, "ratio")
    report.add("... anonymous memory", max(item["kib"] for item in found) / 1024, "MiB", at_most=200)


def filled(path: Path, chunks: int, chunk_bytes: int) -> chunkstore.ChunkedSegmentStorage:
    """A container with one sealed segment of so many chunks of random bytes."""
    settings = chunkstore.Settings(cache_dir=str(path / "cache"), lease_s=0, tuning=Tuning(collect_s=0))
    store = chunkstore.open((path / "root").as_uri(), settings=settings)
    store.create("s", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=chunk_bytes))
    step = min(10_000, max(1, (32 * MIB) // chunk_bytes))
    for first in range(0, chunks, step):
        store.append("s", os.urandom(min(step, chunks - first) * chunk_bytes))
    return store


def copying(report: Report, path: Path, chunks: int, chunk_bytes: int, rounds: int) -> None:
    """Copying through memory, and a loop that reads each chunk and creates it in another storage of the same kind. They take turns."""
    spent: dict[str, list[float]] = {"ours": [], "plain": []}
    with filled(path, chunks, chunk_bytes) as store:
        names = [chunk.name for chunk in store.layout("s")]
        source = context_of(store).storage
        for number in range(rounds + 1):
            for turn in ("ours", "plain") if number % 2 else ("plain", "ours"):
                target = path / f"{turn}-{number}"
                began = time_s()
                if turn == "ours":
                    assert backup.backup(store, target.as_uri(), pin=False).backup.copied_chunks == chunks
                else:
                    storage = FilesystemChunkStorage(target)
                    for name in names:
                        storage.create_if_absent(name, source.read(ChunkHandle(name, False), 0, chunk_bytes))
                    storage.close()
                if number:
                    spent[turn].append(time_s() - began)
                shutil.rmtree(target)
    ours_s, plain_s = median(spent["ours"]), median(spent["plain"])
    moved = chunks * chunk_bytes / 1e6
    report.add(
        f"backup of {chunks:,} chunks of {chunk_bytes >> 10} KiB: speed to a plain loop's",
        plain_s / ours_s,
        "ratio",
        at_least=0.9,
        detail=f"ours {moved / ours_s:.0f} MB/s, plain {moved / plain_s:.0f} MB/s",
    )


def restoring(report: Report, path: Path, chunks: int, chunk_bytes: int, rounds: int) -> None:
    """A restore, and a loop that reads each chunk and creates it elsewhere. They take turns."""
    spent: dict[str, list[float]] = {"ours": [], "plain": []}
    with filled(path, chunks, chunk_bytes) as store:
        names = [chunk.name for chunk in store.layout("s")]
    settings = chunkstore.Settings(cache_dir=str(path / "other"), lease_s=0, tuning=Tuning(collect_s=0))
    for number in range(rounds + 1):
        for turn in ("ours", "plain") if number % 2 else ("plain", "ours"):
            target = path / f"{turn}-{number}"
            began = time_s()
            if turn == "ours":
                backup.restore((path / "root").as_uri(), target.as_uri(), settings=settings)
            else:
                source, storage = FilesystemChunkStorage(path / "root"), FilesystemChunkStorage(target)
                for name in names:
                    storage.create_if_absent(name, source.read(ChunkHandle(name, False), 0, chunk_bytes))
                source.close()
                storage.close()
            if number:
                spent[turn].append(time_s() - began)
            shutil.rmtree(target)
    ours_s, plain_s = median(spent["ours"]), median(spent["plain"])
    detail = f"ours {chunks / ours_s:.0f} chunks/s, plain {chunks / plain_s:.0f}"
    what = f"restore of {chunks:,} chunks of {chunk_bytes >> 10} KiB: speed to a plain loop's"
    report.add(what, plain_s / ours_s, "ratio", at_least=0.9, detail=detail)


def again(report: Report, path: Path, chunks: int) -> None:
    """A first backup by links, and a second one of the same state."""
    with filled(path, chunks, 512) as store:
        target = (path / "linked").as_uri()
        began = time_s()
        made = backup.backup(store, target, pin=False, link=True)
        linked_s = time_s() - began
        assert made.linked_chunks + made.backup.copied_chunks == chunks
        opened: list[MeteredChunkStorage] = []

        def metered(url: str, settings: chunkstore.Settings) -> ChunkStorage:
            opened.append(MeteredChunkStorage(open_storage(url, settings)))
            return opened[-1]

        with mock.patch("chunkstore.engine.parts.open_storage", metered):
            began = time_s()
            second = backup.backup(store, target, pin=False).backup
            second_s = time_s() - began
    counted = opened[0].snapshot()
    report.add(f"backup of {chunks:,} chunks by links", chunks / linked_s, "chunks/s", at_least=5000)
    report.add("... the second one: bytes copied", second.copied_bytes, "bytes", at_most=0, detail=f"{second_s:.2f} s")
    report.add("... listings", counted["list"].requests if "list" in counted else 0, "requests", at_most=0)


def main() -> None:
    """Run all and save ``results/backup.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="a directory on the disk to measure")
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    parser.add_argument("--child", nargs=2)
    options, _ = parser.parse_known_args()
    if options.child:
        child_export(options.child[1])
        return
    report = Report("backup-quick" if options.quick else "backup")
    with scratch(options.dir) as path:
        exports(report, path, 20_000 if options.quick else 1_000_000, 1 if options.quick else 3)
        few = options.quick
        for name in ("small", "large", "linked", "restored"):
            (path / name).mkdir()
        copying(report, path / "small", 200 if few else 4_000, 64 * KIB, 1 if few else 5)
        copying(report, path / "large", 4 if few else 24, 16 * MIB, 1 if few else 5)
        restoring(report, path / "restored", 200 if few else 4_000, 64 * KIB, 1 if few else 5)
        again(report, path / "linked", 1_000 if few else 100_000)
    report.save()


if __name__ == "__main__":
    main()
