"""S3: throughput against a plain boto3 loop on the same server in the same run, and what things cost in requests.

The server is Ceph's gateway from Debian's packages, started here (``--store bluestore`` writes to a file, the default keeps all
in memory: what is measured then is the client). Ours and the plain loop alternate, round by round, because machine and
server drift by far more than what is measured.

The server is also measured from afar, behind delays of 0, 5, 30 and 100 ms (``benchmarks.far``; saved as ``s3-far.json``).

``python -m benchmarks.bench_s3 [--store memstore|bluestore] [--dir DIR] [--only near|far] [--quick]``
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import chunkstore
from benchmarks.epochs import age
from benchmarks.far import DELAYS_MS, far, md5_of
from benchmarks.harness import Report, median, scratch, time_s
from chunkstore.assembly import open_store_on
from chunkstore.changes import Append
from chunkstore.config import KIB, MIB, Tuning
from chunkstore.engine.reading import ReadableContainer
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkHandle, ChunkRange
from chunkstore_bindings.s3.options import parse_root
from chunkstore_bindings.s3.storage import S3ChunkStorage
from tests.support.requests_spent import Requests
from tests.support.servers.base import ServerMissing
from tests.support.servers.rgw import Rgw, Store
from tests.support.servers.s3server import CREDENTIALS

__all__ = ["main"]

CHUNK_BYTES = 64 * MIB
WAYS = 4
RANGE_BYTES = 4 * MIB


class Timing:
    """Seconds by the clock and seconds of this process's processor time, one pair for each round."""

    def __init__(self) -> None:
        self.clock_s: list[float] = []
        self.processor_s: list[float] = []

    def take(self, call: Callable[[], object]) -> None:
        began_s, began_processor_s = time_s(), time.process_time()
        call()
        self.clock_s.append(time_s() - began_s)
        self.processor_s.append(time.process_time() - began_processor_s)


def compare(
    report: Report, name: str, size: int, rounds: int, ours: Callable[[int], object], plain: Callable[[int], object]
) -> None:
    """Add the ratio of the plain loop's median time to ours, and the same in processor time of the client."""
    timings = {"ours": Timing(), "plain": Timing()}
    calls = {"ours": ours, "plain": plain}
    chance = random.Random(1)
    for number in range(rounds + 1):
        turns = list(calls)
        chance.shuffle(turns)
        for turn in turns:
            # The first round warms connections and the server up, and does not count.
            (timings[turn] if number else Timing()).take(partial(calls[turn], number))
    clock = {turn: median(timing.clock_s) for turn, timing in timings.items()}
    processor = {turn: median(timing.processor_s) for turn, timing in timings.items()}
    detail = f"ours {size / clock['ours'] / 1e6:.0f} MB/s, plain {size / clock['plain'] / 1e6:.0f} MB/s"
    report.add(
        f"{name}: speed to the plain loop's", clock["plain"] / clock["ours"], "ratio", at_least=0.9, detail=detail
    )
    report.add(f"{name}: plain loop's processor time to ours", processor["plain"] / processor["ours"], "ratio")


class Plain:
    """What somebody would write with boto3 alone: whole objects, the same number of connections, the same header."""

    def __init__(self, server: Rgw, bucket: str) -> None:
        self.client = server.new_client()
        self.bucket = bucket
        self.pool = ThreadPoolExecutor(WAYS)

    def write(self, prefix: str, chunks: list[bytes]) -> None:
        def put(number: int) -> None:
            data = chunks[number]
            self.client.put_object(Bucket=self.bucket, Key=f"{prefix}/{number}", Body=data, ContentMD5=md5_of(data))

        list(self.pool.map(put, range(len(chunks))))

    def read(self, prefix: str, count: int) -> None:
        def get(number: int) -> int:
            answer = self.client.get_object(Bucket=self.bucket, Key=f"{prefix}/{number}")
            return len(answer["Body"].read())

        assert sum(self.pool.map(get, range(count))) == count * CHUNK_BYTES

    def ranges(self, prefix: str, places: list[tuple[int, int]]) -> None:
        def get(place: tuple[int, int]) -> int:
            number, offset = place
            span = f"bytes={offset}-{offset + RANGE_BYTES - 1}"
            return len(self.client.get_object(Bucket=self.bucket, Key=f"{prefix}/{number}", Range=span)["Body"].read())

        assert sum(self.pool.map(get, places)) == len(places) * RANGE_BYTES


def throughput(report: Report, server: Rgw, path: Path, rounds: int) -> None:
    """256 MiB in chunks of 64 MiB through the engine, over as many connections as the plain loop has."""
    bucket = server.make_bucket()
    plain = Plain(server, bucket)
    data = b"".join(random.Random(number).randbytes(CHUNK_BYTES) for number in range(WAYS))
    chunks = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
    settings = chunkstore.Settings(
        cache_dir=str(path / "cache"),
        lease_s=0,
        default_rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=CHUNK_BYTES),
        tuning=Tuning(
            # The caller's thread works, too.
            io_workers=WAYS - 1,
        ),
    )
    # Two ways to use four connections: four chunks at once, each on one; or one chunk after the other, in parts.
    whole = server.root(
        bucket, "whole", concurrency=1, multipart_bytes_min=2 * CHUNK_BYTES, part_size_bytes=CHUNK_BYTES
    )
    parts = server.root(bucket, "parts", concurrency=WAYS)
    buffer = bytearray(len(data))
    last = f"s{rounds}"
    for kind, root in (("four chunks at once", whole), ("one chunk after the other", parts)):
        step = len(data) if root is whole else CHUNK_BYTES
        with chunkstore.open(root, settings=settings) as store:

            def write(number: int, store: chunkstore.ChunkedSegmentStorage = store, step: int = step) -> None:
                if number:
                    store.delete(f"s{number - 1}")
                store.create(f"s{number}")
                for start in range(0, len(data), step):
                    store.append(f"s{number}", memoryview(data)[start : start + step])

            def write_plain(number: int) -> None:
                plain.write(f"plain/{number}", chunks)
                if number:
                    remove(plain, f"plain/{number - 1}")

            def read(_: int, store: chunkstore.ChunkedSegmentStorage = store, step: int = step) -> None:
                for start in range(0, len(data), step):
                    assert store.read_into(last, start, memoryview(buffer)[start : start + step]) == step

            def read_plain(_: int) -> None:
                plain.read(f"plain/{rounds}", WAYS)

            compare(report, f"write 64 MiB chunks, {kind}", len(data), rounds, write, write_plain)
            compare(report, f"read 64 MiB chunks, {kind}", len(data), rounds, read, read_plain)
            assert buffer == data
            if root is whole:
                ranges(report, store, plain, last, f"plain/{rounds}", rounds, "the owner (one HEAD each for the fence)")
                with chunkstore.open_replica(root, settings=settings) as replica:
                    ranges(report, replica, plain, last, f"plain/{rounds}", rounds, "a replica")


def ranges(
    report: Report, store: ReadableContainer, plain: Plain, name: str, prefix: str, rounds: int, who: str
) -> None:
    """Ranges of 4 MiB at random places, by four threads each."""
    chance = random.Random(2)
    places = [(chance.randrange(WAYS), chance.randrange(CHUNK_BYTES - RANGE_BYTES)) for _ in range(64)]

    def get(place: tuple[int, int]) -> int:
        return len(store.read(name, place[0] * CHUNK_BYTES + place[1], RANGE_BYTES))

    def ours(_: int) -> None:
        assert sum(plain.pool.map(get, places)) == len(places) * RANGE_BYTES

    def loop(_: int) -> None:
        plain.ranges(prefix, places)

    compare(report, f"ranged reads of 4 MiB by {who}", len(places) * RANGE_BYTES, rounds, ours, loop)


def remove(plain: Plain, prefix: str) -> None:
    for number in range(WAYS):
        plain.client.delete_object(Bucket=plain.bucket, Key=f"{prefix}/{number}")


def commits(report: Report, server: Rgw, path: Path) -> None:
    """What one group commit of D chunks asks for, and how long small ones take."""
    settings = chunkstore.Settings(cache_dir=str(path / "commits"), lease_s=0)
    store = chunkstore.open(server.root(server.make_bucket()), settings=settings)
    names = [f"s{number}" for number in range(8)]
    for name in names:
        store.create(name)
    with Requests(store._container.storage) as spent:
        store.commit([Append(name, b"x" * KIB) for name in names])
    puts = spent.verbs["PUT"]
    report.add("PUTs of a commit of 8 data objects", puts, "requests", at_most=9)
    report.add("other requests of that commit (LIST, GET, HEAD)", spent.total - puts, "requests", at_most=0)
    took = []
    for _ in range(50):
        began = time_s()
        store.append(names[0], b"x" * KIB)
        took.append((time_s() - began) * 1e3)
    report.add("append of 1 KiB, median", median(took), "ms")
    store.close()


def joins(report: Report, server: Rgw, quick: bool) -> None:
    """The binding's compose: many large chunks on the server, many small ones through memory."""
    storage = S3ChunkStorage(parse_root(server.root(server.make_bucket(), concurrency=8)))

    def join(count: int, data: bytes) -> tuple[Requests, str]:
        """So many equal chunks; what that cost, and how long it took."""
        names = [f"{len(data)}/{number:04}" for number in range(count)]
        for name in names:
            storage.create(name, data)
        began = time_s()
        with Requests(storage) as spent:
            storage.compose(f"{len(data)}/new", [ChunkRange(name, 0, len(data)) for name in names])
        took = f"{time_s() - began:.1f} s"
        assert storage.read(ChunkHandle(f"{len(data)}/new", False), len(data) * (count - 1), 2 * len(data)) == data
        return spent, took

    count = 20 if quick else 100
    spent, took = join(count, os.urandom(5 * MIB))
    report.add(f"requests to join {count} chunks of 5 MiB", spent.total, "requests", at_most=110, detail=took)
    report.add("users' bytes through the client on the way", spent.moved_bytes, "bytes", at_most=0)
    count = 200 if quick else 1000
    spent, took = join(count, os.urandom(64 * KIB))
    moved = spent.moved_bytes / (count * 64 * KIB)
    report.add(f"bytes moved to join {count} chunks of 64 KiB", moved, "x data", at_most=2.1, detail=took)
    storage.close()


def take_overs(report: Report, server: Rgw, path: Path, quick: bool) -> None:
    """What a take-over asks for with many epochs behind it, on a machine that knew the container and on one that did not."""
    count = 100 if quick else 1000
    for opened, kind in ((True, "opened and empty"), (False, "claimed and never opened")):
        bucket = server.make_bucket()
        root = server.root(bucket)
        settings = chunkstore.Settings(cache_dir=str(path / f"first-{opened}"), lease_s=0)
        with chunkstore.open(root, settings=settings) as store:
            store.create("s")
            store.append("s", b"x" * KIB)
            store.snapshot()
        storage: Any = open_storage(root, settings)

        def put(name: str, data: bytes, bucket: str = bucket) -> None:
            server.client.put_object(Bucket=bucket, Key=name, Body=data)

        age(storage, put, count, opened=opened)
        storage.close()
        for machine in ("first", "new"):
            settings = chunkstore.Settings(cache_dir=str(path / f"{machine}-{opened}"), lease_s=0)
            storage = open_storage(root, settings)
            began = time_s()
            with Requests(storage) as spent:
                store = open_store_on(storage, settings=settings, close_storage=True)
            took = (time_s() - began) * 1e3
            store.close()
            detail = f"{machine} machine, {took:.0f} ms, {spent.verbs.get('LIST', 0)} LIST"
            name = f"requests of a take-over, {count} epochs {kind}"
            report.add(name, spent.total, "requests", at_most=40, detail=detail)


@contextmanager
def _serving(store: Store, path: Path) -> Iterator[Rgw]:
    server = Rgw(store, parent=path)
    try:
        yield server
    finally:
        server.stop()


def main() -> None:
    """Run all and save ``results/s3.json`` and ``results/s3-far.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="a directory on the disk for the server's data")
    parser.add_argument("--store", choices=("memstore", "bluestore"), default="memstore")
    parser.add_argument("--only", choices=("near", "far"), help="one half of it")
    parser.add_argument("--quick", action="store_true", help="a fraction of the work, to see that it runs")
    options, _ = parser.parse_known_args()
    os.environ.update(CREDENTIALS)
    kind = "-quick" if options.quick else "" if options.store == "memstore" else f"-{options.store}"
    with scratch(options.dir) as path:
        try:
            if options.only != "far":
                report = Report(f"s3{kind}")
                with _serving(options.store, path) as server:
                    throughput(report, server, path, 1 if options.quick else 7)
                    commits(report, server, path)
                    joins(report, server, options.quick)
                    take_overs(report, server, path, options.quick)
                report.save()
            if options.only != "near":
                report = Report(f"s3-far{kind}")
                for delay_ms in (0, 30) if options.quick else DELAYS_MS:
                    # One each: a gateway keeps what is overwritten for hours, and memory is what it keeps it in.
                    with _serving(options.store, path) as server:
                        far(report, server, path, delay_ms, quick=options.quick)
                report.save()
        except ServerMissing as why:
            print(f"S3 is not measured: {why}")


if __name__ == "__main__":
    main()
