"""Copying chunks into a backup root: which ones, and how.

A chunk that does not grow any more has one content for ever (law 2), so a copy is made once, under the chunk's own name. Of one that
may still grow its first ``length`` bytes are copied, and the length is part of the copy's name. An extent, which is in a record of the
journal, is a chunk that never grows: its copy is an object of its own, under its id, wherever a take-over has put its bytes. So a
backup needs no journal, and nothing of the journal is kept for it but by the pin of a run. Copies appear whole or not at all, so
that a stored copy is right, whatever process put it there.

Promises: bytes are verified on the way, where their CRC32C is known; so are those that a server copies, before it does, unless that is
switched off; a hard link reads none, and shares the fate of what it is a link to.
Memory: about 64 MiB and a few names. Failures are raised at the end, with all else copied.
Leaves out: which copies are there already (``rounds``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any, Final, NamedTuple

from chunkstore import runtime
from chunkstore.backup.files import open_stored_export
from chunkstore.config import MIB
from chunkstore.copy_ranges import compose_chunk, read_verified
from chunkstore.errors import ChunkExists, ChunkNotFound, ChunkstoreError, Damaged, Unsupported
from chunkstore.metadata.keys import CHUNK
from chunkstore.operations.owned_epoch import decode_found_chunk
from chunkstore.records.blocks import Borders
from chunkstore.records.chunks import joined
from chunkstore.records.names import Address, BackupNames, ContainerNames
from chunkstore.records.segments import CLOSED
from chunkstore.storage import ChunkRange, ChunkStorage

__all__ = ["Copier", "Copy", "copies", "named_copies", "without"]

_BATCH_BYTES: Final = 64 * MIB
_BATCH: Final = 256
_LINKS: Final = 10_000
_PIECE_BYTES: Final = 16 * MIB
_SERVER_BYTES_MIN: Final = MIB
"""Below, a read and a write are fewer requests than a copy on the server."""
_SERVER_BYTES_MAX: Final = 4096 * MIB


class Copy(NamedTuple):
    """A copy of a chunk's first ``length`` bytes. ``growing``: its length where it may still grow, else -1. Orders as chunk ids do."""

    identity: bytes
    growing: int
    length: int
    crc32c: int | None
    source: Address
    """Where its bytes are in the container that is backed up."""

    def name(self, names: BackupNames) -> str:
        """The object that is the copy."""
        return names.copy(self.identity, None if self.growing < 0 else self.growing)


def copies(rows: Iterable[tuple[bytes, bytes]], names: ContainerNames, epoch: int) -> Iterator[Copy]:
    """The copies that chunk rows of a state of ``epoch`` need, in order. Raises ``Damaged``."""
    for key, raw in rows:
        identity = key[1:]
        record = decode_found_chunk(names, identity, raw)
        # A chunk grows in the epoch that made it only; what a later one says of its length is final.
        growing = record.length if record.state != CLOSED and record.epoch == epoch else -1
        yield Copy(identity, growing, record.length, record.crc32c, names.address(identity, record))


def named_copies(storage: ChunkStorage, names: BackupNames, lsn: int, run: str) -> Iterator[Copy]:
    """The copies that the export of a run names. Raises ``Damaged`` (it is not there, too), and what the storage raises."""
    name = names.stored(lsn, run)
    try:
        found = open_stored_export(storage, name)
        yield from copies(found.of_kind(CHUNK), ContainerNames(names.container), found.header.position.epoch)
    except (Damaged, ChunkNotFound) as error:
        text = (
            f"backup {run} cannot be read ({error}): restore its export from a copy, or remove it with "
            f"'chunkstore backup rm {storage.url} {run}'"
        )
        raise Damaged(text, object=name, position=getattr(error, "position", 0)) from error


def without(wanted: Iterable[Copy], *others: Iterable[Copy]) -> Iterator[Copy]:
    """Those of ``wanted`` that are in none of the ``others``; all are in order."""
    there = iter(merge(*others))
    known = next(there, None)
    for item in wanted:
        while known is not None and known[:2] < item[:2]:
            known = next(there, None)
        if known is None or known[:2] != item[:2]:
            yield item


class Copier:
    """Copies chunks of ``source`` into ``target``. ``copied``, ``linked`` and their bytes count what was not there."""

    def __init__(
        self,
        source: ChunkStorage,
        target: ChunkStorage,
        names: BackupNames,
        pool: runtime.Pool,
        *,
        link: Callable[[list[tuple[str, str]]], list[bool]] | None,
        server: Callable[[str, str], None] | None,
        verify: bool,
        on_step: Callable[[int], object],
    ) -> None:
        self._source = source
        self._target = target
        self._names = names
        self._own = ContainerNames(names.container)
        self._pool = pool
        self._link = link
        self._server = server
        self._verify = verify
        self._on_step = on_step
        self._failure: ChunkstoreError | None = None
        self.failed: int = 0
        self.copied: int = 0
        self.copied_bytes: int = 0
        self.linked: int = 0
        self.linked_bytes: int = 0

    def copy(self, wanted: Iterator[Copy], present: Callable[[Copy], bool]) -> None:
        """Copy what is not ``present``; ``on_step`` gets the bytes of each step. Raises the first failure once all else is copied:
        ``ChunkNotFound`` (gone from the source), ``Damaged`` (a source, or a copy, that is not what it should be), and at once what else
        the storages raise."""
        missing = (item for item in wanted if not (present(item) and self._hardened(item)))
        while step := list(islice(missing, _LINKS if self._link is not None else _BATCH)):
            left = self._linked(step) if self._link is not None else step
            for batch in _batches(left):
                counts = self._run([partial(self._stream, item) for item in batch])
                self.copied += counts[0]
                self.copied_bytes += counts[1]
            self._on_step(sum(item.length for item in step))
        if self._failure is not None:
            raise self._failure

    def _hardened(self, item: Copy) -> bool:
        """A stored copy need not be durable yet: its writer may have died before."""
        try:
            self._target.harden(item.name(self._names))
        except ChunkNotFound:
            return False
        return True

    def _linked(self, step: list[Copy]) -> list[Copy]:
        """Link what does not grow; what is left to be copied."""
        closed = [item for item in step if self._is_whole(item)]
        assert self._link is not None
        try:
            pairs = [(item.source.object, item.name(self._names)) for item in closed]
            done = self._link(pairs) if pairs else []
        except (Unsupported, ChunkNotFound):
            # Another file system, or one that is gone, which the copying will name.
            self._link = None
            return step
        counts = self._run([partial(self._check_length, item, new=new) for item, new in zip(closed, done, strict=True)])
        self.linked += counts[0]
        self.linked_bytes += counts[1]
        linked = {item.identity for item in closed}
        return [item for item in step if item.identity not in linked]

    def _is_whole(self, item: Copy) -> bool:
        """Whether its bytes are an object of its own that does not grow."""
        return item.growing < 0 and item.source.object == self._own.chunk(item.identity)

    def _run(self, calls: list[Callable[[], int]]) -> tuple[int, int]:
        """How many chunks were made, and their bytes."""
        made = size_bytes = 0
        for call in self._pool.run_all([partial(_guarded, call) for call in calls]) if calls else ():
            if isinstance(call, ChunkstoreError):
                self.failed += 1
                self._failure = self._failure or call
            elif call >= 0:
                made += 1
                size_bytes += call
        return made, size_bytes

    def _stream(self, item: Copy) -> int:
        """Copy one chunk, on the server or through memory; its bytes, or -1 where it was there."""
        target, server = item.name(self._names), self._server
        if server is not None and self._is_whole(item) and _SERVER_BYTES_MIN <= item.length <= _SERVER_BYTES_MAX:
            if self._target.exists(target):
                return self._check_length(item, new=False)
            self._iterate_view(item)
            try:
                server(item.source.object, target)
                return item.length
            except Unsupported:
                self._server = None
        if item.length > _BATCH_BYTES:
            return self._stream_pieces(item, target)
        if self._target.create_if_absent(target, joined(self._verified(item, _BATCH_BYTES))):
            return item.length
        return self._check_length(item, new=False)

    def _verified(self, item: Copy, window_bytes: int) -> Iterator[bytes]:
        borders = None if item.crc32c is None else Borders((0, item.length), (0, item.crc32c))
        return read_verified(self._source, item.source, item.length, borders, window_bytes)

    def _iterate_view(self, item: Copy) -> None:
        """Compare a chunk with its record in place: a chunk that the server copies must not be damaged."""
        if self._verify:
            for _ in self._verified(item, _PIECE_BYTES):
                pass
        elif (length := self._source.stat(item.source.object).length) < item.length:
            text = f"it is {length} bytes long, but {item.length} are recorded; run check"
            raise Damaged(text, object=item.source.object, position=length)

    def _stream_pieces(self, item: Copy, target: str) -> int:
        if self._target.exists(target):
            return self._check_length(item, new=False)
        made: list[ChunkRange] = []
        try:
            for data in self._verified(item, _PIECE_BYTES):
                piece = self._names.temporary(runtime.token(16).hex())
                made.append(ChunkRange(piece, 0, len(data)))
                self._target.create_if_absent(piece, data)
            try:
                compose_chunk(self._target, target, made)
            except ChunkExists:
                return self._check_length(item, new=False)
            return item.length
        finally:
            for piece_made in made:
                with suppress(ChunkstoreError):
                    self._target.delete(piece_made.name)

    def _check_length(self, item: Copy, *, new: bool) -> int:
        """A copy that is there has its length: a link may be longer by what was never acknowledged."""
        target = item.name(self._names)
        found = self._target.stat(target).length
        if found < item.length:
            text = f"a copy of {found} bytes, but {item.length} are expected; delete it and run the backup again"
            raise Damaged(text, object=target, position=found)
        if not new:
            self._target.harden(target)
        return item.length if new else -1


def _guarded(call: Callable[[], int]) -> Any:
    try:
        return call()
    except (ChunkNotFound, Damaged) as error:
        return error


def _batches(items: list[Copy]) -> Iterator[list[Copy]]:
    """Parts of at most so many bytes: they are in memory at the same time."""
    batch: list[Copy] = []
    size = 0
    for item in items:
        if batch and size + item.length > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item.length
    if batch:
        yield batch
