"""The PIP-76 codec from and to Arrow, beside ``memcpy`` of the same bytes in the same run; PIP-17 beside it; memory of a 1 GiB ledger.

``python -m benchmarks.bench_codec [--quick]``. Needs the extra ``arrow``. One core; rounds of all cases alternate, and the
median round counts, in processor time: the codec does nothing but compute, and other work on the machine is none of its
doing. Ids and payload lengths are read back and compared once per case, outside the measured time.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from time import process_time

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Report, anonymous_kib, in_fresh_process, median
from chunkstore.codec.pulsar.arrow import append_batch, read_batches
from chunkstore.codec.pulsar.encoding import EncodedBlock
from chunkstore.codec.pulsar.frames import DataSource
from chunkstore.codec.pulsar.offload_metadata import LedgerMetadata
from chunkstore.codec.pulsar.pip17 import LedgerEncoder, LedgerObjectReader, read_ledger_index
from chunkstore.codec.pulsar.pip76 import BLOCK_BYTES_MAX, SegmentEncoder, SegmentIndex, SegmentReader, read_index
from chunkstore.codec.pulsar.windows import BlockReader
from chunkstore.config import MIB

__all__ = ["main"]

LEDGER = 7
METADATA = LedgerMetadata(write_quorum=2, ensemble_size=3)
GB = 1e9
# Payload bytes -> the least decode and encode speed, in million entries or in GB of payload per second.
TARGETS: dict[int, tuple[tuple[str, float] | None, tuple[str, float] | None]] = {
    100: (("M entries/s", 6.0), ("M entries/s", 6.0)),
    1024: (("GB/s", 2.5), ("GB/s", 4.0)),
    10240: (("GB/s", 8.0), None),
}


class Case:
    """One shape of entries: the Arrow input in 1 MiB arrays, and the encoded segment."""

    def __init__(self, kind: str, size: int, total: int) -> None:
        chance = random.Random(size)
        count = total // size
        lengths = (
            [size] * count if kind == "fixed" else [chance.randint(size // 2, size * 3 // 2) for _ in range(count)]
        )
        noise = chance.randbytes(size * 2)
        self.name = f"{kind} {size} B"
        self.size = size
        self.count = count
        self.payload_bytes = sum(lengths)
        step = max(1, MIB // size)
        self.arrays = [
            pa.array([noise[: lengths[at]] for at in range(begin, min(begin + step, count))], pa.binary())
            for begin in range(0, count, step)
        ]
        index, self.data = self._encoded(self._run)
        self.index = read_index(index)
        index, self.data_v1 = self._encoded(self._run_v1)
        self.index_v1 = read_ledger_index(index)
        self._verify(lengths, self.reader())
        self._verify(lengths, self.reader_v1())

    def _encoded(self, run: Callable[[Callable[[EncodedBlock], object]], bytes]) -> tuple[bytes, bytes]:
        pieces: list[bytes] = []
        index = run(lambda block: pieces.extend(map(bytes, block.buffers)))
        return index, b"".join(pieces)

    def _run(self, sink: Callable[[EncodedBlock], object]) -> bytes:
        encoder = SegmentEncoder(sink)
        encoder.begin_ledger(LEDGER)
        return self._fill(encoder)

    def _run_v1(self, sink: Callable[[EncodedBlock], object]) -> bytes:
        # Blocks as long as PIP-76's: with its own 64 MiB, what costs more is that much fresh memory.
        return self._fill(LedgerEncoder(sink, METADATA, block_bytes_max=BLOCK_BYTES_MAX))

    def _fill(self, encoder: SegmentEncoder | LedgerEncoder) -> bytes:
        first = 0
        for values in self.arrays:
            append_batch(encoder, first, values)
            first += len(values)
        return encoder.finish()

    def _verify(self, lengths: list[int], reader: BlockReader) -> None:
        seen: list[int] = []
        for batch in read_batches(reader, LEDGER):
            assert batch["entry"].to_pylist() == list(range(len(seen), len(seen) + batch.num_rows))
            seen += pc.binary_length(batch["payload"]).to_pylist()
        assert seen == lengths

    def reader(self) -> SegmentReader:
        view = memoryview(self.data)
        return SegmentReader(DataSource(self.name, len(view), lambda at, n: view[at : at + n]), self.index)

    def reader_v1(self) -> LedgerObjectReader:
        view = memoryview(self.data_v1)
        source = DataSource(self.name, len(view), lambda at, n: view[at : at + n])
        return LedgerObjectReader(source, self.index_v1, ledger=LEDGER)

    def encode(self) -> None:
        self._run(lambda _: None)

    def encode_v1(self) -> None:
        self._run_v1(lambda _: None)

    def decode(self) -> None:
        rows = sum(batch.num_rows for batch in read_batches(self.reader(), LEDGER))
        assert rows == self.count

    def decode_v1(self) -> None:
        rows = sum(batch.num_rows for batch in read_batches(self.reader_v1(), LEDGER))
        assert rows == self.count

    def memcpy(self) -> None:
        """The same bytes, window by window, into memory that is there already."""
        view, window = memoryview(self.data), bytearray(MIB)
        for at in range(0, len(view), MIB):
            piece = view[at : at + MIB]
            window[: len(piece)] = piece


def speeds(report: Report, total: int, rounds: int) -> None:
    """Encode, decode and memcpy of each case, alternating."""
    for size, (decode_target, encode_target) in TARGETS.items():
        for kind in ("fixed", "variable"):
            case = Case(kind, size, total)
            verbs = ("decode", "decode_v1", "encode", "encode_v1", "memcpy")
            spent: dict[str, list[float]] = {verb: [] for verb in verbs}
            for _ in range(rounds):
                for verb, times in spent.items():
                    began = process_time()
                    getattr(case, verb)()
                    times.append(process_time() - began)
            copy_gbps = len(case.data) / median(spent["memcpy"]) / GB
            for verb, target in (("decode", decode_target), ("encode", encode_target)):
                took = median(spent[verb])
                million, gbps = case.count / took / 1e6, case.payload_bytes / took / GB
                unit = target[0] if target else "GB/s"
                report.add(
                    f"{verb} {case.name}",
                    million if unit == "M entries/s" else gbps,
                    unit,
                    at_least=target[1] if target else None,
                    detail=f"{million:.2f} M entries/s, {gbps:.2f} GB/s, memcpy {copy_gbps:.1f} GB/s, "
                    f"ratio {len(case.data) / took / GB / copy_gbps:.2f}, best {case.count / min(spent[verb]) / 1e6:.2f} M/s",
                )
                took_v1 = median(spent[f"{verb}_v1"])
                report.add(
                    f"{verb} {case.name}: PIP-17 beside PIP-76",
                    took / took_v1,
                    "ratio",
                    at_least=0.9,
                    detail=f"{case.count / took_v1 / 1e6:.2f} M entries/s, {case.payload_bytes / took_v1 / GB:.2f} GB/s",
                )


def memory(total: int, size: int) -> dict[str, float]:
    """In a fresh process: encode ``total`` bytes of ``size``-byte entries to a temporary file, decode them; peak anonymous MiB."""
    step = max(1, MIB // size)
    values = pa.array([bytes(size)] * step, pa.binary())
    peak = {"base": anonymous_kib(), "encode": 0, "decode": 0}
    with tempfile.TemporaryFile() as file:

        def sink(block: EncodedBlock) -> None:
            for piece in block.buffers:
                file.write(piece)
            peak["encode"] = max(peak["encode"], anonymous_kib())

        encoder = SegmentEncoder(sink)
        encoder.begin_ledger(LEDGER)
        for first in range(0, total // size, step):
            append_batch(encoder, first, values)
        index: SegmentIndex = read_index(encoder.finish())

        def read(at: int, length: int) -> bytes:
            file.seek(at)
            return file.read(length)

        def rows() -> Iterator[int]:
            source = DataSource("ledger", index.data_length, read)
            for number, batch in enumerate(read_batches(SegmentReader(source, index), LEDGER)):
                if number % 64 == 0:
                    peak["decode"] = max(peak["decode"], anonymous_kib())
                yield batch.num_rows

        assert sum(rows()) == -(-(total // size) // step) * step
    return {name: kib / 1024 for name, kib in peak.items()}


def memories(report: Report, total: int) -> None:
    """Peak memory of the whole process, Python and Arrow included."""
    for size in (100, 1024):
        found = in_fresh_process("benchmarks.bench_codec", "--memory", total, size)
        for verb in ("encode", "decode"):
            report.add(
                f"{verb} a ledger of {total // MIB} MiB, {size} B: peak anonymous memory",
                found[verb],
                "MiB",
                at_most=200,
                detail=f"{found['base']:.0f} MiB before",
            )


def main() -> None:
    """Run all and save ``results/codec.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    parser.add_argument("--memory", nargs=2, type=int, metavar=("TOTAL", "SIZE"), help=argparse.SUPPRESS)
    options, _ = parser.parse_known_args()
    if options.memory:
        print(json.dumps(memory(*options.memory)))
        return
    report = Report("codec-quick" if options.quick else "codec")
    speeds(report, (8 if options.quick else 64) * MIB, 3 if options.quick else 9)
    memories(report, (64 if options.quick else 1024) * MIB)
    report.save()


if __name__ == "__main__":
    main()
