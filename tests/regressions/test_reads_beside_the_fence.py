"""Behind a network a fenced read asks for the fence and for its chunks side by side (protocol 3.13)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import NotOwner
from chunkstore.storage import ChunkStorage
from tests.support.hooked import Remote
from tests.support.worlds import World

PIECES = [b"0" * 90_000, b"1" * 90_000, b"2" * 90_000]
CONTENT = b"".join(PIECES)


class Noting(Remote):
    """``seen`` says what was asked, in order of ending."""

    def __init__(self, inner: ChunkStorage) -> None:
        super().__init__(inner)
        self.seen: list[str] = []
        self.after = self._note

    def _note(self, operation: str, names: tuple[str, ...]) -> None:
        self.seen.append("fence" if is_fence(operation, names) else operation)


def is_fence(operation: str, names: tuple[str, ...]) -> bool:
    return operation == "exists" and "/epoch/" in names[0]


@pytest.fixture
def gate(world: World) -> Noting:
    return Noting(world.raw_storage())


@pytest.fixture
def store(world: World, gate: Noting) -> ChunkedSegmentStorage:
    store = world.open(storage=gate, rolling=100_000, parallel_read_bytes_min=64 * 1024)
    world.still(store)
    store.create("s")
    for piece in PIECES:
        store.append("s", piece)
    gate.seen.clear()
    return store


def read(store: ChunkedSegmentStorage) -> bytes:
    return store.read("s", 0, len(CONTENT))


def read_a_little(store: ChunkedSegmentStorage) -> bytes:
    return store.read("s", 10, 1000)


def read_into(store: ChunkedSegmentStorage) -> bytes:
    buffer = bytearray(len(CONTENT))
    assert store.read_into("s", 0, buffer) == len(buffer)
    return bytes(buffer)


Read = Callable[[ChunkedSegmentStorage], bytes]
READS = pytest.mark.parametrize("how", [read, read_a_little, read_into], ids=lambda how: how.__name__)


@READS
def test_the_chunks_do_not_wait_for_the_fence_nor_the_answer_for_the_chunks_alone(
    store: ChunkedSegmentStorage, gate: Noting, how: Read
) -> None:
    chunk_read, go_on = threading.Event(), threading.Event()

    def before(operation: str, names: tuple[str, ...]) -> None:
        if is_fence(operation, names):
            assert go_on.wait(60)

    def after(operation: str, names: tuple[str, ...]) -> None:
        if operation == "read":
            chunk_read.set()

    gate.before, gate.after = before, after
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(how, store)
        assert chunk_read.wait(60), "the chunks waited for the fence"
        assert not answer.done()
        go_on.set()
        assert answer.result(60) == (CONTENT[10:1010] if how is read_a_little else CONTENT)


@READS
def test_who_was_deposed_while_the_chunks_came_does_not_answer(
    world: World, store: ChunkedSegmentStorage, gate: Noting, how: Read
) -> None:
    """The claim comes behind the local part and before the check, at the last moment."""
    claimed = threading.Lock()

    def before(operation: str, names: tuple[str, ...]) -> None:
        if is_fence(operation, names) and claimed.acquire(blocking=False):
            world.open(rolling=100_000)

    gate.before = before
    with pytest.raises(NotOwner):
        how(store)
