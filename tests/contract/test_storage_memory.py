"""The memory storage holds the contract, with and without appends; and what is special about it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore.errors import ChunkNotFound, InvalidArgument
from chunkstore.storage import ChunkStorage
from chunkstore.testing.storage_contract import ChunkStorageContract
from chunkstore_bindings.memory import MemoryChunkStorage, _Chunk, forget_memory


class TestMemory(ChunkStorageContract):
    append = True

    @pytest.fixture(autouse=True)
    def forget(self) -> Iterator[None]:
        yield
        forget_memory(self.inner.url)

    def make_storage(self, folder: Path) -> ChunkStorage:
        self.inner = MemoryChunkStorage(f"memory://{uuid.uuid4()}", append=self.append)
        return self.inner

    def raw_read(self, name: str) -> bytes:
        return bytes(self.inner._chunks[name].data)

    def raw_write(self, name: str, data: bytes) -> None:
        self.inner._chunks[name] = _Chunk(bytearray(data))
        self.inner._contents.names = None


class TestMemoryWithoutAppend(TestMemory):
    append = False

    def test_capabilities(self, storage: ChunkStorage) -> None:
        assert not storage.capabilities.append
        assert not storage.capabilities.append_journal
        assert storage.capabilities.create_if_absent


def test_one_name_one_content_until_forgotten() -> None:
    url = f"memory://{uuid.uuid4()}"
    first, second = MemoryChunkStorage(url), MemoryChunkStorage(url, append=False)
    other = MemoryChunkStorage(url + "-other")
    first.create("a", b"shared")
    assert second.read(second.open_read("a"), 0, 9) == b"shared"
    assert not other.exists("a")
    first.close()
    second.close()
    third = MemoryChunkStorage(url)
    assert third.exists("a")
    forget_memory(url)
    forget_memory(url)
    fourth = MemoryChunkStorage(url)
    with pytest.raises(ChunkNotFound):
        fourth.stat("a")
    assert third.exists("a")
    forget_memory(url)


@pytest.mark.parametrize("url", ["memory://", "file:///x", "", None, "memory:/x"])
def test_bad_urls(url: str) -> None:
    with pytest.raises(InvalidArgument):
        MemoryChunkStorage(url)
