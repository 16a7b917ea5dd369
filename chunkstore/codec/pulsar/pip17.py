"""PIP-17: one whole ledger as a data object and its index; neither has the ledger's id. FORMAT.md, section 6, has the bytes.

Promises: reading checks everything before it is believed, and a hostile index costs memory in proportion to its own length, which is
bounded. Writing is byte for byte what Pulsar's own offloader writes, but for an entry longer than a block, where that one loses all
that follow (D1): here the block is longer, which Pulsar's readers take. Leaves out: storing anything; objects whose index is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from struct import Struct
from typing import ClassVar, Final

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
from chunkstore.codec.pulsar.encoding import BlockEncoder, EncodedBlock
from chunkstore.codec.pulsar.frames import (
    ENTRY_BYTES_MAX,
    ENTRY_HEADER_BYTES,
    LEDGER_UNKNOWN,
    PIP17,
    WINDOW_BYTES,
    DataSource,
)
from chunkstore.codec.pulsar.offload_metadata import LedgerMetadata, decode_metadata, encode_metadata
from chunkstore.codec.pulsar.windows import BlockReader
from chunkstore.config import MIB
from chunkstore.errors import Damaged, InvalidArgument

__all__ = [
    "BLOCK_BYTES_MAX",
    "LedgerEncoder",
    "LedgerIndex",
    "LedgerObjectReader",
    "build_ledger_index",
    "read_ledger_index",
]

BLOCK_BYTES_MAX = 64 * MIB
"""Default block size, which is Pulsar's. S3 wants parts of at least 5 MiB, and at most 10,000 of them."""
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
    def is_closed(self) -> bool:
        """Whether the metadata says that the ledger is closed, and with which entry it ends."""
        return self.metadata.state == _CLOSED and self.metadata.last_entry is not None

    @property
    def entry_limit(self) -> int:
        """The id that all entries are below, if the metadata says so; else 2^63."""
        return (self.metadata.last_entry or 0) + 1 if self.is_closed else 1 << 63

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
    last_row = rows + (count - 1) * BLOCK_ROW.size
    raw = bytes(view[_HEAD_BYTES:rows])
    metadata = decode_metadata(LedgerMetadata, raw, object=object, position=_HEAD_BYTES)
    first, _, _ = BLOCK_ROW.unpack_from(data, rows)
    if first != 0:
        raise Damaged(f"the first block begins with entry {first}, 0 expected", object=object, position=rows)
    lost, _, offset = BLOCK_ROW.unpack_from(data, last_row)
    if offset == data_length:
        text = f"written by Pulsar's offloader, which stopped at entry {lost} because it is longer than a block (D1): the entries "
        raise Damaged(text + "from there on are in no object", object=object, position=last_row)
    blocks, end = read_blocks(view, rows, count, data_length, object)
    index = LedgerIndex(data_length, metadata, raw, blocks)
    if blocks[-1].first_entry >= index.entry_limit:
        text = (
            f"a block begins with entry {blocks[-1].first_entry}, and the ledger's last entry is {metadata.last_entry}"
        )
        raise Damaged(text, object=object, position=last_row)
    if end != len(data):
        raise Damaged(f"{len(data) - end} bytes follow the last block", object=object, position=end)
    check_spans(index.spans(), data_length, object)
    return index


class LedgerObjectReader(BlockReader):
    """Reads the entries of the ledger whose index has been read, from its data object; see ``BlockReader``.

    ``ledger`` is the id that entries get: ``ledgers`` has it as its only one.
    """

    format = PIP17

    def __init__(
        self,
        source: DataSource,
        index: LedgerIndex,
        *,
        ledger: int = LEDGER_UNKNOWN,
        window_bytes: int = WINDOW_BYTES,
        entry_bytes_max: int = ENTRY_BYTES_MAX,
    ) -> None:
        """Compare lengths; reads only where they differ. ``Damaged`` if the data object is not as long as the index says."""
        self.index = index
        super().__init__(source, index.spans(ledger), index.data_length, (ledger,), window_bytes, entry_bytes_max)


class LedgerEncoder(BlockEncoder):
    """Encodes one ledger, whose entries begin with 0 and have no gaps. Not thread-safe. ``sink`` is called with each finished
    block, in order: part 1, 2, and so on.

    Every block but the last is padded up to ``block_bytes_max``. An entry that is too long for any block gets one of its own,
    as long as it needs. ``metadata`` goes into the index; its ``length`` and ``last_entry`` are filled in where they are ``None``,
    and must be right where they are not. ``ledger`` is for ``EncodedBlock`` alone: the objects do not hold it.
    """

    format = PIP17
    block_bytes_least: ClassVar[int] = 256

    def __init__(
        self,
        sink: Callable[[EncodedBlock], object],
        metadata: LedgerMetadata,
        *,
        ledger: int = LEDGER_UNKNOWN,
        block_bytes_max: int = BLOCK_BYTES_MAX,
    ) -> None:
        """``InvalidArgument`` for a block size out of bounds, or metadata that cannot be written."""
        super().__init__(sink, block_bytes_max)
        encode_metadata(replace(metadata, length=metadata.length or 0))
        self._metadata = metadata
        self._ledger = ledger
        self._block_max = block_bytes_max
        self._payload_bytes = 0

    def finish(self) -> bytes:
        """Hand out the last block and return the index object's bytes; the encoder is closed then.

        ``InvalidArgument`` if there is no entry, if the metadata's ``length`` or ``last_entry`` is another one than that of
        the entries (the last block is handed out all the same), or if the index would be longer than 8 MiB.
        """
        self._check_open()
        if self._last < 0:
            raise InvalidArgument("an empty ledger is never offloaded", argument="entries")
        self._emit(final=True)
        self._closed = True
        given = self._metadata
        found = replace(given, length=self._payload_bytes, last_entry=self._last)
        if given.length not in (None, found.length) or given.last_entry not in (None, found.last_entry):
            told, there = (
                f"{given.length} bytes up to entry {given.last_entry}",
                f"{found.length} up to {found.last_entry}",
            )
            raise InvalidArgument(f"the metadata has {told}, the entries {there}", argument="metadata")
        return build_ledger_index(LedgerIndex(self._written, found, encode_metadata(found), tuple(self._blocks)))

    def _account(self, first: int, last: int, entries: int, size: int) -> None:
        super()._account(first, last, entries, size)
        self._payload_bytes += size - ENTRY_HEADER_BYTES * entries

    def _block_length(self, used: int, *, final: bool) -> int:
        return used if final else max(used, self._block_max)
