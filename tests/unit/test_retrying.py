"""What is asked again, how often, and what a lost reply is taken for."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pytest

from chunkstore.errors import (
    ChunkNotFound,
    ChunkstoreError,
    Damaged,
    DeadlineExceeded,
    InvalidArgument,
    StorageFull,
    StorageUnavailable,
    Unsupported,
)
from chunkstore.storage import ChunkHandle, ChunkRange, ChunkStorage, ConcatArgument
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory
from chunkstore_bindings.wrappers.retrying import RetryingChunkStorage
from tests.support.clock import StoppedClock, stopped_clock
from tests.support.forwarding import Forwarding

T = TypeVar("T")
BEFORE, AFTER = "before", "after"


class Script(Forwarding):
    """Fails call after call as told: ``plan`` maps a call's number (from 0, all operations) to what happens."""

    def __init__(self, inner: ChunkStorage) -> None:
        super().__init__(inner)
        self.calls: list[str] = []
        self.plan: dict[int, str | ChunkstoreError] = {}
        self.always: ChunkstoreError | None = None

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        step = self.plan.get(len(self.calls))
        self.calls.append(operation)
        if self.always is not None:
            raise self.always
        if isinstance(step, ChunkstoreError):
            raise step
        if step == BEFORE:
            raise StorageUnavailable("nothing was done")
        answer = call()
        if step == AFTER:
            raise StorageUnavailable("the reply was lost")
        return answer


class Set:
    """A storage with a script, behind the wrapper under test."""

    def __init__(self, *, append: bool) -> None:
        self.url = f"memory://{uuid.uuid4()}"
        self.binding = MemoryChunkStorage(self.url, append=append)
        self.script = Script(self.binding)
        self.storage = RetryingChunkStorage(self.script)

    def fail(self, *steps: str | ChunkstoreError | None) -> None:
        """What happens to the next calls."""
        self.script.calls = []
        self.script.plan = {number: step for number, step in enumerate(steps) if step is not None}

    def content(self, name: str) -> bytes:
        return self.binding.read(ChunkHandle(name, False), 0, 1 << 30)


@pytest.fixture
def clock() -> Iterator[StoppedClock]:
    with stopped_clock() as clock:
        yield clock


@pytest.fixture(params=[True, False], ids=["append", "objects"])
def made(request: pytest.FixtureRequest, clock: StoppedClock) -> Iterator[Set]:
    made = Set(append=request.param)
    yield made
    forget_memory(made.url)


def test_looking_is_repeated(made: Set) -> None:
    made.binding.create_if_absent("a", b"0123")
    handle = ChunkHandle("a", False)
    buffer = bytearray(2)
    looks: list[tuple[Callable[[], object], object]] = [
        (lambda: made.storage.exists("a"), True),
        (lambda: made.storage.stat("a").length, 4),
        (lambda: made.storage.open_read("a"), handle),
        (lambda: made.storage.open_write("a").writable, True),
        (lambda: made.storage.read(handle, 1, 2), b"12"),
        (lambda: made.storage.read_into(handle, 1, buffer), 2),
        (lambda: [item.name for item in made.storage.list().items], ["a"]),
    ]
    for look, answer in looks:
        made.fail(BEFORE, AFTER, DeadlineExceeded("x", deadline_s=1))
        assert look() == answer
        assert len(made.script.calls) == 4


@pytest.mark.parametrize(
    "answer",
    [ChunkNotFound("a"), Damaged("x", object="a"), StorageFull("x"), InvalidArgument("x"), Unsupported("x")],
    ids=lambda answer: type(answer).__name__,
)
def test_an_answer_is_an_answer(made: Set, answer: ChunkstoreError) -> None:
    made.fail(answer)
    with pytest.raises(type(answer)):
        made.storage.read(ChunkHandle("a", False), 0, 1)
    assert made.script.calls == ["read"]


# Creating


def test_created_and_the_reply_lost(made: Set) -> None:
    made.fail(AFTER)
    assert made.storage.create_if_absent("a", b"mine")
    assert made.content("a") == b"mine"
    appends = made.binding.capabilities.append
    # Where chunks grow, what is seen may not be on the disk: it is made durable before it is called ours.
    assert made.script.calls == ["create_if_absent", "create_if_absent", "read", *(["harden"] if appends else [])]


def test_taken_by_somebody_else(made: Set) -> None:
    made.binding.create_if_absent("a", b"theirs")
    assert not made.storage.create_if_absent("a", b"mine")
    assert made.script.calls == ["create_if_absent"]
    for theirs in (b"theirs", b"mine", b"mine and more", b"min", b""):
        made.binding.put("a", theirs)
        made.fail(BEFORE)
        # Same bytes are the same record: whoever offers equal bytes for a name means the same thing.
        assert made.storage.create_if_absent("a", b"mine") is (theirs == b"mine")
        assert made.content("a") == theirs


def test_in_doubt_a_missing_name_proves_nothing(made: Set) -> None:
    """The second answer is "exists"; reading back finds nothing yet; later it is there."""
    made.fail(AFTER, None, ChunkNotFound("a"), BEFORE)
    assert made.storage.create_if_absent("a", b"mine")
    # "Taken" is for ever: it is not asked again, only read.
    assert made.script.calls[:5] == ["create_if_absent", "create_if_absent", "read", "read", "read"]


def test_undecided_to_the_end_is_unknown(made: Set) -> None:
    made.fail(AFTER, *[BEFORE] * 20)
    with pytest.raises(StorageUnavailable):
        made.storage.create_if_absent("a", b"mine")
    made.fail(AFTER, None, *[ChunkNotFound("a")] * 20)
    with pytest.raises(StorageUnavailable, match="may still land") as caught:
        made.storage.create_if_absent("b", b"mine")
    assert caught.value.object == "b"


def test_full_after_doubt_is_no_promise(made: Set) -> None:
    made.fail(StorageFull("full"))
    with pytest.raises(StorageFull):
        made.storage.create_if_absent("a", b"mine")
    made.fail(BEFORE, *[StorageFull("full")] * 20)
    with pytest.raises(StorageUnavailable, match="may still land"):
        made.storage.create_if_absent("a", b"mine")
    made.fail(BEFORE, *[StorageFull("full")] * 20)
    with pytest.raises(StorageUnavailable, match="may still land"):
        made.storage.create("a", b"mine")


# What is the same twice


def test_put_delete_and_marks(made: Set) -> None:
    made.fail(AFTER, BEFORE)
    made.storage.put("a", b"hint")
    assert made.content("a") == b"hint"
    made.fail(AFTER)
    made.storage.set_read_only(ChunkHandle("a", True), read_only=True)
    assert not made.binding.open_write("a").writable
    made.fail(AFTER)
    made.storage.delete("a")
    assert made.script.calls == ["delete", "delete"]
    made.fail()
    with pytest.raises(ChunkNotFound):
        made.storage.delete("a")


# Appending and cutting


def growing() -> tuple[Set, ChunkHandle]:
    made = Set(append=True)
    return made, made.binding.create("a", b"01")


def test_an_append_is_never_sent_twice(clock: StoppedClock) -> None:
    made, handle = growing()
    made.fail(BEFORE)
    with pytest.raises(StorageUnavailable, match="nothing was done"):
        made.storage.write(handle, 2, b"23")
    assert made.script.calls == ["write", "read"]
    made.fail(AFTER, BEFORE, BEFORE)
    assert made.storage.write(handle, 2, b"23") == 2
    assert made.script.calls == ["write", "read", "read", "read"]
    assert made.content("a") == b"0123"


@pytest.mark.parametrize("there", [b"0123x", b"01x3", b"012", b"0", b"01"])
def test_an_append_that_ended_otherwise(clock: StoppedClock, there: bytes) -> None:
    made, handle = growing()

    def torn(operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        made.script.calls.append(operation)
        if operation == "write":
            made.binding.put("a", there)
            raise StorageUnavailable("reset on the way")
        return call()

    made.script.around = torn  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailable, match="reset on the way"):
        made.storage.write(handle, 2, b"23")
    assert made.script.calls == ["write", "read"]
    assert made.content("a") == there


def test_a_cut_is_never_sent_twice(clock: StoppedClock) -> None:
    made, handle = growing()
    made.fail(BEFORE)
    with pytest.raises(StorageUnavailable, match="nothing was done"):
        made.storage.truncate(handle, 1)
    assert made.script.calls == ["truncate", "stat"]
    made.fail(AFTER, BEFORE)
    made.storage.truncate(handle, 1)
    assert made.script.calls == ["truncate", "stat", "stat"]
    assert made.content("a") == b"0"


# What is sent once


def test_what_may_still_arrive_is_never_sent_twice(made: Set) -> None:
    """Not even where nothing happened: after a lost reply "exists" may be our own chunk or somebody else's."""
    made.binding.create("a", b"abc")
    calls: dict[str, Callable[[], object]] = {
        "compose": lambda: made.storage.compose("n", [ChunkRange("a", 1, 2)]),
        "concat": lambda: made.storage.concat([ConcatArgument("a", 3), ConcatArgument("n", 2)]),
    }
    for operation, call in calls.items():
        for when in (BEFORE, AFTER):
            made.fail(when)
            with pytest.raises(StorageUnavailable):
                call()
            assert made.script.calls == [operation]
    assert made.content("n") == b"bc"


def test_above_a_page_cache_nothing_is_believed(tmp_path: object, clock: StoppedClock) -> None:
    script = Script(FilesystemChunkStorage(str(tmp_path)))
    storage = RetryingChunkStorage(script)
    handle = storage.create("a", b"01")
    for call in (
        lambda: storage.sync(["a"]),
        lambda: storage.harden("a"),
        lambda: storage.write(handle, 2, b"23"),
        lambda: storage.create("b", b"x"),
    ):
        script.calls, script.plan = [], {0: AFTER}
        with pytest.raises(StorageUnavailable):
            call()
        assert len(script.calls) == 1
    script.calls, script.plan = [], {0: AFTER, 2: BEFORE}
    assert storage.create_if_absent("c", b"claim")
    assert script.calls == ["create_if_absent", "create_if_absent", "read", "read", "harden"]
    storage.close()
