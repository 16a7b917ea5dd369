"""Blocks of PIP-76 data objects: the 128-byte header, the framing of entries, padding, and the scan over entries.

A data object is a row of blocks; a block is a header, entries of one ledger in ascending order, and padding. FORMAT.md
beside this file has the tables. Promises: constant memory, no I/O of its own, and a scan that makes no object per entry
besides one int. Leaves out: which block stands where (``pip76_index``) and everything that reads or writes objects.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from struct import Struct
from typing import NamedTuple

from chunkstore.checksum import BytesLike
from chunkstore.config import KIB, MIB
from chunkstore.errors import Damaged, InvalidArgument

__all__ = [
    "BLOCK_HEADER_BEGIN",
    "BLOCK_HEADER_BYTES",
    "BLOCK_MAGIC",
    "ENTRY_BYTES_MAX",
    "ENTRY_HEADER_BYTES",
    "ENTRY_ID_MAX",
    "PADDING_PATTERN",
    "WINDOW_BYTES",
    "BlockHeader",
    "DataSource",
    "Entry",
    "check_entry",
    "entry_id_at",
    "frame_header",
    "is_padding",
    "pack_block_header",
    "padding",
    "parse_block_header",
    "scan_entries",
    "signed_length_at",
]

BLOCK_MAGIC = 0x26A66D32
BLOCK_HEADER_BYTES = 128
BLOCK_HEADER_BEGIN = BLOCK_MAGIC.to_bytes(4, "big") + BLOCK_HEADER_BYTES.to_bytes(8, "big")
"""What every block begins with: magic and header length."""
ENTRY_HEADER_BYTES = 12
PADDING_PATTERN = b"\xfe\xdc\xde\xad"
ENTRY_BYTES_MAX = 128 * MIB
"""Longest payload that is written, and by default read: it bounds the memory one entry can ask for."""
WINDOW_BYTES = 1 * MIB
"""Bytes asked for in one read: large enough for few calls, small enough for the processor's cache."""
ENTRY_ID_MAX = (1 << 63) - 1

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
    """What a block's header says: its length in bytes (header and padding included), first entry id and ledger id."""

    length: int
    first_entry: int
    ledger: int


class Entry(NamedTuple):
    """One entry of a ledger."""

    ledger: int
    entry: int
    payload: bytes


class DataSource(NamedTuple):
    """A stored data object: its name (for errors), its length in bytes *as the storage knows it*, and how to read it.

    ``read(offset, length)`` returns the bytes of that range, fewer only where the object ends; the returned buffer may be
    reused by the next call. Its errors pass through unchanged.
    """

    name: str
    length: int
    read: Callable[[int, int], BytesLike]


def pack_block_header(header: BlockHeader) -> bytes:
    """The 128 bytes that begin a block."""
    return _BLOCK.pack(BLOCK_MAGIC, BLOCK_HEADER_BYTES, header.length, header.first_entry, header.ledger)


def parse_block_header(data: BytesLike, *, object: str, position: int) -> BlockHeader:
    """The header in the first 128 bytes of ``data``; ``object`` and ``position`` say in errors where they were read.

    Raises ``Damaged`` where bytes are missing, the magic or a length is wrong, or an id is negative. The reserved bytes are
    not looked at.
    """
    if len(data) < BLOCK_HEADER_BYTES:
        raise Damaged(
            f"a block header has {BLOCK_HEADER_BYTES} bytes, {len(data)} are here", object=object, position=position
        )
    magic, header_length, length, first_entry, ledger = _BLOCK.unpack_from(data)
    if magic != BLOCK_MAGIC:
        raise Damaged(
            f"no block begins here: magic 0x{magic:08X}, 0x{BLOCK_MAGIC:08X} expected", object=object, position=position
        )
    if header_length != BLOCK_HEADER_BYTES:
        raise Damaged(
            f"block header length {header_length}, {BLOCK_HEADER_BYTES} expected", object=object, position=position + 4
        )
    if length < BLOCK_HEADER_BYTES:
        raise Damaged(f"block length {length} is less than its header", object=object, position=position + 12)
    if first_entry < 0 or ledger < 0:
        raise Damaged(f"negative id: ledger {ledger}, entry {first_entry}", object=object, position=position + 20)
    return BlockHeader(length, first_entry, ledger)


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
    """Where the entries in ``data[start:limit]`` begin, and behind them where the last one ends: n + 1 marks.

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
