"""Imports: what an export, a backup or a container holds, or a part of it, as a new container or merged into one that works.

Promises: everything that can be looked at is, before anybody is fenced and anything is changed: the source, the names, every chunk. The
source is only read. Leaves out: the steps (``importing``), restoring (``restore``, which is the same with everything in it).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial
from typing import Final, TypeAlias

from chunkstore import parts
from chunkstore.arguments import check_flags
from chunkstore.backup.adopting import adopt as adopt_from
from chunkstore.backup.adopting import pin_for_new
from chunkstore.backup.exporting import read_export
from chunkstore.backup.importing import drop_merge, merge_into
from chunkstore.backup.merging import merge_id, require_room
from chunkstore.backup.renaming import NamePlan, plan_names
from chunkstore.backup.restore import RestoreReport, into_new
from chunkstore.backup.sources import Moment, is_export, open_export_source, open_past
from chunkstore.backup.subjects import opened_as_owner
from chunkstore.backup.survey import Source, require_complete, survey
from chunkstore.backup.target import require_nothing
from chunkstore.config import Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ContainerNotFound, InvalidArgument, Unsupported
from chunkstore.following import open_replica
from chunkstore.metadata.importing import IMPORT_ID_BYTES
from chunkstore.names import ContainerNames
from chunkstore.replica import Replica

__all__ = ["Target", "drop_import", "import_", "import_file", "merge_file"]

Target: TypeAlias = (
    ChunkedSegmentStorage | Replica | Callable[[], AbstractContextManager[ChunkedSegmentStorage | Replica]]
)
"""A container that works: its owner, or what makes one, once the source was looked at; to look only, a replica, too."""

_NO_OWNER: Final = "a replica takes nothing in: give the container's owner"


def import_(
    root: str,
    source: str | os.PathLike[str],
    segments: Sequence[str] = (),
    *,
    rename: Mapping[str, str] | None = None,
    prefix: str = "",
    source_root: str | None = None,
    source_container: str | None = None,
    lsn: int | None = None,
    time: datetime | int | None = None,
    container: str = "default",
    new: bool | None = None,
    settings: Settings | None = None,
    wait_s: float | None = None,
    accept_rollback: bool = False,
    adopt: bool = False,
    no_pin: bool = False,
    dry_run: bool = False,
    progress: Callable[[int], object] | None = None,
) -> RestoreReport:
    """Take what ``source`` holds, or some segments of it, into ``container`` at ``root``: as ``merge_file`` where there is one that works,
    which is claimed for it as by ``chunkstore.open`` (``accept_rollback``; ``wait_s`` None: so long that a live owner is seen,
    ``ContainerBusy``); else as ``import_file``, as a new one.

    ``new``: True, only as a new one; False, only into one that is there. ``source_container``: else ``container``. Else as these two, also
    what is promised and raised. Retry: safe, and goes on where it was.
    """
    if is_export(root):
        text = f"{root!r} is an export file: say first the root that takes it in, then the file"
        raise InvalidArgument(text, argument="root")
    if new is not None:
        check_flags(new=new)
    chosen = parts.checked_settings(settings)
    watched_s = parts.watch_s(chosen) if wait_s is None else wait_s
    looked_at = partial(open_replica, root, container=container, settings=chosen)
    do: Callable[..., RestoreReport]
    if new is False or (new is None and _is_whole(looked_at)):
        owned = partial(
            opened_as_owner,
            root,
            container=container,
            settings=chosen,
            wait_s=watched_s,
            accept_rollback=accept_rollback,
        )
        do = partial(merge_file, looked_at if dry_run else owned)
    else:
        do = partial(import_file, root, container=container, wait_s=watched_s)
    return do(
        source,
        segments,
        rename=rename,
        prefix=prefix,
        source_root=source_root,
        source_container=container if source_container is None else source_container,
        lsn=lsn,
        time=time,
        settings=chosen,
        adopt=adopt,
        no_pin=no_pin,
        dry_run=dry_run,
        progress=progress,
    )


def _is_whole(looked_at: Callable[[], Replica]) -> bool:
    """Whether there is a container that works. One that an import is making is gone on with."""
    try:
        looked_at().close()
        return True
    except ContainerNotFound:
        return False
    except Unsupported as error:
        if error.feature != "unfinished_import":
            raise
        return False


def import_file(
    new_root: str,
    source: str | os.PathLike[str],
    segments: Sequence[str] = (),
    *,
    rename: Mapping[str, str] | None = None,
    prefix: str = "",
    source_root: str | None = None,
    source_container: str = "default",
    lsn: int | None = None,
    time: datetime | int | None = None,
    container: str | None = None,
    settings: Settings | None = None,
    wait_s: float = 0,
    adopt: bool = False,
    no_pin: bool = False,
    dry_run: bool = False,
    progress: Callable[[int], object] | None = None,
) -> RestoreReport:
    """Make a new container under ``new_root`` of what ``source`` holds, or of some segments of it. Chunks are copied, or adopted.

    ``source``: an export file, whose chunks lie at ``source_root``, or else where it says; or a root, of backups or of a container
    (``source_container``), with the moment as in ``open_replica``: else the newest backup, or the present. ``segments``: names, or prefixes
    with ``*`` behind them; none: all. ``rename``: old names and new ones; ``prefix``: in front of all others. ``container``: the name of
    the new one; else that of the old one. Else as ``restore``: what comes along, how it goes on, what it raises. Of a part: the
    retention policies of its segments and the rows of its ledgers come along, other tables do not.

    ``adopt``: chunks are not copied, they stay where they are, and are pinned there; ``no_pin``: without (``chunkstore.backup.adopt``), as
    it has to be for an export, whose own pin keeps them as long as nobody gives it up. What is foreign there, too, is copied. A moment has
    to lie behind the pin, which the first such import of ``source`` makes.

    Raises, too: ``SegmentNotFound`` (of ``segments``), ``InvalidArgument`` (names; another container at ``source_root``), ``Damaged`` (the
    file), ``RootRefused`` (the file or a row leads to a root that ``Settings.foreign_roots`` does not name). Retry: safe, and goes on where
    it was.
    """
    chosen, plan = parts.checked_settings(settings), plan_names(segments, rename, prefix)
    if container is not None:
        ContainerNames(container)
    moment = Moment(lsn, time)
    opened = partial(_opened, source, source_root, source_container, moment, plan, chosen, merges=False)
    check_flags(adopt=adopt, no_pin=no_pin, dry_run=dry_run)
    _check_adopted(source, adopt=adopt, no_pin=no_pin)
    with opened() as looked_at, parts.storage_of(new_root, settings) as new:
        target = looked_at.names.container if container is None else container
        make = partial(
            into_new,
            new=new,
            container=target,
            settings=chosen,
            wait_s=wait_s,
            dry_run=dry_run,
            progress=progress,
        )
        if dry_run or not adopt:
            return make(looked_at)
        # Before the pin, which nobody would take back.
        with suppress(ContainerNotFound):
            require_nothing(new, ContainerNames(target))
        require_complete(survey(looked_at))
        adopted_root, adopted = _adopted_from(source, source_root, source_container)
        row, pinned_lsn = pin_for_new(
            adopted_root,
            container=adopted,
            settings=chosen,
            new=new,
            new_container=target,
            no_pin=no_pin,
        )
        # What was seen before the pin may be gone.
        with opened() as found:
            return make(_behind_pin(found, pinned_lsn), adopt=row)


def merge_file(
    target: Target,
    source: str | os.PathLike[str],
    segments: Sequence[str] = (),
    *,
    rename: Mapping[str, str] | None = None,
    prefix: str = "",
    source_root: str | None = None,
    source_container: str = "default",
    lsn: int | None = None,
    time: datetime | int | None = None,
    settings: Settings | None = None,
    adopt: bool = False,
    no_pin: bool = False,
    dry_run: bool = False,
    progress: Callable[[int], object] | None = None,
) -> RestoreReport:
    """Take what ``source`` holds, or some segments of it, into a container that works, beside what it does meanwhile. Chunks are copied.

    ``source`` and the choice are as in ``import_file``; ``settings`` are of the source. No segment is seen before it is whole; up to a
    thousand appear in one commit, more in several. With them come attributes, seals, start offsets, labels of time and writers' last
    events; their own retention policies, where the container has none for the name; rows of ledgers whose segments all come along. Other
    tables come with everything. A row that is there already has to say the same. ``dry_run``: only look.

    ``adopt``: chunks are not copied, they stay where they are, and are pinned there; ``no_pin``: without (``chunkstore.backup.adopt``), as
    it has to be for an export, whose own pin keeps them as long as nobody gives it up. What is foreign there, too, is copied. A moment has
    to lie behind the pin, which the first such import of ``source`` makes.

    Durable. Not atomic: an import that was interrupted goes on with the same call, and is one of ``pending_imports`` until then;
    ``drop_import`` ends it. Raises ``InvalidArgument`` (names that are taken, too long, or held by rows of ledgers; another container at
    ``source_root``), ``SegmentNotFound``, ``ChunksMissing``, ``RootRefused``, ``Conflict`` (a row of a table; the same import is under
    way), all before anything is done, and what opening the source raises; then ``SegmentExists`` (a name was taken meanwhile: free it, or
    drop the import), ``Conflict``, ``ChunkNotFound`` (a chunk was collected at the source meanwhile: pin it), ``Damaged`` (a chunk is not
    what its record says), and the errors of commits. Retry: safe; after ``OutcomeUnknown`` look whether the segments are there.
    """
    chosen, plan = parts.checked_settings(settings), plan_names(segments, rename, prefix)
    moment = Moment(lsn, time)
    opened = partial(_opened, source, source_root, source_container, moment, plan, chosen, merges=True)
    check_flags(adopt=adopt, no_pin=no_pin, dry_run=dry_run)
    _check_adopted(source, adopt=adopt, no_pin=no_pin)
    with opened() as found:
        if dry_run or not adopt:
            return merge_source(found, target, dry_run=dry_run, progress=progress)
        require_complete(survey(found))
    with nullcontext(target) if isinstance(target, ChunkedSegmentStorage | Replica) else target() as store:
        if isinstance(store, Replica):
            raise InvalidArgument(_NO_OWNER, argument="target")
        adopted_root, adopted = _adopted_from(source, source_root, source_container)
        made = adopt_from(store, adopted_root, container=adopted, no_pin=no_pin)
        made.close()
        # What was seen before the pin may be gone.
        with opened() as found:
            return merge_source(_behind_pin(found, made.lsn)._replace(root=made.root), store, progress=progress)


def merge_source(
    source: Source, target: Target, *, dry_run: bool = False, progress: Callable[[int], object] | None = None
) -> RestoreReport:
    """As ``merge_file``, of what is open."""
    report = survey(source)
    identity = merge_id(source.origin)
    if not dry_run:
        require_complete(report)
    opened = nullcontext(target) if isinstance(target, ChunkedSegmentStorage | Replica) else target()
    with opened as store:
        require_room(store, source, identity)
        if not dry_run:
            if isinstance(store, Replica):
                raise InvalidArgument(_NO_OWNER, argument="target")
            merge_into(store, source, identity, progress)
        return RestoreReport(store.container, source.origin.lsn, *report, dry_run=dry_run)


def _check_adopted(source: str | os.PathLike[str], *, adopt: bool, no_pin: bool) -> None:
    if adopt and not no_pin and is_export(source):
        text = "the pin of an export is not ours to rely on: adopt from the container's root, or say no_pin and see that its pin stays"
        raise InvalidArgument(text, argument="adopt")


def _adopted_from(source: str | os.PathLike[str], source_root: str | None, container: str) -> tuple[str, str]:
    """Root and container whose chunks are adopted."""
    if not is_export(source):
        return os.fspath(source), container
    header = read_export(source).header
    return header.root if source_root is None else source_root, header.name


def _behind_pin(found: Source, lsn: int) -> Source:
    if found.origin.lsn < lsn:
        text = f"lsn {found.origin.lsn} lies before the pin, at lsn {lsn}: adopt a later state, or copy"
        raise InvalidArgument(text, argument="lsn")
    return found


def drop_import(store: ChunkedSegmentStorage, identity: str) -> None:
    """End an import that nobody shall go on with, by its id: what has no name yet becomes garbage. Segments that have theirs stay.

    Durable. Raises ``InvalidArgument`` (there is none), ``Conflict`` (it goes on just now), and as ``commit``. Retry: safe.
    """
    try:
        raw = bytes.fromhex(identity)
    except (TypeError, ValueError):
        raw = b""
    if len(raw) != IMPORT_ID_BYTES or not drop_merge(store, raw):
        text = f"no import {identity!r} is under way; 'import ls' shows which are"
        raise InvalidArgument(text, argument="identity")


@contextmanager
def _opened(
    source: str | os.PathLike[str],
    source_root: str | None,
    container: str,
    moment: Moment,
    plan: NamePlan,
    settings: Settings,
    *,
    merges: bool,
) -> Iterator[Source]:
    moment.check()
    if is_export(source):
        if moment != Moment():
            text = "an export is of one moment: lsn and time are for roots"
            raise InvalidArgument(text, argument="time" if moment.lsn is None else "lsn")
        with open_export_source(source, source_root, settings=settings, plan=plan, merges=merges) as found:
            yield found
        return
    if source_root is not None:
        text = f"{os.fspath(source)} is no file, so it is taken for the root itself: leave source_root out"
        raise InvalidArgument(text, argument="source_root")
    names = ContainerNames(container)
    with (
        parts.storage_of(os.fspath(source), settings) as storage,
        open_past(
            storage, container=names.container, moment=moment, settings=settings, plan=plan, merges=merges
        ) as past,
    ):
        yield past
