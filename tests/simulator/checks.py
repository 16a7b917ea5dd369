"""Judging a run: what may never be seen while it goes on, and what must hold at its end.

The invariants of steps are judged whenever something happens, those of the metadata at each take-over, all of them and the
history of what clients were told at the end. Every finding begins with what found it: ``invariant N``, or ``history ANOMALY``.
Judging takes no virtual time. The rules: ``tests.judges.step_invariants``, ``tests.judges.checker``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Closed, Damaged, DeadlineExceeded
from chunkstore.metadata.keys import CHUNK, chunk_key, session_key
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.check import check
from chunkstore.records.names import chunk_epoch, chunk_session
from chunkstore.storage import iter_listing
from tests.judges.checker import check_history
from tests.judges.events import Event
from tests.judges.step_invariants import StepInvariants
from tests.judges.stored_history import StoredHistory
from tests.simulator.clients import KEYS, TABLE
from tests.simulator.wire import Call
from tests.simulator.world import Process, World

_WHOLE = frozenset(("PUT", "PUT*", "RENAME", "link", "rename", "creat"))
_LABEL_NS = 2_000_000
"""A label is no finer, and a clock's step no smaller."""
_DELETING = frozenset(("DELETE", "unlink"))


class Watch:
    """The invariants of a world, from now on. Made right after the world, before anything happens in it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._owners: dict[Process, ChunkedSegmentStorage] = {}
        self._replicas: dict[Process, Replica] = {}
        self.invariants = StepInvariants(
            world.names, world.format, world.backend.content, self._violated, lambda: world.scheduler.now
        )
        self.invariants.kept_until = self._kept_until
        self.invariants.fence_at_tail = world.settings.read_fence == "tail"
        self.invariants.fence_by_stat = world.backend.capabilities.fence_by_stat
        world.observers.append(self._observe)
        self._cut = world.backend.power_cut
        setattr(world.backend, "power_cut", self._power_cut)  # noqa: B010  (of this one backend)

    def _violated(self, invariant: int, message: str) -> None:
        self._world.fail(f"invariant {invariant}: {message}")

    def _power_cut(self) -> None:
        self._cut()
        self.invariants.power_cut()

    def _kept_until(self, process: str, label_ms: int, written_ns: int) -> int:
        """Grace counts from a record's label, which is older than its write, on the clock of whoever deletes."""
        deleting = next(each for each in self._world.processes if each.name == process)
        if self._world.slept or deleting.clock_base_ns:
            return 0
        labelled_ns = min(written_ns, self._world.runtime.told_ms.get(label_ms, written_ns))
        return labelled_ns + max(0, int(self._world.settings.gc_grace_s * 1e9 / deleting.clock_rate) - _LABEL_NS)

    def _observe(self, call: Call, result: Any, late: bool) -> None:
        step, name = call.step, call.name
        if step in _WHOLE:
            if not isinstance(result, BaseException):
                process = call.process.name
                self.invariants.put(process, name, call.data, done=result is not False, late=late)
        elif step == "pwrite":
            if call.data is not None and not isinstance(result, BaseException):
                self.invariants.write(call.process.name, name, call.data)
        elif step in _DELETING:
            if call.op == "remove":
                self.invariants.withdrawn(name)
            elif not isinstance(result, BaseException):
                self.invariants.delete(call.process.name, name)

    # What the run tells

    def serving(self, process: Process, store: ChunkedSegmentStorage) -> None:
        """A process has opened the container; call it in a task of that process."""
        self._owners[process] = store
        epoch = store.epoch
        with self._world.scheduler.atomic():
            self.invariants.taken_over(process.name, epoch, store._container.current.store.head())
            with store._container.current.store.view() as view:
                self.invariants.rows_at(process.name, view)

    def following(self, process: Process, replica: Replica) -> None:
        """A replica has begun to follow. One that is opened anew may begin further back than the one before it stood."""
        self.invariants.forget_replica(process.name)
        self._replicas[process] = replica

    def told(self, event: Event) -> None:
        """A call was answered; then every cache and replica must stand at a point of history."""
        self.invariants.answered(event)
        self.look()

    def look(self) -> None:
        """Look where every cache and every replica stands."""
        with self._world.scheduler.atomic():
            for process, store in list(self._owners.items()):
                try:
                    if process.dead:
                        raise Closed("its process")
                    self.invariants.cache_at(process.name, store._container.current.store.head())
                except Closed:
                    del self._owners[process]
            for process, replica in list(self._replicas.items()):
                try:
                    if process.dead:
                        raise Closed("its process")
                    follower: Any = replica._follower
                    store_of_replica = follower._store
                    if store_of_replica is None:
                        raise Closed("the replica")
                    head = store_of_replica.head()
                except Closed:
                    del self._replicas[process]
                    continue
                self.invariants.replica_at(process.name, head)


_IDEMPOTENT: Final = ("seal", "unseal", "truncate")
_WRONG: Final = frozenset(("damage", "leak"))
"""Severities of findings that no correct run leads to."""


T = TypeVar("T")
ATTEMPTS: Final = 100


class ContainerContents(NamedTuple):
    """All that a container shows. ``segments``: (name, id, start offset, length, sealed); ``rows``: value and version, or None."""

    segments: tuple[tuple[str, int, int, int, bool], ...]
    contents: dict[str, bytes]
    rows: dict[bytes, tuple[bytes, int] | None]


def container_contents(shown: ChunkedSegmentStorage | Replica) -> ContainerContents:
    """Read all of it. A segment that cannot be read raises ``AssertionError``: faults are over."""
    segments = tuple(
        (info.name, info.id, info.start_offset, info.length, info.sealed)
        for info in patiently(lambda: list(shown.segments()))
    )
    contents: dict[str, bytes] = {}
    for name, _, start, _, _ in segments:
        try:
            contents[name] = patiently(partial(shown.read, name, start, 1 << 20))
        except ChunkstoreError as error:
            raise AssertionError(f"invariant 20: segment {name!r} cannot be read: {error!r}") from error
    table = shown.table(TABLE)
    rows = {key: patiently(partial(table.get, key)) for key in KEYS}
    return ContainerContents(
        segments, contents, {key: None if row is None else (row.value, row.version) for key, row in rows.items()}
    )


def patiently(call: Callable[[], T]) -> T:
    """A call in spite of drawn deadlines shorter than what it may have to wait for: a roll of the journal, a record of a read."""
    for _ in range(ATTEMPTS - 1):
        try:
            return call()
        except DeadlineExceeded:
            pass
    return call()


class Checks:
    """The judge of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._final: ContainerContents | None = None
        self._watch = Watch(world)

    @property
    def stored(self) -> StoredHistory:
        """History, as the storage holds it."""
        return self._watch.invariants.history

    def after_take_over(self, process: Process, store: ChunkedSegmentStorage) -> None:
        """A process has begun to serve; called in one of its tasks."""
        self._watch.serving(process, store)
        with self._world.scheduler.atomic(), store._container.current.store.view() as view:
            epoch, count = store.epoch, store._space.found_orphans
            findings = list(check(store._context, view, "quick", epoch=epoch, orphans=count, progress=lambda _: None))
        for finding in findings:
            if finding.severity in _WRONG:
                self._world.fail(f"invariant {finding.invariant}: after the take-over by {process.name}: {finding}")

    def watch_replica(self, process: Process, replica: Replica) -> None:
        """A replica has begun to follow."""
        self._watch.following(process, replica)

    def damaged(self, error: Damaged, _since: int = 0) -> bool:
        """Somebody was answered this; whether the storage really lost what was named, which then is the violation."""
        return self._watch.invariants.answered_damaged(error.object or "")

    def referenced_chunks(self) -> list[str]:
        """The chunks that history refers to now."""
        return [self._world.names.chunk(key[1:]) for key in self.stored.rows if key[:1] == CHUNK]

    def told(self, event: Event) -> None:
        """A client was answered."""
        self._watch.told(event)

    def at_the_end(self, store: ChunkedSegmentStorage, *, early: bool) -> list[Event]:
        """After all faults, in a task of the heir."""
        world = self._world
        for finding in [finding for finding in patiently(lambda: store.check("deep")) if finding.severity in _WRONG]:
            world.fail(f"invariant {finding.invariant}: at the end: {finding}")
        holders = [session.holder for session in patiently(store.sessions)]
        if len(set(holders)) < len(holders):
            world.fail(f"history duplicate: sessions that were asked for once each are open: {holders}")
        if not early:
            self._watch.look()
            self._watch.invariants.finish()
        found = container_contents(store)
        if self._final is not None and found != self._final:
            world.fail(f"invariant 9: contents changed without a change: {self._final} -> {found}")
        self._final = found
        return self._finals(store, found) if early else []

    def swept(self, store: ChunkedSegmentStorage) -> None:
        """One sweep leaves nothing that no row names, but for what the heir itself may have left behind (invariant 23)."""
        patiently(lambda: store.sweep(delete=True, age_s_min=0))
        owned = store._container
        with owned.current.store.view() as view:
            for info in iter_listing(owned.storage, owned.names.data_prefix()):
                identity = owned.names.parse_chunk(info.name)
                if identity is None or (chunk_epoch(identity) < store.epoch and not _is_named(view, identity)):
                    self._world.fail(f"invariant 23: a sweep has left {info.name}, {info.length} bytes")

    def _finals(self, store: ChunkedSegmentStorage, found: ContainerContents) -> list[Event]:
        """What the heir was told, as events: segments one by one, which there are, and rows."""

        def event(kind: str, name: str, args: tuple[Any, ...], result: Any) -> Event:
            now = self._world.scheduler.now
            return Event("heir", kind, name, args, now, now, "ok", result, store.epoch)

        finals = [
            event("final", info[0], (info[2], len(found.contents[info[0]]), info[1]), found.contents[info[0]])
            for info in found.segments
        ]
        prefixed = tuple(info for info in found.segments if info[0].startswith("s"))
        finals.append(event("list", "", ("s",), prefixed))
        finals += [event("table_get", "", (TABLE, key), row) for key, row in found.rows.items()]
        return finals

    def compare(self, replica: Replica) -> None:
        """A replica without a cache, after the heir has closed: it shows what the heir showed. Called in a task of its process."""
        replica.refresh()
        found = container_contents(replica)
        if self._final is not None and found != self._final:
            self._world.fail(
                f"invariant 13: a new replica shows other contents than the owner: {self._final} -> {found}"
            )
        replica.close()

    def history(self, events: Sequence[Event]) -> None:
        """The whole history, once nothing can be added to it any more."""
        invariants = self._watch.invariants
        tail = self._world.settings.read_fence == "tail"
        verdict = check_history(invariants.history.entries, events, owners=invariants.owners, tail=tail)
        doubtful = [
            event for index, event in enumerate(events) if event.outcome == "unknown" and index not in verdict.lsns
        ]
        for index, lsn in verdict.lsns.items():
            written = invariants.history.entries[lsn - 1].written
            if not any(_may_be_of(other, events[index], written) for other in doubtful):
                invariants.acknowledged(events[index], lsn)
        for anomaly in verdict.anomalies:
            shown = "; ".join(repr(events[index]) for index in anomaly.events[:3])
            self._world.fail(f"history {anomaly.name}: segment {anomaly.segment!r}: {anomaly.message} ({shown})")


def _may_be_of(other: Event, event: Event, written: int) -> bool:
    """Whether a record may as well be of a call whose outcome nobody knows: what the other one asked for was so already, when it looked."""
    same = (other.kind, other.segment, other.args, other.epoch) == (event.kind, event.segment, event.args, event.epoch)
    return same and event.kind in _IDEMPOTENT and other.invoked <= written


def _is_named(view: MetadataView, identity: bytes) -> bool:
    """Whether a row is its own or names it, or its session is open."""
    if view.get(chunk_key(identity)) is not None:
        return True
    session = chunk_session(identity)
    if session is not None and view.get(session_key(session)) is not None:
        return True
    return any(identity in raw for _, raw in view.scan(b"\x01", b"\xff"))
