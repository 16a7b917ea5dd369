"""Stores behind hooked storages, and calls in threads: what tests of hangs and races have in common."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.storage import Capabilities, ChunkStorage
from tests.support.forwarding import Hooked
from tests.support.worlds import World

H = TypeVar("H", bound=ChunkStorage)


class Remote(Hooked):
    """As if the storage were on the other side of a network."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, remote=True)


def open_hooked(
    world: World, kind: Callable[[ChunkStorage], H], *, keeper: bool = False, **settings: Any
) -> tuple[ChunkedSegmentStorage, H]:
    """A store of ``world`` behind a ``kind`` of storage, and that."""
    made: list[H] = []

    def wrap(inner: ChunkStorage) -> ChunkStorage:
        made.append(kind(inner))
        return made[-1]

    store = world.open(wrap=wrap, **settings)
    if not keeper:
        world.still(store)
    return store, made[-1]


@contextmanager
def within(store: ChunkedSegmentStorage, op_deadline_s: float) -> Iterator[None]:
    """Operations that begin in this block have so much time."""
    core = store._container
    before = core.settings
    core.settings = replace(before, op_deadline_s=op_deadline_s)
    store._context.op_deadline_s = op_deadline_s
    try:
        yield
    finally:
        core.settings, store._context.op_deadline_s = before, before.op_deadline_s


def replace_steps(store: ChunkedSegmentStorage, **steps: Any) -> SimpleNamespace:
    """Put other calls in the place of steps of the present epoch's commits; returns what was there."""
    writer = store._container.current.writer
    before = SimpleNamespace(**{name: getattr(writer, name) for name in steps})
    for name, step in steps.items():
        setattr(writer, name, step)
    return before


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run ``call`` in a thread; its result or error will be the only item."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:  # noqa: BLE001
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


def is_commit(operation: str, name: str) -> bool:
    """Whether a call writes a record to the journal."""
    return operation in ("create_if_absent", "write") and "/j/" in name


def is_data(operation: str, name: str) -> bool:
    """Whether a call writes bytes of a segment."""
    return operation in ("create", "write") and "/d/" in name


def hold_first(storage: Hooked, matches: Callable[[str, str], bool]) -> tuple[threading.Event, threading.Event]:
    """The first call from now on that ``matches`` (operation, name) waits. The first event says that it does, the second lets it go."""
    reached, go = threading.Event(), threading.Event()

    def before(operation: str, names: tuple[str, ...]) -> None:
        if matches(operation, names[0]) and not reached.is_set():
            reached.set()
            assert go.wait(240)

    storage.before = before
    return reached, go


def wait_for(condition: Callable[[], bool], most_s: float = 120.0) -> None:
    """Wait until ``condition`` holds, for ``most_s`` seconds at most."""
    end = time.monotonic() + most_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)
