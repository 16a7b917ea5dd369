"""The door to foreign chunks, over storages in memory: names, parts of objects, refusals, composing, closing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from chunkstore.errors import (
    ChunkNotFound,
    Closed,
    Damaged,
    InvalidArgument,
    RootUnavailable,
    StorageUnavailable,
    Unsupported,
)
from chunkstore.names import ContainerNames
from chunkstore.records import ACTIVE, RootRecord
from chunkstore.storage import ChunkHandle, ChunkRange, ChunkStorage, ConcatArgument, ReadRange
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory
from chunkstore_bindings.wrappers.routed import RoutedChunkStorage

OURS, THEIRS = "memory://routed-ours", "memory://routed-theirs"
ROOTS = {
    0: RootRecord("", "", "", b"", "", 0, 0, ACTIVE, 0),
    0xA: RootRecord(THEIRS, "p/", "", b"", "", 0, 0, ACTIVE, 0),
    0xB: RootRecord("memory://routed-nowhere", "", "", b"", "", 0, 0, ACTIVE, 0),
}


class Opener:
    """Opens what is theirs, counting; everything else is unreachable."""

    def __init__(self) -> None:
        self.opened: list[ChunkStorage] = []
        self.confirmed = 0

    def open(self, root: RootRecord) -> ChunkStorage:
        if root.url != THEIRS:
            raise StorageUnavailable("no route to it")
        self.opened.append(MemoryChunkStorage(THEIRS))
        return self.opened[-1]

    def confirm(self, storage: ChunkStorage, root: RootRecord) -> None:
        self.confirmed += 1


@pytest.fixture
def opener() -> Opener:
    return Opener()


@pytest.fixture
def door(opener: Opener) -> Iterator[RoutedChunkStorage]:
    made = RoutedChunkStorage(MemoryChunkStorage(OURS), ContainerNames("default"), ROOTS.get, opener, deadline_s=60.0)
    theirs = MemoryChunkStorage(THEIRS)
    theirs.create_if_absent("p/whole", b"0123456789")
    made.create_if_absent("own", b"our own")
    made.create_if_absent("default/FORMAT", b"x")
    yield made
    made.close()
    theirs.close()
    forget_memory(OURS)
    forget_memory(THEIRS)


def test_looking(door: RoutedChunkStorage, opener: Opener) -> None:
    whole, part = "@a/whole", "@a+4/whole"
    assert (door.exists(whole), door.exists("@a/other"), door.stat(part).length) == (True, False, 6)
    assert door.open_read(whole) == door.open_write(whole) == ChunkHandle(whole, False)
    assert (door.read(ChunkHandle(part, False), 1, 3), door.read(ChunkHandle(whole, False), 8, 9)) == (b"567", b"89")
    assert door.read_ranges(ChunkHandle(part, False), [ReadRange(0, 1), ReadRange(5, 9)]) == [b"4", b"9"]
    room = bytearray(4)
    assert (door.read_into(ChunkHandle(part, False), 4, room), bytes(room)) == (2, b"89\0\0")
    assert door.identity(whole) == b""
    with pytest.raises(ChunkNotFound) as caught:
        door.read(ChunkHandle("@a/other", False), 0, 1)
    assert (caught.value.chunk, len(opener.opened), opener.confirmed) == ("@a/other", 1, 2)


CHANGES: tuple[Callable[[ChunkStorage], object], ...] = (
    lambda door: door.create("@a/new", b"x"),
    lambda door: door.create_if_absent("@a/new", b"x"),
    lambda door: door.put("@a/whole", b"x"),
    lambda door: door.write(ChunkHandle("@a/whole", True), 10, b"x"),
    lambda door: door.sync(["own", "@a/whole"]),
    lambda door: door.harden("@a/whole"),
    lambda door: door.delete("@a/whole"),
    lambda door: door.truncate(ChunkHandle("@a/whole", True), 1),
    lambda door: door.set_read_only(ChunkHandle("@a/whole", True), True),
    lambda door: door.concat([ConcatArgument("own", 1), ConcatArgument("@a/whole", 1)]),
    lambda door: door.compose("@a/new", [ChunkRange("own", 0, 1)]),
    lambda door: door.compose("@a/new", [ChunkRange("@a/whole", 0, 1)]),
    lambda door: door.list("@a/"),
)


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_changed(door: RoutedChunkStorage, opener: Opener, change: Callable[[ChunkStorage], object]) -> None:
    with pytest.raises(Unsupported):
        change(door)
    assert opener.opened == []


def test_what_cannot_be_read_says_where_it_was(door: RoutedChunkStorage) -> None:
    with pytest.raises(RootUnavailable) as caught:
        door.stat("@b/x")
    assert caught.value.root == "memory://routed-nowhere" and "no route" in caught.value.message
    with pytest.raises(Damaged, match="root is not known"):
        door.stat("@c/x")
    with pytest.raises(Damaged, match="its own container"):
        door.stat("@0/default/FORMAT")
    for name in ("@", "@a", "@a/../x", "@0a/x"):
        with pytest.raises(InvalidArgument):
            door.stat(name)


def test_a_root_that_fails_later(door: RoutedChunkStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    door.stat("@a/whole")

    def fail(*_: object) -> object:
        raise StorageUnavailable("gone")

    monkeypatch.setattr(MemoryChunkStorage, "do_read", fail)
    with pytest.raises(RootUnavailable, match="gone"):
        door.read(ChunkHandle("@a/whole", False), 0, 1)
    with pytest.raises(StorageUnavailable) as caught:
        door.read(ChunkHandle("own", False), 0, 1)
    assert not isinstance(caught.value, RootUnavailable)


def test_composing_copies(door: RoutedChunkStorage) -> None:
    made = door.compose("new", [ChunkRange("@a+2/whole", 1, 3), ChunkRange("own", 0, 3), ChunkRange("@a/whole", 9, 1)])
    assert (made.length, door.read(ChunkHandle("new", False), 0, 99)) == (7, b"345our9")
    assert door.list("default/tmp/").items == ()
    with pytest.raises(InvalidArgument):
        door.compose("more", [ChunkRange("@a/whole", 5, 6)])
    assert not door.exists("more") and door.list("default/tmp/").items == ()


def test_closing(door: RoutedChunkStorage, opener: Opener) -> None:
    door.stat("@a/whole")
    door.close_roots()
    door.close_roots()
    with pytest.raises(Closed):
        opener.opened[0].stat("p/whole")
    with pytest.raises(Closed):
        door.stat("@a/whole")
    assert door.stat("own").length == 7
