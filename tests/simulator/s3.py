"""A simulated object store: conditional puts, requests that come late or twice, replies that do not come at all."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from chunkstore.checksum import BytesLike
from chunkstore.errors import ChunkExists, ChunkNotFound
from chunkstore.storage import BaseChunkStorage, Capabilities, ChunkInfo, ChunkStorage, ListPage
from tests.simulator.request_faults import RequestFaults
from tests.simulator.scheduler import NS
from tests.simulator.wire import Surroundings, Wire, WiredProcess, rotten_bytes

_LAG_NS: Final = 5 * NS


class Object:
    """``headers``: what goes with the bytes, where whoever put them knows of such."""

    __slots__ = ("data", "headers", "modified_ns")

    def __init__(self, data: bytes, modified_ns: int, headers: Mapping[str, str] | None = None) -> None:
        self.data = data
        self.modified_ns = modified_ns
        self.headers = headers or {}


class S3Backend(RequestFaults):
    """The store itself: what every process sees."""

    def __init__(self, world: Surroundings, *, remote: bool = False) -> None:
        self.capabilities = Capabilities(
            append=False, append_journal=False, create_if_absent=True, remote=remote, medium="simulated-s3"
        )
        super().__init__(world)
        self.objects: dict[str, Object] = {}
        self._names: list[str] | None = None
        self._deleted: list[tuple[int, str, int]] = []
        self.rotten: dict[str, tuple[int, int]] = {}  # by name: the byte that reads wrong, and in which bits

    def client(self, process: WiredProcess) -> ChunkStorage:
        """The way of one process to the store."""
        return S3ChunkStorage(self._world, process, self)

    # What it holds, for observers

    def content(self, name: str) -> bytes | None:
        """What is stored under a name now."""
        found = self.objects.get(name)
        return None if found is None else found.data

    def durable(self, name: str) -> bytes | None:
        """As ``content``: what took effect is durable."""
        return self.content(name)

    def names(self) -> list[str]:
        """All names, in order."""
        if self._names is None:
            self._names = sorted(self.objects)
        return self._names

    def overwrite(self, name: str, data: bytes) -> None:
        """Damage: bytes change behind everybody's back. For negative tests."""
        self.objects[name] = Object(data, self._world.scheduler.now)
        self._names = None

    def remove(self, name: str) -> None:
        """Loss: an object is gone behind everybody's back. For negative tests."""
        del self.objects[name]
        self._names = None

    def power_cut(self) -> None:
        """A machine of a client loses power: nothing of the store is lost."""

    # Requests

    def put(self, name: str, data: bytes, *, only_if_absent: bool, headers: Mapping[str, str] | None = None) -> bool:
        objects = self.objects
        known = name in objects
        if known and only_if_absent:
            return False
        if not known:
            self._names = None
        objects[name] = Object(data, self._world.scheduler.now, headers)
        return True

    def get(self, name: str) -> Object:
        found = self.objects.get(name)
        if found is None:
            raise ChunkNotFound(name)
        return found

    def read(self, name: str, offset: int, length: int) -> bytes:
        data = self.get(name).data[offset : offset + length]
        return rotten_bytes(self.rotten, name, offset, data) if self.rotten else data

    def delete(self, name: str) -> None:
        found = self.objects.pop(name, None)
        if found is not None:
            self._names = None
            if self._world.faults.weather.stale_list:
                self._deleted.append((self._world.scheduler.now, name, len(found.data)))

    def list(self, prefix: str, after: str | None, limit: int) -> ListPage:
        world = self._world
        items: dict[str, ChunkInfo] = {}
        names = self.names()
        stale = not world.scheduler.in_hub() and world.faults.chance("stale_list")
        now = world.scheduler.now
        start = bisect_left(names, prefix)
        if after is not None:
            start = max(start, bisect_right(names, after))
        for name in names[start:]:
            if not name.startswith(prefix) or len(items) > limit:
                break
            found = self.objects[name]
            if stale and now - found.modified_ns < _LAG_NS and world.faults.random.random() < 0.7:
                continue
            items[name] = ChunkInfo(name, len(found.data), self.clock_ms + found.modified_ns // 1_000_000)
        if stale:
            for when, name, length in self._deleted:
                shown = name.startswith(prefix) and (after is None or name > after) and now - when < _LAG_NS
                if shown and name not in self.objects and world.faults.random.random() < 0.7:
                    items[name] = ChunkInfo(name, length, self.clock_ms + when // 1_000_000)
        ordered = [items[name] for name in sorted(items)]
        if len(ordered) > limit:
            return ListPage(tuple(ordered[:limit]), ordered[limit - 1].name)
        return ListPage(tuple(ordered), None)


class S3ChunkStorage(BaseChunkStorage):
    """What a process opens: the port, over requests to the simulated store."""

    def __init__(self, world: Surroundings, process: WiredProcess, backend: S3Backend) -> None:
        self._backend = backend
        self._call: Callable[..., Any] = Wire(world, process).call

    @property
    def capabilities(self) -> Capabilities:
        return self._backend.capabilities

    @property
    def url(self) -> str:
        return "s3://simulated/bucket"

    def do_exists(self, name: str) -> bool:
        def head() -> bool:
            with suppress(ChunkNotFound):
                return bool(self._backend.get(name))
            return False

        return bool(self._call("exists", "HEAD", name, head))

    def do_stat(self, name: str) -> ChunkInfo:
        def head() -> ChunkInfo:
            found = self._backend.get(name)
            return ChunkInfo(name, len(found.data), self._backend.clock_ms + found.modified_ns // 1_000_000)

        found: ChunkInfo = self._call("stat", "HEAD", name, head)
        return found

    def do_open(self, name: str) -> bool:
        self._call("open", "HEAD", name, lambda: self._backend.get(name))
        return True

    def _put(self, op: str, name: str, data: BytesLike, only_if_absent: bool) -> bool:
        body = bytes(data)
        step = "PUT*" if only_if_absent else "PUT"
        put = self._backend.put
        return bool(
            self._call(op, step, name, lambda: put(name, body, only_if_absent=only_if_absent), data=body, changes=True)
        )

    def do_create(self, name: str, data: BytesLike | None) -> None:
        if not self._put("create", name, data if data is not None else b"", True):
            raise ChunkExists(name)

    def do_create_if_absent(self, name: str, data: BytesLike) -> bool:
        return self._put("create_if_absent", name, data, True)

    def do_put(self, name: str, data: BytesLike) -> None:
        self._put("put", name, data, False)

    def do_read(self, name: str, offset: int, length: int) -> bytes:
        data: bytes = self._call("read", "GET", name, lambda: self._backend.read(name, offset, length))
        return data

    def do_read_into(self, name: str, offset: int, buffer: bytearray | memoryview) -> int:
        with memoryview(buffer) as whole, whole.cast("B") as flat:
            data = self.do_read(name, offset, len(flat))
            flat[: len(data)] = data
            return len(data)

    def do_write(self, name: str, offset: int, data: BytesLike) -> int:
        raise AssertionError("an object store has no appends; the base refuses them")

    def do_sync(self, names: Sequence[str]) -> None:
        return None

    def do_harden(self, name: str) -> None:
        return None

    def do_delete(self, name: str) -> None:
        self._call("delete", "DELETE", name, lambda: self._backend.delete(name), changes=True)

    def do_list(self, prefix: str, after: str | None, limit: int) -> ListPage:
        page: ListPage = self._call("list", "LIST", prefix, lambda: self._backend.list(prefix, after, limit))
        return page
