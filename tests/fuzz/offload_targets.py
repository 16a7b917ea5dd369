"""The decoders of Pulsar's formats: index, blocks (one by one and as Arrow), protobuf metadata."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from struct import Struct

from chunkstore.codec.pulsar import pip76, windows
from chunkstore.codec.pulsar.arrow import read_batches
from chunkstore.codec.pulsar.frames import BLOCK_HEADER_BYTES, Entry
from chunkstore.codec.pulsar.pip76 import SegmentEncoder, SegmentReader, read_index
from chunkstore.codec.pulsar.windows import BlockReader, iter_entries
from chunkstore.errors import Damaged
from tests.fuzz.chance import Chance, mangled
from tests.fuzz.target import Gate, Spy, Target
from tests.support.pip76 import Encoded, Sink, miscounted, source_of

__all__ = ["OFFLOAD_TARGETS", "damaged_index", "damaged_pair", "decode_blocks"]

_FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "pulsar"
_I32 = Struct(">i")

# --- the index -------------------------------------------------------------------------------------------------------

_INDEXES = [path.read_bytes() for path in sorted(_FIXTURES.glob("v2-*.index"))]


def damaged_index(chance: Chance, raw: bytes) -> bytes:
    """Bytes and numbers changed; mostly the magic and the index's own length are right."""
    head, body = raw[:4], mangled(chance, raw[8:], raw)
    if chance.random() < 0.9:
        return head + _I32.pack(len(body) + 8) + body
    return mangled(chance, raw)


def _make_index(chance: Chance) -> bytes:
    return damaged_index(chance, chance.one_of(_INDEXES))


def _decode_index(data: bytes, gate: Gate) -> Callable[[], None] | None:
    try:
        found = read_index(data)
    except Damaged as error:
        assert 0 <= error.position <= len(data), error.position
        return None
    return partial(_index_again, found)


def _index_again(found: pip76.SegmentIndex) -> None:
    assert read_index(pip76.build_index(found)) == found
    spans = found.spans()
    assert [span.start for span in spans] == [0, *(span.end for span in spans)][: len(spans)]
    assert all(span.end >= span.start + BLOCK_HEADER_BYTES for span in spans)
    assert found.data_length == (spans[-1].end if spans else 0)


# --- data objects ----------------------------------------------------------------------------------------------------


def _encoded(blocks: list[list[Entry]], block_bytes_min: int = 0) -> Encoded:
    """A segment of such blocks: smaller ones than a writer would make, so that fuzzing is quick."""
    sink = Sink()
    encoder = SegmentEncoder(sink, block_bytes_min=block_bytes_min)
    ledger = -1
    for block in blocks:
        if block[0].ledger != ledger:
            ledger = block[0].ledger
            encoder.begin_ledger(ledger)
        for entry in block:
            encoder.append(entry.entry, entry.payload)
        encoder.cut()
    index = encoder.finish()
    return Encoded(sink.data, index)


def _segments() -> list[tuple[bytes, bytes]]:
    """(index, data) of some small segments, one of them as Pulsar's own writer miscounts."""
    entries = [Entry(7, number, bytes((number,)) * (5 + 9 * number)) for number in range(8)]
    entries += [Entry(8, number * 3, b"e" * number) for number in range(5)]
    blocks = [entries[:4], entries[4:8], entries[8:]]
    made = [
        _encoded(blocks),
        _encoded(blocks, block_bytes_min=256),
        _encoded([[Entry(1, 0, b"")]]),
        miscounted(blocks, block_min=300),
    ]
    return [(item.index_bytes, item.data) for item in made]


_SEGMENTS = _segments()


def damaged_pair(chance: Chance, index: bytes, data: bytes) -> bytes:
    """The index's length in four bytes, the index, the data: damaged, and mostly as long as the index says."""
    damaged = mangled(chance, data, data)
    if chance.random() < 0.15:
        index = damaged_index(chance, index)
    if chance.random() < 0.8:
        damaged = damaged[: len(data)].ljust(len(data), b"\0")
    return len(index).to_bytes(4, "big") + index + damaged


def _make_pair(chance: Chance) -> bytes:
    return damaged_pair(chance, *chance.one_of(_SEGMENTS))


ReaderOf = Callable[[bytes], tuple[BlockReader, bytes]]


def _reader_of(data: bytes) -> tuple[SegmentReader, bytes]:
    end = 4 + int.from_bytes(data[:4], "big")
    index, content = data[4:end], data[end:]
    return SegmentReader(source_of(content), read_index(index), window_bytes=4096), content


def decode_blocks(reader_of: ReaderOf, data: bytes, gate: Gate) -> None:
    reader, content = reader_of(data)
    for ledger in reader.ledgers:
        size, ids = 0, []
        for entry in iter_entries(reader, ledger):
            size += len(entry.payload) + 12
            ids.append(entry.entry)
        assert size <= len(content)
        assert ids == (list(range(len(ids))) if reader.format.dense else sorted(set(ids)))
        if len(ids) > 1:
            some = [entry.entry for entry in iter_entries(reader, ledger, ids[1], ids[-1])]
            assert some == ids[1:]


def _decode_batches(reader_of: ReaderOf, data: bytes, gate: Gate) -> None:
    reader, content = reader_of(data)
    for ledger in reader.ledgers:
        previous = -1
        for batch in read_batches(reader, ledger):
            batch.validate(full=True)
            ids = batch.column(1).to_pylist()
            assert ids == sorted(set(ids))
            assert ids[0] > previous
            previous = ids[-1]
            assert sum(map(len, batch.column(2).to_pylist())) + 12 * len(ids) <= len(content)


OFFLOAD_TARGETS: tuple[Target, ...] = (
    Target(
        "pip76-index", "magic, both lengths, header length", _make_index, _decode_index, (),
        (Spy(pip76, "_read_group"),),
    ),
    Target(
        "pip76-blocks", "the index, lengths, a block header", _make_pair, partial(decode_blocks, _reader_of), (Damaged,),
        (Spy(windows, "scan_entries"),),
    ),
    Target(
        "pip76-arrow", "the index, lengths, a block header", _make_pair, partial(_decode_batches, _reader_of), (Damaged,),
        (Spy(windows, "scan_entries"),),
    ),
)  # fmt: skip
