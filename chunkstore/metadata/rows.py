"""Rows as stores keep them: each value ends in the CRC32C of its key and itself (FORMAT.md, section 3).

``unsealed`` gives what ``sealed`` was given for this very key. The head holds a ``Tally`` over all entries but itself, so that rows that
vanished, or come from an older page, are noticed by reading everything once (``tally``).

Running totals say what all segments and garbage ranges take up. They are a function of the rows alone, kept up from the
old and the new value of each row that changes, so that nothing is scanned. A row that cannot be read counts as nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from chunkstore.checksum import crc32c_of_bytes
from chunkstore.journal import OpCode
from chunkstore.metadata.codec import NUMBER_MAX, ROW_ELEMENTS_MAX, unpack_row
from chunkstore.metadata.keys import GARBAGE, SEGMENT
from chunkstore.metadata.port import NO_TOTALS, Op, Totals

__all__ = [
    "COUNTED",
    "NOTHING",
    "RESIDUE",
    "SEAL_BYTES",
    "SUM_MODULUS",
    "RowDamaged",
    "RowPair",
    "Tally",
    "changed",
    "grown",
    "sealed",
    "tally",
    "unsealed",
]

SEAL_BYTES: Final = 4
RESIDUE: Final = 0x48674BC7
"""CRC32C of any bytes followed by their own CRC32C in little-endian order."""
SUM_MODULUS: Final = 1 << 64

RowPair: TypeAlias = tuple[int, bytes | None, bytes | None]
"""The kind of a counted row, and its value before and after a change; None: no such row."""

_new = tuple.__new__  # what a NamedTuple's constructor does after its argument handling
_U64 = (1 << 64) - 1
_SEGMENT = SEGMENT[0]
_APPEND = int(OpCode.APPEND)
COUNTED = frozenset((_SEGMENT, GARBAGE[0]))
"""The kinds of rows that totals are made of."""


class RowDamaged(Exception):
    """A row is not what was written, or not there."""

    def __init__(self, key: bytes, found: str = "is not what was written") -> None:
        super().__init__(f"row {key!r} {found}")


class Tally(NamedTuple):
    """How many entries there are, the sum of their CRCs modulo 2**64, and the totals over rows."""

    entries: int
    crc_sum: int
    totals: Totals = NO_TOTALS


NOTHING: Final = Tally(0, 0)


def sealed(key: bytes, value: bytes) -> bytes:
    """The value as it is stored under ``key``."""
    return value + crc32c_of_bytes(key + value).to_bytes(SEAL_BYTES, "little")


def unsealed(key: bytes, raw: bytes) -> bytes:
    """The value that was stored under ``key``. Raises ``RowDamaged``."""
    if crc32c_of_bytes(key + raw) != RESIDUE:
        raise RowDamaged(key)
    return raw[:-SEAL_BYTES]


def tally(
    items: Iterable[tuple[bytes, bytes]],
    get: Callable[[bytes], bytes | None] | None = None,
    before: Tally = NOTHING,
) -> Tally:
    """The tally of stored entries, each of which is checked, and of those in ``before``. With ``get``, a look-up has to lead to each
    as well: a page above it may be damaged in a way that only look-ups meet. Raises ``RowDamaged``."""
    entries, crcs, totals = before

    def counted() -> Iterator[RowPair]:
        nonlocal entries, crcs
        for key, raw in items:
            if crc32c_of_bytes(key + raw) != RESIDUE or (get is not None and get(key) != raw):
                raise RowDamaged(key)
            entries += 1
            crcs += int.from_bytes(raw[-SEAL_BYTES:], "little")
            if key[0] in COUNTED:
                yield key[0], None, raw[:-SEAL_BYTES]

    totals = changed(totals, counted())
    return Tally(entries, crcs % SUM_MODULUS, totals)


def changed(totals: Totals, pairs: Iterable[RowPair]) -> Totals:
    """The totals after these changes."""
    segments, chunks, live, dead, garbage = totals
    for kind, old, new in pairs:
        for sign, value in ((-1, old), (1, new)):
            if value is None:
                continue
            try:
                row = unpack_row(value, ROW_ELEMENTS_MAX)
                if kind != _SEGMENT:
                    if 0 <= row[5] | 0 <= NUMBER_MAX:
                        garbage += sign * row[5]
                    continue
                start, length, skip, count = row[5], row[6], row[10], row[13]
                if 0 <= start | length | skip | count <= NUMBER_MAX and start <= length:
                    segments += sign
                    chunks += sign * count
                    live += sign * (length - start)
                    dead += sign * skip
            except (TypeError, ValueError, LookupError):
                pass  # what reads it says what is wrong with it
    # Only rows that cannot be have sums so large; wrapped, they are the same in every count.
    return _new(Totals, (segments, chunks & _U64, live & _U64, dead & _U64, garbage & _U64))


def grown(totals: Totals, ops: Sequence[Op]) -> Totals | None:
    """The totals after appends, by the headers of an owner's own commit, which come from where its rows come from; None where anything
    else happens. Nearly every commit is one of these, and decoding its rows would show in an append's cost."""
    segments, chunks, live, dead, garbage = totals
    try:
        for op in ops:
            if op[0] != _APPEND:
                return None
            live += op[3]  # type: ignore[operator]
            if op[4]:
                chunks += len(op[4])  # type: ignore[arg-type]
    except (TypeError, LookupError):
        return None  # what applies it says what is wrong with it
    return _new(Totals, (segments, chunks, live, dead, garbage)) if ops else None
