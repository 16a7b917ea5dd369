"""The state that a new container begins with: what is copied, with ids of its own.

Rows and index entries come in ascending order, as a snapshot wants them, in bounded memory. Ids are counted under the epoch of the claim,
in the order of the lists, so that a chunk's neighbours are known before they come, and so that the copies of a try that died are found
by their ids, compared, and used. Chunks are durable before their rows are handed on. Garbage, sessions, pins and the position of
scrubbing are left out: they speak of the other history."""

from __future__ import annotations

import itertools
import marshal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from heapq import merge
from itertools import accumulate, chain
from operator import itemgetter
from typing import Final, TypeAlias

from chunkstore.backup.copy_in import ChunkToCopy, Place
from chunkstore.backup.files import local_errors
from chunkstore.backup.survey import FoundChunk, Source, Stretch, table_rows
from chunkstore.changes import NewChunk
from chunkstore.errors import Damaged, NotOwner
from chunkstore.metadata.codec import decode_table, encode_row, encode_segment, pack_chunks
from chunkstore.metadata.index import extent_entries, run_entry
from chunkstore.metadata.keys import CHUNK, segment_key, writer_key, writer_range
from chunkstore.metadata.lines import decode_writer_row
from chunkstore.metadata.reserved import border_rows
from chunkstore.records.names import NO_CHUNK, chunk_epoch, chunk_id, chunk_segment
from chunkstore.records.segments import CLOSED, KIND_OBJECT, SegmentRecord, TableRecord
from chunkstore.storage import iter_listing

__all__ = ["Spool", "State"]

Pair: TypeAlias = tuple[bytes, bytes]
_Made: TypeAlias = tuple[NewChunk, int]
"""A chunk that was made, and the label of time of the one that it is copied from."""

_FIRST_VERSION: Final = 1
"""Of rows of tables: the OPEN's lsn."""
_by_key = itemgetter(0)


class State:
    """The rows of one claim: ``pages``, once."""

    def __init__(
        self,
        source: Source,
        found: Iterable[list[Stretch]],
        place: Place,
        epoch: int,
        progress: Callable[[int], object],
        *,
        goes_on: bool,
    ) -> None:
        """``goes_on``: an earlier try may have left copies."""
        self._source = source
        self._found = found
        self._place = place
        self._epoch = epoch
        self._progress = progress
        self._ids = itertools.count((epoch << 32) + 1)
        self._numbers = itertools.count(1)
        self._tail = source.fingerprint()
        """Of the ids of chunks, in the place of chance: a caller that copies the same state finds them."""
        self._former = self._find_former() if goes_on else {}
        self._begun: _Begun | None = None
        self._files = ExitStack()
        self._segments = self._spool()
        self._rests: list[Pair] = []
        """The rows of segments that hold what follows a hole, out of order."""
        self._writers = self._spool()
        self._runs = self._spool()
        self._extents = self._spool()
        self._blocks: dict[bytes, Spool] = {}
        """By the epochs of the chunks: what an earlier try has copied has ids of its epoch."""

    def _spool(self) -> Spool:
        made = Spool()
        self._files.callback(made.close)
        return made

    def pages(self) -> Iterator[list[Pair]]:
        """All rows and index entries, ascending. Raises ``Damaged`` and ``ChunkNotFound`` (a chunk), ``NotOwner`` (somebody claims after
        us), and what the storages raise."""
        with self._files:
            chunks: dict[bytes, Spool] = {}
            for page in self._found:
                fence = self._place.names.epoch(self._epoch + 1)
                if self._place.storage.exists(fence):
                    raise NotOwner(epoch=self._epoch, owner=self._epoch + 1)
                for rows in self._copied(page):
                    if not self._former:
                        yield rows
                    for pair in rows if self._former else ():
                        self._put(chunks, pair[0][9:17], [pair])
            for pair in _merged(chunks):
                yield [pair]
            segments = merge(self._segments, sorted(self._rests), key=_by_key)
            tables = ((key, _first_row(value)) for key, value in table_rows(self._source))
            for pair in chain(segments, merge(_merged(self._blocks), self._writers, tables, key=_by_key), self._runs):
                yield [pair]
            yield from self._extents.pages()

    def _copied(self, page: list[Stretch]) -> Iterator[list[Pair]]:
        jobs: list[ChunkToCopy] = []
        segments: list[_Begun] = []
        for stretch in page:
            begun = self._begun or _Begun(stretch.segment, next(self._ids), self._epoch)
            segments.append(begun)
            self._begun = None if stretch.is_last else begun
            jobs += [self._to_copy(stretch.segment.name, begun.id, chunk) for chunk in stretch.chunks]
        copied = iter(self._place.copy_chunks(jobs))
        for stretch, begun in zip(page, segments, strict=True):
            pieces = [(new, chunk.created_ms) for chunk in stretch.chunks for new in next(copied)]
            rows, extents, borders = begun.add(pieces, is_last=stretch.is_last)
            yield rows
            self._extents.add(extents)
            for chunk in borders:
                pairs = border_rows(chunk.id, chunk.borders).items()
                first = [(key, encode_row(row._replace(version=_FIRST_VERSION))) for key, row in pairs]
                self._put(self._blocks, chunk.id[8:16], first)
            if stretch.is_last:
                self._end(stretch.segment, begun)
        if jobs:
            self._progress(sum(item.chunk.length for item in jobs))

    def _put(self, spools: dict[bytes, Spool], epoch: bytes, pairs: list[Pair]) -> None:
        if epoch not in spools:
            spools[epoch] = self._spool()
        spools[epoch].add(pairs)

    def _to_copy(self, name: str, segment: int, chunk: FoundChunk) -> ChunkToCopy:
        numbers = [next(self._numbers) for _ in range(self._place.pieces_of(chunk))]
        former: list[bytes] = []
        epochs = {self._former.get(number, 0) for number in numbers} if self._former else {0}
        if len(epochs) == 1 and (epoch := epochs.pop()):
            there = segment - (self._epoch << 32) + (epoch << 32)
            former = [chunk_id(there, epoch, number, self._tail) for number in numbers]
        fresh = [chunk_id(segment, self._epoch, number, self._tail) for number in numbers]
        return ChunkToCopy(name, chunk, fresh, former)

    def _find_former(self) -> dict[int, int]:
        """The epochs of copies that were made by tries that came no further, by their numbers; of several the newest."""
        found: dict[int, int] = {}
        names = self._place.names
        for info in iter_listing(self._place.storage, names.data_prefix()):
            identity = names.parse_chunk(info.name)
            if identity is not None and int.from_bytes(identity[24:], "big") == self._tail:
                epoch, number = chunk_epoch(identity), int.from_bytes(identity[16:24], "big")
                if epoch < self._epoch:
                    found[number] = max(epoch, found.get(number, 0))
        return found

    def _end(self, there: SegmentRecord, begun: _Begun) -> None:
        """Put the rows aside of a segment that is whole. Raises ``Damaged``."""
        segment = begun.record(there)
        if segment.length != there.length:
            text = f"its chunks end at {segment.length}, the segment at {there.length}"
            raise Damaged(text, object=f"segment {segment.name!r}", position=segment.length)
        row = segment_key(segment.name), encode_segment(segment)
        if there.id:
            self._segments.add([row])
            self._keep_writers(there, segment.id)
        else:
            self._rests.append(row)
        if segment.chunk_count:
            self._runs.add([run_entry(segment)])

    def _keep_writers(self, there: SegmentRecord, here: int) -> None:
        start, stop = writer_range(there.id)
        for key, raw in self._source.view.scan(start, stop):
            event = decode_writer_row(there.name, raw)
            if event.offset + event.length <= there.length:  # else its bytes are lost: it is to be sent again
                self._writers.add([(writer_key(here, key[len(start) :]), _first_row(decode_table(key, raw).value))])


def _merged(spools: dict[bytes, Spool]) -> Iterator[Pair]:
    return merge(*(spools[epoch] for epoch in sorted(spools)), key=_by_key)


def _first_row(value: bytes) -> bytes:
    return encode_row(TableRecord(_FIRST_VERSION, value))


class _Begun:
    """A segment whose rows are being made. ``there``: its row in the source."""

    def __init__(self, there: SegmentRecord, identity: int, epoch: int) -> None:
        self.id = identity
        self._epoch = epoch
        self._skip = there.first_chunk_skip
        self._offset = self._last_offset = there.start_offset - there.first_chunk_skip
        self._first = self._before = NO_CHUNK
        self._held: list[_Made] = []
        self._count = 0

    def add(self, pieces: Iterable[_Made], *, is_last: bool) -> tuple[list[Pair], list[Pair], list[NewChunk]]:
        """The rows, the extents, and those of several blocks, of chunks whose successors are known by now."""
        queue = [*self._held, *pieces]
        while not self._count and queue and _length(queue[0]) <= self._skip:
            # One of several that a chunk became, and all of it was truncated.
            dead = _length(queue.pop(0))
            self._skip -= dead
            self._offset += dead
            self._last_offset = self._offset
        self._held = [] if is_last else queue[-1:]
        following = [new.id for new, _ in queue[1:]]
        if is_last and queue:
            following.append(NO_CHUNK)
        ready = queue[: len(following)]
        if not ready:
            return [], [], []
        ids = [new.id for new, _ in ready]
        self._first = self._first or ids[0]
        neighbours = zip(ready, [self._before, *ids[:-1]], following, strict=True)
        values = pack_chunks(_row_of(*item) for item in neighbours)
        *offsets, end = accumulate((_length(made) for made in ready), initial=self._offset)
        self._before, self._offset, self._last_offset = ids[-1], end, offsets[-1]
        self._count += len(ready)
        rows = [(CHUNK + identity, value) for identity, value in zip(ids, values, strict=True)]
        return rows, extent_entries(self.id, offsets, ids), [new for new, _ in ready if len(new.borders.at) > 2]

    def record(self, there: SegmentRecord) -> SegmentRecord:
        """Its row."""
        return there._replace(
            id=self.id,
            length=self._offset,
            first_chunk=self._first,
            last_chunk=self._before,
            last_chunk_offset=self._last_offset,
            first_chunk_skip=self._skip,
            owner_epoch=self._epoch,
            chunk_count=self._count,
        )


def _row_of(made: _Made, before: bytes, follower: bytes) -> tuple[object, ...]:
    """As ``pack_chunks`` takes it. Of an earlier try's copy its id says which epoch's it is, and of which segment."""
    (identity, borders), created_ms = made
    owner, epoch = chunk_segment(identity), chunk_epoch(identity)
    return "", 0, borders.at[-1], borders.crcs[-1], before, follower, owner, epoch, CLOSED, KIND_OBJECT, created_ms


def _length(made: _Made) -> int:
    return made[0].borders.at[-1]


_SPOOL_PAGE: Final = 2_048
_LENGTH_BYTES: Final = 8


class Spool:
    """Rows that are put aside in a local file. Not thread-safe. Raises ``StorageFull`` and ``StorageUnavailable`` of the local disk."""

    def __init__(self) -> None:
        self._page: list[Pair] = []
        with self._errors():
            self._file = tempfile.TemporaryFile(prefix="chunkstore-import-")  # noqa: SIM115  (closed by ``close``)

    def add(self, items: list[Pair]) -> None:
        """Put more after what is there."""
        self._page += items
        if len(self._page) >= _SPOOL_PAGE:
            data = marshal.dumps(self._page)
            with self._errors():
                self._file.write(len(data).to_bytes(_LENGTH_BYTES, "big"))
                self._file.write(data)
            self._page = []

    def __iter__(self) -> Iterator[Pair]:
        return chain.from_iterable(self.pages())

    def pages(self) -> Iterator[list[Pair]]:
        """Everything from the beginning. Nothing is added meanwhile, and there is one reader at a time."""
        with self._errors():
            self._file.seek(0)
        while True:
            with self._errors():
                size = int.from_bytes(self._file.read(_LENGTH_BYTES), "big")
                data = self._file.read(size)
            if not data:
                break
            yield marshal.loads(data)  # noqa: S302  (a file without a name, which only we have open)
        yield self._page

    @staticmethod
    def _errors() -> AbstractContextManager[None]:
        folder = tempfile.gettempdir()
        return local_errors(folder, f"the folder for temporary files, {folder},")

    def close(self) -> None:
        """Give the space back. Safe to repeat."""
        self._file.close()
