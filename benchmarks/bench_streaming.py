"""Streaming offload: memory of a million entries, how long ``offer_entry`` takes over slow storage, and flow permits by the real clock.

``python -m benchmarks.bench_streaming [--quick] [--dir DIR]``. Memory is that of a fresh process, storage included; a slow storage is a
store that may write 20 MB/s. Every entry is counted in the container afterwards.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Iterator
from time import perf_counter_ns, sleep

import chunkstore
from benchmarks.harness import Report, anonymous_kib, in_fresh_process, scratch, time_s
from chunkstore.codec.pulsar.frames import Entry
from chunkstore.config import MIB, Settings
from chunkstore.pulsar import LedgerReader
from chunkstore.pulsar.permits import FlowPermits, OffloadReadHandle
from chunkstore.pulsar.read_handle import ReadHandle
from chunkstore.pulsar.streaming import OfferResult, OffloadHandle, StreamingPolicy, streaming_offload

__all__ = ["main"]

SIZE = 1024
BUFFER_BYTES = 64 * MIB
TOPIC = "orders"
POLICY = StreamingPolicy(max_size_per_offload_segment_mbytes=256, write_buffer_bytes=BUFFER_BYTES)
SLOW_BYTES_PER_S = 20e6


def offered(handle: OffloadHandle, entry: Entry) -> bool:
    """Offer until it is taken; false where the segment has ended."""
    while (outcome := handle.offer_entry(entry)) is OfferResult.BUFFER_FULL:
        handle.wait_for_room(BUFFER_BYTES // 2, 600)
    return bool(outcome)


def memory(count: int, where: str) -> dict[str, float]:
    """Stream ``count`` entries as fast as they are taken; the peak of this process in MiB."""
    base = peak = anonymous_kib()
    began = time_s()
    with chunkstore.open(where) as store:
        handle = streaming_offload(store, TOPIC, policy=POLICY)
        for number in range(count):
            entry = Entry(1, number, number.to_bytes(8, "big") * (SIZE // 8))
            if not offered(handle, entry):
                handle.get_offload_result_async().result(600)
                handle = streaming_offload(store, TOPIC, policy=POLICY)
                assert offered(handle, entry)
            if number % 10_000 == 0:
                peak = max(peak, anonymous_kib())
        handle.suspend()
        peak = max(peak, anonymous_kib())
        took = time_s() - began
        [found] = LedgerReader(store).ledgers(TOPIC)
        assert (found.first_entry, found.last_entry) == (0, count - 1)
    return {"base": base / 1024, "peak": peak / 1024, "seconds": took}


def offers(seconds: float, where: str) -> dict[str, float]:
    """Offer for some seconds over slow storage, more than it takes; milliseconds of a call by quantile."""
    took: list[int] = []
    refused = number = 0
    with chunkstore.open(where, settings=Settings(write_bytes_per_s_max=SLOW_BYTES_PER_S)) as store:
        handle = streaming_offload(store, TOPIC, policy=POLICY)
        end = time_s() + seconds
        while time_s() < end:
            for _ in range(50):  # 50 KiB each millisecond or two
                entry = Entry(1, number, bytes(SIZE))
                began = perf_counter_ns()
                outcome = handle.offer_entry(entry)
                took.append(perf_counter_ns() - began)
                number += bool(outcome)
                if not outcome:
                    refused += 1
                    break
            sleep(0.001)
        handle.suspend()
        assert LedgerReader(store).ledgers(TOPIC)[0].last_entry == number - 1
    took.sort()
    quantiles = {
        name: took[int(share * (len(took) - 1))] / 1e6 for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
    }
    return {**quantiles, "max": took[-1] / 1e6, "offers": len(took), "refused": refused}


class _Endless(ReadHandle):
    """Entries of 1 KiB without end, in memory."""

    ledger, last_add_confirmed, length, closed = 1, 1 << 62, None, True

    def iter_entries(self, first: int = 0, last: int | None = None) -> Iterator[Entry]:
        return (Entry(1, entry, bytes(SIZE)) for entry in range(first, (first if last is None else last) + 1))

    def read_batches(self, first: int = 0, last: int | None = None) -> Iterator[object]:
        raise NotImplementedError

    def close(self) -> None:
        pass


def permitted(report: Report, seconds: float) -> None:
    """Bytes that 1 and 8 handles read together, and what is permitted."""
    for handles in (1, 8):
        rate, total, lock = 20e6, 0, threading.Lock()
        permits = FlowPermits(rate)
        opened = [OffloadReadHandle.create(_Endless(), permits) for _ in range(handles)]
        end = time_s() + seconds

        def run(handle: OffloadReadHandle, end: float = end, lock: threading.Lock = lock) -> None:
            nonlocal total
            while time_s() < end:
                size = sum(len(entry.payload) for entry in handle.read(0, 99))
                with lock:
                    total += size if time_s() < end else 0

        threads = [threading.Thread(target=run, args=(handle,)) for handle in opened]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        share = total / seconds / rate
        report.add(
            f"flow permits of 20 MB/s, {handles} handles, {seconds:g} s: off by",
            abs(share - 1) * 100,
            "%",
            at_most=10,
            detail=f"{share:.3f} of what is permitted",
        )


def main() -> None:
    """Run all and save ``results/streaming.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    parser.add_argument("--dir", help="where the containers are")
    parser.add_argument("--memory", nargs=2, metavar=("COUNT", "WHERE"), help=argparse.SUPPRESS)
    options, _ = parser.parse_known_args()
    if options.memory:
        print(json.dumps(memory(int(options.memory[0]), options.memory[1])))
        return
    report = Report("streaming-quick" if options.quick else "streaming")
    count, seconds = (50_000, 2.0) if options.quick else (1_000_000, 20.0)
    with scratch(options.dir) as path:
        found = in_fresh_process("benchmarks.bench_streaming", "--memory", count, (path / "memory").as_uri())
        report.add(
            f"{count} entries of 1 KiB, buffer 64 MiB: peak anonymous memory",
            found["peak"],
            "MiB",
            at_most=220,
            detail=f"{found['base']:.0f} MiB before; {count / found['seconds']:.0f} entries/s",
        )
        slow = offers(seconds, (path / "slow").as_uri())
        report.add(
            "offer_entry, storage at 20 MB/s: p99.9",
            slow["p999"],
            "ms",
            at_most=1.0,
            detail=f"p50 {slow['p50']:.4f}, p99 {slow['p99']:.4f}, max {slow['max']:.1f} ms; {slow['offers']:.0f} offers, "
            f"{slow['refused']:.0f} refused",
        )
    permitted(report, seconds / 2)
    report.save()


if __name__ == "__main__":
    main()
