"""Single calls: the first part of ``storage_contract``, which is the module to inherit from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from chunkstore import runtime
from chunkstore.errors import (
    ChunkExists,
    ChunkNotFound,
    InvalidArgument,
    InvalidOffset,
    Unsupported,
)
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = ["ODD_NAMES", "RACERS", "StorageBasics", "at_once", "pattern"]

T = TypeVar("T")
_WAIT_S = 60.0
RACERS = 16
_BAD_NAMES = ["", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a/.", "a\0b", "/"]
ODD_NAMES = [
    "with space/and  two",
    "dots.in/...three/.hidden/a..b",
    "percent%20/plus+/tilde~/colon:/back\\slash/quote'\"",
    "große/Straße/日本語/\U0001f40d",
    "line\nbreak/tab\t",
    "-dash/--option/*/?/[x]",
    "long/" + "x" * 200 + "/" + "y" * 200,
]


def pattern(length: int, seed: int = 0) -> bytes:
    """Bytes that differ from place to place, so that a shifted read shows."""
    return bytes((seed + index * 7 + (index >> 8) * 13) & 0xFF for index in range(length))


def at_once(calls: Sequence[Callable[[], T]]) -> list[T | BaseException]:
    """Run all calls in threads of their own, started together; results or errors in order."""
    start = runtime.event()
    answers: list[T | BaseException | None] = [None] * len(calls)

    def run(number: int) -> None:
        start.wait(_WAIT_S)
        try:
            answers[number] = calls[number]()
        except BaseException as error:  # noqa: BLE001  (handed to the test)
            answers[number] = error

    tasks = [runtime.spawn(partial(run, number), f"contract-{number}") for number in range(len(calls))]
    start.set()
    for task in tasks:
        task.join(_WAIT_S)
        assert not task.is_alive(), "a call did not end"
    return [answer for answer in answers if answer is not None]


class StorageBasics(ABC):
    """What a binding supplies, and the tests of single calls."""

    prefix = "c/"
    """Every chunk of the suite has a name that begins with this."""
    deletes_silently = False
    """True where deleting a missing chunk succeeds (object stores)."""

    @abstractmethod
    def make_storage(self, folder: Path) -> ChunkStorage:
        """A fresh, empty storage; ``folder`` is an empty directory it may use."""

    @abstractmethod
    def raw_read(self, name: str) -> bytes:
        """What is stored under ``name``, read without the binding."""

    @abstractmethod
    def raw_write(self, name: str, data: bytes) -> None:
        """Store ``data`` under the new ``name`` without the binding."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[ChunkStorage]:
        """The storage under test, closed afterwards."""
        folder = tmp_path / "storage"
        folder.mkdir()
        storage = self.make_storage(folder)
        yield storage
        storage.close()

    def name(self, tail: str = "x") -> str:
        """A chunk name of this suite."""
        return self.prefix + tail

    def filled(self, storage: ChunkStorage, data: bytes, tail: str = "x") -> ChunkHandle:
        """A write handle of a chunk that the binding has created with ``data``."""
        return storage.create(self.name(tail), data)

    # Life cycle

    def test_life_cycle(self, storage: ChunkStorage) -> None:
        name = self.name()
        assert not storage.exists(name)
        handle = storage.create(name, b"0123456789")
        assert handle == ChunkHandle(name, writable=True)
        assert storage.exists(name)
        assert storage.open_read(name) == ChunkHandle(name, writable=False)
        assert storage.open_write(name) == ChunkHandle(name, writable=True)
        with pytest.raises(ChunkExists) as caught:
            storage.create(name, b"other")
        assert caught.value.chunk == name
        assert self.raw_read(name) == b"0123456789"
        storage.delete(name)
        assert not storage.exists(name)
        self.check_absent(storage, handle)

    def calls_about(self, storage: ChunkStorage, handle: ChunkHandle) -> dict[str, Callable[[], object]]:
        """All that can be asked about one chunk, by operation."""
        name, offered = handle.name, storage.capabilities
        calls: dict[str, Callable[[], object]] = {
            "exists": lambda: storage.exists(name),
            "create": lambda: storage.create(name, b"x"),
            "create_if_absent": lambda: storage.create_if_absent(name, b"x"),
            "put": lambda: storage.put(name, b"x"),
            "open_read": lambda: storage.open_read(name),
            "open_write": lambda: storage.open_write(name),
            "read": lambda: storage.read(handle, 0, 1),
            "read_uncached": lambda: storage.read_uncached(handle, 0, 1),
            "read_into": lambda: storage.read_into(handle, 0, bytearray(1)),
            "stat": lambda: storage.stat(name),
            "identity": lambda: storage.identity(name),
            "harden": lambda: storage.harden(name),
            "sync": lambda: storage.sync([name]),
            "delete": lambda: storage.delete(name),
        }
        if offered.append:
            calls["write"] = lambda: storage.write(handle, 0, b"x")
        if offered.truncate:
            calls["truncate"] = lambda: storage.truncate(handle, 0)
        if offered.set_read_only:
            calls["set_read_only"] = lambda: storage.set_read_only(handle, read_only=True)
        return calls

    def check_absent(self, storage: ChunkStorage, handle: ChunkHandle) -> None:
        """Every operation on a chunk that does not exist says so, with its name."""
        other = {"exists", "create", "create_if_absent", "put", "sync"}
        if self.deletes_silently:
            other.add("delete")
        if not storage.capabilities.append:
            other.add("harden")  # what is visible may be durable, and there is nothing to look for
        for operation, call in self.calls_about(storage, handle).items():
            if operation not in other:
                with pytest.raises(ChunkNotFound) as caught:
                    call()
                assert caught.value.chunk == handle.name
                assert handle.name in str(caught.value)
        assert not storage.exists(handle.name)

    def test_absent_from_the_beginning(self, storage: ChunkStorage) -> None:
        self.check_absent(storage, ChunkHandle(self.name("never"), writable=True))
        self.check_absent(storage, ChunkHandle(self.name("no/such/folder"), writable=True))

    def test_free_bytes(self, storage: ChunkStorage) -> None:
        found = storage.free_bytes()
        assert found is None or found > 0

    def test_read_uncached(self, storage: ChunkStorage) -> None:
        name = self.name("long")
        data = pattern(150_000)
        assert storage.create_if_absent(name, data)
        storage.harden(name)
        handle = storage.open_read(name)
        bounds = ((0, 0), (0, 1), (4095, 2), (65_535, 70_000), (1, 149_999), (149_999, 5), (150_000, 1), (1 << 40, 1))
        for offset, length in bounds:
            assert storage.read_uncached(handle, offset, length) == data[offset : offset + length]

    def test_identity(self, storage: ChunkStorage) -> None:
        name = self.name("claim")
        assert storage.create_if_absent(name, b"same")
        first = storage.identity(name)
        assert not storage.create_if_absent(name, b"another")
        storage.harden(name)
        storage.put(self.name("other"), b"same")
        assert storage.identity(name) == first
        if not first:
            assert storage.identity(self.name("other")) == b""  # a name can only ever mean one object here
            return
        assert storage.identity(self.name("other")) != first
        storage.delete(name)
        # Where numbers of objects are used again, a time tells them apart, and clocks of file systems tick slowly.
        runtime.sleep_s(0.05)
        assert storage.create_if_absent(name, b"same")
        assert storage.identity(name) != first

    def test_create_empty(self, storage: ChunkStorage) -> None:
        self.filled(storage, b"", "filled")
        assert self.raw_read(self.name("filled")) == b""
        assert storage.stat(self.name("filled")).length == 0
        name = self.name()
        if not storage.capabilities.append:
            with pytest.raises(Unsupported) as caught:
                storage.create(name)
            assert caught.value.feature == "append"
            assert not storage.exists(name)
            return
        handle = storage.create(name)
        assert storage.stat(name).length == 0
        assert storage.read(handle, 0, 10) == b""
        storage.sync([name])
        assert self.raw_read(name) == b""

    def test_chunks_made_behind_its_back_are_seen(self, storage: ChunkStorage) -> None:
        name = self.name()
        assert not storage.exists(name)
        self.raw_write(name, b"from outside")
        assert storage.exists(name)
        assert storage.stat(name).length == 12
        assert storage.read(storage.open_read(name), 0, 100) == b"from outside"
        assert [item.name for item in storage.list(self.prefix).items] == [name]
        with pytest.raises(ChunkExists):
            storage.create(name, b"x")
        assert storage.create_if_absent(name, b"x") is False
        assert self.raw_read(name) == b"from outside"

    # Reading

    def test_read_at_and_beyond_the_end_is_empty(self, storage: ChunkStorage) -> None:
        self.raw_write(self.name(), b"0123456789")
        handle = storage.open_read(self.name())
        for offset in (10, 11, 1 << 31, (1 << 63) - 1, 1 << 63, 1 << 70):
            assert storage.read(handle, offset, 10) == b""
            assert storage.read_into(handle, offset, bytearray(10)) == 0
        assert storage.read(handle, 9, 1 << 62) == b"9"
        assert storage.read(handle, 0, 1 << 70) == b"0123456789"

    def test_read_into(self, storage: ChunkStorage) -> None:
        data = pattern(300)
        self.raw_write(self.name(), data)
        handle = storage.open_read(self.name())
        buffer = bytearray(b"\xff" * 400)
        assert storage.read_into(handle, 0, memoryview(buffer)[50:150]) == 100
        assert buffer[50:150] == data[:100]
        assert buffer[:50] == b"\xff" * 50
        assert buffer[150:] == b"\xff" * 250
        buffer = bytearray(b"\xff" * 100)
        assert storage.read_into(handle, 250, buffer) == 50
        assert buffer[:50] == data[250:]
        assert buffer[50:] == b"\xff" * 50
        assert storage.read_into(handle, 0, bytearray()) == 0
        buffer.extend(b"still free to grow")

    def test_read(self, storage: ChunkStorage) -> None:
        data = pattern(300)
        self.raw_write(self.name(), data)
        handle = storage.open_read(self.name())
        for offset, length in [(0, 300), (0, 1), (299, 1), (100, 50), (0, 0), (150, 0), (250, 100), (0, 1000)]:
            assert storage.read(handle, offset, length) == data[offset : offset + length]
        found = storage.read(handle, 2, 3)
        assert type(found) is bytes
        storage.delete(handle.name)
        assert found == data[2:5]

    def test_large_content(self, storage: ChunkStorage) -> None:
        data = pattern(65_536) * 80
        handle = self.filled(storage, data)
        assert self.raw_read(self.name()) == data
        assert storage.read(handle, 0, len(data)) == data
        assert storage.read(handle, 123_457, 3 << 20) == data[123_457 : 123_457 + (3 << 20)]
        buffer = bytearray(len(data) + 10)
        assert storage.read_into(handle, 0, buffer) == len(data)
        assert buffer == data + bytes(10)

    def test_read_argument_errors(self, storage: ChunkStorage) -> None:
        handle = self.filled(storage, b"0123456789")
        for offset, length in [(-1, 1), (0, -1), (1.0, 1), (0, "1"), (True, 1), (None, 1)]:
            with pytest.raises(InvalidArgument):
                storage.read(handle, offset, length)  # type: ignore[arg-type]
        for buffer in (None, b"read-only", memoryview(b"read-only"), memoryview(bytearray(10))[::2], "text"):
            with pytest.raises(InvalidArgument):
                storage.read_into(handle, 0, buffer)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            storage.read_into(handle, -1, bytearray(1))
        for wrong in (None, self.name()):
            with pytest.raises(InvalidArgument):
                storage.read(wrong, 0, 1)  # type: ignore[arg-type]

    # Writing

    def test_write_and_sync(self, storage: ChunkStorage) -> None:
        if not storage.capabilities.append:
            handle = self.filled(storage, b"0123456789")
            with pytest.raises(Unsupported) as caught:
                storage.write(handle, 10, b"x")
            assert caught.value.feature == "append"
            storage.sync([handle.name])
            assert self.raw_read(handle.name) == b"0123456789"
            return
        handle = storage.create(self.name())
        written = b""
        for size in (1, 2, 3, 4, 5, 0, 1000):
            piece = pattern(size, seed=size)
            assert storage.write(handle, len(written), piece) == size
            written += piece
            assert storage.stat(handle.name).length == len(written)
            assert storage.read(handle, 0, 10_000) == written
        storage.sync([handle.name])
        storage.sync([handle.name, handle.name])
        storage.sync([])
        assert self.raw_read(handle.name) == written

    def test_write_takes_every_kind_of_buffer_and_keeps_none(self, storage: ChunkStorage) -> None:
        mutable = bytearray(b"abcdef")
        self.filled(storage, mutable, "made")  # type: ignore[arg-type]
        assert storage.create_if_absent(self.name("once"), memoryview(mutable)[1:3])
        storage.put(self.name("put"), memoryview(mutable).cast("b"))
        if storage.capabilities.append:
            handle = storage.create(self.name("grown"), memoryview(mutable)[:2])
            assert storage.write(handle, 2, mutable) == 6
            assert storage.write(handle, 8, memoryview(mutable)[4:]) == 2
            assert storage.write(handle, 10, memoryview(mutable).cast("B", (2, 3))) == 6
        mutable[:] = b"XXXXXX"
        mutable.extend(b"may grow")
        assert self.raw_read(self.name("made")) == b"abcdef"
        assert self.raw_read(self.name("once")) == b"bc"
        assert self.raw_read(self.name("put")) == b"abcdef"
        if storage.capabilities.append:
            assert self.raw_read(self.name("grown")) == b"ababcdefefabcdef"

    def test_write_at_the_wrong_offset(self, storage: ChunkStorage) -> None:
        if not storage.capabilities.append:
            pytest.skip("this storage does not append")
        handle = self.filled(storage, b"0123456789")
        for offset, data in [(0, b""), (0, b"x" * 11), (9, b"x"), (11, b""), (11, b"x"), (1 << 70, b"x")]:
            with pytest.raises(InvalidOffset) as caught:
                storage.write(handle, offset, data)
            assert (caught.value.chunk, caught.value.expected, caught.value.given) == (handle.name, 10, offset)
        assert self.raw_read(handle.name) == b"0123456789"
        assert storage.write(handle, 10, b"") == 0

    def test_write_argument_errors_come_before_any_effect(self, storage: ChunkStorage) -> None:
        handle = self.filled(storage, b"0123456789")
        reader = storage.open_read(handle.name)
        bad: list[Callable[[], object]] = [
            lambda: storage.write(handle, -1, b"x"),
            lambda: storage.write(handle, 10.0, b"x"),  # type: ignore[arg-type]
            lambda: storage.write(handle, 10, None),  # type: ignore[arg-type]
            lambda: storage.write(handle, 10, "text"),  # type: ignore[arg-type]
            lambda: storage.write(handle, 10, memoryview(b"abcd")[::2]),
            lambda: storage.write(None, 10, b"x"),  # type: ignore[arg-type]
            lambda: storage.write(reader, 10, b"x"),
            lambda: storage.truncate(reader, 1),
            lambda: storage.truncate(handle, -1),
            lambda: storage.create(self.name("new"), "text"),  # type: ignore[arg-type]
            lambda: storage.create_if_absent(self.name("new"), None),  # type: ignore[arg-type]
            lambda: storage.put(self.name("new"), 7),  # type: ignore[arg-type]
        ]
        for call in bad:
            with pytest.raises(InvalidArgument):
                call()
        assert self.raw_read(handle.name) == b"0123456789"
        assert [item.name for item in storage.list(self.prefix).items] == [handle.name]

    def test_sync_of_many(self, storage: ChunkStorage) -> None:
        names = [self.name(f"{number % 3}/many-{number}") for number in range(40)]
        for number, name in enumerate(names):
            storage.create(name, pattern(100, number))
        storage.sync(names)
        storage.sync(names[:1])
        storage.sync(names + names)
        for number, name in enumerate(names):
            storage.harden(name)
            assert self.raw_read(name) == pattern(100, number)

    # Names

    @pytest.mark.parametrize("bad", _BAD_NAMES)
    def test_bad_names_are_refused_by_every_operation(self, storage: ChunkStorage, bad: str) -> None:
        # Handles are plain data: any caller can make one.
        for call in self.calls_about(storage, ChunkHandle(bad, writable=True)).values():
            with pytest.raises(InvalidArgument):
                call()
        for wrong in (None, 7, b"bytes"):
            with pytest.raises(InvalidArgument):
                storage.exists(wrong)  # type: ignore[arg-type]
        assert storage.list().items == ()

    @pytest.mark.parametrize("odd", ODD_NAMES)
    def test_odd_names(self, storage: ChunkStorage, odd: str) -> None:
        name = self.name(odd)
        assert storage.create_if_absent(name, b"odd")
        assert storage.create_if_absent(name, b"again") is False
        assert self.raw_read(name) == b"odd"
        assert storage.stat(name).length == 3
        assert storage.read(storage.open_read(name), 0, 9) == b"odd"
        assert [item.name for item in storage.list(self.prefix).items] == [name]
        assert [item.name for item in storage.list(name).items] == [name]
        storage.delete(name)
        assert not storage.exists(name)

    def test_names_that_begin_alike_are_different(self, storage: ChunkStorage) -> None:
        self.filled(storage, b"ten", "file10")
        assert not storage.exists(self.name("file1"))
        assert storage.create_if_absent(self.name("file1"), b"one")
        assert self.raw_read(self.name("file10")) == b"ten"
