"""What an owner does with header files at its root, under CODE_ONLY_UPGRADE and LAYOUT_UPGRADE (decision 0024, docs/guide-old-layout.md).

Promises
* The journal is the truth. A header is derived from it, so it does not matter how often it is written, or by whom: an owner that is deposed
  can put an older one in its place, which is mended at the next opening, within an hour, or when the segment's chunks change.
* A header is imported once: the commit by which its segment appears says so (``!layout``). A deleted segment does not come back by a header
  that is left.
* A header that lists files of others, beside a segment that is there, is nobody's to replace: whoever opens is told.
* No lock of a segment is held over any of this. Under CODE_ONLY_UPGRADE no chunk is collected before the headers have followed its removal,
  unless the disk is full.

Leaves out: bytes of headers (``codec.rolling_header``), writing one (``header_writer``), importing one (``header_segment``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final

from chunkstore import runtime
from chunkstore.backup.header_plan import ChunkCopy, HeaderPlan, is_copy, plan_export
from chunkstore.backup.header_present import PresentHeader, find_header, mark_of, others_went_on
from chunkstore.backup.header_segment import HIDDEN_PREFIX, import_segment
from chunkstore.backup.header_source import HeaderSource, header_names
from chunkstore.backup.header_writer import HeaderWriter, SeenSegment
from chunkstore.codec.rolling_header import (
    HEADER_SUFFIX,
    ChunkEntry,
    HeaderEntry,
    encode_header,
)
from chunkstore.config import Layout
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunkNotFound,
    ChunkstoreError,
    Conflict,
    Damaged,
    DeadlineExceeded,
    InvalidArgument,
    InvalidOffset,
    StorageFull,
)
from chunkstore.metadata.keys import LAYOUT_NAMESPACE, segment_key
from chunkstore.metadata.layouts import encode_layout, find_layout
from chunkstore.names import check_segment_name
from chunkstore.operations.change_set import ChangeSet
from chunkstore.operations.commit_changes import commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.pending import PendingOp
from chunkstore.operations.tables import plan_delete_row, plan_put_row
from chunkstore.upkeep.jobs import Job, Step

__all__ = ["HeaderKeeper"]

_REQUESTS: Final = 3
"""For one header, about: a stat, a read, a write."""
_SCAN_S: Final = 3600.0
_CHANGED_MAX: Final = 10_000
_AT_ONCE: Final = 256
_IMPORT_S: Final = 60.0
_WHAT: Final = "look at header files"


class HeaderKeeper:
    """See the module; one per owner. ``uuid``: the container's."""

    def __init__(self, store: ChunkedSegmentStorage, container: OwnedContainer, layout: Layout, uuid: bytes) -> None:
        self._store = store
        self._container = container
        self._storage = container.storage
        self._layout = layout
        self._follows = layout == "CODE_ONLY_UPGRADE"
        self._uuid = uuid
        self._writer = HeaderWriter(store, self._storage)
        self._begun = False
        self._lock = runtime.lock()
        """Held while headers are written, deleted or imported: one that is being imported is not deleted."""
        self._changed: dict[str, None] = {}
        """Segments whose headers may be behind."""
        self._missed = False
        """Whether there may be others."""
        self._scanned_s = runtime.monotonic_s()
        self._scan: Iterator[str] | None = None
        self._pass: list[str] | None = None
        """What is left of a pass, the last first; None: none is under way."""
        self._imports: Iterator[str] | None = None
        if self._follows:
            container.reshaped.append(self._note)

    def begin(self) -> None:
        """Before the owner serves: record the layout, and let all headers follow. Raises ``Conflict`` (a header that the journal cannot
        explain), ``Damaged``, and the errors of commits."""
        if self._container.look(find_layout) != self._layout:
            value = encode_layout(self._layout)
            plan = partial(plan_put_row, namespace=LAYOUT_NAMESPACE, key=b"", value=value, expected_version=None)
            commit_changes(self._container, (), plan, tables=True, adds=0)
        if self._follows:
            self._container.alone(self._lock, _WHAT, partial(self._settle_all, tail=True, gently=False))
        self._begun = True

    def mark(self, name: str) -> int:
        """As ``OldLayout``."""
        return mark_of(self._uuid, name) if self._follows else 0

    def jobs(self, *, imports: bool) -> list[tuple[Job, float]]:
        """As ``OldLayout``."""
        following: list[tuple[Job, float]] = [(_FollowJob(self), self._container.settings.header_s)]
        importing: list[tuple[Job, float]] = [(_ImportJob(self), _IMPORT_S)]
        return (following if self._follows else []) + (importing if imports else [])

    # Importing

    def fetch(self, name: str) -> bool:
        """As ``OldLayout``."""
        if name.startswith(HIDDEN_PREFIX):
            return False
        try:
            self._writer.check_place(name)
        except InvalidArgument:
            return False
        if self._is_there(name):
            return True
        if self._writer.is_imported(name) or not self._storage.exists(name + HEADER_SUFFIX):
            return False
        if not self._begun:
            # An owner is asked for things before it serves: what was made now under this name would hide what the header says.
            limit_s = self._container.settings.op_deadline_s
            raise DeadlineExceeded(f"the first look at header files, {name!r} among them", deadline_s=limit_s)
        return self._fetch_beside(name)

    def _fetch_beside(self, name: str) -> bool:
        """In a thread that no deadline of the caller's operation ends."""
        limit_s = self._container.settings.op_deadline_s
        ended = runtime.run_beside(lambda: self._fetch_alone(name), "chunkstore-import", limit_s)
        if not ended:
            raise DeadlineExceeded(
                f"importing segment {name!r} from its header file, which goes on", deadline_s=limit_s
            )
        return ended[0]

    def _fetch_alone(self, name: str) -> bool:
        return self._container.alone(self._lock, "import of a header file", partial(self._import, name))

    def _import(self, name: str) -> bool:
        if self._is_there(name):
            return True
        present = self._present(name)
        if present is None or not present.size_bytes or self._writer.is_imported(name):
            return False
        if present.ours:
            if present.marked and present.strange:
                raise others_went_on(name)
            return False  # of a segment of ours that is deleted
        source = HeaderSource(self._storage, self._storage)
        plan = source.plan(name, named=False)
        if plan is None:
            return False
        if plan.damage is not None:
            raise Damaged(plan.damage.message, object=plan.damage.object, position=plan.damage.position)
        import_segment(self._store, source, plan, once=True)
        return True

    def _is_there(self, name: str) -> bool:
        return self._container.look(lambda view: view.get(segment_key(name)) is not None)

    def import_step(self, step: Step) -> bool:
        """Import some more; whether there may be more."""
        if not self._begun:
            return False
        if self._imports is None:
            self._imports = header_names(self._storage)
        for name in self._imports:
            try:
                check_segment_name(name)
                self._writer.check_place(name)
                if not (self._is_there(name) or self._writer.is_imported(name)):
                    step.did(_REQUESTS)
                    self._fetch_alone(name)
            except (InvalidArgument, Damaged, Conflict) as error:
                step.findings.append(f"header of {name!r} is left alone: {error.message}")
            if not step.go_on():
                return True
        self._imports = None
        return False

    # Following

    def _note(self, op: PendingOp) -> None:
        """An operation that ``reshapes`` is committed; or nobody knows, and waits for it, any more."""
        if not op.decided or op.error is not None:
            self._missed = True
        if len(self._changed) >= _CHANGED_MAX:
            self._missed = True
            return
        for segment in op.segments:
            self._changed[segment.name] = None

    @property
    def pressing(self) -> bool:
        """Whether headers shall follow now: none before the first look at all of them."""
        return self._begun and bool(self._changed) and self._storage.capabilities.append

    def flush(self) -> None:
        """As ``OldLayout``. Where the disk is full it is left for later: what calls this frees space."""
        with suppress(StorageFull):
            if self._follows and (self._changed or self._missed):
                self._container.alone(self._lock, _WHAT, partial(self._flush, tail=False))

    def finish(self) -> None:
        """As ``OldLayout``."""
        with suppress(ChunkstoreError):
            if self._follows and self._begun:
                self._container.alone(self._lock, _WHAT, partial(self._flush, tail=True))

    def _flush(self, *, tail: bool) -> None:
        self._container.check_fence()
        deadline = self._container.deadline()
        if self._missed:
            self._settle_all(tail=tail, gently=True)
        imported: list[str] = []
        try:
            for name in list(self._changed):
                if deadline.left_s() == 0.0:
                    deadline.fail("writing header files")
                self._settle_changed(name, imported, tail=tail)
        finally:
            self._forget(imported)

    def follow_step(self, step: Step) -> bool:
        """Let some more headers follow; whether there is more to do now."""
        if step.dry_run or not self._begun:
            step.did(_REQUESTS * len(self._changed))
            return False
        return self._container.alone(self._lock, _WHAT, partial(self._follow, step))

    def _follow(self, step: Step) -> bool:
        if self._pass is None and not self._begin_pass():
            return False
        self._container.check_fence()
        step.did(1)
        imported: list[str] = []
        try:
            while (name := self._next()) is not None:
                if finding := self._settle_changed(name, imported, tail=False):
                    step.findings.append(finding)
                step.did(_REQUESTS)
                if not step.go_on():
                    return True
        finally:
            self._forget(imported)
        self._pass = None
        return False

    def _begin_pass(self) -> bool:
        now_s = runtime.monotonic_s()
        if self._missed or now_s - self._scanned_s >= _SCAN_S:
            # What is undecided may come to be behind the look at its segment.
            if not self._container.current.queue.idle:
                return False
            self._missed, self._scanned_s = False, now_s
            self._scan = self._all_names()
        elif not self._changed:
            return False
        self._pass = list(self._changed)[::-1]
        return True

    def _next(self) -> str | None:
        """The next segment of a pass: those that changed, then all others, where that is due."""
        if self._pass:
            return self._pass.pop()
        if self._scan is None:
            return None
        try:
            name = next(self._scan, None)
        except BaseException:
            self._scan, self._missed = None, True
            raise
        self._scan = None if name is None else self._scan
        return name

    def _settle_changed(self, name: str, imported: list[str], *, tail: bool) -> str:
        """As ``_settle``; what is wrong with a header that stays as it is. What fails otherwise is tried again."""
        was_there = name in self._changed
        self._changed.pop(name, None)
        try:
            if self._settle(name, tail=tail, was_there=was_there):
                imported.append(name)
        except (Conflict, Damaged, InvalidArgument) as error:
            return f"header of {name!r} is left alone: {error.message}"
        except ChunkstoreError:
            self._changed[name] = None
            raise
        return ""

    def _all_names(self) -> Iterator[str]:
        """Segments, and headers without one."""
        for info in self._store.segments():
            yield info.name
        for name in header_names(self._storage):
            with suppress(InvalidArgument):
                check_segment_name(name)
                if not self._is_there(name):
                    yield name

    def _settle_all(self, *, tail: bool, gently: bool) -> None:
        self._missed = False
        names = self._all_names()
        try:
            while group := list(islice(names, _AT_ONCE)):
                calls = [partial(self._settle_or_leave, name, tail=tail, gently=gently) for name in group]
                imported = self._container.pool.run_all(calls)
                self._forget(name for name, is_imported in zip(group, imported, strict=True) if is_imported)
        except BaseException:
            self._missed = True
            raise
        self._scanned_s = runtime.monotonic_s()

    def _settle_or_leave(self, name: str, *, tail: bool, gently: bool) -> bool:
        """As ``_settle``; a segment that no header can say is left, and ``gently`` a header that is not ours."""
        try:
            return self._settle(name, tail=tail)
        except (InvalidArgument, Conflict, Damaged) as error:
            if gently or isinstance(error, InvalidArgument):
                return False
            raise

    def _forget(self, names: Iterable[str]) -> None:
        """Commit that what was imported under these names has gone with its header."""
        if found := list(names):

            def plan(changes: ChangeSet) -> None:
                for name in found:
                    plan_delete_row(changes, LAYOUT_NAMESPACE, name.encode(), None)

            commit_changes(self._container, (), plan, tables=True)

    def _settle(self, name: str, *, tail: bool, was_there: bool = False) -> bool:
        """Make a header what the journal says; whether the row has become needless that says that it is imported. ``tail``: look how long
        the last chunk is. ``was_there``: there has been a segment of ours with this name. Raises ``Conflict``, ``Damaged``."""
        if name.startswith(HIDDEN_PREFIX):
            return False
        try:
            self._writer.check_place(name)
        except InvalidArgument:
            return False  # it cannot have one, and the old code no such segment
        present = self._present(name)
        seen = self._writer.look(name)
        imported = self._writer.is_imported(name)
        if seen is None:
            if present is None:
                return imported
            if present.marked and present.strange and not imported:
                raise others_went_on(name)
            if imported or present.marked or (was_there and not present.strange):
                self._writer.remove(name, present.entries if present.ours else (), for_good=imported)
                return imported
            return False  # to be imported
        if present is not None and present.strange and not imported:
            raise others_went_on(name)
        try:
            self._write(name, seen, present, tail=tail)
        except (ChunkNotFound, Damaged):
            if not tail:
                raise
            self._write(name, seen, present, tail=False)  # what is wrong with its last chunk, check says
        return imported

    def _write(self, name: str, seen: SeenSegment, present: PresentHeader | None, *, tail: bool) -> None:
        last = seen.chunks[-1].length if seen.chunks else 0
        longest = self._writer.last_length(seen.chunks) if tail else last
        token = runtime.token(4).hex()
        plan = plan_export(
            seen.info, seen.size_bytes_max, seen.chunks, longest, token, tag=self.mark(name), heads=False
        )
        former = present.entries if present is not None and present.ours else ()
        plan = self._with_copies_of(name, plan, former)
        if present is not None and present.is_whole and plan.entries == present.entries:
            self._writer.seal(seen)
        elif present is None or not self._append(name, plan, present):
            self._writer.write(seen, plan, former)
        else:
            self._writer.seal(seen)

    def _append(self, name: str, plan: HeaderPlan, present: PresentHeader) -> bool:
        """Write what is new behind a header, where that is all and the storage appends; whether it was done."""
        count = len(present.entries)
        able = self._storage.capabilities.append and present.is_whole and present.size_bytes and not plan.copies
        if not able or plan.entries[:count] != present.entries:
            return False
        header = name + HEADER_SUFFIX
        try:
            handle = self._storage.open_write(header)
            if not handle.writable:
                return False
            self._storage.write(handle, present.size_bytes, encode_header(plan.entries[count:]))
        except (InvalidOffset, ChunkNotFound):
            return False  # somebody else was here
        self._storage.sync([header])
        return True

    def _with_copies_of(self, name: str, plan: HeaderPlan, former: tuple[HeaderEntry, ...]) -> HeaderPlan:
        """The plan with copies that are there already."""
        there = {
            entry.offset: entry.name for entry in former if isinstance(entry, ChunkEntry) and is_copy(name, entry.name)
        }
        entries, copies = list(plan.entries), list[ChunkCopy]()
        for copy in plan.copies:
            known = there.get(copy.offset, "")
            if known and self._length_of(known) == copy.length:
                entries[entries.index(ChunkEntry(copy.offset, copy.name))] = ChunkEntry(copy.offset, known)
            else:
                copies.append(copy)
        return HeaderPlan(tuple(entries), tuple(copies))

    def _length_of(self, name: str) -> int | None:
        try:
            return self._storage.stat(name).length
        except ChunkNotFound:
            return None

    def _present(self, name: str) -> PresentHeader | None:
        return find_header(self._storage, self._container.names, name, mark_of(self._uuid, name))


class _FollowJob:
    name = "headers"

    def __init__(self, keeper: HeaderKeeper) -> None:
        self._keeper = keeper

    @property
    def pressing(self) -> bool:
        return self._keeper.pressing

    def step(self, step: Step) -> bool:
        return self._keeper.follow_step(step)


class _ImportJob:
    """After a pass that met every header it rests for an hour: a listing of the root is no trifle."""

    name = "import"
    pressing = False

    def __init__(self, keeper: HeaderKeeper) -> None:
        self._keeper = keeper
        self._rests_until_s = 0.0

    def step(self, step: Step) -> bool:
        now_s = runtime.monotonic_s()
        if step.dry_run or now_s < self._rests_until_s:
            return False
        more = self._keeper.import_step(step)
        if not more:
            self._rests_until_s = now_s + _SCAN_S
        return more
