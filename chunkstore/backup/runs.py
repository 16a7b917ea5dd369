"""What a backup root says: which container it is of, and which backups count.

A run is one attempt to make a backup. It counts once ``done/<lsn>-<run>`` is there, which the run puts last. Nothing that counts is ever
changed or deleted here: an old backup goes with its whole root."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.backup.files import DONE, put_once, small_object
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.parts import MARKER, marked_container, read_small
from chunkstore.records.arguments import moment_text
from chunkstore.records.invariants import FUTURE_MS
from chunkstore.records.names import BackupNames
from chunkstore.storage import ChunkStorage, iter_listing

__all__ = [
    "BackupInfo",
    "check_root",
    "claim_root",
    "complete_at",
    "iter_complete",
    "newest_complete",
    "note_complete",
    "require_apart",
]

_HASH_BYTES: Final = 16
_DEADLINE_S: Final = 60.0


class BackupInfo(NamedTuple):
    """One backup: ``lsn`` and ``hash`` of the record whose state it is, ``time_ms`` when it began, ``chunk_bytes`` in all its chunks, of
    which this run copied ``copied_bytes``."""

    run: str
    lsn: int
    hash: bytes
    time_ms: int
    segments: int
    chunks: int
    chunk_bytes: int
    copied_chunks: int
    copied_bytes: int

    def stored(self, names: BackupNames) -> str:
        """The object that holds its export."""
        return names.stored(self.lsn, self.run)


def check_root(storage: ChunkStorage, names: BackupNames, container: bytes) -> bool:
    """Whether backups of ``container`` are stored here; False: nothing is. Raises ``InvalidArgument``: something else is."""
    if storage.exists(names.format):
        text = f"a container {names.container!r} is stored at {storage.url}; choose another root for its backups"
        raise InvalidArgument(text, argument="backup_root")
    found = read_small(storage, names.backup, MARKER)
    if found is not None:
        _check_is_of(storage, names, found, container)
    return found is not None


def claim_root(storage: ChunkStorage, names: BackupNames, container: bytes) -> None:
    """Put the marker of a backup root, unless it is there. Raises as ``check_root``, and as ``put_once``."""
    if not check_root(storage, names, container):
        marker = small_object(MARKER, (container, names.container, runtime.now_ms()))
        found = put_once(storage, names.backup, marker, _DEADLINE_S)
        if found is not None:
            _check_is_of(storage, names, found, container)


def _check_is_of(storage: ChunkStorage, names: BackupNames, found: object, container: bytes) -> None:
    if marked_container(found, names) != container:
        text = f"backups of another container {names.container!r} are stored at {storage.url}; choose another root"
        raise InvalidArgument(text, argument="backup_root")


def require_apart(
    source: ChunkStorage, container: str, target: ChunkStorage, new_container: str, argument: str
) -> None:
    """Raise ``InvalidArgument`` of ``argument`` where one of two containers would be inside the other's tree. Opens nothing."""
    trees = [
        f"{end.url.partition('?')[0].rstrip('/')}/{name}/"
        for end, name in ((source, container), (target, new_container))
    ]
    if trees[0] != trees[1] and (trees[1].startswith(trees[0]) or trees[0].startswith(trees[1])):
        text = f"{trees[1]} and the container's own tree {trees[0]} are inside each other: choose a root outside of it"
        raise InvalidArgument(text, argument=argument)


def note_complete(storage: ChunkStorage, names: BackupNames, info: BackupInfo) -> None:
    """Let a run's backup count, for ever. Raises as ``put_once``."""
    put_once(storage, names.done(info.lsn, info.run), small_object(DONE, info[2:]), _DEADLINE_S)


def _listed(storage: ChunkStorage, names: BackupNames) -> list[tuple[int, str]]:
    """``(lsn, run)`` of every backup that counts, ascending."""
    found = (names.parse_done(info.name) for info in iter_listing(storage, names.done_prefix()))
    return [item for item in found if item is not None]


def _read(storage: ChunkStorage, names: BackupNames, lsn: int, run: str) -> BackupInfo:
    name = names.done(lsn, run)
    fields = read_small(storage, name, DONE)
    if fields is None:
        raise Damaged("it was listed, and is gone", object=name)
    return BackupInfo(run, lsn, fields.raw(_HASH_BYTES), *(fields.whole() for _ in range(6)))


def iter_complete(storage: ChunkStorage, names: BackupNames) -> Iterator[BackupInfo]:
    """Every backup that counts, the oldest state first. Raises ``Damaged``, and what the storage raises."""
    for lsn, run in _listed(storage, names):
        yield _read(storage, names, lsn, run)


def newest_complete(storage: ChunkStorage, names: BackupNames) -> BackupInfo | None:
    """A backup of the latest state. Raises as ``iter_complete``."""
    listed = _listed(storage, names)
    return _read(storage, names, *listed[-1]) if listed else None


def complete_at(storage: ChunkStorage, names: BackupNames, lsn: int | None, time_ms: int | None) -> BackupInfo:
    """A backup of this very lsn, or the newest that was made by that time. Raises ``InvalidArgument`` (there is none; a time in the
    future), and as ``iter_complete``."""
    found = list(iter_complete(storage, names))
    if time_ms is not None and time_ms > max(runtime.now_ms(), *(info.time_ms for info in found), 0):
        raise InvalidArgument(f"{moment_text(time_ms)} is in the future", argument="at_time")
    latest_ms, later_ms = runtime.now_ms() + FUTURE_MS, 0
    for info in reversed(found):
        if info.lsn == lsn or (time_ms is not None and info.time_ms <= time_ms):
            if time_ms is not None and later_ms > latest_ms >= time_ms:
                text = f"the backup after lsn {info.lsn} has a time after now, by a wrong clock; name one by its lsn"
                raise InvalidArgument(text, argument="at_time")
            return info
        later_ms = info.time_ms
    what = f"of lsn {lsn}" if lsn is not None else f"made by {moment_text(time_ms or 0)}"
    known = ", ".join(str(info.lsn) for info in found[-10:]) or "none"
    text = f"no backup {what} is stored at {storage.url} (lsns: {known}); 'backup ls' shows all"
    raise InvalidArgument(text, argument="at_lsn" if lsn is not None else "at_time")
