"""HDFS: chunks of 64 MiB against a plain loop over the same client package in the same run, and what calls cost in requests.

The peer is ``hdfs.InsecureClient``, as its documentation uses it: it writes straight to the final name and reads whole files.
The binding also writes a temporary, asks for its length and renames it. Pairs alternate; only ratios of one run mean something.
Leaves out: clusters of more than one data node, networks.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
from collections.abc import Callable
from functools import partial

from hdfs import InsecureClient

from benchmarks.harness import Report, median, time_s
from chunkstore import changes
from chunkstore.assembly import open_store_on
from chunkstore.config import KIB, MIB, Settings
from chunkstore.storage import ChunkHandle
from chunkstore_bindings.hdfs import HdfsChunkStorage, open_hdfs
from chunkstore_bindings.wrappers.metered import MeteredChunkStorage
from tests.support.servers.base import ServerMissing
from tests.support.servers.hdfs import shared_cluster

__all__: list[str] = []

THREADS = 4


def timed(call: Callable[[], object]) -> float:
    began = time_s()
    call()
    return time_s() - began


def pairs(ours: Callable[[int], object], theirs: Callable[[int], object], rounds: int) -> tuple[float, float]:
    """Medians in seconds, of alternating runs."""
    mine: list[float] = []
    other: list[float] = []
    for number in range(rounds):
        first, second = (ours, theirs) if number % 2 else (theirs, ours)
        for call in (first, second):
            (mine if call is ours else other).append(timed(partial(call, number)))
    return median(mine), median(other)


def at_once(calls: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def chunks(report: Report, storage: HdfsChunkStorage, plain: InsecureClient, size: int, rounds: int) -> None:
    """Writing and reading whole chunks, one at a time and four at once."""
    data = os.urandom(size)
    buffer = bytearray(size)

    def read_plain(name: str) -> bytes:
        with plain.read(f"/plain/{name}") as reader:
            return bytes(reader.read())

    mine, other = pairs(
        lambda n: storage.create(f"w{n}", data), lambda n: plain.write(f"/plain/w{n}", data=data), rounds
    )
    rate = f"{size / MIB / mine:.0f} MiB/s, plain {size / MIB / other:.0f}"
    report.add(
        f"write a chunk of {size // MIB} MiB, ratio to a plain loop", other / mine, "ratio", at_least=0.9, detail=rate
    )
    mine, other = pairs(
        lambda n: storage.read_into(ChunkHandle(f"w{n}", False), 0, buffer), lambda n: read_plain(f"w{n}"), rounds
    )
    assert buffer == data
    rate = f"{size / MIB / mine:.0f} MiB/s, plain {size / MIB / other:.0f}"
    report.add(
        f"read a chunk of {size // MIB} MiB, ratio to a plain loop", other / mine, "ratio", at_least=0.9, detail=rate
    )
    mine, other = pairs(
        lambda n: at_once([partial(storage.create, f"p{n}-{k}", data) for k in range(THREADS)]),
        lambda n: at_once([partial(plain.write, f"/plain/p{n}-{k}", data=data) for k in range(THREADS)]),
        max(3, rounds // 2),
    )
    report.add(f"write {THREADS} such chunks at once, ratio to plain", other / mine, "ratio", at_least=0.9)


def ranges(report: Report, storage: HdfsChunkStorage, plain: InsecureClient, rounds: int) -> None:
    """64 KiB somewhere in a large chunk."""
    offsets = [(number * 7_919 * 4_096) % (32 * MIB) for number in range(50)]
    handle = ChunkHandle("w0", False)

    def theirs(_: int) -> None:
        for offset in offsets:
            with plain.read("/plain/w0", offset=offset, length=64 * KIB) as reader:
                reader.read()

    def ours(_: int) -> None:
        for offset in offsets:
            storage.read(handle, offset, 64 * KIB)

    mine, other = pairs(ours, theirs, rounds)
    report.add("read 64 KiB, ratio to plain", other / mine, "ratio", at_least=0.9, detail=f"{50 / mine:.0f}/s")


def small(report: Report, storage: HdfsChunkStorage, plain: InsecureClient, rounds: int) -> None:
    """What a journal record costs: four requests instead of two."""
    data = os.urandom(KIB)
    mine, other = pairs(
        lambda n: [storage.create_if_absent(f"s{n}-{k}", data) for k in range(20)],
        lambda n: [plain.write(f"/plain/s{n}-{k}", data=data) for k in range(20)],
        rounds,
    )
    report.add(
        "put-if-absent of 1 KiB, ratio to a plain write", other / mine, "ratio", detail=f"{mine / 20 * 1000:.1f} ms"
    )


def commits(report: Report, root: str, segments: int) -> None:
    """Calls of the storage in one group commit over several segments."""
    storage = MeteredChunkStorage(open_hdfs(root, Settings()))
    with tempfile.TemporaryDirectory() as cache:
        store = open_store_on(storage, settings=Settings(cache_dir=cache, lease_s=0))
        names = [f"s{number}" for number in range(segments)]
        for name in names:
            store.create(name)
            store.append(name, b"first")
        with storage.counting() as cost:
            store.commit([changes.Append(name, b"second") for name in names])
        # ``sync`` sends nothing here; and once a second, beside all commits, an owner looks for a newer claim.
        requests = {name: count for name, count in cost.requests.items() if name not in ("sync", "exists")}
        store.close()
    storage.close()
    report.add(
        f"one commit over {segments} segments (create): calls",
        sum(requests.values()),
        "calls",
        at_most=segments + 1,
        detail=", ".join(f"{count} {name}" for name, count in sorted(requests.items())),
    )


def main() -> None:
    """Run all and save ``results/hdfs.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    options, _ = parser.parse_known_args()
    try:
        cluster = shared_cluster()
    except ServerMissing as error:
        print(f"HDFS is left out: {error}")
        return
    root = cluster.root("bench")
    cluster.ask("PUT", "/plain", "MKDIRS")
    storage = open_hdfs(root, Settings())
    plain = InsecureClient(cluster.url)
    report = Report("hdfs-quick" if options.quick else "hdfs")
    rounds = 3 if options.quick else 9
    chunks(report, storage, plain, 64 * MIB, rounds)
    ranges(report, storage, plain, rounds)
    small(report, storage, plain, rounds)
    commits(report, root + "-store", 8)
    storage.close()
    report.save()


if __name__ == "__main__":
    main()
