"""Reads: to bare ``os.preadv``, verified and not, of chunks and of what was just appended in records; ranges on S3 to plain boto3; and
the first read in segments of very many chunks.

The S3 server is Ceph's gateway from Debian's packages, behind a proxy that delays it by 0 and by 5 ms.

``python -m benchmarks.bench_read [--dir DIR] [--quick] [--against CHECKOUT ...]``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import chunkstore
from benchmarks.big import CHUNK_BYTES, build, build_concats, open_big
from benchmarks.delay import delayed
from benchmarks.harness import Report, in_fresh_process, median, scratch, time_s, tuned
from benchmarks.turns import Contender, Operation, parse_options, take_turns, with_others
from chunkstore.checksum import crc32c
from chunkstore.config import KIB, MIB
from tests.support.servers.base import ServerMissing
from tests.support.servers.rgw import Rgw
from tests.support.servers.s3server import CREDENTIALS, S3Server

__all__ = ["main"]

WINDOW_BYTES: Final = 256 * KIB
TOTAL_BYTES: Final = 256 * MIB
PIECE_BYTES: Final = 8 * MIB
PIECES: Final = 8
READERS: Final = 4


def _offsets(size: int, total: int) -> Iterator[int]:
    """Small reads come from random places, large ones one after the other."""
    chance = random.Random(size)
    return cycle(range(0, total, size) if size >= MIB else [chance.randrange(total - size) for _ in range(4096)])


def ours(path: Path, size: int, *, piece: int = PIECE_BYTES, total: int = TOTAL_BYTES, **settings: Any) -> Operation:
    """Reads into one buffer, by the owner, of what was appended in pieces."""
    given = tuned(cache_dir=str(path / "cache"), lease_s=0, **settings)
    store = chunkstore.open(f"file://{path}/root", settings=given)
    store.create("s", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=64 * MIB))
    data = os.urandom(piece)
    for _ in range(total // piece):
        store.append("s", data)
    buffer, offsets = bytearray(size), _offsets(size, total)
    return lambda _: store.read_into("s", next(offsets), buffer)


def bare(path: Path, size: int, *, verify: bool = False) -> Operation:
    """The same of one file: by one call, or in windows whose CRC32C is compared at once."""
    file = os.open(path / "bare", os.O_CREAT | os.O_RDWR)
    data = os.urandom(PIECE_BYTES)
    for _ in range(TOTAL_BYTES // PIECE_BYTES):
        os.write(file, data)
    expected = [crc32c(data[start : start + WINDOW_BYTES]) for start in range(0, PIECE_BYTES, WINDOW_BYTES)]
    view, offsets = memoryview(bytearray(size)), _offsets(size, TOTAL_BYTES)

    def read_verified(_: int) -> None:
        offset = next(offsets)
        for start in range(0, size, WINDOW_BYTES):
            window = view[start : start + WINDOW_BYTES]
            os.preadv(file, [window], offset + start)
            assert crc32c(window) == expected[(offset + start) % PIECE_BYTES // WINDOW_BYTES]

    return read_verified if verify else lambda _: os.preadv(file, [view], next(offsets))


def small(report: Report, path: Path, others: dict[str, Path], scale: int) -> None:
    """4 KiB from chunks, and of appends of 1 KiB in records: from memory, and from the journal's object."""
    records = {"piece": KIB, "total": 8 * MIB, "spill_s": 3600.0, "spill_bytes": 1 << 30}
    ways: dict[str, dict[str, Any]] = {
        "verified": {},
        "unverified": {"verify": "off"},
        "tail cache": records,
        "journal": {**records, "tail_cache_bytes": 0},
    }
    owners = {way: Contender(ours, {"size": 4 * KIB, **given}, each=2048) for way, given in ways.items()}
    contenders = {"preadv": Contender(bare, {"size": 4 * KIB}, each=2048), **with_others(owners, others)}
    turns = take_turns(path, contenders, 40 // scale)
    for way in ways:
        for peer in ("preadv", *(f"{way} of {other}" for other in others)):
            turns.speed(report, f"read 4 KiB, {way}, to {peer}", way, peer)
        report.add(f"Python calls of a read of 4 KiB, {way}", turns.calls[way], "calls")


def sequential(report: Report, path: Path, scale: int) -> None:
    """Reads of several sizes, one after the other."""
    loop = "a preadv loop that compares the same CRCs"
    for size, to_loop in ((MIB, 0.95), (4 * MIB, 0.95), (8 * MIB, 1.0), (32 * MIB, 1.0)):
        each = TOTAL_BYTES // size
        contenders = {
            "verified": Contender(ours, {"size": size}, each=each),
            "unverified": Contender(ours, {"size": size, "verify": "off"}, each=each),
            loop: Contender(bare, {"size": size, "verify": True}, each=each),
            "preadv": Contender(bare, {"size": size}, each=each),
        }
        turns = take_turns(path, contenders, 20 // scale)
        for way, peer, at_least in (
            ("verified", loop, to_loop),
            ("verified", "preadv", 0.5),
            ("unverified", "preadv", 0.85),
        ):
            turns.speed(report, f"sequential read {size // MIB} MiB, {way}, to {peer}", way, peer, at_least=at_least)


def _spots() -> Iterator[tuple[int, int]]:
    """A piece, and where a range of 1 MiB begins in it."""
    chance = random.Random(2)
    return cycle([(chance.randrange(PIECES), chance.randrange(PIECE_BYTES - MIB)) for _ in range(8 * PIECES)])


def ranged(path: Path, port: int, bucket: str, **settings: Any) -> Operation:
    """Ranges of a segment, by the owner."""
    root = S3Server(port).root(bucket, path.name, concurrency=PIECES)
    rolling = chunkstore.RollingPolicy(chunk_size_bytes_max=PIECE_BYTES)
    given = tuned(cache_dir=str(path), io_workers=PIECES, default_rolling=rolling, **settings)
    store = chunkstore.open(root, settings=given)
    store.create("s")
    store.append_many("s", [os.urandom(PIECE_BYTES)] * PIECES)
    spots = _spots()

    def read(_: int) -> None:
        piece, offset = next(spots)
        assert len(store.read("s", piece * PIECE_BYTES + offset, MIB)) == MIB

    return read


def plain_ranged(_path: Path, port: int, bucket: str) -> Operation:
    """Ranges of as many objects, by boto3 alone."""
    client = S3Server(port).new_client()
    for number in range(PIECES):
        client.put_object(Bucket=bucket, Key=f"plain/{number}", Body=os.urandom(PIECE_BYTES))
    spots = _spots()

    def get(_: int) -> None:
        piece, offset = next(spots)
        span = f"bytes={offset}-{offset + MIB - 1}"
        assert len(client.get_object(Bucket=bucket, Key=f"plain/{piece}", Range=span)["Body"].read()) == MIB

    return get


def from_s3(report: Report, path: Path, others: dict[str, Path], server: S3Server, scale: int) -> None:
    """Ranges of 1 MiB at random places by four threads each. A verified range is read with the rest of the blocks that it touches."""
    tail = {"read_fence": "tail"}
    ways: dict[str, dict[str, str]] = {"fenced": {}, "tail": tail, "tail, unverified": {"verify": "off", **tail}}
    for delay_ms in (0, 5):
        with delayed(server.port, delay_ms / 1e3) as port:
            place = {"port": port, "bucket": server.make_bucket()}
            owners = {way: Contender(ranged, {**place, **given}, READERS, 64) for way, given in ways.items()}
            loop = Contender(plain_ranged, place, READERS, 64)
            turns = take_turns(path, {"plain loop": loop, **with_others(owners, others)}, 20 // scale)
        for way in ways:
            for peer in ("plain loop", *(f"{way} of {other}" for other in others)):
                turns.speed(report, f"{delay_ms} ms: ranged reads by the owner ({way}), to {peer}", way, peer)


def first_read(path: str, chunks: int, seed: int) -> None:
    """In a fresh process: time the first 4 KiB read, then warm ones; prints JSON."""
    store = open_big(Path(path))
    offset = random.Random(seed).randrange(0, chunks * CHUNK_BYTES - 4 * KIB)
    buffer = bytearray(4 * KIB)
    began = time_s()
    store.read_into("s", offset, buffer)
    first = time_s() - began
    offsets = [random.Random(seed + 1).randrange(0, chunks * CHUNK_BYTES - 4 * KIB) for _ in range(2000)]
    warm = []
    for offset in offsets:
        began = time_s()
        store.read_into("s", offset, buffer)
        warm.append(time_s() - began)
    store.close()
    print(json.dumps({"first_s": first, "warm_s": median(warm)}))


def seeks(report: Report, path: Path, many: int, few: int, rounds: int) -> None:
    """First and warm reads with ``many`` and ``few`` chunks, and after 1,000 concats."""
    cases = {"few": few, "many": many, "concats": many}
    for name, chunks in cases.items():
        (path / name).mkdir()
        if name == "concats":
            build_concats(path / name, chunks, 1000)
        else:
            build(path / name, chunks)
    first: dict[str, list[float]] = {name: [] for name in cases}
    warm: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds):
        for name, chunks in cases.items():
            found = in_fresh_process("benchmarks.bench_read", "--first-read", path / name, chunks, number)
            first[name].append(found["first_s"])
            warm[name].append(found["warm_s"])
    base = median(first["few"])
    for name, text in (("many", f"{many:,} chunks"), ("concats", f"{many:,} chunks after 1,000 concats")):
        report.add(
            f"first 4 KiB read, {text} to {few:,}",
            median(first[name]) / base,
            "ratio",
            at_most=1.5,
            detail=f"{median(first[name]) * 1e6:.0f} us to {base * 1e6:.0f} us",
        )
        report.add(f"warm 4 KiB read, {text}", median(warm[name]) * 1e6, "us", at_most=30)


def main() -> None:
    """Run all and save ``results/read.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first-read", nargs=3, metavar=("PATH", "CHUNKS", "SEED"), help=argparse.SUPPRESS)
    options = parse_options(parser)
    if options.first_read:
        path, chunks, seed = options.first_read
        first_read(path, int(chunks), int(seed))
        return
    os.environ.update(CREDENTIALS)
    scale = 10 if options.quick else 1
    report = Report("read-quick" if options.quick else "read")
    with scratch(options.dir) as path:
        small(report, path, options.others, scale)
        sequential(report, path, scale)
        seeks(report, path, 20_000 if options.quick else 1_000_000, 1_000, 3 if options.quick else 15)
        try:
            server = Rgw(parent=path)
        except ServerMissing as why:
            print(f"S3 is not measured: {why}")
        else:
            try:
                from_s3(report, path, options.others, server, scale)
            finally:
                server.stop()
    report.save()


if __name__ == "__main__":
    main()
