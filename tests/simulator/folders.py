"""A root within a root: the objects of one folder of a simulated storage, under their own names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chunkstore.errors import ChunkNotFound
from chunkstore.storage import BaseChunkStorage, Capabilities, ChunkInfo, ChunkRange, Composed, ListPage


def _inside(operation: str) -> Callable[..., Any]:
    def call(self: FolderStorage, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self.inner, operation)(self.folder + name, *arguments)
        except ChunkNotFound as error:
            raise ChunkNotFound(error.chunk.removeprefix(self.folder)) from error

    return call


class FolderStorage(BaseChunkStorage):
    """A storage whose root is a folder of another one's."""

    def __init__(self, inner: BaseChunkStorage, folder: str) -> None:
        self.inner = inner
        self.folder = folder

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    @property
    def url(self) -> str:
        return f"{self.inner.url}/{self.folder.rstrip('/')}"

    do_exists = _inside("do_exists")
    do_create = _inside("do_create")
    do_create_if_absent = _inside("do_create_if_absent")
    do_put = _inside("do_put")
    do_open = _inside("do_open")
    do_write = _inside("do_write")
    do_delete = _inside("do_delete")
    do_read = _inside("do_read")
    do_read_uncached = _inside("do_read_uncached")
    do_read_into = _inside("do_read_into")
    do_harden = _inside("do_harden")
    do_identity = _inside("do_identity")
    do_set_read_only = _inside("do_set_read_only")

    def _own(self, info: ChunkInfo) -> ChunkInfo:
        return info._replace(name=info.name.removeprefix(self.folder))

    def do_sync(self, names: Sequence[str]) -> None:
        self.inner.do_sync([self.folder + name for name in names])

    def do_stat(self, name: str) -> ChunkInfo:
        found: ChunkInfo = _inside("do_stat")(self, name)
        return self._own(found)

    def do_list(self, prefix: str, after: str | None, limit: int) -> ListPage:
        page = self.inner.do_list(self.folder + prefix, None if after is None else self.folder + after, limit)
        following = None if page.next_after is None else page.next_after.removeprefix(self.folder)
        return ListPage(tuple(map(self._own, page.items)), following)

    def do_compose(self, name: str, ranges: Sequence[ChunkRange]) -> Composed:
        inside = [item._replace(name=self.folder + item.name) for item in ranges]
        return self.inner.do_compose(self.folder + name, inside)
