"""What data objects of PIP-17 and PIP-76 share: the block header, the framing of entries, padding, and the scan over entries.

A data object is a row of blocks; a block is a 128-byte header, entries in ascending order, and padding. FORMAT.md next to this
file has the tables. Promises: constant memory, no I/O of its own, and a scan that makes no object per entry besides one int.
Leaves out: where blocks are (``block_index``) and everything that reads or writes objects.
"""

from __future__ import annotations

from itertools import repeat
from struct import Struct
from typing import Final, NamedTuple

from chunkstore.checksum import BytesLike
from chunkstore.codec.sources import WINDOW_BYTES, DataSource
from chunkstore.config import KIB, MIB
from chunkstore.errors import Damaged, InvalidArgument, Unsupported

__all__ = [
    "BLOCK_HEADER_BYTES",
    "ENTRY_BYTES_MAX",
    "ENTRY_HEADER_BYTES",
    "ENTRY_ID_MAX",
    "LEDGER_UNKNOWN",
    "PADDING_PATTERN",
    "PIP17",
    "PIP76",
    "WINDOW_BYTES",
    "BlockFormat",
    "BlockHeader",
    "DataSource",
    "Entry",
    "check_dense",
    "check_entry",
    "entry_id_at",
    "frame_header",
    "is_padding",
    "of_ledger",
    "padding",
    "scan_entries",
    "signed_length_at",
]

BLOCK_HEADER_BYTES = 128
ENTRY_HEADER_BYTES = 12
PADDING_PATTERN = b"\xfe\xdc\xde\xad"
ENTRY_BYTES_MAX = 128 * MIB
"""Longest payload that is written, and by default read: it bounds the memory one entry can ask for."""
ENTRY_ID_MAX = (1 << 63) - 1
LEDGER_UNKNOWN = -1
"""The ledger of entries that no object names one for: a PIP-17 pair whose reader was not told it."""

_BLOCK = Struct(">Iqqqq92x")
_FRAME = Struct(">iq")
_length_at = Struct(">I").unpack_from
_signed_at = Struct(">i").unpack_from
_id_at = Struct(">q").unpack_from
_ALIKE_LEAST = 16
_ONE_BY_ONE_MAX = 1024
"""Entries between two looks whether more are alike."""
_PADDING_RUN = PADDING_PATTERN * (16 * KIB)


class BlockHeader(NamedTuple):
    """What a block's header says: its length in bytes (header and padding included), first entry id and ledger id.

    PIP-17's headers name no ledger: it is ``LEDGER_UNKNOWN``.
    """

    length: int
    first_entry: int
    ledger: int


class Entry(NamedTuple):
    """One entry of a ledger; ``LEDGER_UNKNOWN`` where neither objects nor caller name the ledger."""

    ledger: int
    entry: int
    payload: bytes


class BlockFormat(NamedTuple):
    """What differs between the formats: ``name`` for errors, what blocks and index begin with, whether a block names its ledger,
    and whether entries are ``dense``: without gaps from 0 on.
    """

    name: str
    magic: int
    index_magic: int
    has_ledger: bool
    dense: bool

    @property
    def begin(self) -> bytes:
        """What every block begins with: magic and header length."""
        return self.magic.to_bytes(4, "big") + BLOCK_HEADER_BYTES.to_bytes(8, "big")

    def pack(self, header: BlockHeader) -> bytes:
        """The 128 bytes that begin a block."""
        ledger = header.ledger if self.has_ledger else 0
        return _BLOCK.pack(self.magic, BLOCK_HEADER_BYTES, header.length, header.first_entry, ledger)

    def parse(self, data: BytesLike, *, object: str, position: int) -> BlockHeader:
        """The header in the first 128 bytes of ``data``; ``object`` and ``position`` say in errors where they were read.

        Raises ``Damaged`` where bytes are missing, the magic or a length is wrong, or an id is negative. The reserved bytes are
        not looked at.
        """
        if len(data) < BLOCK_HEADER_BYTES:
            raise Damaged(
                f"a block header has {BLOCK_HEADER_BYTES} bytes, {len(data)} are here", object=object, position=position
            )
        magic, header_length, length, first_entry, ledger = _BLOCK.unpack_from(data)
        if not self.has_ledger:
            ledger = LEDGER_UNKNOWN
        if magic != self.magic:
            known = [other.name for other in (PIP17, PIP76) if other.magic == magic]
            hint = f"; this is a block of {known[0]}, not of {self.name}" if known else ""
            raise Damaged(
                f"no block begins here: magic 0x{magic:08X}, 0x{self.magic:08X} expected{hint}",
                object=object,
                position=position,
            )
        if header_length != BLOCK_HEADER_BYTES:
            raise Damaged(
                f"block header length {header_length}, {BLOCK_HEADER_BYTES} expected",
                object=object,
                position=position + 4,
            )
        if length < BLOCK_HEADER_BYTES:
            raise Damaged(f"block length {length} is less than its header", object=object, position=position + 12)
        if first_entry < 0 or (self.has_ledger and ledger < 0):
            ids = f"ledger {ledger}, entry {first_entry}" if self.has_ledger else f"entry {first_entry}"
            raise Damaged(f"negative id: {ids}", object=object, position=position + 20)
        return BlockHeader(length, first_entry, ledger)


PIP17: Final = BlockFormat("PIP-17 (v1)", 0xFBDBABCB, 0xDE47DE47, has_ledger=False, dense=True)
PIP76: Final = BlockFormat("PIP-76 (v2)", 0x26A66D32, 0x3D1FB0BC, has_ledger=True, dense=False)


def of_ledger(ledger: int) -> str:
    """The words " of ledger 7" for errors; nothing for ``LEDGER_UNKNOWN``."""
    return "" if ledger == LEDGER_UNKNOWN else f" of ledger {ledger}"


def frame_header(entry: int, length: int) -> bytes:
    """The 12 bytes in front of a payload of ``length`` bytes."""
    return _FRAME.pack(length, entry)


def check_entry(entry: int, length: int, previous: int) -> None:
    """``InvalidArgument`` unless an entry of this id and payload length may follow entry ``previous``."""
    if not previous < entry <= ENTRY_ID_MAX:
        raise InvalidArgument(
            f"entry id {entry} does not follow {previous}: ids ascend within a ledger", argument="entry"
        )
    if length > ENTRY_BYTES_MAX:
        raise InvalidArgument(f"an entry has at most {ENTRY_BYTES_MAX} bytes, {length} given", argument="payload")


def check_dense(entry: int, previous: int) -> None:
    """``Unsupported``, which names the gap, unless ``entry`` follows ``previous`` without one; -1 is before the first entry."""
    if entry != previous + 1:
        raise Unsupported(
            f"entries {previous + 1} to {entry - 1} are missing: {PIP17.name} has no gaps and begins with entry 0",
            feature="gaps",
        )


def padding(length: int) -> bytes:
    """``length`` bytes of padding: the pattern repeated from its first byte on, cut anywhere."""
    return (PADDING_PATTERN * (length // len(PADDING_PATTERN) + 1))[:length]


def is_padding(data: BytesLike) -> bool:
    """Whether all of ``data`` is padding, counted from its first byte. No bytes are padding, too."""
    view = memoryview(data)
    run = len(_PADDING_RUN)
    return all(view[at : at + run] == _PADDING_RUN[: len(view) - at] for at in range(0, len(view), run))


def signed_length_at(data: BytesLike, at: int) -> int:
    """The entry length at ``at``; below zero where no entry begins."""
    return int(_signed_at(data, at)[0])


def entry_id_at(data: BytesLike, mark: int) -> int:
    """The id of the entry whose header begins at ``mark``."""
    return int(_id_at(data, mark + 4)[0])


def scan_entries(data: BytesLike, start: int, limit: int) -> list[int]:
    """Where the entries in ``data[start:limit]`` begin, and after them where the last one ends: n + 1 marks.

    Only entries that end at or before ``limit`` are in; the last mark is where an entry cut off by ``limit``, padding, or
    ``limit`` itself begins. Lengths are not judged otherwise, and ids not at all.
    """
    marks = [start]
    at = start
    last = limit - ENTRY_HEADER_BYTES
    # Read as unsigned, a negative length (padding) leaps over the limit like any entry that is cut off: no test per entry.
    length_at = _length_at
    one_by_one = 0
    while at <= last:
        count = _alike(data, at, limit) if isinstance(data, bytes) else 0  # a view's slices with a step are slow
        if count:
            step = length_at(data, at)[0] + ENTRY_HEADER_BYTES
            end = at + count * step
            marks.extend(range(at + step, end + 1, step))
            at, one_by_one = end, 0
        one_by_one = min(2 * one_by_one + _ALIKE_LEAST, _ONE_BY_ONE_MAX)
        for _ in repeat(None, one_by_one):
            if at > last:
                break
            (length,) = length_at(data, at)
            at += length + 12
            marks.append(at)
    if at > limit:
        marks.pop()
    return marks


def _alike(data: bytes, at: int, limit: int) -> int:
    """How many entries from ``at`` on are as long as the first one; 0 for less than ``_ALIKE_LEAST``. One byte of all their lengths is
    a slice with a step: no loop over entries."""
    step = _length_at(data, at)[0] + ENTRY_HEADER_BYTES
    fit = (limit - at) // step
    looked_at = found = min(fit, _ALIKE_LEAST)
    while found >= _ALIKE_LEAST:
        for byte in range(at, at + 4):
            values = data[byte : byte + found * step : step]
            found = len(values) - len(values.lstrip(values[:1]))
        if found < looked_at or found == fit:
            return found if found >= _ALIKE_LEAST else 0
        looked_at = found = min(fit, 8 * found)
    return 0
