"""Small durable appends beside what people compare them with: the bare file, SQLite, LMDB, SlateDB, and appends that are chunks.

What each has made durable when a call returns, on a local disk:
* *bare*: the bytes, by write and fdatasync of one file for each thread. No checksum, no fence, no index; it is the disk's own limit.
* *ours*: the bytes and the metadata, by one record of the journal and one fdatasync; fenced against every other owner, with checksums.
* *chunks*: the same with ``inline_bytes_max=0``: bytes in a chunk, metadata in the journal, two fdatasyncs one after the other.
* *SQLite*: one row in one transaction, WAL mode, ``synchronous=FULL``: one fdatasync of the WAL; a checkpoint now and then writes it again.
* *LMDB*: one row in one transaction, ``sync=True``: data pages and the meta page.
* *SlateDB* (if its Python package is there): one row, ``await_durable``. On local files it calls neither fsync nor fdatasync, so what it
  acknowledges survives the process and not the power; its own flush interval is set to 1 ms.
* *memory*: ours on a file system in memory (``/dev/shm``), where a sync takes nothing: what is left is our own work, so from it follows
  the most that any disk would leave of each ratio, printed beside it.

All take turns in short slices of time, in random order, because the disk's own speed drifts by more than what is measured, and every ratio
is of the medians over slices. ``python -m benchmarks.bench_peers [--dir DIR] [--quick]``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import lmdb

import chunkstore
from benchmarks.harness import Report, median, scratch, time_s
from chunkstore.assembly import open_store_on
from chunkstore.changes import Append
from chunkstore.config import KIB
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_bindings.wrappers.metered import MeteredChunkStorage

__all__ = ["main"]

THREADS = 32
SLOW_SYNC_S = 0.005
MEMORY = Path("/dev/shm")
_DATA = os.urandom(KIB)
_BUSY_MS = 60_000

Put: TypeAlias = Callable[[int], object]
"""One durable append of 1 KiB by the thread of this number."""


class SlowSync(FilesystemChunkStorage):
    """The filesystem binding with every sync of a file made to take 5 ms longer, as on ordinary disks."""

    def _sync_file(self, name: str) -> None:
        super()._sync_file(name)
        time.sleep(SLOW_SYNC_S)


@contextmanager
def bare(path: Path) -> Iterator[Put]:
    """A file for each thread."""
    files: dict[int, int] = {}

    def put(thread: int) -> None:
        file = files.get(thread)
        if file is None:
            file = files[thread] = os.open(path / f"bare-{thread}", os.O_CREAT | os.O_WRONLY)
        os.write(file, _DATA)
        os.fdatasync(file)

    yield put
    for file in files.values():
        os.close(file)


@contextmanager
def sqlite(path: Path) -> Iterator[Put]:
    """A connection for each thread, one database."""
    connections: dict[int, sqlite3.Connection] = {}

    def connect(thread: int) -> sqlite3.Connection:
        found = connections[thread] = sqlite3.connect(
            path / "sqlite.db", isolation_level=None, check_same_thread=False, timeout=_BUSY_MS / 1000
        )
        found.execute("PRAGMA journal_mode=WAL")
        found.execute("PRAGMA synchronous=FULL")
        return found

    connect(0).execute("CREATE TABLE t (id INTEGER PRIMARY KEY, segment INTEGER, data BLOB)")

    def put(thread: int) -> None:
        connection = connections.get(thread) or connect(thread)
        connection.execute("INSERT INTO t (segment, data) VALUES (?, ?)", (thread, _DATA))

    yield put
    for connection in connections.values():
        connection.close()


@contextmanager
def lmdb_sync(path: Path) -> Iterator[Put]:
    """One environment; a number counts the rows."""
    folder = path / "lmdb"
    folder.mkdir()
    environment = lmdb.open(str(folder), map_size=1 << 34)
    counts = [0] * THREADS

    def put(thread: int) -> None:
        counts[thread] += 1
        with environment.begin(write=True) as txn:
            txn.put(b"%d %016d" % (thread, counts[thread]), _DATA, append=False)

    yield put
    environment.close()


@contextmanager
def slatedb(path: Path) -> Iterator[Put]:
    """Raises ``ImportError`` where the package is not there, ``RuntimeError`` where it is another version than this speaks to."""
    package: Any = import_module("slatedb.uniffi")

    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever, daemon=True)
    running.start()

    def call(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    async def build() -> Any:
        store = package.ObjectStore.resolve("file:///")
        builder = package.DbBuilder(f"{path}/slatedb".lstrip("/"), store)
        settings = package.Settings.default()
        settings.set("flush_interval", '"1ms"')
        builder.with_settings(settings)
        return await builder.build()

    counts = [0] * THREADS
    try:
        database = call(build())
    except Exception as error:
        loop.call_soon_threadsafe(loop.stop)
        raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def put(thread: int) -> None:
        counts[thread] += 1
        call(database.put(b"%d %016d" % (thread, counts[thread]), _DATA))

    yield put
    with suppress(Exception):
        call(database.shutdown())
    loop.call_soon_threadsafe(loop.stop)


def _ours(
    path: Path, name: str, *, segments: int, slow: bool, **more: Any
) -> tuple[chunkstore.ChunkedSegmentStorage, Put]:
    settings = chunkstore.Settings(cache_dir=str(path / f"{name}-cache"), journal_mode="append", lease_s=0, **more)
    storage = (SlowSync if slow else FilesystemChunkStorage)(str(path / name))
    store = open_store_on(storage, settings=settings)
    for number in range(segments):
        store.create(f"s{number}")
    names = [f"s{number % segments}" for number in range(THREADS)]
    return store, lambda thread: store.append(names[thread], _DATA)


def rate(put: Put, threads: int, seconds: float) -> float:
    """Appends per second by so many threads."""
    counts = [0] * threads
    begin, stop = threading.Event(), threading.Event()

    def work(thread: int) -> None:
        begin.wait()
        while not stop.is_set():
            put(thread)
            counts[thread] += 1

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    began = time_s()
    begin.set()
    time.sleep(seconds)
    stop.set()
    for worker in workers:
        worker.join()
    return sum(counts) / (time_s() - began)


def alone_rate(put: Put, seconds: float) -> float:
    """Appends per second by this thread."""
    count, began = 0, time_s()
    stop = began + seconds
    while (now := time_s()) < stop:
        put(0)
        count += 1
    return count / (now - began)


def by_turns(puts: Mapping[str, tuple[Put, int]], seconds: float, rounds: int) -> dict[str, list[float]]:
    """Rates of each by its number of threads, all in each round in random order; the first round warms up."""
    rates: dict[str, list[float]] = {name: [] for name in puts}
    order = random.Random(1)
    for number in range(rounds + 1):
        for name in order.sample(list(puts), len(puts)):
            put, threads = puts[name]
            found = alone_rate(put, seconds) if threads == 1 else rate(put, threads, seconds)
            if number:
                rates[name].append(found)
    return rates


def ratio(rates: Mapping[str, list[float]], a: str, b: str) -> float:
    """The median over rounds of a's rate to b's in the same round: neighbours in time met the same disk."""
    return median([x / y for x, y in zip(rates[a], rates[b], strict=True)])


def on_disk(report: Report, path: Path, seconds: float, rounds: int) -> float | None:
    """One thread, and many, on this disk as it is. Returns the rate of many in memory, if there is such a file system."""
    puts: dict[str, tuple[Put, int]] = {}
    with ExitStack() as stack:
        peers = {"bare": bare, "SQLite": sqlite, "LMDB": lmdb_sync, "SlateDB": slatedb}
        for name, make in peers.items():
            folder = path / name
            folder.mkdir()
            try:
                put = stack.enter_context(make(folder))
            except (ImportError, RuntimeError) as error:
                print(f"{name}: left out ({error})", flush=True)
                continue
            puts[f"{name} 1"] = put, 1
            puts[f"{name} 32"] = put, THREADS
        for name, segments, more in (
            ("ours", THREADS, {}),
            ("ours/1", 1, {}),
            ("chunks", THREADS, {"inline_bytes_max": 0}),
        ):
            store, put = _ours(path, name.replace("/", "-"), segments=segments, slow=False, **more)
            stack.enter_context(store)
            puts[f"{name} 1"] = put, 1
            puts[f"{name} 32"] = put, THREADS
        if MEMORY.is_dir():
            store, put = _ours(stack.enter_context(scratch(str(MEMORY))), "memory", segments=THREADS, slow=False)
            stack.enter_context(store)
            puts |= {"memory 1": (put, 1), "memory 32": (put, THREADS)}
        rates = by_turns(puts, seconds, rounds)
    for name, found in rates.items():
        report.add(f"{name} thread(s)", median(found), "/s", detail=f"{min(found):.0f} to {max(found):.0f}")
    for a, b, at_least in (
        ("ours 1", "bare 1", 0.85),
        ("ours 1", "SQLite 1", 0.85),
        ("ours 1", "LMDB 1", None),
        ("ours 1", "chunks 1", None),
        ("ours 32", "SQLite 32", 4.0),
        ("ours 32", "ours 1", 5.0),
        ("ours/1 32", "ours 1", 3.0),
        ("ours 32", "LMDB 32", None),
        ("ours 32", "chunks 32", None),
        ("ours 1", "SlateDB 1", None),
        ("ours 32", "SlateDB 32", None),
    ):
        if b in rates:
            report.add(f"{a} to {b}", ratio(rates, a, b), "ratio", at_least=at_least)
    if "memory 1" in rates:
        own_s = [1 / rate for rate in rates["memory 1"]]
        for peer in ("bare 1", "SQLite 1"):
            most = [1 / found / (1 / found + own) for found, own in zip(rates[peer], own_s, strict=True)]
            report.add(f"{peer}'s time to that and our own work", median(most), "ratio")
        report.add("memory 32 to SQLite 32", ratio(rates, "memory 32", "SQLite 32"), "ratio")
        report.add("memory 32 to ours 1", ratio(rates, "memory 32", "ours 1"), "ratio")
        return median(rates["memory 32"])
    return None


def with_slow_syncs(report: Report, path: Path, seconds: float, rounds: int, memory_32: float | None) -> None:
    """The same with every sync made to take 5 ms, as on ordinary disks: what group commit is for. ``memory_32``: appends a second of many
    threads where a sync takes nothing."""
    puts: dict[str, tuple[Put, int]] = {}
    with ExitStack() as stack:
        for name, segments in (("ours", THREADS), ("ours/1", 1)):
            store, put = _ours(path, f"slow-{segments}", segments=segments, slow=True)
            stack.enter_context(store)
            puts[f"{name} 32"] = put, THREADS
            if segments > 1:
                puts[f"{name} 1"] = put, 1
        rates = by_turns(puts, seconds, rounds)
    for name, found in rates.items():
        report.add(f"5 ms syncs: {name} thread(s)", median(found), "/s")
    report.add("5 ms syncs: 32 segments to one thread", ratio(rates, "ours 32", "ours 1"), "ratio", at_least=25)
    report.add("5 ms syncs: one segment to one thread", ratio(rates, "ours/1 32", "ours 1"), "ratio")
    if memory_32 is not None:
        # All share one record: while it is synced nobody has anything to do, and between two of them 31 more appends are made.
        alone_s = 1 / median(rates["ours 1"])
        most = THREADS * alone_s / (alone_s + (THREADS - 1) / memory_32)
        report.add("5 ms syncs: the most that our own work leaves of it", most, "ratio")


def above_the_limit(report: Report, path: Path, count: int) -> None:
    """Appends that are too long for a record, against the same with records that take none: append by append, in random order."""
    data = os.urandom(64 * KIB)
    stores = {
        name: _ours(path, f"above-{name}", segments=1, slow=False, **more)[0]
        for name, more in (("on", {}), ("off", {"inline_bytes_max": 0}))
    }
    took: dict[str, list[float]] = {name: [] for name in stores}
    order = random.Random(2)
    for number in range(count + 10):
        for name in order.sample(list(stores), len(stores)):
            began = time_s()
            stores[name].append("s0", data)
            if number >= 10:
                took[name].append(time_s() - began)
    for store in stores.values():
        store.close()
    report.add("append 64 KiB, inline off to on", median(took["off"]) / median(took["on"]), "ratio", at_least=0.98)


def bytes_written(report: Report, path: Path, appends: int) -> None:
    """All bytes that reach the storage for the user's, journal, spilling, snapshots and all, until everything is spilled."""
    for batch, segments, at_most in ((1, 1, 2.8), (8, 1, 2.1), (32, 1, 2.1), (32, 32, None)):
        root = path / f"written-{batch}-{segments}"
        storage = MeteredChunkStorage(FilesystemChunkStorage(str(root / "store")))
        settings = chunkstore.Settings(cache_dir=str(root / "cache"), journal_mode="append", lease_s=0)
        with ExitStack() as stack, open_store_on(storage, settings=settings) as store:
            names = [f"s{number}" for number in range(segments)]
            for name in names:
                store.create(name)
            counting = stack.enter_context(storage.counting())
            together = [Append(names[number % segments], _DATA) for number in range(batch)]
            for _ in range(appends // batch):
                if batch == 1:
                    store.append("s0", _DATA)
                else:
                    store.commit(together)
            for name in names:
                store._spiller.spill_all(name)
            counting.stop()
        size_bytes = appends // batch * batch * len(_DATA)
        report.add(
            f"bytes written to appended, {batch} in a record, {segments} segment(s)",
            counting.total.sent_bytes / size_bytes,
            "ratio",
            at_most=at_most,
        )


def main() -> None:
    """Run all and save ``results/peers.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="a directory on the disk to measure")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, to see that it runs")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    report = Report("peers-quick" if options.quick else "peers")
    with scratch(options.dir) as path:
        memory_32 = on_disk(report, path, 1.0 / scale, 9)
        with_slow_syncs(report, path, 2.0 / scale, 3, memory_32)
        above_the_limit(report, path, 2000 // scale)
        bytes_written(report, path, 20_000 // scale)
    report.save()


if __name__ == "__main__":
    main()
