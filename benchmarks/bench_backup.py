"""Exports: records a second against a plain pass over the same rows, and memory. Backups: copying against a plain loop over the binding,
links, and what a second one of an unchanged container costs. Restoring, against the same loop. Imports of chunks that stay where they are,
into a new container and into one that works, in processor time and against reading the export's rows.

``python -m benchmarks.bench_backup [--dir DIR] [--quick]``
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import chunkstore
from benchmarks.big import CHUNK_BYTES, build, open_big, settings_for
from benchmarks.harness import Report, anonymous_kib, in_fresh_process, median, scratch, time_s
from benchmarks.length_only import LengthOnlyChunkStorage
from chunkstore import backup
from chunkstore.assembly import open_store_on
from chunkstore.backup.importing import merge_into
from chunkstore.backup.merging import merge_id
from chunkstore.backup.restore import into_new
from chunkstore.backup.sources import open_export_source
from chunkstore.backup.survey import Source, survey
from chunkstore.config import KIB, MIB
from chunkstore.metadata.keys import CHUNK
from chunkstore.records import ACTIVE, RootRecord
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
        with store.read_context.store().view() as view:
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


@contextmanager
def _big_source(path: Path, *, merges: bool) -> Iterator[Source]:
    """What an export of a big container holds; its chunks are taken to exist."""

    @contextmanager
    def storage_of(*_: object) -> Iterator[ChunkStorage]:
        yield LengthOnlyChunkStorage(FilesystemChunkStorage(str(path / "root")), assume_length=CHUNK_BYTES)

    with mock.patch("chunkstore.parts.storage_of", storage_of):  # noqa: SIM117
        with open_export_source(path / "file", None, settings=settings_for(path), merges=merges) as source:
            yield source


def child_import(path: Path, *, merges: bool) -> None:
    """In a fresh process: the rows of an export, then an import of all of it whose chunks stay; processor times and memory."""
    began_kib, began = anonymous_kib(), time.process_time()
    rows = sum(1 for _ in backup.read_export(path / "file"))
    read_s = time.process_time() - began
    target, spent = path / "target", {"survey": 0.0}

    def counted(*given: Any, **named: Any) -> Any:
        since = time.process_time()
        try:
            return survey(*given, **named)
        finally:
            spent["survey"] += time.process_time() - since

    began = time.process_time()
    with _big_source(path, merges=merges) as source, mock.patch("chunkstore.backup.restore.survey", counted):
        load_s, began = time.process_time() - began, time.process_time()
        root = RootRecord("file:///elsewhere", "", "default", source.origin.container, "pin", 0, 0, ACTIVE, 0)
        storage, settings = FilesystemChunkStorage(str(target)), settings_for(path)
        if merges:
            with open_store_on(storage, settings=settings) as store:
                merge_into(store, source._replace(root=store.add_root(root)), merge_id(source.origin))
        else:
            into_new(source, storage, container="default", settings=settings, adopt=root)
        import_s = time.process_time() - began - spent["survey"]
        storage.close()
    kib = anonymous_kib() - began_kib
    shutil.rmtree(target)
    print(json.dumps({"rows": rows, "read_s": read_s, "load_s": load_s, "import_s": import_s, **spent, "kib": kib}))


def imports(report: Report, path: Path, chunks: int, rounds: int, *, merges: bool) -> None:
    """Import of so many chunk records. The look at each chunk before, which is a question to the storage, is measured apart, and left
    out."""
    build(path, chunks)
    with open_big(path) as store:
        backup.export(store, path / "file")
    found = [_child("merge" if merges else "import", path) for _ in range(rounds)]
    import_s, load_s, read_s, survey_s = (
        median([item[name] for item in found]) for name in ("import_s", "load_s", "read_s", "survey")
    )
    what = (
        f"import of {chunks:,} chunk records into {'one that works' if merges else 'a new container'}, processor time"
    )
    detail = (
        f"{import_s:.2f} s; reading the file into a local state {load_s:.2f} s, looking at the chunks {survey_s:.2f} s"
    )
    report.add(what, chunks / import_s, "records/s", at_least=20_000 if merges else 200_000, detail=detail)
    report.add("... against a plain pass over the file's rows", import_s / read_s, "ratio")
    report.add("... anonymous memory", max(item["kib"] for item in found) / 1024, "MiB", at_most=200)


def filled(path: Path, chunks: int, chunk_bytes: int) -> chunkstore.ChunkedSegmentStorage:
    """A container with one sealed segment of so many chunks of random bytes."""
    settings = chunkstore.Settings(cache_dir=str(path / "cache"), lease_s=0, collect_s=0)
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
        source = store.read_context.storage
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
    settings = chunkstore.Settings(cache_dir=str(path / "other"), lease_s=0, collect_s=0)
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

        with mock.patch("chunkstore.backup.rounds.open_storage", metered):
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
        what, where = options.child
        if what == "export":
            child_export(where)
        else:
            child_import(Path(where), merges=what == "merge")
        return
    report = Report("backup-quick" if options.quick else "backup")
    with scratch(options.dir) as path:
        exports(report, path, 20_000 if options.quick else 1_000_000, 1 if options.quick else 3)
        few = options.quick
        for name in ("small", "large", "linked", "restored", "new", "merged"):
            (path / name).mkdir()
        imports(report, path / "new", 20_000 if few else 1_000_000, 1 if few else 3, merges=False)
        imports(report, path / "merged", 5_000 if few else 100_000, 1 if few else 3, merges=True)
        copying(report, path / "small", 200 if few else 4_000, 64 * KIB, 1 if few else 5)
        copying(report, path / "large", 4 if few else 24, 16 * MIB, 1 if few else 5)
        restoring(report, path / "restored", 200 if few else 4_000, 64 * KIB, 1 if few else 5)
        again(report, path / "linked", 1_000 if few else 100_000)
    report.save()


if __name__ == "__main__":
    main()
