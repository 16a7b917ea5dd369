"""Bytes of the metadata rows: msgpack arrays ``[major, minor, field, ...]`` (FORMAT.md next to this file).

Promises: encoding is canonical (arrays, ints, bytes, str; attributes sorted by name). A row of a newer minor version is
read, its further fields survive in ``extra`` and are written back; a newer major version is refused. Decoding never
trusts lengths: a damaged row raises ``Damaged`` naming the key and the byte where the first wrong field is.

Invariants: minor version N of a row kind has exactly N fields more than minor version 0, so that the number of fields
says the version and a rewrite by older code keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgpack

from chunkstore.config import LIMITS
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.records.names import CHUNK_ID_BYTES
from chunkstore.records.segments import (
    ACTIVE,
    CLOSED,
    KIND_INLINE,
    KIND_OBJECT,
    AttributeValue,
    ChunkRecord,
    GarbageRecord,
    PinRecord,
    SegmentRecord,
    SessionRecord,
    TableRecord,
)

__all__ = [
    "NUMBER_MAX",
    "ROW_ELEMENTS_MAX",
    "decode_chunk",
    "decode_extent",
    "decode_garbage",
    "decode_pin",
    "decode_segment",
    "decode_session",
    "decode_table",
    "encode_row",
    "encode_segment",
    "pack_chunks",
    "unpack_row",
]

R = TypeVar("R")
MAJOR = 1
MINOR = 0
NUMBER_MAX = (1 << 63) - 1
"""Largest id, offset, length, epoch or time in a row."""
FIELDS_MAX = 64
"""Fields of one row, those of newer minor versions included."""
TEXT_MAX = 4096
"""Characters of the name of an object, a session's or pin's holder, a pin's note."""

ROW_ELEMENTS_MAX = 2 * LIMITS.attribute_count_max + FIELDS_MAX
"""Elements of a row, or of an array in it."""
_ROW_MAX = LIMITS.row_bytes_max
_pack_raw = msgpack.Packer(autoreset=True).pack  # holds the interpreter's lock throughout: rows call no Python code
_unpack = msgpack.unpackb
_SHORT_ARRAY = 32
"""An array of so many elements is believed at once, however deep it is."""
_new = tuple.__new__  # what a NamedTuple's constructor does after its argument handling
_POINTER_LENGTHS = frozenset((0, CHUNK_ID_BYTES))
_STATES = frozenset((ACTIVE, CLOSED))
_KINDS = frozenset(range(KIND_OBJECT, KIND_INLINE + 1))

_NAME_MAX = LIMITS.segment_name_bytes_max
_FALSE, _TRUE = 0xC2, 0xC3
"""msgpack's bytes for the two values that are ints to Python; where neither occurs, no bool can hide among the numbers. Numbers, because
a ``bytes`` is looked for only after an exception that says that it is none."""
_SEGMENT_WIDTH = 2 + len(SegmentRecord._fields) - 1
_CHUNK_WIDTH = 2 + len(ChunkRecord._fields) - 1
_U32_MAX = (1 << 32) - 1


def encode_segment(record: SegmentRecord) -> bytes:
    """The segment's row value. Raises ``InvalidArgument`` if it cannot be stored (too long, or not of the record's types)."""
    (
        name, segment_id, flags, start_offset, length, first, last, last_offset, skip, chunk_size_max, epoch, count,
        attributes, created_ms, modified_ms, extra,
    ) = record  # fmt: skip
    flat: list[AttributeValue] = []
    if attributes:
        for key in sorted(attributes):
            flat += (key, attributes[key])
    return pack_row(
        (
            MAJOR, len(extra), name, segment_id, flags, start_offset, length, first, last, last_offset, skip,
            chunk_size_max, epoch, count, flat, created_ms, modified_ms, *extra,
        )
    )  # fmt: skip


def encode_row(record: ChunkRecord | GarbageRecord | TableRecord | SessionRecord | PinRecord) -> bytes:
    """The value of any other row. Raises ``InvalidArgument`` as ``encode_segment``."""
    extra = record[-1]
    return pack_row((MAJOR, len(extra), *record[:-1], *extra))


def pack_chunks(records: Iterable[tuple[object, ...]]) -> list[bytes]:
    """``encode_row`` of plain tuples of a ``ChunkRecord``'s fields but ``extra``, for callers that make very many. Nothing is checked."""
    return [_pack_raw((MAJOR, 0, *record)) for record in records]


def decode_segment(key: bytes | str, value: bytes) -> SegmentRecord:
    """The record of a segment row. ``key`` (or the name) only names the row in ``Damaged``."""
    extra: tuple[object, ...] = ()
    try:
        try:
            row = _unpack(value, use_list=False, max_array_len=_SHORT_ARRAY, max_map_len=0, max_ext_len=0)
        except ValueError:
            row = unpack_row(value, ROW_ELEMENTS_MAX)
        if len(row) != _SEGMENT_WIDTH:
            row, extra = row[:_SEGMENT_WIDTH], row[_SEGMENT_WIDTH:]
        (
            major, minor, name, segment_id, flags, start_offset, length, first, last, last_offset, skip,
            chunk_size_max, epoch, count, flat, created_ms, modified_ms,
        ) = row  # fmt: skip
        numbers = (
            major | segment_id | flags | start_offset | length | last_offset | skip
            | chunk_size_max | epoch | count | created_ms | modified_ms
        )  # fmt: skip
        if (
            major == MAJOR
            and minor | 0 == len(extra) <= FIELDS_MAX
            and 0 <= numbers <= NUMBER_MAX
            and type(first) is type(last) is bytes
            and len(first) in _POINTER_LENGTHS
            and len(last) in _POINTER_LENGTHS
            and type(name) is str
            and 0 < len(name) <= _NAME_MAX
            and type(flat) is tuple
            and len(value) <= _ROW_MAX
            and ((_FALSE not in value and _TRUE not in value) or bool not in map(type, row))
        ):
            attributes = _attributes(flat) if flat else {}
            return _new(
                SegmentRecord,
                (
                    name, segment_id, flags, start_offset, length, first, last, last_offset, skip, chunk_size_max,
                    epoch, count, attributes, created_ms, modified_ms, extra,
                ),
            )  # fmt: skip
    except (TypeError, ValueError):
        pass  # the slow path finds out what is wrong, and where
    raise _damage(key, value, SEGMENT_FIELDS)


def decode_chunk(key: bytes | str, value: bytes) -> ChunkRecord:
    """The record of a chunk row. Raises ``Damaged``."""
    extra: tuple[object, ...] = ()
    try:
        try:
            row = _unpack(value, use_list=False, max_array_len=_SHORT_ARRAY, max_map_len=0, max_ext_len=0)
        except ValueError:
            row = unpack_row(value, ROW_ELEMENTS_MAX)
        if len(row) != _CHUNK_WIDTH:
            row, extra = row[:_CHUNK_WIDTH], row[_CHUNK_WIDTH:]
        major, minor, name, offset, length, crc, previous, following, segment_id, epoch, state, kind, created_ms = row
        if (
            major == MAJOR
            and minor | 0 == len(extra) <= FIELDS_MAX
            and 0 <= major | offset | length | segment_id | epoch | state | kind | created_ms <= NUMBER_MAX
            and state in _STATES
            and kind in _KINDS
            and (crc is None or 0 <= crc | 0 <= _U32_MAX)
            and type(previous) is type(following) is bytes
            and len(previous) in _POINTER_LENGTHS
            and len(following) in _POINTER_LENGTHS
            and type(name) is str
            and len(name) <= TEXT_MAX
            and len(value) <= _ROW_MAX
            and ((_FALSE not in value and _TRUE not in value) or bool not in map(type, row))
        ):
            return _new(
                ChunkRecord,
                (name, offset, length, crc, previous, following, segment_id, epoch, state, kind, created_ms, extra),
            )
    except (TypeError, ValueError):
        pass
    raise _damage(key, value, CHUNK_FIELDS)


def decode_extent(value: bytes) -> tuple[str, int, int, int, bytes] | None:
    """``object``, ``object_offset``, ``length``, ``crc32c`` and ``next`` in the chunk row of an extent, as it is written; None for any
    other, which ``decode_chunk`` may know. For readers of very many."""
    try:
        row = _unpack(value, use_list=False, max_array_len=_SHORT_ARRAY, max_map_len=0, max_ext_len=0)
        major, minor, name, offset, length, crc, _, following, _, _, state, kind, _ = row
    except (TypeError, ValueError):
        return None
    if (
        kind == KIND_INLINE
        and state == CLOSED
        and major == MAJOR
        and not minor
        and type(offset) is type(length) is type(crc) is int
        and type(name) is str
        and type(following) is bytes
        and len(following) in _POINTER_LENGTHS
        and offset > 0
        and length > 0
        and offset | length <= NUMBER_MAX
    ):
        return name, offset, length, crc, following
    return None


def decode_garbage(key: bytes | str, value: bytes) -> GarbageRecord:
    """The record of a garbage row. Raises ``Damaged``."""
    return _decode(GarbageRecord, key, value, GARBAGE_FIELDS)


def decode_table(key: bytes | str, value: bytes) -> TableRecord:
    """The record of a table row. Raises ``Damaged``."""
    try:
        major, minor, version, content = _unpack(value, use_list=False, max_array_len=4, max_map_len=0, max_ext_len=0)
        if (
            type(major) is type(minor) is type(version) is int
            and (major, minor) == (MAJOR, 0)
            and 0 < version <= NUMBER_MAX
            and type(content) is bytes
            and len(value) <= _ROW_MAX
        ):
            return _new(TableRecord, (version, content, ()))
    except (TypeError, ValueError):
        pass  # a newer minor version, or the slow path says what is wrong
    return _decode(TableRecord, key, value, TABLE_FIELDS)


def decode_session(key: bytes | str, value: bytes) -> SessionRecord:
    """The record of a session row. Raises ``Damaged``."""
    return _decode(SessionRecord, key, value, SESSION_FIELDS)


def decode_pin(key: bytes | str, value: bytes) -> PinRecord:
    """The record of a pin row. Raises ``Damaged``."""
    return _decode(PinRecord, key, value, PIN_FIELDS)


def unpack_row(value: bytes, array_max: int) -> Any:
    """The msgpack value in ``value``: arrays (as tuples) of at most ``array_max`` elements, no maps, no extensions.

    Memory in proportion to ``value``, whatever it claims. Raises ``ValueError`` for anything else.
    """
    try:
        return _unpack(value, use_list=False, max_array_len=_SHORT_ARRAY, max_map_len=0, max_ext_len=0)
    except ValueError:
        pass
    # The unpacker reserves room for as many elements as an array claims, once per level of nesting. Skipping builds nothing,
    # and proves that the claims are honest.
    scout = msgpack.Unpacker(max_buffer_size=max(len(value), 1))
    scout.feed(value)
    try:
        scout.skip()
    except msgpack.UnpackException as error:
        raise ValueError("not a complete msgpack value") from error
    return _unpack(value, use_list=False, max_array_len=array_max, max_map_len=0, max_ext_len=0)


def _decode(record: Callable[..., R], key: bytes | str, value: bytes, fields: Fields) -> R:
    """A row whose fields are checked one by one: fast enough for the kinds that are not on the way of every append."""
    try:
        major, minor, *values = unpack_row(value, ROW_ELEMENTS_MAX)
        width = len(fields)
        if (
            type(major) is type(minor) is int
            and major == MAJOR
            and 0 <= minor == len(values) - width <= FIELDS_MAX
            and len(value) <= _ROW_MAX
            and all(field.holds(item) for field, item in zip(fields, values, strict=False))
        ):
            return record(*values[:width], tuple(values[width:]))
    except (TypeError, ValueError):
        pass
    raise _damage(key, value, fields)


def pack_row(row: tuple[object, ...]) -> bytes:
    """The bytes of a row. Raises ``InvalidArgument``: it is too long, or no plain data."""
    try:
        value: bytes = _pack_raw(row)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"a metadata row cannot be stored: {error}", argument="record") from error
    if len(value) > _ROW_MAX:
        raise InvalidArgument(
            f"a metadata row of {len(value)} bytes is too long; at most {_ROW_MAX} fit", argument="record"
        )
    return value


def _attributes(flat: tuple[AttributeValue, ...]) -> Mapping[str, AttributeValue]:
    """The mapping of a flat ``(name, value, name, value, ...)``. Raises ``ValueError`` where a rule is broken."""
    names = flat[::2]
    values = flat[1::2]
    if len(names) != len(values) or len(names) > LIMITS.attribute_count_max:
        raise ValueError("attributes are not pairs, or too many")
    found: dict[str, AttributeValue] = {}
    before = ""
    for name, value in zip(names, values, strict=True):
        if type(name) is not str or (found and name <= before) or len(name) > LIMITS.attribute_bytes_max:
            raise ValueError("attribute names are not text in ascending order")
        if type(value) is not int and (
            type(value) not in (str, bytes) or len(value) > LIMITS.attribute_bytes_max  # type: ignore[arg-type]
        ):
            raise ValueError("an attribute's value is neither number, text nor bytes, or is too long")
        found[name] = value
        before = name
    return found


# What follows is the slow path: the same rules once more, field by field, to say what is wrong and where. Fast and slow
# rules are held together by a property test (a row is refused by both or by none).


class Field(NamedTuple):
    """One field of a row: its name in the record and in FORMAT.md, the rule in words, and the rule."""

    name: str
    rule: str
    holds: Callable[[Any], bool]


Fields: TypeAlias = tuple[Field, ...]


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= NUMBER_MAX


def _is_pointer(value: Any) -> bool:
    return type(value) is bytes and len(value) in _POINTER_LENGTHS


def _is_name(value: Any) -> bool:
    return type(value) is str and 0 < len(value) <= _NAME_MAX


def _is_text(value: Any) -> bool:
    return type(value) is str and len(value) <= TEXT_MAX


def _is_attributes(value: Any) -> bool:
    if type(value) is not tuple:
        return False
    try:
        _attributes(value)
    except ValueError:
        return False
    return True


def _is_crc(value: Any) -> bool:
    return value is None or (type(value) is int and 0 <= value <= _U32_MAX)


def _is_version(value: Any) -> bool:
    return _is_number(value) and value > 0


def _number(name: str) -> Field:
    return Field(name, "number", _is_number)


SEGMENT_FIELDS: Fields = (
    Field("name", "name", _is_name),
    *map(_number, ("id", "flags", "start_offset", "length")),
    Field("first_chunk", "pointer", _is_pointer),
    Field("last_chunk", "pointer", _is_pointer),
    *map(_number, ("last_chunk_offset", "first_chunk_skip", "chunk_size_bytes_max", "owner_epoch", "chunk_count")),
    Field("attributes", "attributes", _is_attributes),
    *map(_number, ("created_ms", "modified_ms")),
)
CHUNK_FIELDS: Fields = (
    Field("object", "text", _is_text),
    *map(_number, ("object_offset", "length")),
    Field("crc32c", "u32 or nil", _is_crc),
    Field("previous", "pointer", _is_pointer),
    Field("next", "pointer", _is_pointer),
    *map(_number, ("segment_id", "epoch")),
    Field("state", "1 or 2", lambda value: type(value) is int and value in _STATES),
    Field("kind", "1 or 2", lambda value: type(value) is int and value in _KINDS),
    _number("created_ms"),
)
GARBAGE_FIELDS: Fields = (
    Field("first", "pointer", _is_pointer),
    Field("last", "pointer", _is_pointer),
    *map(_number, ("count", "size_bytes", "lsn", "time_ms", "ended_segment_id")),
)
TABLE_FIELDS: Fields = (
    Field("version", "number above 0", _is_version),
    Field("value", "bytes", lambda value: type(value) is bytes),
)
SESSION_FIELDS: Fields = (
    Field("holder", "text", _is_text),
    *map(_number, ("opened_ms", "expires_ms")),
)
PIN_FIELDS: Fields = (
    Field("lsn", "number above 0", _is_version),
    *map(_number, ("time_ms", "lasts_ms")),
    Field("holder", "text", _is_text),
    Field("note", "text", _is_text),
)


def _damage(key: bytes | str, value: bytes, fields: Fields) -> Damaged:
    """The error that names the first thing wrong with a row, and the byte where it begins."""
    subject = f"metadata row {key!r}"
    if len(value) > _ROW_MAX:
        return Damaged(f"{len(value)} bytes are too many; a row has at most {_ROW_MAX}", object=subject)
    reader = msgpack.Unpacker(max_buffer_size=max(len(value), 1))
    reader.feed(value)
    position = 0

    def element() -> Any:
        """The next element; ``position`` is where it begins."""
        nonlocal position
        position = reader.tell()
        reader.skip()
        return unpack_row(value[position : reader.tell()], ROW_ELEMENTS_MAX)

    try:
        count = reader.read_array_header()
        major = element()
        if type(major) is not int or major != MAJOR:
            words = f"major version {major!r} is not {MAJOR}: written by another version of chunkstore, or damaged"
            return Damaged(words, object=subject, position=position)
        minor = element()
        if type(minor) is not int or not 0 <= minor <= FIELDS_MAX or count != 2 + len(fields) + minor:
            return Damaged(f"minor version {minor!r} does not have {count} fields", object=subject, position=position)
        for field in fields:
            if not field.holds(element()):
                return Damaged(f"field {field.name!r} is not a valid {field.rule}", object=subject, position=position)
        for _ in range(minor):
            element()
        position = reader.tell()
    except (TypeError, ValueError, msgpack.UnpackException, RecursionError) as error:
        damage = Damaged("not a complete msgpack row here", object=subject, position=position)
        damage.__cause__ = error
        return damage
    return Damaged(f"{len(value) - position} extra bytes after the last field", object=subject, position=position)
