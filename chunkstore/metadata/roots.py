"""Rows of the roots that foreign chunks lie in, in the reserved table namespace ``!roots`` (FORMAT.md beside this file, "Roots").

Promises: a root's number is never used again, so that what was opened under it stays right; 0 is our own root, and no other is. A row
is there as long as a chunk row names it, and counts them: both change in one record. A row that cannot be read leads nowhere.
Leaves out: opening roots (``chunkstore.registry``), who adds and gives up (``operations.adopt``).
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

from chunkstore.config import LIMITS
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.metadata.codec import decode_table, pack_row, unpack_row
from chunkstore.metadata.keys import root_key, roots_range
from chunkstore.metadata.port import MetadataView
from chunkstore.names import check_container_name, check_object_text
from chunkstore.records import ACTIVE, CLOSED, RootRecord

__all__ = [
    "OWN_ROOT",
    "decode_root",
    "decode_value",
    "encode_root",
    "find_root",
    "foreign_bytes",
    "known_roots",
    "pin_prefix",
    "scan_roots",
]

OWN_ROOT: Final = 0
_MAJOR: Final = 1
_FIELDS: Final = len(RootRecord._fields) - 1
_NUMBER_MAX: Final = (1 << 63) - 1
_URL_MAX: Final = 2048
_FIELDS_MAX: Final = 64


def encode_root(record: RootRecord) -> bytes:
    """The value of the row. Raises ``InvalidArgument`` for what could not be read again."""
    value = pack_row((_MAJOR, len(record.extra), *record[:_FIELDS], *record.extra))
    if _parse(value) is None:
        raise InvalidArgument(f"no root of a container: {record[:5]!r:.300}", argument="root")
    return value


def decode_root(raw: bytes, number: int) -> RootRecord:
    """What the row of root ``number`` says. Raises ``Damaged``."""
    return decode_value(decode_table(f"metadata row {root_key(number)!r}", raw).value, number)


def decode_value(value: bytes, number: int) -> RootRecord:
    """As ``decode_root``, of the row's value alone."""
    where = f"metadata row {root_key(number)!r}"
    record = _parse(value)
    if record is None or (record.url == "") != (number == OWN_ROOT):
        raise Damaged("not a root of a known version; use a newer program, or run check", object=where)
    return record


def find_root(view: MetadataView, number: int) -> RootRecord | None:
    """The root of this number. Raises ``Damaged``."""
    raw = view.get(root_key(number))
    return None if raw is None else decode_root(raw, number)


def scan_roots(view: MetadataView) -> Iterator[tuple[int, RootRecord | Damaged]]:
    """Every root by its number: its record, or why its row cannot be read."""
    begin, stop = roots_range()
    for key, raw in view.scan(begin, stop):
        number = int.from_bytes(key[len(begin) :], "big")
        try:
            if key != root_key(number):
                raise Damaged("the key is not that of a root", object=f"metadata row {key!r}")
            yield number, decode_root(raw, number)
        except (Damaged, OverflowError) as error:
            yield (
                number,
                error if isinstance(error, Damaged) else Damaged("no root's key", object=f"metadata row {key!r}"),
            )


def known_roots(view: MetadataView) -> dict[int, RootRecord]:
    """The roots whose rows can be read, by their numbers."""
    return {number: root for number, root in scan_roots(view) if isinstance(root, RootRecord)}


def foreign_bytes(view: MetadataView) -> int:
    """Bytes of all foreign chunks, in segments and in garbage, as far as rows can be read. O(roots)."""
    return sum(root.size_bytes for root in known_roots(view).values())


def pin_prefix(container: str, address: str, uuid: bytes = b"") -> str:
    """How the names of pins begin that a container makes elsewhere. A copy of it at another ``address`` has another one; ``uuid``: its own,
    or none where it is yet to be made."""
    return f"adopted-{blake2b(b'%b %b' % (uuid, f'{address} {container}'.encode()), digest_size=16).hexdigest()}-"


def _parse(value: bytes) -> RootRecord | None:
    try:
        row = unpack_row(value, _FIELDS_MAX)
        major, minor, *fields = row
        if len(fields) < _FIELDS:
            return None
        record = RootRecord._make((*fields[:_FIELDS], tuple(fields[_FIELDS:])))
        texts = (record.url, record.prefix, record.container, record.pin)
        good = type(row) is tuple and type(major) is type(minor) is int and major == _MAJOR
        good = good and len(record.extra) == minor and all(type(text) is str for text in texts)
        good = good and len(record.url) <= _URL_MAX and len(record.pin.encode()) <= LIMITS.segment_name_bytes_max
        good = good and type(record.uuid) is bytes and len(record.uuid) in (0, 16)
        good = (
            good and (record.container == "") == (record.uuid == b"") and (record.container != "" or record.pin == "")
        )
        good = good and (record.url != "" or record.container == "")
        numbers = (record.references, record.size_bytes, record.changed_ms)
        good = good and all(type(number) is int and 0 <= number <= _NUMBER_MAX for number in numbers)
        if not good or record.state not in (ACTIVE, CLOSED):
            return None
        if record.container:
            check_container_name(record.container)
        if record.prefix:
            check_object_text(record.prefix + "x")
    except (TypeError, ValueError, InvalidArgument):
        return None
    return record
