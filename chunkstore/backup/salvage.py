"""Salvage: what is left of a damaged container, as a state that can be imported (protocol 3.15).

Promises: the source is only read. Every block of every chunk is compared with its recorded CRC32C first; a rotten or missing one is taken
from the copy, if that has it. A segment that has lost bytes ends in front of the first lost one, and is sealed; what follows a hole becomes
a sealed segment of its own, with the offsets that it had. So no reader is shown bytes that were not written there, and lost ranges are
told. Leaves out: which record is the last good one (``chunkstore_journal.salvage``), the new container (``founding``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.backup.copy_in import ForeignChunk
from chunkstore.backup.survey import FoundChunk, Source
from chunkstore.config import LIMITS
from chunkstore.journal import RecordsPast
from chunkstore.metadata.keys import segment_key
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.read_slices import NOWHERE, WINDOW_BYTES, Places, places_of, sound_blocks, whole_blocks
from chunkstore.records.blocks import Borders, Piece, merged_borders
from chunkstore.records.names import Address, BackupNames
from chunkstore.records.segments import FLAG_SEALED, SegmentRecord
from chunkstore.storage import ChunkStorage, iter_listing

__all__ = ["LostRange", "Salvage", "SalvageReport"]

_WORKERS: Final = 16
_LOST_MAX: Final = 1_000


class LostRange(NamedTuple):
    """Bytes ``[start, stop)`` of a segment that neither it nor the copy has; the first of them belong to ``chunk``. ``rest``: the new
    segment that holds what follows them; empty: nothing does."""

    segment: str
    start: int
    stop: int
    chunk: str
    rest: str


class SalvageReport(NamedTuple):
    """What a salvage could not bring back. ``damage`` at ``object`` and ``position``: why history ends where it does; empty: it is its end.
    ``lost``: the first thousand of ``lost_ranges``; ``replaced_bytes`` came from the copy."""

    damage: str
    object: str
    position: int
    past: RecordsPast
    lost: tuple[LostRange, ...]
    lost_ranges: int
    lost_bytes: int
    replaced_bytes: int

    @property
    def ok(self) -> bool:
        """Whether nothing is lost."""
        return not (self.damage or self.lost_ranges)


class Salvage:
    """Takes chunks as ``survey`` finds them, in order, and hands on what of them is sound. Use once, and ``finish`` it."""

    def __init__(self, source: Source, keep: Callable[[list[FoundChunk]], object] | None) -> None:
        self.parts: dict[str, list[SegmentRecord]] = {}
        """What is left of segments that have lost bytes; those but the first are new ones, and have no id yet."""
        self._source = source
        self._keep = keep
        self._lost: list[LostRange] = []
        self._lost_ranges = self._lost_bytes = self._replaced_bytes = 0
        self._segment: SegmentRecord | None = None
        self._left: list[SegmentRecord] = []
        """Of the present segment."""
        self._flaw = ""
        """The first chunk of the present hole."""
        self._made: set[str] = set()

    def keep(self, found: list[FoundChunk]) -> None:
        """Compare these. Raises what the storages raise."""
        pool = runtime.pool("chunkstore-salvage", _WORKERS)
        try:
            pieces = pool.run_all([partial(self._sound_pieces, item) for item in found])
        finally:
            pool.close()
        kept: list[FoundChunk] = []
        for item, sound in zip(found, pieces, strict=True):
            if self._segment is None or self._segment.name != item.segment.name:
                self._end_segment()
                self._segment, self._left = item.segment, [_beginning(item.segment, item.segment.start_offset)]
            chunk, stop = item.chunk.address.object, item.offset
            for piece in sound:
                stop = piece.offset + piece.chunk.length
                if stop > item.segment.start_offset:
                    self._add(piece, chunk)
                    kept.append(piece)
            if stop < item.offset + item.chunk.length:
                self._flaw = self._flaw or chunk
        if self._keep is not None:
            self._keep(kept)

    def finish(self) -> SalvageReport:
        """What is lost in all."""
        self._end_segment()
        damage, past = self._source.end
        return SalvageReport(
            damage.message if damage is not None else "",
            damage.object if damage is not None else "",
            damage.position if damage is not None else 0,
            past,
            tuple(self._lost),
            self._lost_ranges,
            self._lost_bytes,
            self._replaced_bytes,
        )

    def _add(self, piece: FoundChunk, chunk: str) -> None:
        last, stop = self._left[-1], piece.offset + piece.chunk.length
        if piece.offset > last.length:
            rest = self._new_name(piece.segment.name, piece.offset)
            self._flaw = self._flaw or chunk
            self._lose(piece.offset, rest)
            last = _beginning(piece.segment, piece.offset)._replace(name=rest, id=0)
            self._left.append(last)
        if last.length == last.start_offset:
            last = last._replace(first_chunk_skip=last.start_offset - piece.offset)
        self._left[-1] = last._replace(length=stop)
        self._flaw = ""
        self._replaced_bytes += piece.chunk.length * piece.chunk.in_copy

    def _lose(self, stop: int, rest: str) -> None:
        start, name = self._left[-1].length, self._left[0].name
        self._lost_ranges += 1
        self._lost_bytes += stop - start
        if len(self._lost) < _LOST_MAX:
            self._lost.append(LostRange(name, start, stop, self._flaw, rest))

    def _end_segment(self) -> None:
        segment, self._segment = self._segment, None
        if segment is None:
            return
        if self._left[-1].length < segment.length:
            self._lose(segment.length, "")
        if self._left != [segment]:
            has_lost = len(self._left) > 1 or self._left[0].length < segment.length
            flags = segment.flags | FLAG_SEALED * has_lost
            self.parts[segment.name] = [part._replace(flags=flags) for part in self._left]
        self._flaw = ""

    def _new_name(self, name: str, offset: int) -> str:
        """A name that no segment has."""
        tail = f".after-{offset}"

        def taken(view: MetadataView) -> bool:
            return made in self._made or view.get(segment_key(made)) is not None

        while True:
            made = name.encode()[: LIMITS.segment_name_bytes_max - len(tail)].decode("utf-8", "ignore") + tail
            if not self._source.look(taken):
                self._made.add(made)
                return made
            tail += "+"

    # ---- comparing

    def _sound_pieces(self, item: FoundChunk) -> list[FoundChunk]:
        """The stretches of whole blocks that are sound, each in one place."""
        source, chunk = self._source, item.chunk
        assert chunk.borders is not None
        at, crcs = chunk.borders
        places = [*places_of(source.storage, chunk.address, source.names, item.identity, source.copy)]
        found = _found(places, chunk.borders)
        if NOWHERE in found and source.copy is not None and (more := _growing(source, item.identity, source.copy)):
            places += more
            found = _found(places, chunk.borders)
        if not any(found):
            return [item]
        pieces = list[FoundChunk]()
        stop = 0
        for place, blocks in groupby(found):
            first, stop = stop, stop + sum(1 for _ in blocks)
            if place != NOWHERE:
                low, high = at[first], at[stop]
                borders = merged_borders([Piece(low, high, Borders(at[first : stop + 1], crcs[first : stop + 1]))])
                address = Address(places[place][1].object, places[place][1].offset + low)
                part = ForeignChunk(address, high - low, borders, chunk.created_ms, place > 0)
                pieces.append(FoundChunk(item.segment, item.offset + low, part, item.identity))
        return pieces


def _found(places: Places, borders: Borders) -> list[int]:
    """The place of each block."""
    return [place for window in whole_blocks(borders, WINDOW_BYTES) for place in sound_blocks(places, window)[1]]


def _growing(source: Source, identity: bytes, copy: ChunkStorage) -> list[tuple[ChunkStorage, Address]]:
    """Copies of a chunk that backups made while it was growing, the longest first."""
    prefix = BackupNames(source.names.container).copy(identity, 0)[:-1]
    return [(copy, Address(info.name, 0)) for info in sorted(iter_listing(copy, prefix), key=lambda info: -info.length)]


def _beginning(segment: SegmentRecord, start: int) -> SegmentRecord:
    return segment._replace(start_offset=start, length=start, first_chunk_skip=0)
