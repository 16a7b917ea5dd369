"""Copying chunks into a backup root: which ones, and how.

A chunk that does not grow any more has one content for ever (law 2), so a copy is made once, under the chunk's own name. Of one that
may still grow its first ``length`` bytes are copied, and the length is part of the copy's name. An extent, which is in a record of the
journal, is a chunk that never grows: its copy is an object of its own, under its id, wherever a take-over has put its bytes. So a
backup needs no journal, and nothing of the journal is kept for it but by the pin of a run. Copies appear whole or not at all, so
that a stored copy is right, whatever process put it there.

Bytes are verified on the way, where their CRC32C is known; so are those that a server copies, before it does, unless that is switched off.
A hard link reads none, and shares the fate of what it is a link to. Memory: about 64 MiB and a few names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.backup.files import linker, open_stored_export, server_copier
from chunkstore.config import MIB
from chunkstore.errors import ChunkExists, ChunkNotFound, ChunkstoreError, Damaged, Unsupported
from chunkstore.metadata.keys import CHUNK
from chunkstore.operations.copy_ranges import compose_chunk, read_verified
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
        on_step: Callable[[int], object],
        *,
        link: bool,
        verify: bool,
    ) -> None:
        self._source = source
        self._target = target
        self._names = names
        self._own = ContainerNames(names.container)
        self._pool = pool
        self._link = linker(source, target) if link else None
        self._server = server_copier(source, target)
        self._verify = verify
        self._on_step = on_step
        self._failure: ChunkstoreError | None = None
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
            for batch in _batches(self._linked(step)):
                count, size_bytes = self._made(batch, [partial(self._stream, item) for item in batch])
                self.copied, self.copied_bytes = self.copied + count, self.copied_bytes + size_bytes
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
        """Link what does not grow, where links are asked for; what is left to be copied."""
        whole = [item for item in step if self._link is not None and self._is_whole(item)]
        if self._link is None or not whole:
            return step
        try:
            done = self._link([(item.source.object, item.name(self._names)) for item in whole])
        except (Unsupported, ChunkNotFound):
            # Another file system, or one that is gone, which the copying will name.
            self._link = None
            return step
        # Also a fresh one: what it is a link to may be too short.
        checks = [partial(self._is_there, item, new=new) for item, new in zip(whole, done, strict=True)]
        count, size_bytes = self._made(whole, checks)
        self.linked, self.linked_bytes = self.linked + count, self.linked_bytes + size_bytes
        linked = {item.identity for item in whole}
        return [item for item in step if item.identity not in linked]

    def _is_whole(self, item: Copy) -> bool:
        """Whether its bytes are an object of its own that does not grow."""
        return item.growing < 0 and item.source.object == self._own.chunk(item.identity)

    def _made(self, items: Sequence[Copy], calls: Sequence[Callable[[], bool]]) -> tuple[int, int]:
        """How many of these were made by their calls, and their bytes; the first failure is kept."""
        made = size_bytes = 0
        for item, done in zip(items, self._pool.run_all([partial(_guarded, call) for call in calls]), strict=True):
            if isinstance(done, ChunkstoreError):
                self._failure = self._failure or done
            elif done:
                made, size_bytes = made + 1, size_bytes + item.length
        return made, size_bytes

    def _stream(self, item: Copy) -> bool:
        """Copy one chunk, on the server or through memory; whether it was not there."""
        name, size, server = item.name(self._names), item.length, self._server
        if not (self._is_whole(item) and _SERVER_BYTES_MIN <= size <= _SERVER_BYTES_MAX):
            server = None
        # A small one is tried at once: that costs no more requests than asking.
        if (server is not None or size > _PIECE_BYTES) and self._target.exists(name):
            return self._is_there(item, new=False)
        if server is not None:
            self._compare(item)
            try:
                server(item.source.object, name)
                return True
            except Unsupported:
                self._server = None
        if size > _BATCH_BYTES:
            made = self._put_pieces(name, self._verified(item))
        else:
            made = self._target.create_if_absent(name, joined(self._verified(item)))
        return made or self._is_there(item, new=False)

    def _verified(self, item: Copy) -> Iterator[bytes]:
        borders = None if item.crc32c is None else Borders((0, item.length), (0, item.crc32c))
        return read_verified(self._source, item.source, item.length, borders, _PIECE_BYTES)

    def _compare(self, item: Copy) -> None:
        """Compare a chunk with its record in place: a chunk that the server copies must not be damaged."""
        if self._verify:
            for _ in self._verified(item):
                pass
        elif (length := self._source.stat(item.source.object).length) < item.length:
            text = f"it is {length} bytes long, but {item.length} are recorded; run check"
            raise Damaged(text, object=item.source.object, position=length)

    def _put_pieces(self, name: str, windows: Iterable[bytes]) -> bool:
        """Make a long copy of pieces; False where somebody was first."""
        made: list[ChunkRange] = []
        try:
            for data in windows:
                made.append(ChunkRange(self._names.temporary(runtime.token(16).hex()), 0, len(data)))
                self._target.create_if_absent(made[-1].name, data)
            compose_chunk(self._target, name, made)
        except ChunkExists:
            return False
        finally:
            for piece in made:
                with suppress(ChunkstoreError):
                    self._target.delete(piece.name)
        return True

    def _is_there(self, item: Copy, *, new: bool) -> bool:
        """Check that a copy has its length, and that one which is not ``new`` is durable; ``new``. A link may be longer by what was never
        acknowledged."""
        name = item.name(self._names)
        length = self._target.stat(name).length
        if length < item.length:
            text = f"a copy of {length} bytes, but {item.length} are expected; delete it and run the backup again"
            raise Damaged(text, object=name, position=length)
        if not new:
            self._target.harden(name)
        return new


def _guarded(call: Callable[[], bool]) -> bool | ChunkstoreError:
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
