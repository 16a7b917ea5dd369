"""A binding by somebody else raises what it likes: callers hear ``StorageUnavailable``, chained, and can go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chunkstore import changes
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, StorageUnavailable
from chunkstore.storage import BaseChunkStorage, ChunkHandle, ChunkRange, ChunkStorage
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory
from chunkstore_bindings.wrappers import wrapping
from tests.support.data import problems
from tests.support.forwarding import Hooked
from tests.support.hooked import open_hooked
from tests.support.worlds import World


class Oops(Exception):
    """Not one of ours."""


@pytest.fixture(autouse=True)
def foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hooked storage is taken for one that is built on nothing of ours."""
    monkeypatch.setattr(wrapping, "layers", lambda storage: iter((storage,)))


def hooked(world: World, **settings: Any) -> tuple[ChunkedSegmentStorage, Hooked]:
    return open_hooked(world, Hooked, op_deadline_s=60.0, undecided_s_max=5.0, **settings)


def breaking(*operations: str, part: str = "/d/") -> Callable[[str, tuple[str, ...]], None]:
    def before(operation: str, names: tuple[str, ...]) -> None:
        if operation in operations and any(part in name for name in names):
            raise Oops(operation)

    return before


def check(error: ChunkstoreError) -> None:
    assert isinstance(error, StorageUnavailable)
    assert "Oops" in str(error)
    causes = []
    cause: BaseException | None = error
    while cause is not None:
        causes.append(type(cause))
        cause = cause.__cause__
    assert Oops in causes


@pytest.mark.parametrize("size", [5, 100], ids=["one chunk", "many chunks"])
def test_appends_and_commits(world: World, size: int) -> None:
    store, gate = hooked(world, rolling=32)
    store.create("s")
    store.append("s", b"0123456789")
    gate.before = breaking("create", "write")
    for call in (
        lambda: store.append("s", b"x" * size),
        lambda: store.write("s", 10, b"x" * size),
        lambda: store.append_many("s", [b"x" * size]),
        lambda: store.commit([changes.Append("s", b"x" * size), changes.TablePut("t", b"k", b"v")]),
    ):
        with pytest.raises(ChunkstoreError) as caught:
            call()
        check(caught.value)
    with pytest.raises(ChunkstoreError) as caught, store.writer("s") as writer:
        writer.append(b"x" * size)
    gate.before = lambda operation, names: None
    assert store.append("s", b"more") == 10
    assert problems(store.check("deep")) == []


def every_call(storage: ChunkStorage) -> list[Callable[[], object]]:
    handle = ChunkHandle("a", True)
    return [
        lambda: storage.exists("a"),
        lambda: storage.create("b", b"x"),
        lambda: storage.create_if_absent("b", b"x"),
        lambda: storage.put("b", b"x"),
        lambda: storage.open_read("a"),
        lambda: storage.open_write("a"),
        lambda: storage.read(handle, 0, 1),
        lambda: storage.read_into(handle, 0, bytearray(1)),
        lambda: storage.write(handle, 1, b"x"),
        lambda: storage.sync(["a"]),
        lambda: storage.harden("a"),
        lambda: storage.delete("a"),
        lambda: storage.list("a"),
        lambda: storage.stat("a"),
        lambda: storage.compose("b", [ChunkRange("a", 0, 1)]),
        lambda: storage.truncate(handle, 0),
        lambda: storage.set_read_only(handle, read_only=True),
    ]


def test_the_base_of_bindings_translates_every_call() -> None:
    class Broken(MemoryChunkStorage):
        pass

    def broken(*arguments: object) -> object:
        raise Oops("in the binding")

    class Third(Broken):
        do_exists = do_create = do_create_if_absent = do_put = do_open = do_read = do_read_into = broken  # type: ignore[assignment]
        do_write = do_sync = do_harden = do_delete = do_list = do_stat = broken  # type: ignore[assignment]
        do_compose = do_truncate = do_set_read_only = broken  # type: ignore[assignment]

    assert issubclass(Third, BaseChunkStorage)
    storage = Third("memory://third")
    try:
        for number, call in enumerate(every_call(storage)):
            with pytest.raises(StorageUnavailable, match="in the binding") as caught:
                call()
            assert isinstance(caught.value.__cause__, Oops), number
    finally:
        forget_memory("memory://third")
