"""Rows and index entries in a transaction of an ordered map, each with its CRC, which is checked wherever one is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chunkstore.checksum import crc32c_of_bytes
from chunkstore.metadata.ordered_map import FIRST_ROW, Cursor, Transaction
from chunkstore.metadata.rows import COUNTED, RESIDUE, SEAL_BYTES, RowDamaged, RowPair, unsealed

__all__ = ["RowTransaction", "floor_in", "scan_rows", "scan_stored"]


def _sound(item: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    key, raw = item
    return key, unsealed(key, raw)


def floor_in(cursor: Cursor, key: bytes) -> tuple[bytes, bytes] | None:
    """The greatest entry at or below ``key``. Raises ``RowDamaged``."""
    if cursor.set_range(key):
        if cursor.key() == key:
            return _sound(cursor.item())
        return _sound(cursor.item()) if cursor.prev() else None
    return _sound(cursor.item()) if cursor.last() else None


def scan_stored(txn: Transaction, start: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The entries from ``start`` on, as they are stored."""
    cursor = txn.cursor()
    return cursor.iternext() if cursor.set_range(max(start, FIRST_ROW)) else iter(())


def scan_rows(txn: Transaction, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The entries with ``start <= key < stop``, in order. Raises ``RowDamaged``."""
    for key, raw in scan_stored(txn, start):
        if key >= stop:
            return
        # As ``unsealed``: millions of rows pass here.
        if crc32c_of_bytes(key + raw) != RESIDUE:
            raise RowDamaged(key)
        yield key, raw[:-SEAL_BYTES]


class RowTransaction:
    """The map's write transaction as index and fold want it. ``entries`` and ``crcs`` are what it adds to the tally; ``counted`` are the
    rows that totals are made of, each as it was and as it is, if ``counts``."""

    __slots__ = ("_cursor", "_pop", "_read", "_replace", "_txn", "counted", "counts", "crcs", "entries")

    def __init__(self, txn: Transaction, *, counts: bool) -> None:
        self._txn = txn
        self._cursor: Cursor | None = None
        self.crcs = self.entries = 0
        self.counts = counts
        self.counted: list[RowPair] = []
        self._read = txn.get
        self._replace = txn.replace
        self._pop = txn.pop

    def get(self, key: bytes) -> bytes | None:
        raw = self._read(key)
        return None if raw is None else unsealed(key, raw)

    def put(self, key: bytes, value: bytes) -> None:
        # Every row of every append passes here: no calls within.
        crc = crc32c_of_bytes(key + value)
        old = self._replace(key, value + crc.to_bytes(SEAL_BYTES, "little"))
        self.crcs += crc
        if old is None:
            self.entries += 1
        elif crc32c_of_bytes(key + old) != RESIDUE:
            raise RowDamaged(key)
        else:
            self.crcs -= int.from_bytes(old[-SEAL_BYTES:], "little")
        if self.counts and key[0] in COUNTED:
            self.counted.append((key[0], None if old is None else old[:-SEAL_BYTES], value))

    def put_new(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        crcs = [crc32c_of_bytes(key + value) for key, value in pairs]
        items = [(pair[0], pair[1] + crc.to_bytes(SEAL_BYTES, "little")) for pair, crc in zip(pairs, crcs, strict=True)]
        if self._cursor is None:
            self._cursor = self._txn.cursor()
        if self._cursor.putmulti(items, overwrite=False)[1] != len(items):
            raise RowDamaged(pairs[0][0])
        self.crcs += sum(crcs)
        self.entries += len(items)

    def delete(self, key: bytes) -> None:
        old = self._pop(key)
        if old is not None:
            value = unsealed(key, old)
            self.entries -= 1
            self.crcs -= int.from_bytes(old[-SEAL_BYTES:], "little")
            if self.counts and key[0] in COUNTED:
                self.counted.append((key[0], value, None))

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        if self._cursor is None:
            self._cursor = self._txn.cursor()
        return floor_in(self._cursor, key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return scan_rows(self._txn, start, stop)
