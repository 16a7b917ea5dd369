"""What a backup root says of its runs: which container it is of, which runs are under way, which backups count.

A run is one attempt to make a backup. It counts once the object ``done/<run>`` says so, which is put once: by the run, when its export
has been written and read back, or by another run, to say that it never will. So it is decided for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from chunkstore import runtime
from chunkstore.backup.files import DONE, NEWEST, RUNNING, put_once, small_object
from chunkstore.engine.parts import MARKER, marked_container, read_small
from chunkstore.errors import ChunkNotFound, Conflict, Damaged, InvalidArgument
from chunkstore.records.arguments import moment_text
from chunkstore.records.invariants import FUTURE_MS
from chunkstore.records.names import BackupNames, parse_run
from chunkstore.storage import ChunkStorage, iter_listing

__all__ = [
    "BackupInfo",
    "Running",
    "check_root",
    "claim_root",
    "decide",
    "find_done",
    "forget",
    "iter_complete",
    "iter_running",
    "newest_complete",
    "newest_known",
    "note_newest",
    "note_running",
    "require_apart",
    "under_way",
    "void",
    "why_given_up",
    "withdraw",
]

_HASH_BYTES: Final = 16
_DEADLINE_S: Final = 60.0
_SILENT_MS: Final = 86_400_000
"""A run without a sign of life for so long is withdrawn. A run that was only slow notices, and fails."""
_TEXT_MAX: Final = 255


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


class Running(NamedTuple):
    """A run that is, or was, under way: it relies on backups from ``base_lsn`` on. ``seen_ms``: when it said so last."""

    run: str
    base_lsn: int
    seen_ms: int


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


def find_done(storage: ChunkStorage, names: BackupNames, run: str) -> BackupInfo | None:
    """The backup that a run came to; None: nothing, or not yet. Raises ``Damaged``, and what the storage raises."""
    fields = read_small(storage, names.done(run), DONE)
    if fields is None or not fields.flag():
        return None
    lsn, identity, *numbers = fields.whole(), fields.raw(_HASH_BYTES), *(fields.whole() for _ in range(6))
    return BackupInfo(run, lsn, identity, *numbers)


def iter_complete(storage: ChunkStorage, names: BackupNames, passed_over: str = "") -> Iterator[BackupInfo]:
    """Every backup that counts, but for one run, in no order. Raises as ``find_done``."""
    for info in iter_listing(storage, names.done("")):
        run = parse_run(info.name, names.done(""))
        try:
            found = None if run in (None, passed_over) else find_done(storage, names, str(run))
        except Damaged as error:
            text = f"the state of backup {run} cannot be read: {error.message}. Remove it ('backup rm')"
            raise Damaged(text, object=info.name, position=error.position) from error
        if found is not None:
            yield found


def newest_complete(storage: ChunkStorage, names: BackupNames) -> BackupInfo | None:
    """The backup of the latest state. Raises as ``find_done``."""
    return max(iter_complete(storage, names), key=lambda item: (item.lsn, item.time_ms), default=None)


def complete_at(storage: ChunkStorage, names: BackupNames, lsn: int | None, time_ms: int | None) -> BackupInfo:
    """The backup of this very lsn, or the newest that was made by that time. Raises ``InvalidArgument`` (there is none; a time in the
    future), and as ``find_done``."""
    found = sorted(iter_complete(storage, names), key=lambda item: (item.lsn, item.time_ms))
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


def newest_known(storage: ChunkStorage, names: BackupNames) -> BackupInfo | None:
    """A backup that counts, as a rule the newest: found by the hint, without a listing where that is possible."""
    try:
        fields = read_small(storage, names.newest, NEWEST)
        run = None if fields is None else parse_run(names.done(fields.text(_TEXT_MAX)), names.done(""))
    except Damaged:
        run = None  # a hint
    return (None if run is None else find_done(storage, names, run)) or newest_complete(storage, names)


def note_newest(storage: ChunkStorage, names: BackupNames, run: str) -> None:
    """Overwrite the hint."""
    storage.put(names.newest, small_object(NEWEST, (run,)))


def note_running(storage: ChunkStorage, names: BackupNames, run: str, base_lsn: int) -> None:
    """Say that a run is under way; again from time to time."""
    who = runtime.identity()
    storage.put(names.running(run), small_object(RUNNING, (base_lsn, runtime.now_ms(), who.host[:_TEXT_MAX], who.pid)))


def iter_running(storage: ChunkStorage, names: BackupNames) -> Iterator[Running]:
    """What is under way. One that cannot be read relies on everything. Raises what the storage raises."""
    for info in iter_listing(storage, names.running("")):
        run = parse_run(info.name, names.running(""))
        if run is None:
            continue
        try:
            fields = read_small(storage, info.name, RUNNING)
            if fields is not None:
                base_lsn, seen_ms = fields.whole(), fields.whole()
                # A clock that ran ahead must not keep the mark of a dead run alive for years.
                yield Running(run, base_lsn, min(seen_ms, info.modified_ms or seen_ms))
        except Damaged:
            yield Running(run, 0, info.modified_ms or 0)


def under_way(storage: ChunkStorage, names: BackupNames, by: str = "a removal of backups") -> list[Running]:
    """Runs that may still come to count. Those that have said nothing for a day never will, because ``by`` says so; marks of runs that have
    ended go. Raises what listing and putting raise."""
    live, now_ms = [], runtime.now_ms()
    for item in list(iter_running(storage, names)):
        decided = storage.exists(names.done(item.run))
        if not decided and now_ms - item.seen_ms > _SILENT_MS:
            void(storage, names, item.run, item.seen_ms, now_ms, f"{by} on {runtime.identity().host}"[:_TEXT_MAX])
            decided = True
        if decided:
            forget(storage, names, item.run)
        else:
            live.append(item)
    return live


def decide(storage: ChunkStorage, names: BackupNames, info: BackupInfo) -> None:
    """Let a run's backup count, for ever. Raises ``Conflict`` (another run has withdrawn it), and as ``put_once``."""
    found = put_once(storage, names.done(info.run), small_object(DONE, (True, *info[1:])), _DEADLINE_S)
    if found is not None:
        found.flag()
        raise _given_up(info.run, found)


def why_given_up(storage: ChunkStorage, names: BackupNames, run: str) -> Conflict | None:
    """What a run says that another one has given up; None: no one has. Raises as ``find_done``."""
    fields = read_small(storage, names.done(run), DONE)
    return None if fields is None or fields.flag() else _given_up(run, fields)


def _given_up(run: str, fields: Any) -> Conflict:
    """``fields``: what the other one has put, after the flag."""
    found = "withdrawn by another run"
    if not fields.is_at_end:
        seen_ms, then_ms, by = fields.whole(), fields.whole(), fields.text(_TEXT_MAX)
        silent_s = (then_ms - seen_ms) // 1000
        found = f"withdrawn by {by}, whose clock ({then_ms} ms since 1970) made its last sign {silent_s} s old"
    remedy = (
        f"compare the clocks of both machines (this one: {runtime.now_ms()} ms) and of the storage, then run it again"
    )
    return Conflict(f"backup run {run}", expected="to be under way", found=found, remedy=remedy)


def withdraw(storage: ChunkStorage, names: BackupNames, run: str) -> None:
    """Withdraw a backup that counts, by a durable mark under its name, because a deletion may be undone by a power cut, and a name that is
    free be taken by a request of long ago. Raises what putting raises."""
    storage.put(names.done(run), small_object(DONE, (False,)))


def void(storage: ChunkStorage, names: BackupNames, run: str, *why: int | str) -> None:
    """Say that a run will never count, unless it does already. Its mark stays for ``under_way``. ``why``: of another one's run, when that
    spoke last, the time now (both ms since 1970), and who says so. Raises as ``put_once``."""
    put_once(storage, names.done(run), small_object(DONE, (False, *why)), _DEADLINE_S)


def forget(storage: ChunkStorage, names: BackupNames, run: str) -> None:
    """Delete the mark of a run that has ended. Raises what deleting raises."""
    with suppress(ChunkNotFound):
        storage.delete(names.running(run))
