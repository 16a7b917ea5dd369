"""The decoders of Pulsar's formats: index, blocks (one by one and as Arrow), protobuf metadata."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from struct import Struct

from chunkstore.codec.pulsar import pip76_index, windows
from chunkstore.codec.pulsar.arrow import read_batches
from chunkstore.codec.pulsar.frames import BLOCK_HEADER_BYTES, Entry
from chunkstore.codec.pulsar.offload_metadata import (
    LedgerInfo,
    encode_ledger_info,
)
from chunkstore.codec.pulsar.pip76_index import read_index
from chunkstore.codec.pulsar.pip76_reader import SegmentReader
from chunkstore.codec.pulsar.pip76_writer import SegmentEncoder
from chunkstore.codec.pulsar.windows import BlockReader, iter_entries
from chunkstore.errors import Damaged
from tests.fuzz.chance import Chance, mangled
from tests.fuzz.target import Gate, Spy, Target
from tests.support.pip76 import Encoded, Sink, miscounted, source_of

__all__ = ["OFFLOAD_TARGETS", "damaged_data", "damaged_message", "decode_batches", "decode_blocks", "i32", "i64"]

_FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "pulsar"
_HEAD = Struct(">Iiqq")
_GROUP = Struct(">qii")
_BLOCK = Struct(">qiq")
_FRAME = Struct(">iq")

# --- protobuf --------------------------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _split(raw: bytes) -> list[tuple[int, int | bytes]] | None:
    """Fields of a message: (tag, number or bytes); None where it is none."""
    fields: list[tuple[int, int | bytes]] = []
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    try:
        while at < len(raw):
            tag = number()
            if tag & 7 == 0:
                fields.append((tag, number()))
            elif tag & 7 == 2:
                length = number()
                fields.append((tag, raw[at : at + length]))
                at += length
            else:
                return None
    except IndexError:
        return None
    return fields if at == len(raw) else None


def _joined(fields: list[tuple[int, int | bytes]]) -> bytes:
    out = bytearray()
    for tag, value in fields:
        out += _varint(tag)
        if isinstance(value, int):
            out += _varint(value)
        else:
            out += _varint(len(value)) + value
    return bytes(out)


def damaged_message(chance: Chance, raw: bytes, depth: int = 0) -> bytes:
    """A message with one field somewhere inside changed; lengths around it stay right."""
    fields = _split(raw)
    if not fields or depth > 4:
        return mangled(chance, raw)
    at = chance.below(len(fields))
    tag, value = fields[at]
    what = chance.below(10)
    if what == 0:
        del fields[at]
    elif what == 1:
        fields.insert(chance.below(len(fields) + 1), (tag, value))
    elif what == 2:
        fields[at] = (tag ^ chance.one_of((1, 2, 8, 16, 1 << 20)), value)
    elif what == 3:
        fields.append((chance.one_of((0x08, 0x12, 0x1A, 0x2A, 0x32, 0x3A, 0xF8)), chance.number()))
    elif isinstance(value, int):
        fields[at] = (tag, chance.number(value))
    elif what < 8:
        fields[at] = (tag, damaged_message(chance, value, depth + 1))
    else:
        fields[at] = (tag, chance.one_of((b"", b"\xff\xfe", value * 3, b"x" * 3000, raw)))
    return _joined(fields)


# --- the index -------------------------------------------------------------------------------------------------------

_Group = tuple[int, bytes, list[tuple[int, int, int]]]
_INDEXES = [path.read_bytes() for path in sorted(_FIXTURES.glob("v2-*.index"))]


def _groups_of(raw: bytes) -> tuple[int, list[_Group]]:
    _, _, data_length, _ = _HEAD.unpack_from(raw)
    groups: list[_Group] = []
    at = _HEAD.size
    while at < len(raw):
        ledger, count, size = _GROUP.unpack_from(raw, at)
        at += _GROUP.size
        blocks = [_BLOCK.unpack_from(raw, at + size + number * _BLOCK.size) for number in range(count)]
        groups.append((ledger, raw[at : at + size], [(a, b, c) for a, b, c in blocks]))
        at += size + count * _BLOCK.size
    return data_length, groups


_PARSED = [_groups_of(raw) for raw in _INDEXES]


def i64(number: int) -> int:
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def i32(number: int) -> int:
    number &= (1 << 32) - 1
    return number - (1 << 32) if number >> 31 else number


def _build(chance: Chance, data_length: int, groups: list[_Group], lies: float) -> bytes:
    body = bytearray()
    for ledger, metadata, blocks in groups:
        count, size = len(blocks), len(metadata)
        if chance.random() < lies:
            count = i32(chance.number(count))
        if chance.random() < lies:
            size = i32(chance.number(size))
        body += _GROUP.pack(i64(ledger), count, size) + metadata
        for first, part, offset in blocks:
            body += _BLOCK.pack(i64(first), i32(part), i64(offset))
    return _HEAD.pack(0x3D1FB0BC, _HEAD.size + len(body), i64(data_length), BLOCK_HEADER_BYTES) + bytes(body)


def _make_index(chance: Chance) -> bytes:
    data_length, groups = chance.one_of(_PARSED)
    groups = [(ledger, metadata, list(blocks)) for ledger, metadata, blocks in groups]
    for _ in range(1 + chance.below(2)):
        at = chance.below(len(groups))
        ledger, metadata, blocks = groups[at]
        what = chance.below(8)
        if what == 0:
            groups.insert(at, (ledger + chance.below(2), metadata, blocks))
        elif what == 1:
            metadata = damaged_message(chance, metadata) if chance.random() < 0.7 else mangled(chance, metadata)
        elif what == 2:
            ledger = chance.number(ledger)
        elif what == 3:
            data_length = chance.number(data_length)
        elif what == 4:
            metadata = encode_ledger_info(LedgerInfo(ledger=abs(i64(ledger)) >> 1))
        elif blocks:
            place = chance.below(len(blocks))
            first, part, offset = blocks[place]
            blocks[place] = chance.one_of(
                (
                    (chance.number(first), part, offset),
                    (first, chance.number(part), offset),
                    (first, part, chance.number(offset)),
                )
            )
        groups[at] = (ledger, metadata, blocks)
    raw = _build(chance, data_length, groups, 0.03)
    if chance.random() < 0.2:
        raw = raw[: _HEAD.size] + mangled(chance, raw[_HEAD.size :], raw)
        if chance.random() < 0.8:
            raw = raw[:4] + Struct(">i").pack(len(raw)) + raw[8:]
    return mangled(chance, raw) if chance.random() < 0.1 else raw


def _decode_index(data: bytes, gate: Gate) -> Callable[[], None] | None:
    try:
        found = read_index(data)
    except Damaged as error:
        assert 0 <= error.position <= len(data), error.position
        return None
    return partial(_index_again, found)


def _index_again(found: pip76_index.SegmentIndex) -> None:
    assert read_index(pip76_index.build_index(found)) == found
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
_LENGTHS = (-1, 0, 1, 4, 12, 100, 4096, 0x26A66D32, 0x7FFFFFFF, -0x80000000, 0x01234567)


def damaged_data(chance: Chance, data: bytes, magic: bytes = b"\x26\xa6\x6d\x32") -> bytes:
    """Data with fields of blocks and entries changed: block headers stay headers, mostly."""
    copy = bytearray(data)
    for _ in range(1 + chance.below(3)):
        at = chance.below(len(copy))
        what = chance.below(7)
        if what == 0:
            copy[at] = chance.below(256)
        elif what == 1 and at + 12 <= len(copy):
            _FRAME.pack_into(copy, at, i32(chance.one_of(_LENGTHS)), i64(chance.number()))
        elif what == 2:
            block = copy.find(magic, at)
            if 0 <= block <= len(copy) - BLOCK_HEADER_BYTES:
                field = chance.one_of((4, 12, 20, 28))
                copy[block + field : block + field + 8] = Struct(">q").pack(i64(chance.number(copy[block + field + 7])))
        elif what == 3:
            entry = BLOCK_HEADER_BYTES + chance.one_of((0, 17, 43))
            if entry + 12 <= len(copy):
                _FRAME.pack_into(copy, entry, chance.one_of(_LENGTHS), chance.below(5))
        elif what == 4:
            end = at + 12 + chance.below(150)
            copy[at:end] = b"\xfe\xdc\xde\xad" * ((min(end, len(copy)) - at) // 4)
        elif what == 5:
            copy[at:at] = copy[: chance.below(300)]
        else:
            source = chance.below(len(copy))
            copy[at : at + 64] = copy[source : source + 64]
    return bytes(copy)


def _make_pair(chance: Chance) -> bytes:
    """The index's length in four bytes, the index, the data. The index fits the data's length, mostly."""
    index, data = chance.one_of(_SEGMENTS)
    length = len(data)
    data = damaged_data(chance, data)
    if chance.random() < 0.15:
        data_length, groups = _groups_of(index)
        for _, _, blocks in groups:
            place = chance.below(len(blocks))
            first, part, offset = blocks[place]
            blocks[place] = (first + chance.below(3) - 1, part, offset + chance.one_of((0, 0, 4, 12, 128)))
        index = _build(chance, data_length, groups, 0)
    if chance.random() < 0.7:
        if len(data) < length:
            data += bytes(length - len(data))
        elif len(data) > length and chance.random() < 0.7:
            data = data[:length]
        else:
            index = index[:8] + Struct(">q").pack(len(data)) + index[16:]
    return len(index).to_bytes(4, "big") + index + data


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


def decode_batches(reader_of: ReaderOf, data: bytes, gate: Gate) -> None:
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
        (Spy(pip76_index, "_read_group"),),
    ),
    Target(
        "pip76-blocks", "the index, lengths, a block header", _make_pair, partial(decode_blocks, _reader_of), (Damaged,),
        (Spy(windows, "scan_entries"),),
    ),
    Target(
        "pip76-arrow", "the index, lengths, a block header", _make_pair, partial(decode_batches, _reader_of), (Damaged,),
        (Spy(windows, "scan_entries"),),
    ),
)  # fmt: skip
