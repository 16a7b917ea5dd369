"""S3 at a distance: appends alone and in crowds, a ``StorageWriter``, ``append_many`` and reading along, each beside plain boto3
behind the same delay; and take-overs with many live extents beside ones with none.

Part of ``bench_s3``. The delay is a proxy's (``benchmarks.delay``), also at 0 ms, so that its own cost is in every figure.
Leaves out: bandwidth, which is loopback's.
"""

from __future__ import annotations

import hashlib
import random
from base64 import b64encode
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import chunkstore
from benchmarks.delay import delayed
from benchmarks.harness import Report, median, time_s
from chunkstore.changes import Append, Create
from chunkstore.config import KIB, MIB, Tuning
from tests.support.requests_spent import Requests
from tests.support.servers.rgw import Rgw

__all__ = ["DELAYS_MS", "far", "md5_of"]

DELAYS_MS = (0, 5, 30, 100)
PIECE_BYTES = 8 * MIB
STREAM_TIMES, LONG_STREAM_TIMES = 2, 6
"""A stream has so many times what the plain loop has on its way at once: else there is no loop, and beginnings are compared."""
WAYS = 8
CROWD = 32


def md5_of(data: bytes) -> str:
    """The integrity header that this server understands; ours sends the same."""
    return b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


class _Plain:
    """boto3 alone, with so many connections. Without ``Expect: 100-continue``, with which each PUT takes two round trips; with the
    integrity header that ours sends."""

    def __init__(self, server: Rgw, bucket: str, port: int, ways: int) -> None:
        self._client: Any = server.new_client(port)
        self._client.meta.events.register("request-created.s3.PutObject", _at_once)
        self._bucket = bucket
        self._pool = ThreadPoolExecutor(ways)

    def put(self, prefix: str, pieces: Sequence[bytes]) -> None:
        def put(item: tuple[int, bytes]) -> None:
            number, data = item
            self._client.put_object(Bucket=self._bucket, Key=f"{prefix}/{number}", Body=data, ContentMD5=md5_of(data))

        list(self._pool.map(put, enumerate(pieces)))

    def get(self, prefix: str, ranges: Sequence[tuple[int, int, int]]) -> int:
        """Object, offset and length each; returns how many bytes came."""

        def get(item: tuple[int, int, int]) -> int:
            number, offset, length = item
            span = f"bytes={offset}-{offset + length - 1}"
            answer = self._client.get_object(Bucket=self._bucket, Key=f"{prefix}/{number}", Range=span)
            return len(answer["Body"].read())

        return sum(self._pool.map(get, ranges))

    def close(self) -> None:
        self._pool.shutdown()
        self._client.close()


def _at_once(request: Any, **_: object) -> None:
    del request.headers["Expect"]


def _taken_s(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median time of each, after a round that does not count; they take turns in an order of chance."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    chance = random.Random(1)
    for number in range(rounds + 1):
        for name in chance.sample(sorted(calls), len(calls)):
            began_s = time_s()
            calls[name]()
            if number:
                taken[name].append(time_s() - began_s)
    return {name: median(times) for name, times in taken.items()}


def _compare(
    report: Report, what: str, size: int, ours: str, taken: dict[str, float], *, at_least: float | None = None
) -> None:
    """Our speed to that of each peer; the target holds against the last of them."""
    peers = [name for name in taken if name != ours]
    for peer in peers:
        speeds = f"ours {size / taken[ours] / 1e6:.1f} MB/s, plain {size / taken[peer] / 1e6:.1f} MB/s"
        target = at_least if peer == peers[-1] else None
        report.add(f"{what}, to {peer}", taken[peer] / taken[ours], "ratio", at_least=target, detail=speeds)


class _Place:
    """A container and plain clients behind one delay. Only from afar is what counts the number of round trips, and not processors."""

    def __init__(self, server: Rgw, path: Path, port: int, quick: bool, delay_ms: int) -> None:
        self.is_far = delay_ms >= 30
        self.bucket = server.make_bucket()
        self.root = server.root(self.bucket, "ours", port=port, concurrency=WAYS)
        self.cache = str(path)
        self.plain = {
            "plain boto3 with one connection": _Plain(server, self.bucket, port, 1),
            "plain boto3 with eight connections": _Plain(server, self.bucket, port, WAYS),
        }
        self.pieces = [random.Random(number).randbytes(PIECE_BYTES) for number in range(2 if quick else 8)]
        self.rounds = 1 if quick else 3

    @property
    def size(self) -> int:
        return len(self.pieces) * PIECE_BYTES

    def settings(self) -> chunkstore.Settings:
        rolling = chunkstore.RollingPolicy(chunk_size_bytes_max=PIECE_BYTES)
        return chunkstore.Settings(cache_dir=self.cache, default_rolling=rolling, tuning=Tuning(io_workers=WAYS))

    def close(self) -> None:
        for plain in self.plain.values():
            plain.close()


def _appends(report: Report, place: _Place, store: chunkstore.ChunkedSegmentStorage, behind: str, quick: bool) -> None:
    [alone, _] = place.plain.values()
    store.create("small")
    data = b"x" * KIB
    calls: dict[str, Callable[[], object]] = {
        "append": partial(store.append, "small", data),
        "PUT": partial(alone.put, "small", [data]),
    }
    taken = _taken_s(calls, 5 if quick else 30)
    detail = f"medians {taken['append'] * 1e3:.1f} ms, {taken['PUT'] * 1e3:.1f} ms"
    times = taken["append"] / taken["PUT"]
    most = 1.15 if place.is_far else None
    report.add(f"{behind}: an append of 1 KiB, to a PUT of it", times, "PUTs", at_most=most, detail=detail)
    _crowds(report, place, store, behind, taken["PUT"], quick)


def _crowds(
    report: Report,
    place: _Place,
    store: chunkstore.ChunkedSegmentStorage,
    behind: str,
    put_s: float,
    quick: bool,
) -> None:
    """Appends of 1 KiB by 32 threads, to one segment and to many. ``put_s``: what a PUT takes, alone."""
    each, data = 5 if quick else 25, b"x" * KIB
    puts: list[float] = []
    for count in (1, CROWD, 8 * CROWD):
        names = [f"crowd-{count}-{number}" for number in range(count)]
        store.commit([Create(name) for name in names])

        def append(thread: int, names: list[str] = names) -> list[float]:
            taken = []
            for number in range(each):
                began_s = time_s()
                store.append(names[(thread + CROWD * number) % len(names)], data)
                taken.append(time_s() - began_s)
            return taken

        with ThreadPoolExecutor(CROWD) as pool, Requests(store._container.storage) as spent:
            began_s = time_s()
            taken = sorted(chain.from_iterable(pool.map(append, range(CROWD))))
            took_s = time_s() - began_s
        puts.append(spent.verbs["PUT"] / took_s)
        what = f"{behind}: appends by {CROWD} threads to {count} segments"
        detail = f"{len(taken) / took_s:.0f} appends/s, {puts[-1]:.1f} PUTs/s"
        for share, most in ((0.5, 1.7), (0.99, 2.6)):
            times = taken[int(share * (len(taken) - 1))] / put_s
            at_most = most if place.is_far else None
            report.add(f"{what}, p{share * 100:.0f}", times, "PUTs", at_most=at_most, detail=detail)
    at_most = 1.5 if place.is_far else None
    report.add(f"{behind}: most to fewest PUTs a second of these", max(puts) / min(puts), "ratio", at_most=at_most)


def _streams(report: Report, place: _Place, store: chunkstore.ChunkedSegmentStorage, behind: str) -> None:
    """Written through one ``StorageWriter`` by one thread in events of 64 KiB, then read along.

    What is written ends with a commit that nothing hides: of a short stream that is a large part.
    """
    short, long = (place.pieces * times for times in (STREAM_TIMES, LONG_STREAM_TIMES))
    names = [f"s{number}" for number in range(2 * (place.rounds + 1))]
    store.commit([Create(name) for name in names])

    def write(pieces: Sequence[bytes]) -> None:
        with store.writer(names.pop()) as writer:
            for piece in pieces:
                for start in range(0, PIECE_BYTES, 64 * KIB):
                    writer.append(piece[start : start + 64 * KIB])

    def plain_puts(pieces: Sequence[bytes]) -> dict[str, Callable[[], object]]:
        return {name: partial(plain.put, "plain", pieces) for name, plain in place.plain.items()}

    calls: dict[str, Callable[[], object]]
    for pieces, at_least in ((short, None), (long, 0.8 if place.is_far else None)):
        size = len(pieces) * PIECE_BYTES
        calls = {"ours": partial(write, pieces), **plain_puts(pieces)}
        what = f"{behind}: StorageWriter, {size // MIB} MiB"
        _compare(report, what, size, "ours", _taken_s(calls, place.rounds), at_least=at_least)
    pieces, size = short, len(short) * PIECE_BYTES

    store.create("many")
    calls = {"ours": partial(store.append_many, "many", place.pieces), **plain_puts(place.pieces)}
    _compare(report, f"{behind}: append_many", place.size, "ours", _taken_s(calls, place.rounds))

    store.create("whole")
    store.append_many("whole", pieces)

    def read() -> None:
        with store.reader("whole", piece_bytes=PIECE_BYTES, prefetch_bytes=WAYS * PIECE_BYTES) as reader:
            assert sum(map(len, reader)) == size

    ranges = [(number, 0, PIECE_BYTES) for number in range(len(pieces))]
    calls = {"ours": read}
    calls |= {name: partial(plain.get, "plain", ranges) for name, plain in place.plain.items()}
    _compare(report, f"{behind}: StorageReader", size, "ours", _taken_s(calls, place.rounds))


def _take_overs(report: Report, server: Rgw, path: Path, port: int, behind: str, quick: bool) -> None:
    """With many live extents, to none: the same appends spilled."""
    extents, rounds = (10_000, 1) if quick else (100_000, 5)
    names = [f"s{number}" for number in range(100)]
    bucket = server.make_bucket()
    settings = chunkstore.Settings(cache_dir=str(path), lease_s=0, tuning=Tuning(spill_s=86_400.0, spill_bytes=1 << 30))
    for kind in ("extents", "spilled"):
        # Made behind the delay, so that opening it there is opening it where it was made; filled near the server, which is quicker.
        chunkstore.open(server.root(bucket, kind, port=port), settings=settings).close()
        with chunkstore.open(server.root(bucket, kind), settings=settings) as store:
            store.commit([Create(name) for name in names])
            for _ in range(extents // len(names)):
                store.commit([Append(name, b"x" * 128) for name in names])
            if kind == "spilled":
                store.spill()
            store.snapshot()
    for warm in (True, False):
        taken: dict[str, list[float]] = {"extents": [], "spilled": []}
        for number in range(rounds + 1):
            for kind in sorted(taken, reverse=bool(number % 2)):
                where = path / f"behind-{kind}" if warm else path / f"cold-{kind}-{number}"
                root, began_s = server.root(bucket, kind, port=port), time_s()
                with chunkstore.open(root, settings=replace(settings, cache_dir=str(where))):
                    taken[kind].append(time_s() - began_s)
        extents_s, spilled_s = (median(taken[kind][1:]) for kind in ("extents", "spilled"))
        report.add(
            f"{behind}: take-over, {'warm' if warm else 'cold'} cache, {extents} extents to none",
            extents_s / spilled_s,
            "ratio",
            at_most=1.5,
            detail=f"{extents_s:.3f} s, {spilled_s:.3f} s",
        )


def far(report: Report, server: Rgw, path: Path, delay_ms: int, *, quick: bool) -> None:
    """All of it behind one delay."""
    with delayed(server.port, delay_ms / 1e3) as port:
        place = _Place(server, path / f"far-{delay_ms}", port, quick, delay_ms)
        try:
            with chunkstore.open(place.root, settings=place.settings()) as store:
                _appends(report, place, store, f"{delay_ms} ms", quick)
                _streams(report, place, store, f"{delay_ms} ms")
            if place.is_far:
                _take_overs(report, server, path / f"take-over-{delay_ms}", port, f"{delay_ms} ms", quick)
        finally:
            place.close()
