"""The journal's decoders: records, payloads, extents, lines, logs, snapshots."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from struct import Struct
from typing import Any, cast

import msgpack
from google_crc32c import extend, value

from chunkstore.errors import ChunkNotFound, Damaged
from chunkstore.metadata.codec import encode_segment
from chunkstore.metadata.lines import LineFold, line_extents
from chunkstore.records.names import chunk_id
from chunkstore.records.segments import SegmentRecord
from chunkstore.storage import ChunkHandle, ChunkStorage
from chunkstore_journal import payloads, record
from chunkstore_journal.extents import decode_lines, encode_lines, extents_of, lines_of
from chunkstore_journal.record import HEADER_BYTES, LogReader, decode_slot, peek_length
from chunkstore_journal.snapshot_reader import SnapshotReader
from tests.fuzz.chance import Chance, Tree, grafted, mangled, packed, wire
from tests.fuzz.sealing import Fields, digest_of, sealed_frame, sealed_record, sealed_snapshot
from tests.fuzz.target import Gate, Spy, Target
from tests.golden.journal_samples import CONTAINER, DIGEST, HASH, PAIRS, RECORDS, TOKEN

_DIGEST = DIGEST.to_bytes(32, "big")
_FIELDS = Fields(3, CONTAINER, 4, 44, 44, 43, HASH, _DIGEST, TOKEN, 1_700_000_000_000)
_KINDS = {"open": (1,), "ops": (3, 6, 7)}
_DAMAGED = (Damaged,)


def _tree(raw: bytes) -> Tree:
    return msgpack.unpackb(raw, use_list=False)


_PAYLOADS: dict[str, tuple[Tree, ...]] = {
    name: tuple(_tree(sample.payload) for sample in RECORDS.values() if sample.header.kind in kinds)
    for name, kinds in _KINDS.items()
}
_ALL = tuple(tree for trees in _PAYLOADS.values() for tree in trees)


def _within(error: Damaged, data: bytes) -> None:
    """An error says where: somewhere in what was given, or right behind it."""
    assert 0 <= error.position <= len(data), f"position {error.position} in {len(data)} bytes"


# --- records ---------------------------------------------------------------------------------------------------------


def _some_fields(chance: Chance) -> Fields:
    fields = _FIELDS._replace(kind=chance.below(12))
    for _ in range(chance.below(3)):
        name = chance.one_of(Fields._fields)
        old = getattr(fields, name)
        if type(old) is bytes:
            changed: Any = chance.randbytes(len(old))
        elif name == "length":
            changed = chance.number(100)
        elif name in ("version", "algorithm"):
            changed = chance.one_of((1, 1, 0, 2, 255))
        else:
            changed = chance.number(old)
        fields = fields._replace(**{name: changed})
    return fields


def _make_record(chance: Chance) -> bytes:
    payload = chance.randbytes(chance.below(90)) if chance.random() < 0.3 else wire(chance, chance.one_of(_ALL))
    raw = sealed_record(_some_fields(chance), payload)
    return mangled(chance, raw, raw) if chance.random() < 0.25 else raw


def _decode_record(data: bytes, gate: Gate) -> None:
    size = peek_length(data, 0, 0)
    if size is not None:
        gate.past()  # magic and header CRC are right, the version and the type are known
    container = CONTAINER if data[16:32] == CONTAINER else None
    try:
        found = decode_slot(data, object="slot", container=container)
    except Damaged as error:
        _within(error, data)
        return
    assert size == found.size == len(data)
    assert len(found.payload) == size - HEADER_BYTES - 16
    # A view is read like bytes, and at any offset.
    again = record.decode_record(memoryview(b"\0" + data), 1, object="slot", container=container)
    assert again == found
    assert record.encode_record(found.header, found.payload)[0] == data


def _payload_maker(name: str, chance: Chance) -> bytes:
    trees, kinds = _PAYLOADS[name], _KINDS[name]
    payload = wire(chance, chance.one_of(trees), chance.one_of(_ALL))
    raw = sealed_record(_FIELDS._replace(kind=chance.one_of(kinds)), payload)
    return mangled(chance, raw) if chance.random() < 0.05 else raw


def _open_again(found: object, embedded: bool = True) -> None:
    value = cast("payloads.OpenPayload", found)
    assert payloads.decode_open(payloads.encode_open(value), object="again", position=0) == value
    if value.embedded:
        try:
            record.decode_record(value.embedded, 0, object="embedded", container=None, at=value.end_byte)
        except Damaged as error:
            _within(error, value.embedded)


def _ops_again(found: object) -> None:
    ops, rows = cast("tuple[tuple[Any, ...], list[Any]]", found)
    assert payloads.decode_ops(payloads.encode_ops(ops, rows), object="again", position=0) == (ops, rows)


def _decode_payload(
    decode: Callable[..., object], again: Callable[[Any], None], data: bytes, gate: Gate
) -> Callable[[], None]:
    found = decode_slot(data, object="slot", container=CONTAINER)
    gate.past()
    return partial(again, decode(found.payload, object="slot", position=HEADER_BYTES))


# --- extents ---------------------------------------------------------------------------------------------------------

_BEGIN = 1000
"""Where a record with an odd number lies in its log; one with an even number is a slot."""


def _make_extents(chance: Chance) -> bytes:
    """A record of version 2: bytes, operations that list extents, rows that lead to them, some of it wrong."""
    index = 44 + chance.below(2)
    place = f"4/{index:x}" if index % 2 == 0 else "4"
    blob = chance.randbytes(chance.below(60))
    at = (_BEGIN if index % 2 else 0) + HEADER_BYTES + payloads.BLOB_AT
    ops: list[Tree] = []
    rows: list[Tree] = []
    start = 0
    for number in range(1 + chance.below(4)):
        stop = min(len(blob), start + 1 + chance.below(30))
        identity = chunk_id(7, 4, number, number)
        fields: list[Any] = [1, 0, place, at + start, stop - start, 5, b"", b"", 7, 4, 2, 2, 9]
        if chance.random() < 0.4:
            what = chance.below(len(fields))
            old = fields[what]
            fields[what] = chance.one_of((place, "3", "4/2d", "5", "")) if type(old) is str else old
            fields[what] = chance.number(old) if type(old) is int else fields[what]
        if chance.random() < 0.95:
            rows.append((b"C" + identity, packed(tuple(fields))))
        if chance.random() < 0.9:
            ops.append((2, 7, start, stop - start, ((start, identity),), *((1,) if chance.random() < 0.9 else ())))
        start = stop
    if chance.random() < 0.2:
        ops.append((16, 7, 0, 20, ((0, chunk_id(7, 4, 9, 9)),) if chance.random() < 0.5 else ()))
    length = len(blob) if chance.random() < 0.9 else chance.number(len(blob)) & 0xFFFFFFFF
    payload = b"".join((b"\x94\x02\xc6", length.to_bytes(4, "big"), blob, packed(tuple(ops)), packed(tuple(rows))))
    raw = mangled(chance, payload) if chance.random() < 0.1 else payload
    return sealed_record(_FIELDS._replace(kind=3, place=index), raw)


def _decode_extents(data: bytes, gate: Gate) -> Callable[[], None]:
    found = decode_slot(data, object="slot", container=CONTAINER)
    gate.past()
    ops, rows = payloads.decode_ops(found.payload, object="slot", position=HEADER_BYTES)
    begin = _BEGIN if found.header.index % 2 else None
    known = extents_of(found, ops, rows, begin=begin, object="slot", position=HEADER_BYTES)

    def apart() -> None:
        free = bytearray(b"\1" * len(payloads.blob_of(found.payload)))
        low = (begin or 0) + HEADER_BYTES + payloads.BLOB_AT
        for _, chunk in known:
            start = chunk.object_offset - low
            assert 0 <= start < start + chunk.length <= len(free)
            assert all(free[start : start + chunk.length])
            free[start : start + chunk.length] = bytes(chunk.length)

    return apart


# --- lines -----------------------------------------------------------------------------------------------------------

_LINE = Struct(">QQIIBB")
_NAMES = {7: b"orders-0", 8: "pärchen".encode(), 9: b"sealed"}
_STATE = {
    b"S" + name: encode_segment(
        SegmentRecord(name.decode(), number, int(number == 9), 0, 300, b"", b"", 0, 0, 1 << 20, 1, 0, {}, 1, 2)
    )
    for number, name in _NAMES.items()
}


def _make_lines(chance: Chance) -> bytes:
    """A record of version 3: bytes, and lines that account for them, some of it wrong."""
    raw, blob = b"", chance.randbytes(1 + chance.below(60))
    ends, start, crc = {7: 300, 8: 300, 9: 300}, 0, 0
    before = 0
    while start < len(blob):
        segment = chance.one_of((7, 7, 7, 8, 8, 9)) if chance.random() < 0.9 else chance.number(7)
        length = min(len(blob) - start, 1 + chance.below(30))
        joined = segment == before and chance.random() < 0.5
        piece = blob[start : start + length]
        crc = extend(crc if joined else 0, piece)
        name = _NAMES.get(segment, b"x")
        writer = chance.randbytes(chance.below(9)) if chance.random() < 0.5 else b""
        fields = [segment, ends.get(segment, 0), length, crc, len(name), len(writer) | (128 if joined else 0)]
        if chance.random() < 0.06:
            what = chance.below(len(fields))
            fields[what] = chance.number(fields[what])
        sizes = ((1 << 64) - 1, (1 << 64) - 1, (1 << 32) - 1, (1 << 32) - 1, 255, 255)
        raw += _LINE.pack(*(field & size for field, size in zip(fields, sizes, strict=True))) + name
        if writer:
            raw += Struct(">QI").pack(chance.number(9) & ((1 << 63) - 1), value(piece)) + writer
        ends[segment] = ends.get(segment, 0) + length
        start, before = start + length, segment
    if chance.random() < 0.15:
        raw = mangled(chance, raw, raw)
    length = len(blob) if chance.random() < 0.95 else chance.number(len(blob)) & 0xFFFFFFFF
    payload = b"".join((b"\x93\x03\xc6", length.to_bytes(4, "big"), blob, packed(raw)))
    if chance.random() < 0.1:
        payload = mangled(chance, payload)
    flags = 1 if chance.random() < 0.95 else chance.below(256)
    return sealed_record(_FIELDS._replace(kind=3, place=44 + chance.below(2), flags=flags, digest=bytes(32)), payload)


def _decode_lines(data: bytes, gate: Gate) -> Callable[[], None]:
    found = decode_slot(data, object="slot", container=CONTAINER)
    gate.past()
    lines = lines_of(found, _BEGIN if found.header.index % 2 else None, object="slot", position=HEADER_BYTES)

    def checked() -> None:
        if lines is None:
            return
        size_bytes = len(payloads.blob_of(found.payload))
        assert sum(line.length for line in lines.lines) == size_bytes
        assert decode_lines(encode_lines(lines.lines), size_bytes, object="again", position=0) == list(lines.lines)
        extents = list(line_extents(lines))
        assert sum(length for _, _, length, _ in extents) == size_bytes
        fold = LineFold(_STATE.get)
        try:
            fold.add(lines)
        except Damaged:
            return
        made = fold.take()
        assert [key[1:] for key, _, _ in made.rows[: made.fresh]] == [
            identity for _, chunks in made.extents for _, identity in chunks
        ]
        assert sorted(key[1:] for key, _, _ in made.rows[: made.fresh]) == sorted(item[0] for item in extents)

    return checked


# --- logs ------------------------------------------------------------------------------------------------------------


def _make_log(chance: Chance) -> bytes:
    pieces = [bytes((chance.below(256),))]  # chooses the window
    for number in range(chance.below(5)):
        fields = _FIELDS._replace(kind=chance.one_of((3, 3, 6, 7, 4)), place=number + 1, lsn=50 + number)
        if chance.random() < 0.2:
            fields = _some_fields(chance)
        fields = fields._replace(at=sum(map(len, pieces)) - 1)
        payload = chance.randbytes(chance.below(60)) if chance.random() < 0.7 else packed(chance.one_of(_ALL))
        raw = sealed_record(fields, payload)
        what = chance.below(10)
        if what == 0:
            raw = mangled(chance, raw, raw)
        elif what == 1:
            raw = raw[: chance.below(len(raw))]
        elif what == 2:
            stray = chance.one_of((bytes(300), b"CKSJ" * 30, chance.randbytes(50)))
            raw = stray + sealed_record(fields._replace(at=fields.at + len(stray)), payload)
        pieces.append(raw)
    raw = b"".join(pieces)
    return mangled(chance, raw, raw) if chance.random() < 0.1 else raw


def _decode_log(data: bytes, gate: Gate) -> None:
    window = 150 + 8 * (data[0] if data else 0)
    data = data[1:]
    reader = LogReader(
        lambda at, length: data[at : at + length], object="log", container=CONTAINER, window_bytes=window
    )
    size, lsn = 0, 0
    try:
        for found in reader:
            gate.past()
            size += found.size
            lsn = found.header.lsn
    except Damaged as error:
        assert error.position == size
        return
    assert reader.offset == size
    assert reader.ended == ("tail" if reader.tail_bytes else "clean")
    assert not data[size + reader.tail_bytes :].strip(b"\0")
    if reader.tail_bytes:
        behind = reader.find_record_after(size, lsn=lsn, token=TOKEN)
        if behind is not None:
            gate.past()
            at, header = behind
            assert size < at < len(data)
            assert header.lsn > lsn
            assert (header.token, header.at) == (TOKEN, at)


# --- snapshots -------------------------------------------------------------------------------------------------------

_HEADER_TREE: Tree = (CONTAINER, 4, (41, HASH, 3, 42, 9000), _DIGEST, 1_700_000_000_000)


def _make_snapshot(chance: Chance) -> bytes:
    """The length of part 0 in four bytes, the part, the snapshot itself: one input must be one string of bytes."""
    pairs = [pair for pair in PAIRS if chance.random() < 0.8]
    if chance.random() < 0.15:
        at = chance.below(len(pairs) + 1)
        pairs[at:at] = [(chance.randbytes(chance.below(30)), chance.randbytes(chance.below(30)))]
    cut = chance.below(len(pairs) + 1) if chance.random() < 0.7 else len(pairs)
    groups = [group for group in (pairs[:cut], pairs[cut:]) if group]
    trees: list[Tree] = [
        (number, tuple(item for pair in group for item in pair)) for number, group in enumerate(groups)
    ]
    if trees and chance.random() < 0.25:
        at = chance.below(len(trees))
        trees[at] = grafted(chance, trees[at], _ALL[0])
    blocks = [
        sealed_frame(b"CKSS", 1, 3 if chance.random() < 0.98 else chance.below(6), packed(tree)) for tree in trees
    ]
    rows = sum(key[:1] in (b"C", b"S", b"T") for key, _ in pairs)
    counts = (len(blocks), rows, len(pairs) - rows)
    if chance.random() < 0.1:
        counts = (chance.number(counts[0]), counts[1], counts[2])
    digest = digest_of(pairs).to_bytes(32, "big") if chance.random() < 0.95 else chance.randbytes(32)
    header_tree = (*cast("tuple[Tree, ...]", _HEADER_TREE)[:3], digest, 1)
    body = packed(header_tree) if chance.random() < 0.9 else wire(chance, header_tree)
    header = sealed_frame(b"CKSS", 1, 1, body)
    part = b""
    if blocks and chance.random() < 0.3:
        part = blocks[0]
        listed: Tree = ((len(part), blake2b(part, digest_size=32).digest()),)
        blocks[0] = sealed_frame(b"CKSS", 1, 2, wire(chance, listed) if chance.random() < 0.4 else packed(listed))
    raw = sealed_snapshot(header, blocks, counts, digest)
    if chance.random() < 0.1:
        raw = mangled(chance, raw, raw)
    return len(part).to_bytes(4, "big") + part + raw


class _Objects:
    """As much of a storage as reading snapshots needs: two objects."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self._contents = contents

    def read(self, handle: ChunkHandle, offset: int, length: int) -> bytes:
        data = self._contents.get(handle.name)
        if data is None:
            raise ChunkNotFound(handle.name)
        return data[offset : offset + length]


def _decode_snapshot(data: bytes, gate: Gate) -> None:
    end = 4 + int.from_bytes(data[:4], "big")
    contents = {"snapshot": data[end:]}
    if end > 4:
        contents["snapshot.p0000"] = data[4:end]
    storage = cast("ChunkStorage", _Objects(contents))
    try:
        reader = SnapshotReader(storage, "snapshot", container=CONTAINER)
        pairs = list(reader)
    except Damaged as error:
        _within(error, data)
        return
    assert reader.verified
    assert pairs == sorted(pairs)
    assert digest_of(pairs) == reader.header.digest
    assert reader.rows + reader.index_entries == len(pairs)


JOURNAL_TARGETS: tuple[Target, ...] = (
    Target("record", "magic, header CRC, version, type", _make_record, _decode_record, ()),
    *(
        Target(name, "every checksum of the record around it", partial(_payload_maker, name), decode, _DAMAGED)
        for name, decode in (
            ("open", partial(_decode_payload, payloads.decode_open, _open_again)),
            ("ops", partial(_decode_payload, payloads.decode_ops, _ops_again)),
        )
    ),
    Target("extents", "every checksum of the record around it", _make_extents, _decode_extents, _DAMAGED),
    Target("lines", "every checksum of the record around it", _make_lines, _decode_lines, _DAMAGED),
    Target("log", "every checksum of one record", _make_log, _decode_log, ()),
    Target(
        "snapshot", "the header of a snapshot of this container", _make_snapshot, _decode_snapshot, (ChunkNotFound,),
        (Spy(SnapshotReader, "_block"), Spy(SnapshotReader, "_parts"), Spy(SnapshotReader, "_finish")),
    ),
)  # fmt: skip
