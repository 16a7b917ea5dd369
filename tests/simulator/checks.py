"""Judging a run: what may never be seen while it goes on, and what must hold at its end.

The invariants of steps are judged whenever something happens, those of the metadata at each take-over, all of them and the
history of what clients were told at the end. Every finding begins with what found it: ``invariant N``, or ``history ANOMALY``.
Judging takes no virtual time. The rules: ``tests.judges.step_invariants``, ``tests.judges.checker``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Damaged
from chunkstore.metadata.keys import CHUNK, chunk_key, session_key
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.check import check
from chunkstore.records.names import chunk_epoch, chunk_session
from chunkstore.storage import iter_listing
from tests.judges.checker import check_history
from tests.judges.events import Event
from tests.judges.stored_history import StoredHistory
from tests.simulator.clients import TABLE
from tests.simulator.finals import ContainerContents, container_contents, patiently
from tests.simulator.watching import Watch
from tests.simulator.world import Process, World

_IDEMPOTENT: Final = ("seal", "unseal", "truncate")
_WRONG: Final = frozenset(("damage", "leak"))
"""Severities of findings that no correct run leads to."""


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
