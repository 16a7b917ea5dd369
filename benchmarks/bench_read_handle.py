"""A ledger through ``StoredLedger``: beside a plain loop of 8 MiB ranges over the same object; requests; memory of a 1 GiB ledger.

``python -m benchmarks.bench_read_handle [--quick] [--dir DIR]``. Needs the extra ``arrow``; Ceph's gateway for the figures of S3. Rounds
alternate, and the median round counts, by the clock: what is compared is waiting, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks.harness import Report, in_fresh_process, median, scratch, time_s
from chunkstore.buckets import open_bucket
from chunkstore.codec.pulsar.arrow import append_batch
from chunkstore.codec.pulsar.encoding import EncodedBlock
from chunkstore.codec.pulsar.frames import DataSource
from chunkstore.codec.pulsar.offload_metadata import LedgerMetadata
from chunkstore.codec.pulsar.pip17 import LedgerEncoder, LedgerObjectReader, read_ledger_index
from chunkstore.config import MIB
from chunkstore.pulsar.read_handle import LedgerPart, StoredLedger
from tests.support.servers.base import ServerMissing
from tests.support.servers.rgw import Rgw
from tests.support.servers.s3server import CREDENTIALS

__all__ = ["main"]

LEDGER = 7
ENTRY_BYTES = 1024
RANGE_BYTES = 8 * MIB


def write(path: Path, total: int) -> None:
    """A PIP-17 pair at ``path``, its index beside it; blocks of 64 MiB."""
    noise = random.Random(1).randbytes(MIB)
    values = pa.array([noise[at : at + ENTRY_BYTES] for at in range(0, MIB, ENTRY_BYTES)], pa.binary())
    with path.open("wb") as file:

        def sink(block: EncodedBlock) -> None:
            for piece in block.buffers:
                file.write(piece)

        encoder = LedgerEncoder(sink, LedgerMetadata(write_quorum=2, ensemble_size=3))
        for first in range(0, total // ENTRY_BYTES, len(values)):
            append_batch(encoder, first, values)
        path.with_suffix(".index").write_bytes(encoder.finish())


@contextmanager
def stored(url: str, key: str) -> Iterator[DataSource]:
    """An object in a bucket."""
    with open_bucket(url) as bucket:
        yield DataSource(key, bucket.head(key).length, partial(bucket.read, key))


def opened(source: DataSource, index: bytes) -> StoredLedger:
    """A new handle, which knows nothing yet."""
    read = read_ledger_index(index)
    last = read.metadata.last_entry or 0
    part = LedgerPart(LedgerObjectReader(source, read, ledger=LEDGER), 0, last, identity=object())
    return StoredLedger(LEDGER, [part], last_add_confirmed=last)


def sequential(report: Report, source: DataSource, index: bytes, where: str, rounds: int, target: float | None) -> None:
    """The whole ledger as batches, as entries, and the object's bytes alone."""
    spent: dict[str, list[float]] = {"plain": [], "batches": [], "entries": []}
    for _ in range(rounds):
        for verb, times in spent.items():
            began = time_s()
            if verb == "plain":
                for at in range(0, source.length, RANGE_BYTES):
                    source.read(at, min(RANGE_BYTES, source.length - at))
            else:
                with opened(source, index) as handle:
                    items = handle.read_batches() if verb == "batches" else handle.iter_entries()
                    assert sum(len(item) for item in items)
            times.append(time_s() - began)
    plain = median(spent["plain"])
    for verb, least in (("batches", target), ("entries", None)):
        took = median(spent[verb])
        detail = f"{source.length / took / 1e6:.0f} MB/s, plain loop {source.length / plain / 1e6:.0f} MB/s"
        report.add(
            f"{where}: a ledger as {verb}, beside a plain loop", plain / took, "ratio", at_least=least, detail=detail
        )


def requests(report: Report, source: DataSource, index: bytes, reads: int) -> None:
    """Of a handle that knows nothing before; and of one that has seen it all."""
    count = 0

    def read(at: int, length: int) -> bytes:
        nonlocal count
        count += 1
        return bytes(source.read(at, length))

    with opened(source._replace(read=read), index) as handle:
        chance = random.Random(2)
        for name in (", first scans included", ", once scanned"):
            before = count
            for _ in range(reads):
                entry = chance.randrange(handle.last_add_confirmed + 1)
                assert handle.read(entry, entry)
            report.add(f"requests for a random entry{name}", (count - before) / reads, "requests", at_most=1.2)


def read_all(path: str) -> None:
    """In a fresh process: the ledger at ``path``, once through; prints the peak of its resident memory in MiB."""
    with stored(Path(path).parent.absolute().as_uri(), Path(path).name) as source:
        handle = opened(source, Path(path).with_suffix(".index").read_bytes())
        base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert sum(batch.num_rows for batch in handle.read_batches()) == handle.last_add_confirmed + 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"base": base / 1024, "peak": peak / 1024}))


def main() -> None:
    """Run all and save ``results/read_handle.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    parser.add_argument("--dir", help="where temporary files go")
    parser.add_argument("--write", nargs=2, metavar=("PATH", "TOTAL"), help=argparse.SUPPRESS)
    parser.add_argument("--read", metavar="PATH", help=argparse.SUPPRESS)
    options, _ = parser.parse_known_args()
    if options.write:
        write(Path(options.write[0]), int(options.write[1]))
        print("{}")
        return
    if options.read:
        read_all(options.read)
        return
    report = Report("read_handle-quick" if options.quick else "read_handle")
    me, rounds = "benchmarks.bench_read_handle", 3 if options.quick else 7
    with scratch(options.dir) as folder:
        big, path = folder / "big", folder / "ledger"
        total = (128 if options.quick else 1024) * MIB
        in_fresh_process(me, "--write", big, total)
        found = in_fresh_process(me, "--read", big)
        detail = f"{found['base']:.0f} MiB before"
        report.add(f"peak memory, a ledger of {total // MIB} MiB", found["peak"], "MiB", at_most=200, detail=detail)
        big.unlink()
        in_fresh_process(me, "--write", path, (64 if options.quick else 256) * MIB)
        index = path.with_suffix(".index").read_bytes()
        with stored(path.parent.as_uri(), path.name) as source:
            requests(report, source, index, 1000)
            sequential(report, source, index, "folder", rounds, None)
        try:
            server = Rgw()
        except ServerMissing as missing:
            print(f"no figures of S3: {missing}")
        else:
            try:
                os.environ.update(CREDENTIALS)
                bucket = server.make_bucket()
                server.new_client().put_object(Bucket=bucket, Key="d/ledger", Body=path.read_bytes())
                with stored(server.root(bucket), "d/ledger") as source:
                    sequential(report, source, index, "Ceph RGW", rounds, 0.85)
            finally:
                server.stop()
    report.save()


if __name__ == "__main__":
    main()
