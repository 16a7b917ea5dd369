"""The file system binding itself over a simulated kernel: its system calls are the steps that are scheduled, and that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import pytest

from chunkstore.storage import Capabilities, ChunkStorage
from chunkstore_bindings.filesystem import (
    FilesystemChunkStorage,
    appender,
    atomic,
    chunk_files,
    file_cache,
    folders,
    mounts,
    posix,
    storage,
    tree,
)
from tests.simulator.bound import Port
from tests.simulator.kernel import File, Kernel
from tests.simulator.posix_faults import Inode, PosixFaults
from tests.simulator.system_calls import SystemCalls, Write
from tests.simulator.wire import Call, Surroundings, Wire, WiredProcess

_ROOT: Final = "/simulated"
_MODULES: Final = (appender, atomic, chunk_files, file_cache, folders, mounts, posix, storage, tree)
_AHEAD_BYTES: Final = 1 << 12
"""What a log is made longer by: a few records."""
_CLOSING: Final = (folders.Root, file_cache.OpenFile)
"""Classes that keep the system's ``close`` for their end."""
_OF_STEPS: Final = {"fsync": "sync", "fsync-folder": "sync", "pwrite": "write"}
"""What a step belongs to that a thread of the binding's own makes, or an appender."""


class BoundPosixBackend(PosixFaults):
    """The kernel, its disk, and the binding's door to both."""

    causes = (OSError,)

    def __init__(self, world: Surroundings, *, append_journal: bool = True, fence_by_stat: bool = True) -> None:
        super().__init__(world, network=not fence_by_stat)
        local = append_journal and fence_by_stat
        self._medium = "ext4" if local else "nfs"
        self.capabilities = Capabilities(
            append=True,
            append_journal=local,
            create_if_absent=True,
            compose="storage",
            concat=True,
            truncate=True,
            set_read_only=True,
            fence_by_stat=local,
            medium=self._medium,
        )
        self.kernel = Kernel(lambda: world.scheduler.now)
        self._root = self.kernel.make(_ROOT)
        self.kernel.root.sync()
        self._port = Port(world, self, _OF_STEPS)
        calls = SystemCalls(self.kernel, _ROOT, self._port.step)
        self._patch = pytest.MonkeyPatch()
        for module in _MODULES:
            if vars(module).get("os") is not None:
                self._patch.setattr(module, "os", calls)
        for kind in _CLOSING:
            self._patch.setattr(kind.__del__, "__defaults__", (calls.close,))
        self._patch.setattr(appender, "_AHEAD_BYTES", _AHEAD_BYTES)
        self._patch.setattr(mounts, "file_system_of", lambda _path: (self._medium, local))
        self._patch.setattr(mounts, "free_bytes", lambda _path: None)

    def close(self) -> None:
        """Give the binding its system back."""
        self._patch.undo()

    def client(self, process: WiredProcess) -> ChunkStorage:
        """A storage of one process: the binding's own."""
        return self._port.bind(process, lambda: FilesystemChunkStorage(_ROOT, medium=self._medium))

    # What it holds, for observers

    def _file(self, name: str) -> File | None:
        try:
            return self.kernel.file(name, self._root)
        except OSError:
            return None

    def content(self, name: str) -> bytes | None:
        """What is visible under a name now."""
        found = self._file(name)
        return None if found is None else bytes(found.data)

    def durable(self, name: str) -> bytes | None:
        """What is certain to be there after a power cut; None if the name is not."""
        place: Any = self._root
        for part in name.split("/"):
            place = place.durable(part) if place is not None and not isinstance(place, File) else None
        if not isinstance(place, File):
            return None
        return bytes(place.data[: min((start for start, _ in place.lost), default=place.synced)])

    def names(self) -> list[str]:
        """All visible names, in order; temporaries too."""
        return sorted(name for name, _ in self.kernel.files(self._root))

    def overwrite(self, name: str, data: bytes) -> None:
        """Damage: bytes change behind everybody's back, durably. For negative tests."""
        file = self._file(name)
        if file is None:
            place = self._root
            for part in name.split("/")[:-1]:
                found = place.entries.get(part)
                place = cast("Any", found) if found is not None else self.kernel.make(part, place)
            file = self.kernel.create(name, self._root)
        file.data[:] = data
        file.sync()
        self._settle(name)

    def remove(self, name: str) -> None:
        """Loss: a file is gone behind everybody's back, durably. For negative tests."""
        self.kernel.unlink(name, self._root)
        self._settle(name)

    def _settle(self, name: str) -> None:
        place: Any = self._root
        for part in name.split("/")[:-1]:
            place.sync()
            place = place.entries[part]
        place.sync()

    # Power and faults

    def power_cut(self) -> None:
        """Everything that was not synced is kept, lost or torn by chance. All processes must be dead."""
        self.kernel.power_cut(self._world.faults.random.random)

    def inode_of(self, call: Call) -> Inode | None:
        return self._file(call.name)

    def part_of(self, call: Call) -> Callable[[int, int], object]:
        write = call.apply
        assert isinstance(write, Write)

        def arrive(start: int, stop: int) -> None:
            if len(write.file.data) >= write.offset + start:
                write.file.write(write.offset + start, write.data[start:stop], self._world.scheduler.now)

        return arrive

    def suffer(self, wire: Wire, call: Call, fault: str) -> Any:
        if fault == "short_write" and call.step != "pread" and self._world.faults.random.random() < 0.5:
            # Not an error: whoever wrote must see that it was not all.
            wire.pause()
            wire.lose(call)
            return self.write_a_part(call) or call.late()
        if fault == "short_write" and call.step == "pread":
            found: bytes = wire.apply_after(call)
            return found[: 1 + int(self._world.faults.random.random() * len(found))]
        return super().suffer(wire, call, fault)

    def applies(self, fault: str, call: Call) -> bool:
        return super().applies(fault, call) or (fault == "short_write" and call.step == "pread")
