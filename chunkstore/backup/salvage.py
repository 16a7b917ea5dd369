"""Salvage: what is left of a damaged container, as a state that can be copied (protocol 3.15).

The source is only read. Every block of every chunk is compared with its recorded CRC32C first; a rotten or missing one is taken from the
copy, if that has it. A segment that has lost bytes ends in front of the first lost one, and is sealed; what follows a hole becomes a
sealed segment of its own, with the offsets that it had. So no reader is shown bytes that were not written there, and lost ranges are
told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.backup.survey import FoundChunk, Source, Stretch
from chunkstore.config import LIMITS
from chunkstore.journal import RecordsPast
from chunkstore.metadata.keys import segment_key
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
    """What is sound of the segments that ``stretches`` finds. Use once, and ask for the ``report`` at the end."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lost: list[LostRange] = []
        self._lost_ranges = self._lost_bytes = self._replaced_bytes = 0
        self._part: SegmentRecord | None = None
        """What is left of the present segment, or of it after the last hole: a new segment, which has no id yet."""
        self._has_lost = False
        """Of the present segment."""
        self._flaw = ""
        """The first chunk of the present hole."""
        self._made: set[str] = set()

    def sound(self, pages: Iterable[list[Stretch]]) -> Iterator[list[Stretch]]:
        """What is left of these. Raises what the storages raise."""
        with closing(runtime.pool("chunkstore-salvage", _WORKERS)) as pool:
            for page in pages:
                calls = [partial(self._sound_pieces, chunk) for stretch in page for chunk in stretch.chunks]
                found = iter(pool.run_all(calls))
                yield [
                    left
                    for stretch in page
                    for left in self._left_of(stretch, [(chunk, next(found)) for chunk in stretch.chunks])
                ]

    def report(self) -> SalvageReport:
        """What is lost in all."""
        damage, past = self._source.damage, self._source.past
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

    def _left_of(self, stretch: Stretch, found: Iterable[tuple[FoundChunk, list[FoundChunk]]]) -> Iterator[Stretch]:
        """Of chunks and their sound pieces: the stretches of the segment and of those that are made of its rests."""
        segment = stretch.segment
        part = self._part or _beginning(segment, segment.start_offset)
        kept: list[FoundChunk] = []
        for chunk, pieces in found:
            stop = chunk.offset
            for piece in pieces:
                stop = piece.offset + piece.length
                if stop <= segment.start_offset:
                    continue
                if piece.offset > part.length:
                    self._flaw = self._flaw or chunk.address.object
                    rest = self._new_name(segment.name, piece.offset)
                    self._lose(segment, part, piece.offset, rest)
                    yield Stretch(self._sealed(part), kept, is_last=True)
                    part, kept = _beginning(segment, piece.offset)._replace(name=rest, id=0), []
                if part.length == part.start_offset:
                    part = part._replace(first_chunk_skip=part.start_offset - piece.offset)
                part = part._replace(length=stop)
                kept.append(piece)
                self._flaw = ""
                self._replaced_bytes += piece.length * (piece.storage is not self._source.storage)
            if stop < chunk.offset + chunk.length:
                self._flaw = self._flaw or chunk.address.object
        if stretch.is_last and part.length < segment.length:
            self._lose(segment, part, segment.length, "")
        if stretch.is_last or kept:
            yield Stretch(self._sealed(part), kept, stretch.is_last)
        self._part = part
        if stretch.is_last:
            self._part, self._has_lost, self._flaw = None, False, ""

    def _sealed(self, part: SegmentRecord) -> SegmentRecord:
        return part._replace(flags=part.flags | FLAG_SEALED * self._has_lost)

    def _lose(self, segment: SegmentRecord, part: SegmentRecord, stop: int, rest: str) -> None:
        self._has_lost = True
        self._lost_ranges += 1
        self._lost_bytes += stop - part.length
        if len(self._lost) < _LOST_MAX:
            self._lost.append(LostRange(segment.name, part.length, stop, self._flaw, rest))

    def _new_name(self, name: str, offset: int) -> str:
        """A name that no segment has."""
        tail = f".after-{offset}"
        while True:
            made = name.encode()[: LIMITS.segment_name_bytes_max - len(tail)].decode("utf-8", "ignore") + tail
            if made not in self._made and self._source.view.get(segment_key(made)) is None:
                self._made.add(made)
                return made
            tail += "+"

    # ---- comparing

    def _sound_pieces(self, chunk: FoundChunk) -> list[FoundChunk]:
        """The stretches of whole blocks that are sound, each in one place."""
        source, (at, crcs) = self._source, chunk.borders
        places = [*places_of(source.storage, chunk.address, source.names, chunk.identity, source.copy)]
        found = _found(places, chunk.borders)
        if NOWHERE in found and source.copy is not None and (more := _growing(source, chunk.identity, source.copy)):
            places += more
            found = _found(places, chunk.borders)
        if not any(found):
            return [chunk]
        pieces = list[FoundChunk]()
        stop = 0
        for place, blocks in groupby(found):
            first, stop = stop, stop + sum(1 for _ in blocks)
            if place != NOWHERE:
                low, high = at[first], at[stop]
                borders = merged_borders([Piece(low, high, Borders(at[first : stop + 1], crcs[first : stop + 1]))])
                storage, (name, begin) = places[place]
                piece = chunk._replace(offset=chunk.offset + low, length=high - low, storage=storage)
                pieces.append(piece._replace(address=Address(name, begin + low), borders=borders))
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
