"""The index object of a PIP-17 pair: what BookKeeper said of the ledger, and where its blocks begin.

Promises: exact positions; everything in the bytes is checked before it is believed, and a hostile index costs memory in proportion
to its own length, which is bounded. Leaves out: the ledger's id, which is in neither object; whether positions are true, which is
for the reader to find out.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.block_index import (
    BLOCK_ROW,
    BlockRef,
    BlockSpan,
    check_fit,
    check_head,
    check_spans,
    pack_blocks,
    pack_head,
    read_blocks,
    spans_of,
)
from chunkstore.codec.pulsar.frames import LEDGER_UNKNOWN, PIP17
from chunkstore.codec.pulsar.offload_metadata import LedgerMetadata, decode_ledger_metadata
from chunkstore.errors import Damaged

__all__ = ["LedgerIndex", "build_ledger_index", "read_ledger_index"]

_HEAD_BYTES: Final = 32
_COUNTS = Struct(">ii")
_COUNTS_AT: Final = 24
_CLOSED: Final = 3


@dataclass(frozen=True, slots=True)
class LedgerIndex:
    """What the index of one ledger says: the data object's length in bytes, BookKeeper's metadata, and the blocks, which ascend.

    ``raw_metadata`` is the protobuf that ``metadata`` was read from.
    """

    data_length: int
    metadata: LedgerMetadata
    raw_metadata: bytes
    blocks: tuple[BlockRef, ...]

    @property
    def entry_limit(self) -> int:
        """The id that all entries are below, if the metadata says so; else 2^63."""
        last = self.metadata.last_entry
        return 1 << 63 if last is None or self.metadata.state != _CLOSED else last + 1

    def spans(self, ledger: int = LEDGER_UNKNOWN) -> list[BlockSpan]:
        """All blocks in the order of their bytes. A block ends where the next begins."""
        return spans_of([(ledger, self.blocks, self.entry_limit)], self.data_length)


def build_ledger_index(index: LedgerIndex) -> bytes:
    """The bytes of the index object; ``InvalidArgument`` if they would be too many."""
    body = _COUNTS.pack(len(index.blocks), len(index.raw_metadata)) + index.raw_metadata + pack_blocks(index.blocks)
    return pack_head(PIP17, _COUNTS_AT + len(body), index.data_length) + body


def read_ledger_index(data: BytesLike, *, object: str = "index") -> LedgerIndex:
    """What the index object ``data`` says; ``object`` names it in errors.

    Raises ``Damaged`` with the position of the first thing that is wrong: magic, lengths, counts that do not fit the bytes,
    metadata that is none, a first entry other than 0, ids or offsets that do not ascend, blocks outside the data object,
    or blocks that begin with an entry that the ledger does not have.
    """
    data_length = check_head(data, PIP17, _HEAD_BYTES, object)
    count, metadata_length = _COUNTS.unpack_from(data, _COUNTS_AT)
    check_fit(count, metadata_length, len(data) - _HEAD_BYTES, object=object, position=_COUNTS_AT)
    if not count:
        raise Damaged("no block: an empty ledger is never offloaded", object=object, position=_COUNTS_AT)
    view = memoryview(data)
    rows = _HEAD_BYTES + metadata_length
    raw = bytes(view[_HEAD_BYTES:rows])
    metadata = decode_ledger_metadata(raw, object=object, position=_HEAD_BYTES)
    _check_rows(view, rows, count, data_length, object)
    blocks, end = read_blocks(view, rows, count, data_length, object)
    index = LedgerIndex(data_length, metadata, raw, blocks)
    if blocks[-1].first_entry >= index.entry_limit:
        raise Damaged(
            f"a block begins with entry {blocks[-1].first_entry}, and the ledger's last entry is {metadata.last_entry}",
            object=object,
            position=end - BLOCK_ROW.size,
        )
    if end != len(data):
        raise Damaged(f"{len(data) - end} bytes follow the last block", object=object, position=end)
    check_spans(index.spans(), data_length, object)
    return index


def _check_rows(data: memoryview, rows: int, count: int, data_length: int, object: str) -> None:
    """What holds for PIP-17 alone: the first entry is 0, and Pulsar's own offloader has not stopped half way."""
    first, _, _ = BLOCK_ROW.unpack_from(data, rows)
    if first != 0:
        raise Damaged(f"the first block begins with entry {first}, 0 expected", object=object, position=rows)
    row = rows + (count - 1) * BLOCK_ROW.size
    lost, _, offset = BLOCK_ROW.unpack_from(data, row)
    if offset == data_length:
        raise Damaged(
            f"written by Pulsar's offloader, which stopped at entry {lost} because it is longer than a block (D1): the entries "
            "from there on are in no object",
            object=object,
            position=row,
        )
