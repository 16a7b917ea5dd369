"""Regressions of what others have to go on without: hung writes, threads that cannot be had, segments that come and go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

from chunkstore import runtime
from chunkstore.assembly import open_store_on
from chunkstore.config import RollingPolicy, Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import OutcomeUnknown, StorageFull, StorageUnavailable
from chunkstore.operations import lazy, pending
from chunkstore.operations.core import Core
from chunkstore.operations.pending import PendingOp, SegmentState
from chunkstore_bindings.memory import MemoryChunkStorage
from tests.support.forwarding import Hooked
from tests.support.hooked import Remote, in_thread


@pytest.fixture
def memory(request: pytest.FixtureRequest) -> Iterator[Hooked]:
    storage = Hooked(MemoryChunkStorage(f"memory://{request.node.name}"))
    yield storage
    storage.close()


@pytest.fixture
def opened() -> Iterator[Callable[..., ChunkedSegmentStorage]]:
    stores: list[ChunkedSegmentStorage] = []

    def make(storage: Hooked, **settings: Any) -> ChunkedSegmentStorage:
        stores.append(open_store_on(storage, settings=Settings(lease_s=0, **settings)))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


Opened: TypeAlias = Callable[..., ChunkedSegmentStorage]


def fail_the_next_sync_of_the_log(storage: Hooked) -> None:
    def before(operation: str, names: tuple[str, ...]) -> None:
        if operation == "sync" and names[0].endswith("log.a"):
            storage.before = lambda *_: None
            raise StorageUnavailable("EIO")

    storage.before = before


def test_an_event_that_was_left_behind_is_not_answered_as_known(
    opened: Opened, memory: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A self-take-over had to leave a hung append behind; when that came back, a retry of its event was told the offset of what
    had been refused a moment before: acknowledged, and nowhere."""
    store = opened(memory, op_deadline_s=60.0)
    store._core.patience_s = 0.4
    store.create("x")
    store.create("y")
    store.append("x", b"0", writer_id=b"w", event_number=4)
    hanging, go = threading.Event(), threading.Event()
    left, on = threading.Event(), threading.Event()
    real = store._core.committer.refuse

    def refuse(state: SegmentState, twin: SegmentState) -> bool:
        done: bool = real(state, twin)
        if state.name == "x":
            # Here the thread may be taken off its processor.
            left.set()
            assert on.wait(30)
        return done

    def hang(operation: str, names: tuple[str, ...]) -> None:
        if operation == "write" and "/d/" in names[0]:
            memory.before = lambda *_: None
            hanging.set()
            assert go.wait(30)

    monkeypatch.setattr(store._core.committer, "refuse", refuse)
    memory.before = hang
    first, first_found = in_thread(lambda: store.append("x", b"EVENT5", writer_id=b"w", event_number=5))
    assert hanging.wait(30)
    again, again_found = in_thread(lambda: store.append("x", b"EVENT5", writer_id=b"w", event_number=5))
    fail_the_next_sync_of_the_log(memory)
    other, _ = in_thread(lambda: store.append("y", b"z"))
    assert left.wait(30)
    go.set()
    first.join(30)
    again.join(0.2)
    on.set()
    other.join(30)
    again.join(30)
    assert isinstance(first_found[0], StorageUnavailable)
    assert again_found == [1]
    assert store.read("x", 0, 99) == b"0EVENT5"
    assert store.last_event_number("x", b"w") == 5


def test_a_lazy_segment_is_not_blocked_by_a_record_that_came_too_late(
    opened: Opened, memory: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record that closes a spoilt chunk was left behind by a self-take-over and never decided: everybody waited for it for ever."""
    store = opened(memory, op_deadline_s=1.5, lengths="lazy")
    store.create("x")
    store.create("y")
    store.append("x", b"0")
    at, go = threading.Event(), threading.Event()
    real = lazy._settling

    def settling(core: Core, state: SegmentState, *, closing: bool) -> PendingOp:
        op = real(core, state, closing=closing)
        if state.name == "x" and not at.is_set():
            at.set()
            assert go.wait(30)
        return op

    def fail(operation: str, names: tuple[str, ...]) -> None:
        if operation == "write" and "/d/" in names[0]:
            memory.before = lambda *_: None
            raise StorageUnavailable("EIO")

    monkeypatch.setattr(lazy, "_settling", settling)
    memory.before = fail
    spoilt, found = in_thread(lambda: store.append("x", b"1"))
    assert at.wait(30)
    fail_the_next_sync_of_the_log(memory)
    assert store.append("y", b"z") == 0
    go.set()
    spoilt.join(30)
    assert isinstance(found[0], OutcomeUnknown)
    assert store.append("x", b"2") == 1
    assert store.read("x", 0, 9) == b"02"


def test_commits_go_on_where_no_thread_can_be_had(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread that could not be started took the lead of the queue with it: nothing was ever committed again."""
    store = opened(Remote(MemoryChunkStorage("memory://threads", append=False)), op_deadline_s=30.0)
    store.create("x")
    real = runtime.spawn
    refused: list[str] = []

    def spawn(call: object, name: str) -> object:
        if name == "chunkstore-committer" and len(refused) < 2:
            refused.append(name)
            raise RuntimeError("can't start new thread")
        return real(call, name)  # type: ignore[arg-type]

    monkeypatch.setattr(runtime, "spawn", spawn)
    for number in range(4):
        assert store.append("x", b"a") == number
    assert len(refused) == 2


def test_who_waits_leads_where_the_lead_cannot_be_passed_on(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Remote(MemoryChunkStorage("memory://threads2", append=False))
    store = opened(storage, op_deadline_s=30.0)
    store.create("x")
    store.create("y")
    committing, go = threading.Event(), threading.Event()

    def before(operation: str, names: tuple[str, ...]) -> None:
        if operation == "create_if_absent" and "/j/" in names[0]:
            storage.before = lambda *_: None
            committing.set()
            assert go.wait(30)

    storage.before = before
    first, first_found = in_thread(lambda: store.append("x", b"1"))
    assert committing.wait(30)
    second, second_found = in_thread(lambda: store.append("y", b"2"))

    def spawn(call: object, name: str) -> object:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(runtime, "spawn", spawn)
    go.set()
    first.join(30)
    second.join(30)
    assert first_found == [0]
    assert second_found == [0]
    monkeypatch.undo()


def test_failed_writes_are_remembered_as_long_as_they_matter(
    opened: Opened, memory: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States of segments with a failed write were kept for ever, also of segments that were deleted since."""
    monkeypatch.setattr(pending, "_IDLE_STATES_MAX", 20)
    store = opened(memory, op_deadline_s=2.0)

    def before(operation: str, names: tuple[str, ...]) -> None:
        if operation in ("create", "write") and "/d/" in names[0]:
            raise StorageFull("full")

    for number in range(60):
        store.create(f"s{number}")
        store.append(f"s{number}", b"0")
    memory.before = before
    for number in range(60):
        with pytest.raises(StorageFull):
            store.append(f"s{number}", b"1")
    memory.before = lambda *_: None
    assert len(store._core.states.all()) >= 60, "these chunks must not grow any more"
    for number in range(60):
        store.delete(f"s{number}")
        store.create(f"t{number}")
    assert len(store._core.states.all()) <= 40


@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("append", [True, False])
def test_a_name_that_means_another_segment_meanwhile_is_read_as_that(opened: Opened, append: bool, into: bool) -> None:
    """Where a chunk vanished under a read and its name meant a new, shorter segment by then, bytes were returned that never
    stood anywhere."""
    storage = Hooked(MemoryChunkStorage(f"memory://anew-{append}-{into}", append=append))
    store = opened(storage, gc_grace_s=0.0, op_deadline_s=5.0)
    store.create("x", rolling=RollingPolicy(chunk_size_bytes_max=4))
    for word in (b"OLD1", b"OLD2", b"OLD3"):
        store.append("x", word)

    def before(operation: str, names: tuple[str, ...]) -> None:
        if operation in ("read", "read_into") and "/d/" in names[0]:
            storage.before = lambda *_: None
            store.delete("x")
            store.collect()
            store.create("x")
            store.append("x", b"new")

    storage.before = before
    if into:
        buffer = bytearray(12)
        assert store.read_into("x", 0, buffer) == 3
        assert buffer[:3] == b"new"
    else:
        assert store.read("x", 0, 12) == b"new"
