"""Copying chunks into a backup root: which ones, and how.

A chunk that does not grow any more has one content for ever (law 2), so a copy is made once, under the chunk's own name. Of one that
may still grow its first ``length`` bytes are copied, and the length is part of the copy's name. An extent, which is in a record of the
journal, never grows: its copy is an object of its own, under its id. So a backup needs no journal. Copies appear whole or not at all, so
a stored copy is right, whatever process put it there. Memory: about 64 MiB and a few names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.backup.files import open_stored_export
from chunkstore.config import MIB
from chunkstore.copy_ranges import compose_chunk, read_verified
from chunkstore.errors import ChunkExists, ChunkNotFound, ChunkstoreError, Damaged
from chunkstore.metadata.keys import CHUNK
from chunkstore.operations.owned_epoch import decode_found_chunk
from chunkstore.records.blocks import Borders
from chunkstore.records.chunks import joined
from chunkstore.records.names import Address, BackupNames, ContainerNames
from chunkstore.records.segments import CLOSED
from chunkstore.storage import ChunkRange, ChunkStorage

__all__ = ["Copy", "copies", "copy_all", "named_copies", "without"]

_BATCH_BYTES: Final = 64 * MIB
_BATCH: Final = 256
_PIECE_BYTES: Final = 16 * MIB


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
    """The copies that the export of a run names. Its end is the verdict over the export. Raises ``Damaged`` (it is not there, too), and
    what the storage raises."""
    name = names.stored(lsn, run)
    try:
        found = open_stored_export(storage, name)
        yield from copies(found.of_kind(CHUNK), ContainerNames(names.container), found.header.position.epoch)
    except (Damaged, ChunkNotFound) as error:
        text = f"backup {run} cannot be read ({error}): restore its export from a copy, or begin another backup root"
        raise Damaged(text, object=name, position=getattr(error, "position", 0)) from error


def without(wanted: Iterable[Copy], others: Iterable[Copy]) -> Iterator[Copy]:
    """Those of ``wanted`` that are not among the ``others``; both are in order."""
    there = iter(others)
    known = next(there, None)
    for item in wanted:
        while known is not None and known[:2] < item[:2]:
            known = next(there, None)
        if known is None or known[:2] != item[:2]:
            yield item


def copy_all(
    source: ChunkStorage,
    target: ChunkStorage,
    names: BackupNames,
    wanted: Iterable[Copy],
    pool: runtime.Pool,
    progress: Callable[[int], object],
) -> tuple[int, int]:
    """Copy what is not there; how many chunks that were, and their bytes. ``progress`` gets the bytes of each step.

    Raises the first failure once all else is copied: ``ChunkNotFound`` (gone from the source), ``Damaged`` (a source, or a copy, that is
    not what it should be); and at once what else the storages raise.
    """
    count = size_bytes = 0
    failure: ChunkstoreError | None = None
    for batch in _batches(wanted):
        done = pool.run_all([partial(_copy, source, target, names, item) for item in batch])
        for item, made in zip(batch, done, strict=True):
            if isinstance(made, ChunkstoreError):
                failure = failure or made
            elif made:
                count, size_bytes = count + 1, size_bytes + item.length
        progress(sum(item.length for item in batch))
    if failure is not None:
        raise failure
    return count, size_bytes


def _copy(source: ChunkStorage, target: ChunkStorage, names: BackupNames, item: Copy) -> bool | ChunkstoreError:
    """Whether a copy was made; False: it was there, in its length. Or why there is none."""
    name = item.name(names)
    try:
        # A small one is tried at once: that costs no more requests than asking.
        if item.length <= _PIECE_BYTES or not target.exists(name):
            borders = None if item.crc32c is None else Borders((0, item.length), (0, item.crc32c))
            windows = read_verified(source, item.source, item.length, borders, _PIECE_BYTES)
            if item.length > _BATCH_BYTES:
                made = _put_pieces(target, names, name, windows)
            else:
                made = target.create_if_absent(name, joined(windows))
            if made:
                return True
        length = target.stat(name).length
        if length < item.length:
            text = f"a copy of {length} bytes, but {item.length} are expected; delete it and run the backup again"
            return Damaged(text, object=name, position=length)
        target.harden(name)  # its writer may have died before it was durable
    except (ChunkNotFound, Damaged) as error:
        return error
    return False


def _put_pieces(target: ChunkStorage, names: BackupNames, name: str, windows: Iterable[bytes]) -> bool:
    """Make a long copy of pieces; False where somebody was first."""
    made: list[ChunkRange] = []
    try:
        for data in windows:
            made.append(ChunkRange(names.temporary(runtime.token(16).hex()), 0, len(data)))
            target.create_if_absent(made[-1].name, data)
        compose_chunk(target, name, made)
    except ChunkExists:
        return False
    finally:
        for piece in made:
            with suppress(ChunkstoreError):
                target.delete(piece.name)
    return True


def _batches(items: Iterable[Copy]) -> Iterator[list[Copy]]:
    """What is in memory at the same time."""
    batch: list[Copy] = []
    size = 0
    for item in items:
        if batch and (size + item.length > _BATCH_BYTES or len(batch) == _BATCH):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item.length
    if batch:
        yield batch
