"""Rows as stores keep them: each value ends in the CRC32C of its key and itself (FORMAT.md, section 3).

``unsealed`` gives what ``sealed`` was given for this very key. The head holds a ``Tally`` over all entries but itself, so that rows that
vanished, or come from an older page, are noticed by reading everything once (``tally``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from chunkstore.checksum import crc32c_of_bytes
from chunkstore.metadata.port import NO_TOTALS, Totals
from chunkstore.metadata.totals import COUNTED, RowPair, changed

__all__ = ["NOTHING", "RESIDUE", "SEAL_BYTES", "SUM_MODULUS", "RowDamaged", "Tally", "sealed", "tally", "unsealed"]

SEAL_BYTES: Final = 4
RESIDUE: Final = 0x48674BC7
"""CRC32C of any bytes followed by their own CRC32C in little-endian order."""
SUM_MODULUS: Final = 1 << 64


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
