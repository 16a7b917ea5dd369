"""What callers may pass: checks of arguments, made once, where they enter; and handles, by which callers name segments.

Each check raises ``InvalidArgument`` that names the argument and says what would be right, before any effect. ``names`` checks names of
containers, segments and objects, ``changes`` a commit's changes, ``config`` settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias

from chunkstore.checksum import check_data
from chunkstore.config import LIMITS
from chunkstore.errors import InvalidArgument
from chunkstore.records.chunks import COMPOSE_RANGES_MAX, ChunkRange
from chunkstore.records.names import (
    HEADERS_NAMESPACE,
    SINKS_NAMESPACE,
    check_container_name,
    check_object_name,
    check_segment_name,
    utf8_bytes,
)
from chunkstore.records.segments import AttributeValue

__all__ = [
    "SegmentHandle",
    "SegmentRef",
    "check_attribute_changes",
    "check_attributes",
    "check_buffer",
    "check_data_buffer",
    "check_flags",
    "check_kept_folder",
    "check_key",
    "check_listing",
    "check_moment",
    "check_namespace",
    "check_not_itself",
    "check_number",
    "check_pin",
    "check_range",
    "check_ranges",
    "check_timeout",
    "check_value",
    "check_version",
    "check_writer",
    "gather",
    "resolve",
    "resolve_writable",
    "writer_bytes",
]

_OWN_FOLDERS = frozenset(("ask", "d", "epoch", "format", "j", "lease", "pin", "reserve", "snap", "tmp"))
_OWN_FOLDERS |= {"backup", "backups", "done", "newest", "o", "running"}  # of a container's backups
_PIN_S_MAX = 100 * 366 * 86_400
_EVENT_MAX = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def check_number(value: object, argument: str) -> None:
    """Raise ``InvalidArgument`` of ``argument`` unless ``value`` is a whole number from 0 on."""
    if type(value) is not int or value < 0:
        raise InvalidArgument(f"{argument} must be a whole number from 0 on, not {value!r}", argument=argument)


def check_timeout(timeout_s: float, argument: str = "timeout_s") -> float:
    """It. Raise ``InvalidArgument`` unless it is a number of seconds, of a year at most."""
    if not isinstance(timeout_s, (int, float)) or not 0 <= timeout_s <= 366 * 86_400:
        text = f"{argument} must be a number of seconds from 0 on, not {timeout_s!r}"
        raise InvalidArgument(text, argument=argument)
    return timeout_s


def check_flags(**given: object) -> None:
    """Raise ``InvalidArgument`` unless each is True or False: a text such as "no" would count as True."""
    for argument, value in given.items():
        if type(value) is not bool:
            raise InvalidArgument(f"{argument} must be True or False, not {value!r}", argument=argument)


def check_range(offset: object, length: object) -> None:
    """Raise ``InvalidArgument`` unless both are whole numbers from 0 on."""
    if type(offset) is not int or type(length) is not int or offset < 0 or length < 0:
        check_number(offset, "offset")
        check_number(length, "length")


def check_moment(at_lsn: object, at_time: object) -> tuple[int | None, int | None]:
    """A moment of the past as (lsn, milliseconds since 1970), one of them None; both where none is named. Raises ``InvalidArgument``."""
    if at_lsn is not None and at_time is not None:
        raise InvalidArgument("give at_lsn or at_time, not both: a moment is named in one way", argument="at_time")
    if at_lsn is not None:
        if type(at_lsn) is not int or at_lsn < 1:
            text = f"at_lsn must be a whole number from 1 on, not {at_lsn!r}"
            raise InvalidArgument(text, argument="at_lsn")
        return at_lsn, None
    if isinstance(at_time, datetime):
        if at_time.tzinfo is None:
            raise InvalidArgument(f"at_time must have a time zone: {at_time.isoformat()} has none", argument="at_time")
        return None, max(0, (at_time - _EPOCH) // timedelta(milliseconds=1))
    if at_time is not None and (type(at_time) is not int or at_time < 0):
        text = f"at_time must be a datetime, or whole milliseconds since 1970, not {at_time!r}"
        raise InvalidArgument(text, argument="at_time")
    return None, at_time


def moment_text(time_ms: int) -> str:
    """Milliseconds since 1970 as people write a time; beyond the year 9999 as they are."""
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{time_ms} ms since 1970"


def check_ranges(name: str, ranges: object) -> None:
    """Raise ``InvalidArgument`` unless these are from 1 to ``COMPOSE_RANGES_MAX`` ranges, none empty, of other chunks than ``name``."""
    if not isinstance(ranges, Sequence) or not 1 <= len(ranges) <= COMPOSE_RANGES_MAX:
        text = f"compose takes a sequence of 1 to {COMPOSE_RANGES_MAX} ranges, not {ranges!r:.100}"
        raise InvalidArgument(text, argument="ranges")
    for item in ranges:
        if not isinstance(item, ChunkRange):
            raise InvalidArgument("compose takes ChunkRange items", argument="ranges")
        check_object_name(item.name)
        check_range(item.offset, item.length)
        if item.name == name or not item.length:
            what = "the new chunk itself" if item.length else "no byte"
            raise InvalidArgument(f"a range of {item.name!r} names {what}", argument="ranges")


def check_data_buffer(data: object, argument: str) -> None:
    """Raise ``InvalidArgument`` unless ``data`` is a contiguous buffer of bytes."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InvalidArgument(
            f"{argument} must be bytes, bytearray or memoryview, not {type(data).__name__}", argument=argument
        )
    if isinstance(data, memoryview) and not (data.c_contiguous and data.itemsize == 1):
        raise InvalidArgument(f"{argument} must be a contiguous memoryview of bytes", argument=argument)


def check_buffer(buffer: object) -> memoryview:
    """A view of the bytes of a writable, contiguous buffer. Raises ``InvalidArgument``."""
    if not isinstance(buffer, (bytearray, memoryview)):
        raise InvalidArgument(
            f"buffer must be a bytearray or a memoryview, not {type(buffer).__name__}", argument="buffer"
        )
    view = memoryview(buffer)
    if view.readonly or not view.c_contiguous:
        raise InvalidArgument("buffer must be writable and contiguous", argument="buffer")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def gather(buffers: Sequence[object]) -> bytes:
    """Join the buffers of ``append_many`` into one. Raises ``InvalidArgument`` naming a bad one."""
    if not isinstance(buffers, Sequence) or isinstance(buffers, (bytes, bytearray, memoryview, str)):
        raise InvalidArgument("append_many takes a sequence of buffers; use append for one", argument="buffers")
    return b"".join(check_data(item, "buffers") for item in buffers)


def check_attributes(attributes: object, argument: str = "attributes") -> Mapping[str, AttributeValue]:
    """A sorted copy: bounded, and of plain types. Raises ``InvalidArgument`` of ``argument`` that names the attribute."""
    if not isinstance(attributes, Mapping):
        raise InvalidArgument(f"{argument} must be a mapping", argument=argument)
    if len(attributes) > LIMITS.attribute_count_max:
        raise InvalidArgument(f"a segment has at most {LIMITS.attribute_count_max} attributes", argument=argument)
    for key, value in attributes.items():
        _check_attribute_name(key, argument)
        if isinstance(value, bool) or not isinstance(value, (int, str, bytes)):
            raise InvalidArgument(f"attribute {key!r} must be int, str or bytes, not {value!r}", argument=argument)
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise InvalidArgument(f"attribute {key!r} does not fit 64 bits", argument=argument)
        size_bytes = utf8_bytes(value) if isinstance(value, str) else len(value) if isinstance(value, bytes) else 0
        if not 0 <= size_bytes <= LIMITS.attribute_bytes_max:
            raise InvalidArgument(
                f"attribute {key!r} must be valid UTF-8 (or bytes) and at most {LIMITS.attribute_bytes_max} bytes long",
                argument=argument,
            )
    return dict(sorted(attributes.items()))


def check_attribute_changes(changes: object, argument: str) -> None:
    """As ``check_attributes``; None as a value means "absent". Raises ``InvalidArgument``."""
    if isinstance(changes, Mapping):
        for name in changes:
            _check_attribute_name(name, argument)
        changes = {name: value for name, value in changes.items() if value is not None}
    check_attributes(changes, argument)


def _check_attribute_name(name: object, argument: str) -> None:
    """1 to 255 bytes of UTF-8. Raises ``InvalidArgument``."""
    if not isinstance(name, str) or not 1 <= utf8_bytes(name) <= 255:
        raise InvalidArgument(f"attribute name {name!r} must be a str of 1 to 255 bytes of UTF-8", argument=argument)


def check_not_itself(target_name: str, source_name: str) -> None:
    """Raise ``InvalidArgument`` for a concat of a segment to itself."""
    if target_name == source_name:
        raise InvalidArgument(f"segment {source_name!r} cannot be concatenated to itself", argument="source")


def check_namespace(namespace: object) -> str:
    """1 to 64 bytes of UTF-8; names beginning with ``!``, but for ``!sinks`` and ``!headers``, are our own. Raises ``InvalidArgument``."""
    if not isinstance(namespace, str) or not 1 <= utf8_bytes(namespace) <= LIMITS.table_namespace_bytes_max:
        raise InvalidArgument(
            f"a table namespace is a str of 1 to {LIMITS.table_namespace_bytes_max} bytes, not {namespace!r}",
            argument="namespace",
        )
    if namespace.startswith("!") and namespace not in (SINKS_NAMESPACE, HEADERS_NAMESPACE):
        raise InvalidArgument("table namespaces that begin with '!' are reserved", argument="namespace")
    return namespace


def check_key(key: object) -> bytes:
    """1 to 400 bytes. Raises ``InvalidArgument``."""
    if not isinstance(key, bytes) or not 1 <= len(key) <= LIMITS.table_key_bytes_max:
        raise InvalidArgument(
            f"a table key is bytes, 1 to {LIMITS.table_key_bytes_max} of them, not {key!r}", argument="key"
        )
    return key


def check_value(value: object) -> bytes:
    """Bytes up to the row limit. Raises ``InvalidArgument``."""
    if not isinstance(value, bytes) or len(value) > LIMITS.row_bytes_max - 64:
        raise InvalidArgument(
            f"a table value is bytes, at most {LIMITS.row_bytes_max - 64} of them; keep more in a segment",
            argument="value",
        )
    return value


def check_pin(note: object, expires_s: object) -> None:
    """Raises ``InvalidArgument`` unless these are what a pin, whose name is checked elsewhere, may say."""
    if not isinstance(note, str) or not 0 <= utf8_bytes(note) <= LIMITS.attribute_bytes_max:
        what = f"note must be a str of at most {LIMITS.attribute_bytes_max} bytes of UTF-8"
        raise InvalidArgument(what, argument="note")
    good = expires_s is None or (type(expires_s) in (int, float) and 0.001 <= expires_s <= _PIN_S_MAX)  # type: ignore[operator]
    if not good:
        what = f"expires_s must be a number of seconds from 0.001 to {_PIN_S_MAX}, or None, not {expires_s!r}"
        raise InvalidArgument(what, argument="expires_s")


def check_version(version: object) -> None:
    """None, or a whole number from 0 on. Raises ``InvalidArgument``."""
    if version is not None:
        check_number(version, "expected_version")


def check_listing(prefix: object, after: object, limit: object) -> None:
    """Raise ``InvalidArgument`` unless these are two texts (or no ``after``) and a count (or no ``limit``)."""
    for value, argument in ((prefix, "prefix"), ("" if after is None else after, "after")):
        if not isinstance(value, str) or utf8_bytes(value) < 0:
            raise InvalidArgument(f"{argument} must be a str of valid UTF-8, not {value!r}", argument=argument)
    if limit is not None:
        check_number(limit, "limit")


def check_kept_folder(folder: object) -> None:
    """Raise ``InvalidArgument`` unless ``folder`` can be next to what a container consists of, and is none of that."""
    try:
        check_container_name(folder)  # type: ignore[arg-type]
        good = str(folder).lower() not in _OWN_FOLDERS
    except InvalidArgument:
        good = False
    if not good:
        text = f"{folder!r} cannot be a folder for chunks: use letters, digits, '.', '_' or '-', such as 'lost'"
        raise InvalidArgument(text, argument="keep_in")


def check_writer(writer_id: bytes | str | None, event_number: int | None) -> bytes | None:
    """The writer id as bytes. Raises ``InvalidArgument`` unless both or neither are given and in range."""
    if writer_id is None and event_number is None:
        return None
    if writer_id is None or event_number is None:
        missing, given = ("writer_id", "event_number") if writer_id is None else ("event_number", "writer_id")
        raise InvalidArgument(f"{missing} is missing: it belongs to {given}", argument=missing)
    raw = writer_bytes(writer_id)
    if type(event_number) is not int or not 1 <= event_number <= _EVENT_MAX:
        raise InvalidArgument(
            f"event_number must be a whole number from 1 on, not {event_number!r}", argument="event_number"
        )
    return raw


def writer_bytes(writer_id: bytes | str) -> bytes:
    """The writer id as bytes. Raises ``InvalidArgument``."""
    raw = writer_id.encode("utf-8", "replace") if isinstance(writer_id, str) else writer_id
    if (
        not isinstance(raw, bytes)
        or not 1 <= len(raw) <= 64
        or (isinstance(writer_id, str) and utf8_bytes(writer_id) < 0)
    ):
        raise InvalidArgument("writer_id must be 1 to 64 bytes (as a str: of valid UTF-8)", argument="writer_id")
    return raw


class SegmentHandle(NamedTuple):
    """An opened segment: binds the segment's id, so that a re-created segment of the same name is not mistaken for it."""

    name: str
    segment_id: int
    writable: bool


SegmentRef: TypeAlias = str | SegmentHandle


def resolve(target: SegmentRef, argument: str = "segment") -> tuple[str, int | None]:
    """Name and (for a handle) id. Raises ``InvalidArgument`` of ``argument``."""
    if isinstance(target, SegmentHandle):
        check_segment_name(target.name, argument)
        if type(target.segment_id) is not int:
            raise InvalidArgument(f"the handle of {target.name!r} has no segment's id", argument=argument)
        return target.name, target.segment_id
    check_segment_name(target, argument)
    return target, None


def resolve_writable(target: SegmentRef, argument: str = "segment") -> tuple[str, int | None]:
    """As ``resolve``, for a change. Raises ``InvalidArgument`` for a read handle, too."""
    if type(target) is str:
        check_segment_name(target, argument)
        return target, None
    if isinstance(target, SegmentHandle) and not target.writable:
        raise InvalidArgument(f"the handle of {target.name!r} is read-only; use open_write", argument=argument)
    return resolve(target, argument)
