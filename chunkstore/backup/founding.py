"""The state that a new container begins with: what is imported, with ids of its own.

Rows and index entries come in ascending order, as a snapshot wants them, in bounded memory. Ids are counted under the epoch of the claim,
in the order of the lists, so that a chunk's neighbours are known before they come, and so that the copies of a try that died are found
by their ids, compared, and used. Chunks are durable before their rows are handed on. Garbage, sessions, pins and the position of
scrubbing are left out: they speak of the other history."""

from __future__ import annotations

import errno
import itertools
import marshal
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from heapq import merge
from itertools import accumulate, chain
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from chunkstore.backup.copy_in import ChunkToCopy, ForeignChunk, Place, piece_bytes
from chunkstore.backup.survey import FoundChunk, Source, rows_after, segments_after
from chunkstore.errors import Damaged, NotOwner, StorageFull, StorageUnavailable
from chunkstore.metadata.codec import decode_table, encode_row, encode_segment, pack_chunks
from chunkstore.metadata.index import extent_entries, run_entry
from chunkstore.metadata.keys import (
    CHUNK,
    segment_key,
    table_key,
    writer_key,
    writer_range,
)
from chunkstore.metadata.lines import decode_writer_row
from chunkstore.metadata.port import MetadataView
from chunkstore.metadata.reserved import border_rows
from chunkstore.records.blocks import Borders
from chunkstore.records.names import NO_CHUNK, Address, chunk_epoch, chunk_id, chunk_segment
from chunkstore.records.segments import CLOSED, KIND_OBJECT, SegmentRecord, TableRecord
from chunkstore.storage import iter_listing

__all__ = ["Chunks", "Spool", "State"]

Pair: TypeAlias = tuple[bytes, bytes]
_Kept: TypeAlias = tuple[tuple[str, int], int, tuple[int, ...] | None, tuple[int, ...] | int, int, bool]
"""Of a chunk there: address (plain tuples can be marshalled), length, where its borders lie and their CRCs (None and its own: one block),
label, whether it is read in the copy."""
_Piece: TypeAlias = tuple[bytes, int, int | None, int, Borders | None]
"""Of a chunk here: id, length, CRC, label, and borders where there are several blocks."""

_PAGE: Final = 1_024
_FIRST_VERSION: Final = 1
"""Of rows of tables: the OPEN's lsn."""
_by_key = itemgetter(0)


class Chunks:
    """What a survey found of the chunks, put aside until they are copied (``survey(keep=chunks.keep)``)."""

    def __init__(self) -> None:
        self._kept = Spool[_Kept]()

    def keep(self, found: list[FoundChunk]) -> None:
        """Put these after what is there."""
        kept: list[_Kept] = []
        for _, _, ((name, begin), length, borders, created_ms, in_copy), _ in found:
            assert borders is not None
            if len(borders.at) == 2:
                kept.append(((name, begin), length, None, borders.crcs[1], created_ms, in_copy))
            else:
                kept.append(((name, begin), length, tuple(borders.at), tuple(borders.crcs), created_ms, in_copy))
        self._kept.add(kept)

    def pages(self) -> Iterator[list[_Kept]]:
        """All of them."""
        return self._kept.pages()

    def close(self) -> None:
        """Forget them. Safe to repeat."""
        self._kept.close()


class _Run(NamedTuple):
    """Chunks of one segment, in order; ``first``: the number of the first one here. ``is_last``: no more follow."""

    segment: SegmentRecord
    id: int
    first: int
    chunks: list[_Kept]
    is_last: bool


class State:
    """The rows of one claim: ``pairs``, once."""

    def __init__(
        self,
        source: Source,
        chunks: Chunks,
        place: Place,
        *,
        epoch: int,
        goes_on: bool,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        self._source = source
        self._chunks = chunks
        self._place = place
        self._epoch = epoch
        self._progress = progress or (lambda _: None)
        self._ids = itertools.count((epoch << 32) + 1)
        self._tail = int.from_bytes(source.origin.hash[:4], "big")
        """Of the ids of chunks, in the place of chance: a caller that takes in the same finds them."""
        self._piece_bytes = piece_bytes(place.storage)
        self._are_single = place.storage.capabilities.append
        self._former = self._find_former() if goes_on else {}
        self._files = ExitStack()
        self._segments = self._spool()
        self._parts: list[Pair] = []
        """The rows of segments that hold what follows a hole, out of order."""
        self._writers = self._spool()
        self._runs = self._spool()
        self._extents = self._spool()
        self._blocks: dict[bytes, Spool[Pair]] = {}

    def _spool(self) -> Spool[Pair]:
        made = Spool[Pair]()
        self._files.callback(made.close)
        return made

    def pages(self) -> Iterator[list[Pair]]:
        """All rows and index entries, ascending. Raises ``Damaged`` and ``ChunkNotFound`` (a chunk), ``NotOwner`` (somebody claims after
        us), ``InvalidArgument`` (a name), and what the storages raise."""
        with self._files:
            yield from self._chunk_rows()
            blocks = [self._blocks[epoch] for epoch in sorted(self._blocks)]
            segments = merge(self._segments, sorted(self._parts), key=_by_key)
            found = chain(segments, merge(*blocks, self._writers, self._tables(), key=_by_key), self._runs)
            yield from ([pair] for pair in found)
            yield from self._extents.pages()

    # ---- chunks

    def _chunk_rows(self) -> Iterator[list[Pair]]:
        if not self._former:
            yield from self._rows_as_they_come()
            return
        # What a former epoch has copied has ids of that epoch.
        by_epoch: dict[bytes, Spool[Pair]] = {}
        for page in self._rows_as_they_come():
            for pair in page:
                self._put(by_epoch, pair[0][9:17], [pair])
        yield from ([pair] for pair in merge(*(by_epoch[epoch] for epoch in sorted(by_epoch)), key=_by_key))

    def _put(self, spools: dict[bytes, Spool[Pair]], epoch: bytes, pairs: list[Pair]) -> None:
        spool = spools.get(epoch)
        if spool is None:
            spool = spools[epoch] = self._spool()
        spool.add(pairs)

    def _rows_as_they_come(self) -> Iterator[list[Pair]]:
        begun: _Begun | None = None
        for runs in self._pages():
            fence = self._place.names.epoch(self._epoch + 1)
            if self._place.storage.exists(fence):
                raise NotOwner(epoch=self._epoch, owner=self._epoch + 1)
            for run, pieces in zip(runs, self._copied(runs), strict=True):
                if begun is None:
                    begun = _Begun(run.segment, run.id, self._epoch)
                rows, extents, borders = begun.add(pieces, is_last=run.is_last)
                yield rows
                self._extents.add(extents)
                for identity, several in borders:
                    self._keep_borders(identity, several)
                if run.is_last:
                    self._end(begun)
                    begun = None

    def _keep_borders(self, identity: bytes, borders: Borders) -> None:
        rows = border_rows(identity, borders).items()
        self._put(
            self._blocks,
            identity[8:16],
            [(key, encode_row(row._replace(version=_FIRST_VERSION))) for key, row in rows],
        )

    def _end(self, begun: _Begun) -> None:
        """Put the rows aside of a segment that is whole. Raises ``Damaged``."""
        segment = begun.record()
        if segment.length != begun.there.length:
            text = f"its chunks end at {segment.length}, the segment at {begun.there.length}"
            raise Damaged(text, object=f"segment {segment.name!r}", position=segment.length)
        row = segment_key(segment.name), encode_segment(segment)
        if begun.there.id:
            self._segments.add([row])
            self._source.look(partial(self._keep_writers, begun.there, segment.id))
        else:
            self._parts.append(row)
        if segment.chunk_count:
            self._runs.add([run_entry(segment)])

    def _keep_writers(self, there: SegmentRecord, here: int, view: MetadataView) -> None:
        start, stop = writer_range(there.id)
        for key, raw in view.scan(start, stop):
            value = decode_table(key, raw).value
            event = decode_writer_row(there.name, raw)
            if event.offset + event.length <= there.length:  # else its bytes are lost: it is to be sent again
                row = encode_row(TableRecord(_FIRST_VERSION, value))
                self._writers.add([(writer_key(here, key[len(start) :]), row)])

    def _pages(self) -> Iterator[list[_Run]]:
        """All chunks to copy, about so many at a time."""
        pages, page = self._chunks.pages(), list[_Kept]()
        runs: list[_Run] = []
        number, room = 1, _PAGE
        for segment in self._segments_there():
            identity, left = next(self._ids), segment.length - segment.start_offset + segment.first_chunk_skip
            while True:
                if not page and left > 0:
                    page = next(pages, [])
                ends = list(accumulate(item[1] for item in page[:room]))
                count = min(len(ends), bisect_left(ends, left) + 1) if left > 0 else 0
                chunks, page = page[:count], page[count:]
                first, left = number, left - (ends[len(chunks) - 1] if chunks else 0)
                number += len(chunks) if self._are_single else sum(map(self._pieces_of, chunks))
                room -= len(chunks) + 1
                is_last = left <= 0 or not chunks
                runs.append(_Run(segment, identity, first, chunks, is_last))
                if room <= 0:
                    yield runs
                    runs, room = [], _PAGE
                if is_last:
                    break
        yield runs

    def _segments_there(self) -> Iterator[SegmentRecord]:
        after = ""
        while page := self._source.look(lambda view, after=after: self._some_segments(after, view)):  # type: ignore[misc]
            for segment in page:
                yield from self._source.parts.get(segment.name, (segment,))
            after = page[-1].name

    def _some_segments(self, after: str, view: MetadataView) -> list[SegmentRecord]:
        return list(itertools.islice(segments_after(view, after, self._source.chosen), _PAGE))

    # ---- copying

    def _pieces_of(self, item: _Kept) -> int:
        """How many chunks one becomes."""
        return 1 if item[1] <= self._piece_bytes else -(-item[1] // self._piece_bytes)

    def _copied(self, runs: Sequence[_Run]) -> Iterator[list[_Piece]]:
        jobs = list[tuple[_Run, int, _Kept]]()
        for run in runs:
            number = run.first
            for item in run.chunks:
                jobs.append((run, number, item))
                number += self._pieces_of(item)
        size_bytes = sum(item[1] for _, _, item in jobs)
        copies = iter(self._place.copy_chunks([self._to_copy(job) for job in jobs], size_bytes))
        for run in runs:
            pieces: list[_Piece] = []
            for item, copied in zip(run.chunks, copies, strict=False):
                for identity, borders in copied:
                    several = borders if len(borders.at) > 2 else None
                    pieces.append((identity, borders.at[-1], borders.crcs[-1], item[4], several))
            yield pieces
        if jobs:
            self._progress(size_bytes)

    def _to_copy(self, job: tuple[_Run, int, _Kept]) -> ChunkToCopy:
        run, number, (place, length, at, crcs, created_ms, in_copy) = job
        copy = self._source.copy
        storage = copy if in_copy and copy is not None else self._source.storage
        borders = Borders((0, length), (0, crcs)) if isinstance(crcs, int) else Borders(at or (), crcs)
        numbers = range(number, number + self._pieces_of(job[2]))
        former: tuple[bytes, ...] = ()
        if self._former:
            epochs = {self._former.get(item) for item in numbers}
            epoch = epochs.pop()
            if epoch is not None and not epochs:
                segment_id = (epoch << 32) + run.id - (self._epoch << 32)
                former = tuple(chunk_id(segment_id, epoch, item, self._tail) for item in numbers)
        fresh = tuple(chunk_id(run.id, self._epoch, item, self._tail) for item in numbers)
        chunk = ForeignChunk(Address(*place), length, borders, created_ms)
        return ChunkToCopy(run.segment.name, storage, chunk, fresh, former)

    def _find_former(self) -> dict[int, int]:
        """The epochs of copies that were made by runs that came no further, by their numbers; of several the newest."""
        found: dict[int, int] = {}
        names = self._place.names
        for info in iter_listing(self._place.storage, names.data_prefix()):
            identity = names.parse_chunk(info.name)
            if identity is not None and int.from_bytes(identity[24:], "big") == self._tail:
                epoch, number = chunk_epoch(identity), int.from_bytes(identity[16:24], "big")
                if epoch < self._epoch:
                    found[number] = max(epoch, found.get(number, 0))
        return found

    # ---- tables

    def _tables(self) -> Iterator[Pair]:
        """The rows of tables, in their order."""
        after = b""
        while rows := self._source.look(partial(rows_after, self._source, after)):
            after = rows[-1].position
            for _, namespace, key, value in rows:
                yield table_key(namespace, key), encode_row(TableRecord(_FIRST_VERSION, value))


class _Begun:
    """A segment whose rows are being made. ``there``: its row in the source."""

    def __init__(self, there: SegmentRecord, identity: int, epoch: int) -> None:
        self.there = there
        self._id = identity
        self._epoch = epoch
        self._skip = there.first_chunk_skip
        self._offset = self._last_offset = there.start_offset - there.first_chunk_skip
        self._first = self._before = NO_CHUNK
        self._held: list[_Piece] = []
        self._count = 0

    def add(
        self, pieces: Iterable[_Piece], *, is_last: bool
    ) -> tuple[list[Pair], list[Pair], list[tuple[bytes, Borders]]]:
        """The rows, extents, and borders of chunks whose successors are known by now."""
        queue = [*self._held, *pieces]
        while not self._count and queue and queue[0][1] <= self._skip:
            # One of several that a chunk became, and all of it was truncated.
            dead = queue.pop(0)[1]
            self._skip -= dead
            self._offset += dead
            self._last_offset = self._offset
        self._held = [] if is_last else queue[-1:]
        following = [piece[0] for piece in queue[1:]]
        if is_last and queue:
            following.append(NO_CHUNK)
        ready = queue[: len(following)]
        if not ready:
            return [], [], []
        ids = [piece[0] for piece in ready]
        self._first = self._first or ids[0]
        run, epoch = self._id, self._epoch
        own = chunk_id(run, epoch, 0, 0)[:16]
        values = pack_chunks(
            ("", 0, length, crc, before, follower, run, epoch, CLOSED, KIND_OBJECT, created_ms)
            if identity.startswith(own)
            # Of a former epoch's copy its id says which, and of which segment.
            else (
                "", 0, length, crc, before, follower, chunk_segment(identity), chunk_epoch(identity), CLOSED, KIND_OBJECT, created_ms
            )
            for (identity, length, crc, created_ms, _), before, follower in zip(
                ready, [self._before, *ids[:-1]], following, strict=True
            )
        )  # fmt: skip
        *offsets, end = accumulate((piece[1] for piece in ready), initial=self._offset)
        self._before, self._offset, self._last_offset = ids[-1], end, offsets[-1]
        self._count += len(ready)
        borders = [(piece[0], piece[4]) for piece in ready if piece[4] is not None]
        rows = [(CHUNK + identity, value) for identity, value in zip(ids, values, strict=True)]
        return rows, extent_entries(run, offsets, ids), borders

    def record(self) -> SegmentRecord:
        """Its row, but for the name."""
        return self.there._replace(
            id=self._id,
            length=self._offset,
            first_chunk=self._first,
            last_chunk=self._before,
            last_chunk_offset=self._last_offset,
            first_chunk_skip=self._skip,
            owner_epoch=self._epoch,
            chunk_count=self._count,
        )


T = TypeVar("T")
_SPOOL_PAGE: Final = 2_048
_LENGTH_BYTES: Final = 8


class Spool(Generic[T]):
    """Items of numbers, text, bytes, None and tuples of these. Not thread-safe. Raises ``StorageFull`` and ``StorageUnavailable`` of the
    local disk."""

    def __init__(self) -> None:
        self._page: list[T] = []
        with _translated():
            self._file = tempfile.TemporaryFile(prefix="chunkstore-import-")  # noqa: SIM115  (closed by ``close``)

    def add(self, items: list[T]) -> None:
        """Put more after what is there."""
        self._page += items
        if len(self._page) >= _SPOOL_PAGE:
            self._write()

    def _write(self) -> None:
        data = marshal.dumps(self._page)
        with _translated():
            self._file.write(len(data).to_bytes(_LENGTH_BYTES, "big"))
            self._file.write(data)
        self._page = []

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.pages())

    def pages(self) -> Iterator[list[T]]:
        """Everything from the beginning. Nothing is added meanwhile, and there is one reader at a time."""
        with _translated():
            self._file.seek(0)
        while True:
            with _translated():
                size = int.from_bytes(self._file.read(_LENGTH_BYTES), "big")
                data = self._file.read(size)
            if not data:
                break
            yield marshal.loads(data)  # noqa: S302  (a file without a name, which only we have open)
        yield self._page

    def close(self) -> None:
        """Give the space back. Safe to repeat."""
        self._file.close()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"the folder for temporary files, {tempfile.gettempdir()}, cannot be used: {error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(text) from error
        raise StorageUnavailable(text) from error
