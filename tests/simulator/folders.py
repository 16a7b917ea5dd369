"""A root within a root: the objects of one folder of a simulated storage, under their own names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from chunkstore.checksum import BytesLike
from chunkstore.errors import ChunkNotFound
from chunkstore.storage import BaseChunkStorage, Capabilities, ChunkInfo, ChunkRange, Composed, ListPage


class FolderStorage(BaseChunkStorage):
    """A storage whose root is a folder of another one's."""

    def __init__(self, inner: BaseChunkStorage, folder: str) -> None:
        self._inner = inner
        self._folder = folder

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    @property
    def url(self) -> str:
        return f"{self._inner.url}/{self._folder.rstrip('/')}"

    def _own(self, info: ChunkInfo) -> ChunkInfo:
        return info._replace(name=info.name.removeprefix(self._folder))

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """What is not there is not there under its name in this root."""
        try:
            yield
        except ChunkNotFound as error:
            raise ChunkNotFound(error.chunk.removeprefix(self._folder)) from error

    def do_exists(self, name: str) -> bool:
        return self._inner.do_exists(self._folder + name)

    def do_create(self, name: str, data: BytesLike | None) -> None:
        self._inner.do_create(self._folder + name, data)

    def do_create_if_absent(self, name: str, data: BytesLike) -> bool:
        return self._inner.do_create_if_absent(self._folder + name, data)

    def do_put(self, name: str, data: BytesLike) -> None:
        self._inner.do_put(self._folder + name, data)

    def do_open(self, name: str) -> bool:
        with self._inside():
            return self._inner.do_open(self._folder + name)

    def do_read(self, name: str, offset: int, length: int) -> bytes:
        with self._inside():
            return self._inner.do_read(self._folder + name, offset, length)

    def do_read_uncached(self, name: str, offset: int, length: int) -> bytes:
        with self._inside():
            return self._inner.do_read_uncached(self._folder + name, offset, length)

    def do_read_into(self, name: str, offset: int, buffer: bytearray | memoryview) -> int:
        with self._inside():
            return self._inner.do_read_into(self._folder + name, offset, buffer)

    def do_write(self, name: str, offset: int, data: BytesLike) -> int:
        with self._inside():
            return self._inner.do_write(self._folder + name, offset, data)

    def do_sync(self, names: Sequence[str]) -> None:
        with self._inside():
            self._inner.do_sync([self._folder + name for name in names])

    def do_harden(self, name: str) -> None:
        with self._inside():
            self._inner.do_harden(self._folder + name)

    def do_delete(self, name: str) -> None:
        with self._inside():
            self._inner.do_delete(self._folder + name)

    def do_list(self, prefix: str, after: str | None, limit: int) -> ListPage:
        page = self._inner.do_list(self._folder + prefix, None if after is None else self._folder + after, limit)
        following = None if page.next_after is None else page.next_after.removeprefix(self._folder)
        return ListPage(tuple(map(self._own, page.items)), following)

    def do_stat(self, name: str) -> ChunkInfo:
        with self._inside():
            return self._own(self._inner.do_stat(self._folder + name))

    def do_compose(self, name: str, ranges: Sequence[ChunkRange]) -> Composed:
        with self._inside():
            inside = [item._replace(name=self._folder + item.name) for item in ranges]
            return self._inner.do_compose(self._folder + name, inside)

    def do_set_read_only(self, name: str, read_only: bool) -> None:
        with self._inside():
            self._inner.do_set_read_only(self._folder + name, read_only)

    def do_identity(self, name: str) -> bytes:
        with self._inside():
            return self._inner.do_identity(self._folder + name)
