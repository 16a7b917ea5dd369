"""Reading a PIP-76 offload segment: its blocks, and Pulsar's own writer recognised by its defect.

Promises: as ``windows``; entries that are missing (gaps) are simply not there. Objects written by Pulsar's own writer, whose
positions leave out each block's first entry, are recognised by name. Leaves out: reading such objects all the same,
and ledgers that go on in another segment.
"""

from __future__ import annotations

from typing import ClassVar

from chunkstore.codec.pulsar.block_index import BlockSpan
from chunkstore.codec.pulsar.frames import (
    BLOCK_HEADER_BYTES,
    ENTRY_BYTES_MAX,
    ENTRY_HEADER_BYTES,
    PIP76,
    WINDOW_BYTES,
    BlockFormat,
    DataSource,
    entry_id_at,
    scan_entries,
    signed_length_at,
)
from chunkstore.codec.pulsar.pip76_index import SegmentIndex
from chunkstore.codec.pulsar.windows import BlockReader
from chunkstore.errors import ChunkstoreError, Damaged

__all__ = ["SegmentReader"]

_PROOF_BLOCKS_MAX = 64
"""Blocks that are looked at to find out what is wrong with an object: the first full one shows it."""


class SegmentReader(BlockReader):
    """Reads the entries of one offload segment, whose index has been read, from its data object; see ``BlockReader``."""

    format: ClassVar[BlockFormat] = PIP76

    def __init__(
        self,
        source: DataSource,
        index: SegmentIndex,
        *,
        window_bytes: int = WINDOW_BYTES,
        entry_bytes_max: int = ENTRY_BYTES_MAX,
    ) -> None:
        """Compare lengths; reads only where they differ. ``Damaged`` if the data object is not as long as the index says."""
        self.index = index
        spans: dict[int, list[BlockSpan]] = {group.ledger: [] for group in index.ledgers}
        for span in index.spans():
            spans[span.ledger].append(span)
        super().__init__(source, spans, index.data_length, window_bytes=window_bytes, entry_bytes_max=entry_bytes_max)

    def _defect(self) -> Damaged | None:
        """The error that names the first-entry defect, if this object has it: proven, not guessed.

        Pulsar's own writer leaves the first entry of a full block out of the block's length, and so out of all later offsets
        and the data length. A block that goes on beyond its declared end, by no more than its first entry is long, up to the
        very block that the index has next (or the object's end), is the proof.
        """
        spans = sorted((span for spans in self._spans.values() for span in spans), key=lambda span: span.start)
        try:
            for span, follower in zip(spans[:_PROOF_BLOCKS_MAX], [*spans[1:], None], strict=False):
                head = self._read(span.start, BLOCK_HEADER_BYTES + ENTRY_HEADER_BYTES)
                header = PIP76.parse(head, object=self.source.name, position=span.start)
                first_length = signed_length_at(head, BLOCK_HEADER_BYTES)
                if (header.ledger, header.first_entry) != (span.ledger, span.first_entry):
                    return None
                if not 0 <= first_length <= self._entry_bytes_max:
                    return None
                declared_end = span.start + header.length
                surplus = self._surplus(span.start, declared_end, first_length, follower)
                if surplus is None:
                    return None
                if surplus:
                    lost = "" if surplus == first_length else ", except those at a block's end that were never written"
                    return Damaged(
                        "written by Pulsar's streaming offloader with wrong offsets (W1), the first-entry defect of Pulsar's own "
                        "PIP-76 writer: block lengths, index offsets and the data length leave out the first entry of each full "
                        f"block (the block at {span.start} says {header.length} bytes and has {header.length + surplus}); the "
                        f"entries are there{lost}: offload the ledgers again",
                        object=self.source.name,
                        position=declared_end,
                    )
        except ChunkstoreError:
            return None
        return None

    def _surplus(self, start: int, position: int, most: int, follower: BlockSpan | None) -> int | None:
        """How far after ``position``, 0 to ``most``, the block ``follower`` begins; without one, where the object ends, if
        the entries of the block at ``start`` go on up to there.
        """
        if follower is None:
            surplus = self.source.length - position
            sound = 0 <= surplus <= most and (not surplus or self._entries_reach_the_end(start))
            return surplus if sound else None
        length = min(most + BLOCK_HEADER_BYTES, self.source.length - position)
        if length < BLOCK_HEADER_BYTES:
            return None
        data = bytes(self._read(position, length))
        found = data.find(PIP76.begin)
        while 0 <= found <= length - BLOCK_HEADER_BYTES:
            header = PIP76.parse(
                data[found : found + BLOCK_HEADER_BYTES], object=self.source.name, position=position + found
            )
            if (header.ledger, header.first_entry) == (follower.ledger, follower.first_entry):
                return found
            found = data.find(PIP76.begin, found + 1)
        return None

    def _entries_reach_the_end(self, start: int) -> bool:
        """Whether the block at ``start`` is nothing but entries with ascending ids, the last of which ends the object."""
        position, previous = start + BLOCK_HEADER_BYTES, -1
        while position < self.source.length:
            length = min(self._window_bytes, self.source.length - position)
            data = self._read(position, length)
            marks = scan_entries(data, 0, length)
            for mark in marks[:-1]:
                entry = entry_id_at(data, mark)
                if entry <= previous:
                    return False
                previous = entry
            if len(marks) > 1:
                position += marks[-1]
            elif length < ENTRY_HEADER_BYTES or signed_length_at(data, 0) < 0:
                return False
            else:
                position += ENTRY_HEADER_BYTES + signed_length_at(data, 0)
        return position == self.source.length
