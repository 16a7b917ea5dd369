"""A simulated file system of one kernel: what is visible, what is durable, and what a power cut leaves of the difference.

Promises
* File bytes and directory entries are durable apart from each other: fsync of a file moves its bytes, fsync of a folder its
  entries. A power cut keeps, of every file, what was synced and a random part of the rest (a prefix, with holes of zeros in
  it), and of every entry that was not synced the old or the new state, each by its own dice.
* EIO on fsync drops what was dirty for good: it stays readable, the next fsync reports success, and a power cut (or the
  page cache, some day) takes it away.
* Where files lie behind a network (``fence_by_stat`` is false), a write may time out and happen later, where it was meant to.
* A full disk, EIO, and short writes hit single system calls. ``create_if_absent`` is what the file system binding does:
  temporary, fsync, link, fsync of the folder, unlink; a process may die between any two of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

from chunkstore.checksum import BytesLike
from chunkstore.errors import ChunkExists, ChunkNotFound, InvalidArgument, StorageFull, StorageUnavailable
from chunkstore.storage import BaseChunkStorage, Capabilities, ChunkInfo, ListPage
from tests.simulator.posix_faults import Inode, PosixFaults
from tests.simulator.wire import Call, Surroundings, Wire, WiredProcess, rotten_bytes

_TEMPORARY: Final = ".chunkstore-tmp/"


class PosixBackend(PosixFaults):
    """The kernel and its disk.

    ``append_journal`` and ``fence_by_stat`` are the capabilities of that name; without ``fence_by_stat`` this is a network file
    system.
    """

    def __init__(self, world: Surroundings, *, append_journal: bool = True, fence_by_stat: bool = True) -> None:
        super().__init__(world, network=not fence_by_stat)
        self.capabilities = Capabilities(
            append=True,
            append_journal=append_journal,
            create_if_absent=True,
            fence_by_stat=fence_by_stat,
            medium="simulated-posix",
        )
        self.entries: dict[str, Inode] = {}
        self._names: list[str] | None = None
        # By folder and name: what the disk has for a name whose present entry was not synced.
        self._dirty: dict[str, dict[str, Inode | None]] = {}
        self._inodes = 0
        self.held: list[dict[str, str]] = []  # for each client: the folders it holds open, and their names by now
        self.rotten: dict[str, tuple[int, int]] = {}  # by name: the byte that reads wrong, and in which bits

    def client(self, process: WiredProcess) -> PosixChunkStorage:
        """The way of one process to the kernel."""
        return PosixChunkStorage(self._world, process, self)

    # What it holds, for observers

    def content(self, name: str) -> bytes | None:
        """What is visible under a name now."""
        found = self.entries.get(name)
        return None if found is None else bytes(found.data)

    def durable(self, name: str) -> bytes | None:
        """What is certain to be there after a power cut; None if the name is not."""
        dirty = self._dirty.get(name.rpartition("/")[0], {})
        found = dirty[name] if name in dirty else self.entries.get(name)
        if found is None:
            return None
        return bytes(found.data[: min((start for start, _ in found.lost), default=found.synced)])

    def names(self) -> list[str]:
        """All visible names, in order; temporaries too."""
        if self._names is None:
            self._names = sorted(self.entries)
        return self._names

    def overwrite(self, name: str, data: bytes) -> None:
        """Damage: bytes change behind everybody's back, durably. For negative tests."""
        inode = self.entries.get(name)
        if inode is None:
            inode = self._new_inode()
            self._set(name, inode)
        inode.data[:] = data
        inode.sync()
        self.sync_folder(name)

    def remove(self, name: str) -> None:
        """Loss: a file is gone behind everybody's back, durably. For negative tests."""
        self._set(name, None)
        self.sync_folder(name)

    # System calls

    def _new_inode(self) -> Inode:
        self._inodes += 1
        return Inode(self._inodes, self._world.scheduler.now)

    def _set(self, name: str, inode: Inode | None) -> None:
        before = self.entries.get(name)
        self._dirty.setdefault(name.rpartition("/")[0], {}).setdefault(name, before)
        if inode is None:
            del self.entries[name]
        else:
            self.entries[name] = inode
        if (before is None) != (inode is None):
            self._names = None

    def find(self, name: str) -> Inode:
        inode = self.entries.get(name)
        if inode is None:
            raise ChunkNotFound(name)
        return inode

    def create(self, name: str) -> None:
        if name in self.entries:
            raise ChunkExists(name)
        self._set(name, self._new_inode())

    def link(self, temporary: str, name: str) -> bool:
        if name in self.entries:
            return False
        self._set(name, self.find(temporary))
        return True

    def rename(self, temporary: str, name: str) -> None:
        inode = self.find(temporary)
        self._set(name, inode)
        self._set(temporary, None)

    def unlink(self, name: str) -> None:
        self.find(name)
        self._set(name, None)

    def pwrite(self, name: str, offset: int, data: bytes) -> int:
        inode = self.find(name)
        BaseChunkStorage.check_write_offset(name, expected=len(inode.data), given=offset)
        inode.data += data
        inode.modified_ns = self._world.scheduler.now
        return len(data)

    def pread(self, name: str, offset: int, length: int) -> bytes:
        data = bytes(self.find(name).data[offset : offset + length])
        return rotten_bytes(self.rotten, name, offset, data) if self.rotten else data

    def pread_direct(self, name: str, offset: int, length: int) -> bytes:
        data = self.find(name).stored(offset, length)
        return rotten_bytes(self.rotten, name, offset, data) if self.rotten else data

    def sync_file(self, name: str, errors_known: int | None = None) -> None:
        """``errors_known``: of a descriptor that was opened when there had been so many; None for one that is opened now."""
        inode = self.find(name)
        inode.sync()
        if errors_known is not None and inode.errors > errors_known:
            raise StorageUnavailable(f"fsync of {name}: Input/output error", object=name)

    def sync_folder(self, name: str) -> None:
        self._dirty.pop(name.rpartition("/")[0], None)

    def list(self, prefix: str, after: str | None, limit: int) -> ListPage:
        names = self.names()
        start = bisect_left(names, prefix)
        if after is not None:
            start = max(start, bisect_right(names, after))
        items: list[ChunkInfo] = []
        for name in names[start:]:
            if not name.startswith(prefix):
                break
            if name.startswith(_TEMPORARY):
                continue
            if len(items) == limit:
                return ListPage(tuple(items), items[-1].name)
            inode = self.entries[name]
            items.append(ChunkInfo(name, len(inode.data), self.clock_ms + inode.modified_ns // 1_000_000))
        return ListPage(tuple(items), None)

    # Power

    def power_cut(self) -> None:
        """Everything that was not synced is kept, lost or torn by chance. All processes of the machine must be dead."""
        random = self._world.faults.random.random
        for dirty in self._dirty.values():
            for name, before in dirty.items():
                if random() < 0.5:
                    if before is None:
                        self.entries.pop(name, None)
                    else:
                        self.entries[name] = before
        self._dirty.clear()
        self._names = None
        seen: set[int] = set()
        for inode in self.entries.values():
            if inode.number not in seen:
                seen.add(inode.number)
                inode.tear(random)

    # Faults

    def inode_of(self, call: Call) -> Inode | None:
        return self.entries.get(call.name)

    def part_of(self, call: Call) -> Callable[[int, int], object]:
        assert call.data is not None
        inode, whole = self.inode_of(call), call.data
        place = len(inode.data) if inode is not None else 0

        def arrive(start: int, stop: int) -> None:
            # A file that is gone (a backup was put in the root's place) takes what nobody reads.
            if inode is not None and len(inode.data) >= place + start:
                inode.data[place + start : place + stop] = whole[start:stop]

        return arrive


class PosixChunkStorage(BaseChunkStorage):
    """What a process opens: the port, over system calls of the simulated kernel, as the file system binding makes them."""

    def __init__(self, world: Surroundings, process: WiredProcess, backend: PosixBackend) -> None:
        self._world = world
        self._process = process
        self._backend = backend
        self._wire_call = Wire(world, process).call
        self._begin()

    def _begin(self) -> None:
        """What a process that has just started knows of its files."""
        self._unsynced: set[str] = set()
        self._failed: set[str] = set()
        # Files with unsynced bytes of ours stay open: how many errors there had been when the first of them were written.
        self._errors_known: dict[str, int] = {}
        self._temporaries = 0
        self._held: dict[str, str] = {}
        self._backend.held.append(self._held)

    def _at(self, name: str) -> str:
        """Where a name lies now, in the folder that was opened for it."""
        first = name.partition("/")[0]
        return self._held.setdefault(first, first) + name.removeprefix(first)

    @property
    def capabilities(self) -> Capabilities:
        return self._backend.capabilities

    @property
    def url(self) -> str:
        return "file:///simulated"

    def _call(
        self, op: str, step: str, name: str, apply: Callable[[], Any], data: bytes | None = None, changes: bool = True
    ) -> Any:
        return self._wire_call(op, step, name, apply, data=data, changes=changes, remote=self._backend.busy)

    def do_exists(self, name: str) -> bool:
        entries = self._backend.entries
        return bool(self._call("exists", "stat", name, lambda: self._at(name) in entries, changes=False))

    def do_stat(self, name: str) -> ChunkInfo:
        def look() -> ChunkInfo:
            inode = self._backend.find(self._at(name))
            return ChunkInfo(name, len(inode.data), self._backend.clock_ms + inode.modified_ns // 1_000_000)

        return cast(ChunkInfo, self._call("stat", "stat", name, look, changes=False))

    def do_identity(self, name: str) -> bytes:
        def look() -> int:
            inode = self._backend.find(self._at(name))
            if self._backend.find(name) is not inode:
                raise ChunkNotFound(name)
            return inode.number

        return b"%d" % self._call("identity", "stat", name, look, changes=False)

    def do_open(self, name: str) -> bool:
        self._call("open", "stat", name, lambda: self._backend.find(self._at(name)), changes=False)
        return True

    def do_create(self, name: str, data: BytesLike | None) -> None:
        self._call("create", "creat", name, lambda: self._backend.create(self._at(name)))
        self._failed.discard(name)
        self._errors_known.pop(name, None)
        self._unsynced.add(name)
        if data is not None and len(data):
            body = bytes(data)
            try:
                self._call("create", "pwrite", name, lambda: self._backend.pwrite(self._at(name), 0, body), body)
            except (StorageFull, StorageUnavailable):
                self._remove_quietly(name)
                raise

    def _remove_quietly(self, name: str) -> None:
        # What cannot be removed costs space and nothing else.
        with suppress(Exception):
            self._call("remove", "unlink", name, lambda: self._backend.unlink(self._at(name)))

    def _temporary(self, op: str, name: str, data: BytesLike) -> str:
        self._temporaries += 1
        temporary = f"{_TEMPORARY}{self._process.number}-{self._temporaries}"
        body = bytes(data)

        def write() -> None:
            self._backend.create(temporary)
            self._backend.pwrite(temporary, 0, body)

        self._call(op, "temporary", temporary, write, body)
        try:
            self._call(op, "fsync-temporary", temporary, lambda: self._backend.sync_file(temporary))
        except (StorageFull, StorageUnavailable):
            self._remove_quietly(temporary)
            raise
        return temporary

    def do_create_if_absent(self, name: str, data: BytesLike) -> bool:
        temporary = self._temporary("create_if_absent", name, data)
        body = bytes(data)
        try:
            created = bool(
                self._call(
                    "create_if_absent", "link", name, lambda: self._backend.link(temporary, self._at(name)), body
                )
            )
        finally:
            self._remove_quietly(temporary)
        # Also when the name was taken: "taken" must still be true after a power cut.
        self._sync_folder("create_if_absent", name)
        return created

    def do_put(self, name: str, data: BytesLike) -> None:
        temporary = self._temporary("put", name, data)
        body = bytes(data)
        try:
            self._call("put", "rename", name, lambda: self._backend.rename(temporary, self._at(name)), body)
        except (StorageFull, StorageUnavailable):
            self._remove_quietly(temporary)
            raise
        self._sync_folder("put", name)
        self._failed.discard(name)
        self._errors_known.pop(name, None)
        self._unsynced.discard(name)

    def _sync_folder(self, op: str, name: str) -> None:
        self._call(op, "fsync-folder", name, lambda: self._backend.sync_folder(self._at(name)))

    def do_read(self, name: str, offset: int, length: int) -> bytes:
        pread = self._backend.pread
        data: bytes = self._call("read", "pread", name, lambda: pread(self._at(name), offset, length), changes=False)
        return data

    def do_read_uncached(self, name: str, offset: int, length: int) -> bytes:
        pread = self._backend.pread_direct
        data: bytes = self._call("read", "pread", name, lambda: pread(self._at(name), offset, length), changes=False)
        return data

    def do_read_into(self, name: str, offset: int, buffer: bytearray | memoryview) -> int:
        with memoryview(buffer) as whole, whole.cast("B") as flat:
            data = self.do_read(name, offset, len(flat))
            flat[: len(data)] = data
            return len(data)

    def _check_doubt(self, name: str) -> None:
        if name in self._failed:
            raise StorageUnavailable(
                f"an earlier sync of {name!r} failed, so its latest bytes are in doubt; write a new chunk", object=name
            )

    def do_write(self, name: str, offset: int, data: BytesLike) -> int:
        self._check_doubt(name)
        body = bytes(data)
        self._errors_known.setdefault(name, self._backend.find(self._at(name)).errors)
        return int(
            self._call("write", "pwrite", name, lambda: self._backend.pwrite(self._at(name), offset, body), body)
        )

    def do_sync(self, names: Sequence[str]) -> None:
        for name in dict.fromkeys(names):
            self._check_doubt(name)
            try:
                self._call(
                    "sync",
                    "fsync",
                    name,
                    partial(self._backend.sync_file, self._at(name), self._errors_known.pop(name, None)),
                )
            except StorageUnavailable:
                self._failed.add(name)
                raise
        for name in dict.fromkeys(names):
            if name in self._unsynced:
                self._sync_folder("sync", name)
                self._unsynced.discard(name)

    def do_harden(self, name: str) -> None:
        self._call("harden", "fsync", name, lambda: self._backend.sync_file(self._at(name)))
        self._sync_folder("harden", name)
        self._unsynced.discard(name)

    def do_delete(self, name: str) -> None:
        self._call("delete", "unlink", name, lambda: self._backend.unlink(self._at(name)))
        self._unsynced.discard(name)
        self._failed.discard(name)
        self._errors_known.pop(name, None)

    def do_list(self, prefix: str, after: str | None, limit: int) -> ListPage:
        list_now = partial(self._backend.list, prefix, after, limit)
        return cast(ListPage, self._call("list", "readdir", prefix, list_now, changes=False))

    def do_truncate(self, name: str, length: int) -> None:
        raise InvalidArgument("simulated files only grow", argument="length")
