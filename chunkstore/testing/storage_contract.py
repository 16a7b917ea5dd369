"""The contract of a chunk storage as a test class. A binding inherits it and supplies three methods::

    class TestMyStorage(ChunkStorageContract):
        def make_storage(self, folder): ...     # a fresh, empty storage
        def raw_read(self, name): ...           # the stored bytes, without going through the binding
        def raw_write(self, name, data): ...    # store bytes without the binding

What the binding writes is read with ``raw_read``, what it reads was put there with ``raw_write``, so that a pair of matching bugs cannot
hide each other. Optional features are tested where ``capabilities`` claim them, and must be refused with ``Unsupported`` where not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from chunkstore import runtime
from chunkstore.errors import (
    ChunkExists,
    ChunkNotFound,
    Closed,
    InvalidArgument,
    InvalidOffset,
    Unsupported,
)
from chunkstore.storage import ChunkHandle, ChunkRange, ChunkStorage, ConcatArgument
from chunkstore.testing.storage_basics import RACERS, at_once, pattern
from chunkstore.testing.storage_composing import StorageComposing

__all__ = ["ChunkStorageContract"]


class ChunkStorageContract(StorageComposing):
    """Inherit, supply the three methods, and let pytest collect the subclass (named ``Test...``)."""

    # Put-if-absent and put

    def test_create_if_absent(self, storage: ChunkStorage) -> None:
        name = self.name("epoch/0001")
        if not storage.capabilities.create_if_absent:
            with pytest.raises(Unsupported):
                storage.create_if_absent(name, b"x")
            return
        assert storage.create_if_absent(name, b"mine") is True
        assert storage.create_if_absent(name, b"mine") is False
        assert storage.create_if_absent(name, b"yours, longer") is False
        assert self.raw_read(name) == b"mine"
        assert storage.create_if_absent(self.name("empty"), b"") is True
        assert self.raw_read(self.name("empty")) == b""
        storage.delete(name)
        assert storage.create_if_absent(name, b"again") is True
        assert self.raw_read(name) == b"again"

    def test_create_if_absent_has_one_winner(self, storage: ChunkStorage) -> None:
        for round_number in range(8):
            name = self.name(f"raced-{round_number}")
            contents = [b"%02d" % number * 500 for number in range(RACERS)]
            answers = at_once([partial(storage.create_if_absent, name, content) for content in contents])
            assert sorted(answers, key=repr) == [False] * (RACERS - 1) + [True]
            assert self.raw_read(name) == contents[answers.index(True)]

    def test_create_has_one_winner(self, storage: ChunkStorage) -> None:
        name = self.name("raced")
        contents = [b"%02d" % number for number in range(RACERS)]
        answers = at_once([partial(storage.create, name, content) for content in contents])
        winners = [number for number, answer in enumerate(answers) if isinstance(answer, ChunkHandle)]
        assert len(winners) == 1
        assert sum(isinstance(answer, ChunkExists) for answer in answers) == RACERS - 1
        assert self.raw_read(name) == contents[winners[0]]

    def test_created_content_is_never_seen_in_part(self, storage: ChunkStorage) -> None:
        """A name that exists has all of its content (create_if_absent, put), for every reader at any time."""
        sizes = (200_000, 300_000)
        name, hint = self.name("whole"), self.name("hint")
        storage.put(hint, b"a" * sizes[0])
        done = runtime.event()

        def look() -> int:
            looks = 0
            while not done.is_set():
                if storage.exists(name):
                    assert len(storage.read(storage.open_read(name), 0, 1 << 20)) == sizes[0]
                seen = storage.read(storage.open_read(hint), 0, 1 << 20)
                assert seen in (b"a" * sizes[0], b"b" * sizes[1])
                looks += 1
            return looks

        def change() -> int:
            try:
                assert storage.create_if_absent(name, b"w" * sizes[0])
                for number in range(10):
                    storage.put(hint, (b"b" * sizes[1], b"a" * sizes[0])[number % 2])
            finally:
                done.set()
            return 1

        for answer in at_once([look, look, change]):
            assert isinstance(answer, int), answer

    def test_put_replaces(self, storage: ChunkStorage) -> None:
        name = self.name("hint")
        storage.put(name, b"first, longer")
        handle = storage.open_read(name)
        assert storage.read(handle, 0, 100) == b"first, longer"
        storage.put(name, b"second")
        assert self.raw_read(name) == b"second"
        assert storage.read(handle, 0, 100) == b"second"
        assert storage.stat(name).length == 6
        assert [item.name for item in storage.list(self.prefix).items] == [name]

    # The journal's log

    def test_a_log_is_appended_to_and_two_names_are_looked_at(self, storage: ChunkStorage) -> None:
        if not storage.capabilities.append:
            pytest.skip("this storage does not append")
        log, own, newer, other = (self.name(tail) for tail in ("log", "epoch/1", "epoch/2", "other"))
        handle = self.filled(storage, b"", "log")
        for name in (own, other):
            storage.create_if_absent(name, name.encode())
        identity = storage.identity(own)
        appender = storage.log_appender(log, absent=newer, present=own, identity=identity)
        for offset, data in ((0, b"first "), (6, b"second")):
            appender.write_durable(offset, data)
            assert storage.read(handle, 0, offset + 6) == b"first second"[: offset + 6]
            assert appender.look()
        storage.create_if_absent(newer, b"theirs")
        assert not appender.look()
        storage.delete(newer)
        assert appender.look()
        another = storage.log_appender(log, absent=newer, present=own, identity=storage.identity(other))
        assert another.look() is (identity == b"")
        for wrong in (0, 11, 13):
            with pytest.raises(InvalidOffset):
                appender.write_durable(wrong, b"x")
        storage.delete(own)
        assert appender.look() is (identity == b"")
        appender.close()
        appender.close()
        assert self.raw_read(log) == b"first second"
        storage.close()
        with pytest.raises(Closed):
            another.write_durable(12, b"x")
        assert not another.look()

    # Listing

    def test_list_in_order_with_pages(self, storage: ChunkStorage) -> None:
        tails = [
            "a-b/x",
            "a/x",
            "a/x-y",
            "a/y/z",
            "a.b",
            "a0",
            "aa",
            "B",
            "b/1",
            "b/10",
            "b/2",
            "ä/é",
            "z",
            "日本/語",
            "\U0001f40d",
        ]
        names = sorted(self.name(tail) for tail in tails)
        for number, tail in enumerate(tails):
            self.raw_write(self.name(tail), bytes(number))
        lengths = {self.name(tail): number for number, tail in enumerate(tails)}
        everything = storage.list(self.prefix)
        assert [item.name for item in everything.items] == names
        assert {item.name: item.length for item in everything.items} == lengths
        assert everything.next_after is None
        for limit in (1, 2, 3, len(names) - 1, len(names), len(names) + 1):
            assert list(self.all_pages(storage, self.prefix, limit)) == names
        for prefix in ["", *map(self.name, ("", "a", "a/", "a/x", "b/1", "zz"))]:
            expected = [name for name in names if name.startswith(prefix)]
            assert [item.name for item in storage.list(prefix).items] == expected
            for after in ["", names[0], names[4], *map(self.name, ("a", "a/", "a/y", "zzz")), "\U0010ffff"]:
                page = storage.list(prefix, after=after)
                assert [item.name for item in page.items] == [name for name in expected if name > after]

    def all_pages(self, storage: ChunkStorage, prefix: str, limit: int) -> Iterator[str]:
        """All names, page by page; checks that pages are full and continue where the last one ended."""
        after: str | None = None
        while True:
            page = storage.list(prefix, after=after, limit=limit)
            assert len(page.items) <= limit
            yield from (item.name for item in page.items)
            if page.next_after is None:
                return
            assert after is None or page.next_after > after
            after = page.next_after

    def test_list_nothing(self, storage: ChunkStorage) -> None:
        for prefix in ("", "none", "none/", "none/at/all", self.prefix):
            assert storage.list(prefix) == ((), None)
        self.filled(storage, b"x", "a/b")
        for prefix in (self.name("a/b/"), self.name("a/bc"), self.name("a//"), self.name("b"), "./" + self.name("a")):
            assert storage.list(prefix) == ((), None)

    def test_list_argument_errors(self, storage: ChunkStorage) -> None:
        for prefix in ("/", "/a", "../a", "a/../b", "a\0", None, 7):
            with pytest.raises(InvalidArgument):
                storage.list(prefix)  # type: ignore[arg-type]
        for limit in (0, -1, 1.5, None, True, 1_000_001):
            with pytest.raises(InvalidArgument):
                storage.list("", limit=limit)  # type: ignore[arg-type]

    # Optional operations

    def test_concat(self, storage: ChunkStorage) -> None:
        parts = {"a": b"target+garbage", "b": b"source+garbage", "c": b"", "d": b"last", "e": b""}
        for tail, data in parts.items():
            self.raw_write(self.name(tail), data)
        items = [ConcatArgument(self.name(tail), length) for tail, length in (("a", 6), ("b", 6), ("c", 0), ("d", 4))]
        if not storage.capabilities.concat:
            with pytest.raises(Unsupported) as caught:
                storage.concat(items)
            assert caught.value.feature == "concat"
            return
        assert storage.concat(items) == 16
        storage.sync([self.name("a")])
        assert self.raw_read(self.name("a")) == b"targetsourcelast"
        assert storage.stat(self.name("a")).length == 16
        # Into an empty target, and of whole chunks.
        assert storage.concat([ConcatArgument(self.name("e"), 0), ConcatArgument(self.name("a"), 16)]) == 16
        assert storage.read(storage.open_read(self.name("e")), 0, 99) == b"targetsourcelast"

    def test_concat_errors(self, storage: ChunkStorage) -> None:
        if not storage.capabilities.concat:
            pytest.skip("this storage does not concat")
        a, b, missing = self.name("a"), self.name("b"), self.name("missing")
        self.raw_write(a, b"aaaa")
        self.raw_write(b, b"bbbb")
        wrong: list[object] = [
            [],
            [ConcatArgument(a, 4)],
            [ConcatArgument(a, 4), ConcatArgument(a, 4)],
            [ConcatArgument(a, 4), ConcatArgument(b, 4), ConcatArgument(b, 4)],
            [ConcatArgument(a, 4), ConcatArgument(b, -1)],
            [ConcatArgument(a, -1), ConcatArgument(b, 1)],
            [ConcatArgument(a, 4), ConcatArgument(b, 5)],
            [ConcatArgument(a, 5), ConcatArgument(b, 4)],
            [ConcatArgument(a, 4), None],
            [None, ConcatArgument(b, 4)],
            [ConcatArgument(a, 4), ConcatArgument("../b", 4)],
        ]
        for arguments in wrong:
            with pytest.raises(InvalidArgument):
                storage.concat(arguments)  # type: ignore[arg-type]
        for pair in [(a, missing), (missing, b)]:
            with pytest.raises(ChunkNotFound) as caught:
                storage.concat([ConcatArgument(name, 0) for name in pair])
            assert caught.value.chunk == missing
        assert self.raw_read(a) == b"aaaa"
        assert self.raw_read(b) == b"bbbb"

    def test_truncate(self, storage: ChunkStorage) -> None:
        handle = self.filled(storage, b"0123456789")
        if not storage.capabilities.truncate:
            with pytest.raises(Unsupported) as caught:
                storage.truncate(handle, 5)
            assert caught.value.feature == "truncate"
            return
        for length in (9, 4, 4, 1, 0):
            storage.truncate(handle, length)
            assert storage.stat(handle.name).length == length
            assert self.raw_read(handle.name) == b"0123456789"[:length]
        with pytest.raises(InvalidArgument):
            storage.truncate(handle, 1)
        if storage.capabilities.append:
            assert storage.write(handle, 0, b"anew") == 4
            assert storage.read(handle, 0, 10) == b"anew"

    def test_read_only(self, storage: ChunkStorage) -> None:
        handle = self.filled(storage, b"0123456789")
        if not storage.capabilities.set_read_only:
            with pytest.raises(Unsupported) as caught:
                storage.set_read_only(handle, read_only=True)
            assert caught.value.feature == "set_read_only"
            return
        storage.set_read_only(handle, read_only=True)
        assert storage.open_write(handle.name).writable is False
        assert storage.read(handle, 0, 4) == b"0123"
        if storage.capabilities.append:
            with pytest.raises(InvalidArgument):
                storage.write(handle, 10, b"x")
        storage.set_read_only(storage.open_read(handle.name), read_only=False)
        assert storage.open_write(handle.name).writable is True
        if storage.capabilities.append:
            assert storage.write(handle, 10, b"x") == 1
            assert self.raw_read(handle.name) == b"0123456789x"

    # Threads

    def test_reads_beside_appends_see_a_prefix(self, storage: ChunkStorage) -> None:
        if not storage.capabilities.append:
            pytest.skip("this storage does not append")
        whole = pattern(60_000)
        handle = storage.create(self.name())
        reader = storage.open_read(handle.name)

        def append() -> int:
            for start in range(0, 60_000, 300):
                storage.write(handle, start, whole[start : start + 300])
            return 60_000

        def read() -> int:
            seen = 0
            while seen < 60_000:
                data = storage.read(reader, 0, 100_000)
                assert len(data) >= seen
                assert data == whole[: len(data)]
                buffer = bytearray(1_000)
                count = storage.read_into(reader, max(0, len(data) - 500), buffer)
                assert count >= min(len(data), 500)
                seen = len(data)
            return seen

        assert at_once([append, read, read, read]) == [60_000] * 4

    def test_appends_to_many_chunks_at_once(self, storage: ChunkStorage) -> None:
        if not storage.capabilities.append:
            pytest.skip("this storage does not append")

        def fill(number: int) -> int:
            name = self.name(f"many/{number}")
            handle = storage.create(name)
            for step in range(20):
                storage.write(handle, step * 100, pattern(100, number + step))
            storage.sync([name])
            return number

        assert at_once([partial(fill, number) for number in range(RACERS)]) == list(range(RACERS))
        for number in range(RACERS):
            expected = b"".join(pattern(100, number + step) for step in range(20))
            assert self.raw_read(self.name(f"many/{number}")) == expected

    def test_concurrent_appends_at_one_offset_have_one_winner(self, storage: ChunkStorage) -> None:
        if not storage.capabilities.append:
            pytest.skip("this storage does not append")
        handle = self.filled(storage, b"start")
        for step in range(10):
            length = storage.stat(handle.name).length
            answers = at_once([partial(storage.write, handle, length, b"%02d" % number) for number in range(8)])
            winners = [number for number, answer in enumerate(answers) if answer == 2]
            assert len(winners) == 1, answers
            assert sum(isinstance(answer, InvalidOffset) for answer in answers) == 7
            assert self.raw_read(handle.name)[-2:] == b"%02d" % winners[0]
            assert storage.stat(handle.name).length == length + 2 == 7 + 2 * step

    # The storage itself

    def test_what_it_says_of_itself(self, storage: ChunkStorage) -> None:
        offered = storage.capabilities
        assert storage.capabilities is offered or storage.capabilities == offered
        assert offered.append or not offered.append_journal
        assert offered.medium
        assert "://" in storage.url
        assert "@" not in storage.url

    def test_use_after_close(self, storage: ChunkStorage) -> None:
        handle = self.filled(storage, b"0123456789")
        storage.close()
        storage.close()
        calls: list[Callable[[], object]] = [
            *self.calls_about(storage, handle).values(),
            storage.list,
            lambda: storage.compose(self.name("new"), [ChunkRange(handle.name, 0, 1)]),
            lambda: storage.concat([ConcatArgument(handle.name, 1), ConcatArgument(self.name("b"), 1)]),
        ]
        for call in calls:
            with pytest.raises(Closed):
                call()
