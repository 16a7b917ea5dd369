"""``compose``: the second part of ``storage_contract``, which is the module to inherit from."""

from __future__ import annotations

from functools import partial

import pytest

from chunkstore.errors import ChunkExists, ChunkNotFound, InvalidArgument, Unsupported
from chunkstore.storage import COMPOSE_RANGES_MAX, ChunkRange, ChunkStorage, Composed
from chunkstore.testing.storage_basics import RACERS, StorageBasics, at_once, pattern

__all__ = ["StorageComposing"]


class StorageComposing(StorageBasics):
    """New chunks out of ranges of others."""

    def test_compose(self, storage: ChunkStorage) -> None:
        parts = {self.name(f"part-{size}"): pattern(size, size) for size in (1, 40, 300)}
        for name, part in parts.items():
            self.raw_write(name, part)
        one, two, three = parts
        ranges = [
            ChunkRange(three, 7, 200),
            ChunkRange(one, 0, 1),
            ChunkRange(two, 39, 1),
            ChunkRange(three, 100, 200),
            ChunkRange(three, 0, 300),
        ]
        new = self.name("folder/new")
        if not storage.capabilities.create_if_absent:
            with pytest.raises(Unsupported) as caught:
                storage.compose(new, ranges)
            assert caught.value.feature == "compose"
            return
        made = storage.compose(new, ranges)
        expected = b"".join(parts[item.name][item.offset : item.offset + item.length] for item in ranges)
        assert type(made) is Composed
        assert made.length == len(expected) == storage.stat(new).length
        assert 0 <= made.carried_bytes <= made.length
        assert made.carried_bytes == made.length or storage.capabilities.compose == "storage"
        assert self.raw_read(new) == expected
        assert storage.read(storage.open_read(new), 3, 1000) == expected[3:]
        assert {name: self.raw_read(name) for name in parts} == parts
        # What was made is a chunk like any other.
        assert storage.compose(self.name("newer"), [ChunkRange(new, 1, 9), ChunkRange(one, 0, 1)]).length == 10
        assert self.raw_read(self.name("newer")) == expected[1:10] + parts[one]
        if storage.capabilities.append:
            handle = self.filled(storage, b"0123")
            storage.write(handle, 4, b"4567")
            assert storage.compose(self.name("grown"), [ChunkRange(handle.name, 2, 5)]).length == 5
            assert self.raw_read(self.name("grown")) == b"23456"

    def test_compose_of_many(self, storage: ChunkStorage) -> None:
        names = [self.name(f"many/{number}") for number in range(8)]
        for number, name in enumerate(names):
            self.raw_write(name, pattern(64, number))
        ranges = [ChunkRange(names[number % 8], number, 3) for number in range(48)]
        assert storage.compose(self.name("new"), ranges).length == 144
        expected = b"".join(pattern(64, number % 8)[number : number + 3] for number in range(48))
        assert self.raw_read(self.name("new")) == expected

    def test_compose_replaces_nothing(self, storage: ChunkStorage) -> None:
        self.raw_write(self.name("a"), b"source")
        self.raw_write(self.name("b"), b"there")
        for _ in range(2):
            with pytest.raises(ChunkExists) as caught:
                storage.compose(self.name("b"), [ChunkRange(self.name("a"), 0, 6)])
            assert caught.value.chunk == self.name("b")
        assert self.raw_read(self.name("b")) == b"there"

    def test_compose_has_one_winner(self, storage: ChunkStorage) -> None:
        source, new = self.name("source"), self.name("new")
        self.raw_write(source, pattern(500))
        racing = [[ChunkRange(source, number, 100), ChunkRange(source, 0, number + 1)] for number in range(RACERS)]
        answers = at_once([partial(storage.compose, new, ranges) for ranges in racing])
        winners = [number for number, answer in enumerate(answers) if isinstance(answer, Composed)]
        assert len(winners) == 1, answers
        assert sum(isinstance(answer, ChunkExists) for answer in answers) == RACERS - 1
        content = pattern(500)[winners[0] : winners[0] + 100] + pattern(500)[: winners[0] + 1]
        assert self.raw_read(new) == content

    def test_compose_errors(self, storage: ChunkStorage) -> None:
        a, b, new = self.name("a"), self.name("b"), self.name("new")
        self.raw_write(a, b"aaaa")
        self.raw_write(b, b"bbbb")
        whole = ChunkRange(a, 0, 4)
        wrong: list[object] = [
            [],
            [whole] * (COMPOSE_RANGES_MAX + 1),
            [whole, ChunkRange(b, 0, 0)],
            [whole, ChunkRange(b, 0, 5)],
            [whole, ChunkRange(b, 4, 1)],
            [whole, ChunkRange(b, 1 << 62, 1 << 62)],
            [whole, ChunkRange(b, 0, 1 << 62)],
            [whole, ChunkRange(b, 1 << 64, 1)],
            [whole, ChunkRange(b, 0, 1 << 64)],
            [whole, ChunkRange(b, -1, 2)],
            [whole, ChunkRange(b, 0, -1)],
            [whole, ChunkRange(b, 0, 1.0)],  # type: ignore[arg-type]
            [whole, ChunkRange(new, 0, 1)],
            [whole, ChunkRange("../b", 0, 1)],
            [whole, (b, 0, 1)],
            [None],
            None,
            iter([whole]),
        ]
        for ranges in wrong:
            with pytest.raises(InvalidArgument):
                storage.compose(new, ranges)  # type: ignore[arg-type]
        for bad in ("", "/a", "a/../b", None):
            with pytest.raises(InvalidArgument):
                storage.compose(bad, [whole])  # type: ignore[arg-type]
        missing = self.name("missing")
        for ranges in ([whole, ChunkRange(missing, 0, 1)], [ChunkRange(missing, 2, 1), whole]):
            with pytest.raises(ChunkNotFound) as caught:
                storage.compose(new, ranges)
            assert caught.value.chunk == missing
        assert not storage.exists(new)
        assert [item.name for item in storage.list(self.prefix).items] == [a, b]
        assert (self.raw_read(a), self.raw_read(b)) == (b"aaaa", b"bbbb")
