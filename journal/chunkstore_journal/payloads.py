"""What records say: payloads as msgpack arrays whose first element is the payload's version (FORMAT.md next to this file).

Promises: encoding is canonical; what ``encode_*`` accepts ``decode_*`` returns unchanged (arrays as tuples); ``decode_*`` raises
``Damaged(object, position)`` for garbage and never trusts a length. Elements after the ones named here are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from chunkstore.config import LIMITS
from chunkstore.errors import InvalidArgument
from chunkstore.journal import OpCode, RecordKind
from chunkstore.metadata.port import Op, Position, RowChange
from chunkstore_journal.wire import HASH_BYTES, TOKEN_BYTES, Fields, must_be_readable, pack, refuse, unpack

__all__ = [
    "BLOB_AT",
    "FLAG_GIVEN_UP",
    "KEY_BYTES_MAX",
    "LINES_HEAD",
    "MODES",
    "MODE_NUMBERS",
    "PAYLOAD_VERSION",
    "OpenPayload",
    "SealPayload",
    "SnapshotLink",
    "blob_end",
    "blob_of",
    "decode_note",
    "decode_open",
    "decode_ops",
    "decode_seal",
    "embedded_at",
    "encode_note",
    "encode_open",
    "encode_ops",
    "encode_seal",
    "link_from_wire",
    "link_to_wire",
]

PAYLOAD_VERSION = 1
INLINE_VERSION = 2
"""Of OPS with bytes of chunks in front: programs that know version 1 only refuse it in words."""
BLOB_AT = 7
"""Where those bytes begin in the payload: after the heads of an array of four, of the version, and of bytes of any length."""
FLAG_GIVEN_UP = 2

KEY_BYTES_MAX = 511
"""A row's key: what LMDB can hold."""
_OPEN_HEAD_BYTES = 3
"""Of an array of more than 15 elements; of one of fewer it is one byte."""
_BLOB_HEAD = b"\x94\x02\xc6"
LINES_HEAD = b"\x93\x03\xc6"
"""How the payload of a record of lines begins: version 3, then bytes of appends."""
_HEAD_MAX = 0x9F
"""Of an array of 15 elements."""
_HOST_CHARACTERS_MAX = 255
_NAME_CHARACTERS_MAX = 900
_DIGEST_BYTES = 32
MODES: dict[int, Literal["slot", "append"]] = {1: "slot", 2: "append"}
MODE_NUMBERS = {mode: number for number, mode in MODES.items()}

# Types after the opcode, as chunkstore.journal.OpCode documents them; a newer minor version may add arguments after.
_Shape: TypeAlias = tuple[type, ...]
_WITH_CHUNKS: _Shape = (int, int, int, tuple)
_SHAPES: dict[int, _Shape] = {
    OpCode.CREATE: (int, str),
    OpCode.APPEND: _WITH_CHUNKS,
    OpCode.SEAL: (int,),
    OpCode.UNSEAL: (int,),
    OpCode.DELETE: (int,),
    OpCode.TRUNCATE: (int, int),
    OpCode.CONCAT: (int, int, int),
    OpCode.ATTRIBUTES: (int,),
    OpCode.ATTACH: _WITH_CHUNKS,
    OpCode.TABLE_PUT: (str, bytes),
    OpCode.TABLE_DELETE: (str, bytes),
    OpCode.SESSION_OPEN: (int,),
    OpCode.SESSION_END: (int,),
    OpCode.COLLECT: (bytes, int),
    OpCode.REPLACE: _WITH_CHUNKS,
    OpCode.SPILL: _WITH_CHUNKS,
}
_LISTING = frozenset(int(number) for number, shape in _SHAPES.items() if shape == _WITH_CHUNKS)
_NUMBERS = (int, OpCode)
_VALUE_BYTES_MAX = LIMITS.row_bytes_max


class SnapshotLink(NamedTuple):
    """A validated snapshot and the position (``lsn``, ``hash``, ``epoch``, ``index``, ``end``) it is at."""

    name: str
    lsn: int
    hash: bytes
    digest: int
    epoch: int
    index: int  # type: ignore[assignment]
    end: int

    @property
    def position(self) -> Position:
        """The point of history that it shows."""
        return Position(self.lsn, self.hash, self.epoch, self.index, self.end)


class OpenPayload(NamedTuple):
    """What an OPEN says (protocol 3.4 T7, A10, A15).

    ``previous_epoch``: the stream that history comes from; 0 is genesis. Its cut: ``end_index`` (SLOT: index of the
    SEAL; APPEND: number of records before the cut) and ``end_byte`` (APPEND: length L in bytes; else 0).
    ``last_lsn``, ``last_hash``: the last record of history before this OPEN, the embedded one included.
    ``embedded``: the whole bytes of the one adopted record after the cut, or empty. ``flags``:
    ``FLAG_GIVEN_UP`` (what was seen after the cut is gone, and history goes on without it).
    ``rows``: reconciliation that takes effect with the OPEN. ``base``: the cut of the newest stream, at or before the predecessor, that
    changed any row: a reader whose state has the digest of that point may skip the streams after it.
    """

    epoch: int
    token: bytes
    previous_epoch: int
    end_index: int
    end_byte: int
    last_lsn: int
    last_hash: bytes
    embedded: bytes
    base: Position
    snapshot: SnapshotLink | None
    mode: Literal["slot", "append"]
    host: str
    pid: int
    boot_id: str
    flags: int = 0
    rows: Sequence[RowChange] = ()


class SealPayload(NamedTuple):
    """Who sealed (or voided) a stream."""

    by_epoch: int
    token: bytes
    host: str
    pid: int


# --- operations and rows ---------------------------------------------------------------------------------------------


def _is_sound(op: Op) -> bool:
    """Whether it is an operation's header as ``OpCode`` documents it, perhaps with more arguments. Garbage may raise common exceptions."""
    number = op[0]
    if type(number) not in _NUMBERS:
        return False
    if number in _LISTING:
        _, segment_id, offset, length, chunks, *more = op
        if not (type(segment_id) is type(offset) is type(length) is int and type(chunks) is tuple):
            return False
        for start, identity in chunks:
            if type(start) is not int or type(identity) is not bytes or start < 0:
                return False
        return segment_id >= 0 and offset >= 0 and length >= 0 and not (more and _has_negative(more))
    shape = _SHAPES[number]  # type: ignore[index]
    return tuple(map(type, op[1 : 1 + len(shape)])) == shape and not _has_negative(op)


def _has_negative(values: Iterable[object]) -> bool:
    return any(type(value) is int and value < 0 for value in values)


def _flaw(ops: Sequence[object], rows: Sequence[object]) -> str | None:
    """Why readers refuse these, or None. Replay comes through here for every operation and row."""
    for op in ops:
        try:
            if _is_sound(op):  # type: ignore[arg-type]
                continue
        except (TypeError, ValueError, LookupError):
            pass
        return f"{op!r:.100} is not an operation this program knows"
    for row in rows:
        if type(row) is not tuple or len(row) != 2:
            return "a row change is not a pair"
        key, value = row
        if type(key) is not bytes or not 0 < len(key) <= KEY_BYTES_MAX:
            return f"a row's key is not 1 to {KEY_BYTES_MAX} bytes"
        if value is not None and (type(value) is not bytes or len(value) > _VALUE_BYTES_MAX):
            return f"a row's value is not at most {_VALUE_BYTES_MAX} bytes"
    return None


def _require_sound(ops: Sequence[Op], rows: Sequence[RowChange]) -> None:
    if flaw := _flaw(ops, rows):
        raise InvalidArgument(f"this could not be read again: {flaw}", argument="ops")


def _changes(ops: object, rows: object, object: str, position: int) -> tuple[tuple[Op, ...], list[RowChange]]:
    if type(ops) is not tuple or type(rows) is not tuple:
        refuse("operations or rows are not arrays", object, position)
    if flaw := _flaw(ops, rows):
        refuse(flaw, object, position)
    return ops, list(rows)


def encode_ops(ops: Sequence[Op], rows: Sequence[RowChange], blob: bytes = b"") -> bytes:
    """The payload of OPS (and of HEARTBEAT and CLOSE, both empty). ``blob``: bytes of extents, which begin at ``BLOB_AT``.

    Raises ``InvalidArgument`` for what readers would refuse: an operation that is not as ``OpCode`` says, a key or value that is too long.
    """
    _require_sound(ops, rows)
    if not blob:
        return pack((PAYLOAD_VERSION, tuple(ops), tuple(rows)))
    # The length in four bytes, however short: where the bytes begin is known before the rows are, which say so.
    size = len(blob).to_bytes(4, "big")
    # After it, without the head of this array: they are elements of the one in front.
    return b"".join((_BLOB_HEAD, size, blob, pack((tuple(ops), tuple(rows)))[1:]))


def decode_ops(payload: bytes, *, object: str, position: int) -> tuple[tuple[Op, ...], list[RowChange]]:
    """Operations and rows of any record but OPEN and SEAL. Raises ``Damaged``."""
    value = unpack(payload, object, position)
    if type(value) is tuple and len(value) >= 4 and value[0] == INLINE_VERSION and blob_of(payload):
        return _changes(value[2], value[3], object, position)
    if type(value) is not tuple or len(value) < 3 or value[0] != PAYLOAD_VERSION:
        refuse(f"the payload is not an array of version {PAYLOAD_VERSION} with operations and rows", object, position)
    return _changes(value[1], value[2], object, position)


def blob_of(payload: bytes) -> memoryview:
    """The bytes of extents that a payload begins with; empty where it has none, or is none."""
    return memoryview(payload)[BLOB_AT : blob_end(payload)]


def blob_end(payload: bytes) -> int:
    """Where those bytes end in it; 0 where it has none. The record's hash leaves them out."""
    # A newer minor version has more elements, of which the head tells.
    kind = payload[1:3]
    if kind not in (b"\x03\xc6", b"\x02\xc6") or not LINES_HEAD[0] <= payload[0] <= _HEAD_MAX:
        return 0
    end = BLOB_AT + int.from_bytes(payload[len(_BLOB_HEAD) : BLOB_AT], "big")
    return end if end <= len(payload) else 0


# --- notes -----------------------------------------------------------------------------------------------------------


def encode_note(
    kind: RecordKind, notes: tuple[object, ...], ops: Sequence[Op] = (), rows: Sequence[RowChange] = ()
) -> bytes:
    """The payload of a note record: that of OPS with a fourth element. ``notes``: a ``SnapshotLink`` or its fields for SNAPSHOT_NOTE, else
    any tuple of plain data. Raises ``InvalidArgument``."""
    _require_sound(ops, rows)
    body: object = notes
    try:
        if kind == RecordKind.SNAPSHOT_NOTE:
            body = link_to_wire(SnapshotLink(*notes))  # type: ignore[arg-type]
    except (TypeError, AttributeError) as error:
        raise InvalidArgument(f"this is not a valid {kind.name}: {error}", argument="notes") from error
    raw = pack((PAYLOAD_VERSION, tuple(ops), tuple(rows), body))
    with must_be_readable(kind.name):
        decode_note(kind, raw, object=kind.name, position=0)
    return raw


def decode_note(kind: RecordKind, payload: bytes, *, object: str, position: int) -> SnapshotLink | tuple[object, ...]:
    """What a note record says: a ``SnapshotLink``, or the plain tuple of another kind. Raises ``Damaged``."""
    fields = Fields(unpack(payload, object, position), f"the payload of {kind.name}", object, position)
    fields.version(PAYLOAD_VERSION)
    fields.array()
    fields.array()
    note = fields.array()
    return link_from_wire(note, object, position) if kind == RecordKind.SNAPSHOT_NOTE else note


# --- OPEN and SEAL ---------------------------------------------------------------------------------------------------


def link_to_wire(link: SnapshotLink) -> tuple[object, ...]:
    """The link as an array msgpack can hold (the digest as 32 bytes). Raises ``InvalidArgument``."""
    name, lsn, identity, digest, epoch, index, end = link
    if len(identity) != HASH_BYTES or len(name) > _NAME_CHARACTERS_MAX:
        raise InvalidArgument("a snapshot link needs a 16-byte hash and an object name", argument="snapshot")
    try:
        raw = digest.to_bytes(_DIGEST_BYTES, "big")
    except OverflowError as error:
        raise InvalidArgument("a snapshot's digest must be 0 to 2**256 - 1", argument="snapshot") from error
    return name, lsn, identity, raw, epoch, index, end


def link_from_wire(value: object, object: str, position: int) -> SnapshotLink:
    """Inverse of ``link_to_wire``. Raises ``Damaged``."""
    fields = Fields(value, "a snapshot link", object, position)
    return SnapshotLink(
        fields.text(_NAME_CHARACTERS_MAX),
        fields.whole(),
        fields.raw(HASH_BYTES),
        int.from_bytes(fields.raw(_DIGEST_BYTES), "big"),
        fields.whole(),
        fields.whole(),
        fields.whole(),
    )


def _base(value: object, object: str, position: int) -> Position:
    fields = Fields(value, "a base link", object, position)
    epoch, index, end, lsn = fields.whole(), fields.whole(), fields.whole(), fields.whole()
    return Position(lsn, fields.raw(HASH_BYTES), epoch, index, end)


def encode_open(payload: OpenPayload) -> bytes:
    """The payload of OPEN. Raises ``InvalidArgument`` for what ``decode_open`` would refuse."""
    _require_sound((), payload.rows)
    base = payload.base
    raw = pack(
        (
            PAYLOAD_VERSION,
            payload.epoch,
            payload.token,
            payload.previous_epoch,
            payload.end_index,
            payload.end_byte,
            payload.last_lsn,
            payload.last_hash,
            payload.embedded,
            (base.epoch, base.index, base.end, base.lsn, base.hash),
            None if payload.snapshot is None else link_to_wire(payload.snapshot),
            MODE_NUMBERS[payload.mode],
            payload.host,
            payload.pid,
            payload.boot_id,
            payload.flags,
            tuple(payload.rows),
        )
    )
    with must_be_readable("OPEN"):
        decode_open(raw, object="OPEN", position=0)
    return raw


def embedded_at(payload: OpenPayload) -> int:
    """Where ``embedded`` begins in what ``encode_open`` makes; the rows, which follow it, change nothing."""
    whole = pack((PAYLOAD_VERSION, *payload[:8]))
    return len(whole) - len(payload.embedded) + _OPEN_HEAD_BYTES - 1


def decode_open(payload: bytes, *, object: str, position: int) -> OpenPayload:
    """What an OPEN says. Raises ``Damaged``."""
    fields = Fields(unpack(payload, object, position), "the payload of OPEN", object, position)
    fields.version(PAYLOAD_VERSION)
    epoch, token, previous_epoch = fields.whole(), fields.raw(TOKEN_BYTES), fields.whole()
    end_index, end_byte = fields.whole(), fields.whole()
    last_lsn, last_hash, embedded = fields.whole(), fields.raw(HASH_BYTES), fields.raw()
    base = _base(fields.array(), object, position)
    link = fields.take()
    snapshot = None if link is None else link_from_wire(link, object, position)
    mode = MODES.get(fields.whole())
    if mode is None:
        fields.wrong("a journal mode")
    host, pid, boot_id = fields.text(_HOST_CHARACTERS_MAX), fields.whole(), fields.text(_HOST_CHARACTERS_MAX)
    flags = fields.whole()
    _, rows = _changes((), fields.array(), object, position)
    return OpenPayload(
        epoch, token, previous_epoch, end_index, end_byte, last_lsn, last_hash, embedded, base, snapshot, mode, host, pid,
        boot_id, flags, rows,
    )  # fmt: skip


def encode_seal(payload: SealPayload) -> bytes:
    """The payload of SEAL. Raises ``InvalidArgument`` for what ``decode_seal`` would refuse."""
    raw = pack((PAYLOAD_VERSION, *payload))
    with must_be_readable("SEAL"):
        decode_seal(raw, object="SEAL", position=0)
    return raw


def decode_seal(payload: bytes, *, object: str, position: int) -> SealPayload:
    """What a SEAL says. Raises ``Damaged``."""
    fields = Fields(unpack(payload, object, position), "the payload of SEAL", object, position)
    fields.version(PAYLOAD_VERSION)
    return SealPayload(fields.whole(), fields.raw(TOKEN_BYTES), fields.text(_HOST_CHARACTERS_MAX), fields.whole())
