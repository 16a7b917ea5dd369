"""Lost replies (protocol 2.3, #9, #46): each changing request of each kind of work is carried out once and never answered.

``LostReplies`` is inherited: who inherits it says on which ground it stands (a storage, and a wire to it that can lose the
reply to one request). For each kind of work the requests are recorded in one run without a fault; then the work is done again
for each of them, the reply to that one is lost, and what is there afterwards must be what the caller was told:

* acknowledged: the work is there, once. "Did not happen": it is not there. Unknown: one of the two, whole;
* the owner goes on with its work, and so does a successor that has no cache; the deep check finds nothing.
"""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest

from chunkstore import changes
from chunkstore.assembly import open_store_on
from chunkstore.config import RollingPolicy, Settings, Tuning
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import DeadlineExceeded, NotOwner, OutcomeUnknown, StorageFull, StorageUnavailable
from chunkstore.metadata.memory import MemoryShelf
from chunkstore.storage import ChunkStorage
from tests.faults.ground import State, observe, work
from tests.support.alone import alone
from tests.support.data import problems
from tests.support.worlds import ShelfCache

__all__ = ["Loss", "LossGround", "LostReplies", "Work"]

_numbers = itertools.count(1)
NOT_HAPPENED = (StorageUnavailable, StorageFull, NotOwner, DeadlineExceeded)
Told = Literal["acknowledged", "did not happen", "unknown"]


class LossGround(ABC):
    """Where a suite stands. One for each test; closed by who made it."""

    mode: Literal["slot", "append"] = "slot"
    rolling: int = 48

    @abstractmethod
    def storage(self) -> ChunkStorage:
        """A process's storage, as production makes it, whose requests go over the wire."""

    @abstractmethod
    def direct(self) -> ChunkStorage:
        """Another process's storage, which never loses anything."""

    @abstractmethod
    def watch(self) -> None:
        """Record the changing requests on the wire from now on."""

    @abstractmethod
    def trace(self) -> list[str]:
        """The changing requests since ``watch``, in words."""

    @abstractmethod
    def lose(self, number: int) -> None:
        """Begin to record anew; the reply to changing request ``number`` (from 0) will be lost, once."""

    @abstractmethod
    def heal(self) -> bool:
        """No losses any more. Whether one was lost."""

    def settings(self) -> Settings:
        """Short enough for a test, long enough for a server."""
        return Settings(
            journal_mode=self.mode,
            lease_s=5.0,
            op_deadline_s=60.0,
            gc_grace_s=0.0,
            default_rolling=RollingPolicy(chunk_size_bytes_max=self.rolling),
            tuning=Tuning(undecided_s_max=60.0, resolve_s=1.0, io_workers=4, snapshots_kept=1),
        )


class Loss:
    """One container on a ground."""

    def __init__(self, ground: LossGround) -> None:
        self.ground = ground
        self.container = f"c{os.getpid()}-{next(_numbers)}"
        self._shelf = MemoryShelf()
        self._storages: list[ChunkStorage] = []
        self._stores: list[ChunkedSegmentStorage] = []

    def open(self, *, wire: bool = True) -> ChunkedSegmentStorage:
        """Take the container over, through the wire or directly."""
        storage = self.ground.storage() if wire else self.ground.direct()
        self._storages.append(storage)
        cache = ShelfCache(storage, self.container, "owner", self._shelf)
        store = open_store_on(
            storage, container=self.container, settings=self.ground.settings(), cache=cache, take_over=True
        )
        self._stores.append(store)
        return store

    def forget_cache(self) -> None:
        """Whoever opens next is on another machine."""
        self._shelf = MemoryShelf()

    def abandon(self, store: ChunkedSegmentStorage) -> None:
        """The process ends: nothing is closed or written."""
        alone(store)
        container = store._container
        container.pool.close()
        container.closed = True
        self._stores.remove(store)
        self.forget_cache()

    def close(self) -> None:
        self.ground.heal()
        for store in reversed(self._stores):
            store.close()
        for storage in self._storages:
            storage.close()


@dataclass(frozen=True)
class Work:
    """``prepare`` is acknowledged; then a reply is lost during ``act``."""

    name: str
    act: Callable[[Loss, ChunkedSegmentStorage], object]
    prepare: Callable[[Loss, ChunkedSegmentStorage], object] = lambda loss, store: None


def _fill(loss: Loss, store: ChunkedSegmentStorage) -> None:
    store.create("log")
    store.append("log", b"0123456789")
    store.create("other")
    store.append("other", b"o" * 100)


def _garbage(loss: Loss, store: ChunkedSegmentStorage) -> None:
    _fill(loss, store)
    store.snapshot()
    store.truncate("other", 70)
    store.snapshot()


def _mixed(loss: Loss, store: ChunkedSegmentStorage) -> None:
    store.commit(
        [
            changes.Create("made"),
            changes.Append("made", b"m" * 60),
            changes.Append("log", b"more", expected_offset=10),
            changes.TablePut("rows", b"key", b"value", expected_version=0),
            changes.Seal("other"),
        ]
    )


def _open_after_close(loss: Loss, store: ChunkedSegmentStorage) -> None:
    store.close()
    loss.open()


def _open_elsewhere(loss: Loss, store: ChunkedSegmentStorage) -> None:
    """The former owner is gone without a word; its successor has no cache."""
    loss.abandon(store)
    loss.open()


def _open_beside(loss: Loss, store: ChunkedSegmentStorage) -> None:
    """The former owner lives on and has to notice."""
    loss.forget_cache()
    loss.open()
    with pytest.raises((NotOwner, OutcomeUnknown)):
        store.append("log", b"from the past")


def _void(loss: Loss, store: ChunkedSegmentStorage) -> None:
    """Somebody claimed the next epoch and died before OPEN: its slot 0 is made void on the way."""
    from chunkstore_journal.claim import new_attempt

    epoch = store.epoch + 1
    loss.abandon(store)
    raw = loss.ground.direct()
    names = store._container.names
    assert raw.create_if_absent(names.epoch(epoch), new_attempt(epoch).data)
    raw.close()
    loss.open()


def _roll(loss: Loss, store: ChunkedSegmentStorage) -> None:
    """A take-over from itself: SEAL or cut, claim and OPEN by a living owner."""
    store._maintenance._recovery.roll()


WORKS: tuple[Work, ...] = (
    Work("append", lambda loss, store: store.append("log", b"more bytes"), _fill),
    Work("append-of-many-chunks", lambda loss, store: store.append("log", b"r" * 200), _fill),
    Work("create", lambda loss, store: store.create("made"), _fill),
    Work("commit", _mixed, _fill),
    Work("snapshot", lambda loss, store: store.snapshot(), _fill),
    Work("collect", lambda loss, store: store.collect(), _garbage),
    Work("roll", _roll, _fill),
    Work("close", lambda loss, store: store.close(), _fill),
    Work("first-open", lambda loss, store: loss.open()),
    Work("open-after-close", _open_after_close, _fill),
    Work("open-elsewhere", _open_elsewhere, _garbage),
    Work("open-beside", _open_beside, _fill),
    Work("open-over-a-dead-claim", _void, _fill),
)


class FewerRequests(AssertionError):
    """The work made fewer requests than when it was rehearsed."""


class LostReplies:
    """Inherit it, and give it a ``ground`` fixture. ``allowed`` may narrow what callers may be told."""

    works: ClassVar[tuple[Work, ...]] = WORKS
    stride: ClassVar[int] = 1
    """Of how many requests the reply to one is lost: the first, and so on; the last one always."""

    def allowed(self, work: Work, request: str) -> tuple[Told, ...]:
        """What a caller may be told when the reply to this request is lost."""
        return ("acknowledged", "did not happen", "unknown")

    @pytest.mark.parametrize("kind", WORKS, ids=lambda kind: kind.name)
    def test_every_reply_is_lost_once(
        self, ground: LossGround, kind: Work, record_property: Callable[[str, object], None]
    ) -> None:
        trace, before, after = self.rehearse(ground, kind)
        assert trace
        chosen = [(number, request) for number, request in enumerate(trace) if self.is_chosen(number, len(trace))]
        for number, request in chosen:
            try:
                told = self.lose_one(ground, kind, number, before, after)
                assert told in self.allowed(kind, request)
            except FewerRequests:
                # A machine that was too busy when it was rehearsed made a try too many.
                again, _, _ = self.rehearse(ground, kind)
                if number < len(again):
                    raise
            except BaseException as error:
                error.add_note(f"{kind.name}: the reply to request {number} of {len(trace)} was lost: {request}")
                raise
        record_property("fault_cases", len(chosen))

    def is_chosen(self, number: int, requests: int) -> bool:
        return number % self.stride == 0 or number == requests - 1

    @staticmethod
    def begin(loss: Loss, kind: Work) -> ChunkedSegmentStorage | None:
        if kind.name == "first-open":
            return None
        store = loss.open()
        alone(store)
        kind.prepare(loss, store)
        return store

    def rehearse(self, ground: LossGround, kind: Work) -> tuple[list[str], State, State]:
        """The requests, and what is there before and after."""
        loss = Loss(ground)
        try:
            store = self.begin(loss, kind)
            before = observe(store) if store is not None else State({}, {}, 0)
            ground.watch()
            kind.act(loss, store)  # type: ignore[arg-type]
            trace = ground.trace()
            ground.heal()
            with loss.open(wire=False) as successor:
                after = observe(successor)
                assert problems(successor.check("deep")) == []
            return trace, before, after
        finally:
            loss.close()

    def lose_one(self, ground: LossGround, kind: Work, number: int, before: State, after: State) -> Told:
        loss = Loss(ground)
        try:
            store = self.begin(loss, kind)
            ground.lose(number)
            told: Told = "acknowledged"
            try:
                kind.act(loss, store)  # type: ignore[arg-type]
            except OutcomeUnknown:
                told = "unknown"
            except NOT_HAPPENED:
                told = "did not happen"
            if not ground.heal():
                raise FewerRequests("the work made fewer requests than before")
            state = self.go_on(loss, told, before, after)
            loss.forget_cache()
            with loss.open(wire=False) as successor:
                assert observe(successor) == state
                assert problems(successor.check("deep")) == []
                state = work(successor, state, "last")
                assert observe(successor) == state
            return told
        finally:
            loss.close()

    @staticmethod
    def go_on(loss: Loss, told: Told, before: State, after: State) -> State:
        """The newest owner, if there is one, knows what happened, and works on."""
        store = loss._stores[-1] if loss._stores else None
        if store is None or store._container.closed or store._container.fence.error is not None:
            store = loss.open()
        try:
            # What is undecided, and a broken journal, are settled by the next change.
            store.table("rows").delete(b"no such row")
            state = observe(store)
        except StorageUnavailable:
            store.table("rows").delete(b"no such row")
            state = observe(store)
        except NotOwner:
            # Deposed by a take-over that did not come to its end.
            store = loss.open()
            state = observe(store)
        possible = {"acknowledged": (after,), "did not happen": (before,), "unknown": (before, after)}[told]
        assert state in possible, f"told: {told}\nfound  {state}\nbefore {before}\nafter  {after}"
        state = work(store, state, "then")
        assert observe(store) == state
        store.close()
        return state
