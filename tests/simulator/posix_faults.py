"""What can go wrong with the system calls of a simulated file system, whoever makes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

from greenlet import GreenletExit

from chunkstore.errors import StorageFull, StorageUnavailable
from tests.simulator.wire import Call, Surroundings, Wire

_SECTOR: Final = 64
"""Bytes that a power cut keeps or loses together; small, because simulated files are."""


class Inode:
    """``data`` is what reads see; ``synced`` bytes of it are durable, but for ``lost`` ranges that no sync brought to disk.

    ``errors``: how often a sync has lost something. Whoever had it open before is told so by a sync of his own.
    """

    __slots__ = ("data", "errors", "lost", "modified_ns", "number", "synced")

    def __init__(self, number: int, now: int) -> None:
        self.number = number
        self.data = bytearray()
        self.synced = 0
        self.lost: list[tuple[int, int]] = []
        self.errors = 0
        self.modified_ns = now

    def sync(self) -> None:
        """All that is visible is durable now."""
        self.synced = len(self.data)

    def sync_fails(self) -> None:
        """The dirty pages are marked clean without having been written."""
        if len(self.data) > self.synced:
            self.lost.append((self.synced, len(self.data)))
            self.errors += 1
        self.synced = len(self.data)

    def stored(self, offset: int, length: int) -> bytes:
        """What is read past the page cache: no sync brought the ``lost`` ranges to disk."""
        data = bytearray(self.data[offset : offset + length])
        for start, stop in self.lost:
            begin, end = max(start - offset, 0), min(stop - offset, len(data))
            data[begin:end] = bytes(max(end - begin, 0))
        return bytes(data)

    def tear(self, random: Callable[[], float]) -> None:
        """The power is cut: what was not synced is kept, lost or torn by chance; zeros may stand in its midst."""
        data = self.data
        if self.lost:
            for start, stop in self.lost:
                if stop >= len(data) and random() < 0.5:
                    del data[start:]
                else:
                    data[start:stop] = bytes(len(data[start:stop]))
            self.lost.clear()
        unsynced = len(data) - self.synced
        if unsynced > 0:
            dice = random()
            kept = 0 if dice < 0.3 else unsynced if dice < 0.5 else int(random() * (unsynced + 1))
            del data[self.synced + kept :]
            if random() < 0.3:
                for start in range(self.synced, len(data), _SECTOR):
                    if random() < 0.5:
                        stop = min(len(data), start + _SECTOR)
                        data[start:stop] = bytes(stop - start)
        self.synced = len(data)


_SPACE: Final = frozenset(("creat", "pwrite", "temporary", "pwrite-temporary", "mkdir"))
_SYNCS: Final = frozenset(("fsync", "fsync-temporary"))
_WRITES: Final = frozenset(("pwrite", "pwrite-temporary"))
_ANY_CALL: Final = frozenset(("slow", "crash_at_call", "io_error"))
_DECIDING: Final = frozenset(("link", "rename", "fsync", "fsync-folder", "fsync-temporary", "pwrite", "unlink"))


class PosixFaults(ABC):
    """``network``: files lie behind one. ``busy``: the disk is full for a while. ``causes``: what errors may name as theirs.
    ``clock_ms``: what the storage's clock said when the run began."""

    causes: tuple[type[BaseException], ...] = ()
    clock_ms = 0

    def __init__(self, world: Surroundings, *, network: bool) -> None:
        self._world = world
        self._network = network
        self.busy = False

    @abstractmethod
    def inode_of(self, call: Call) -> Inode | None:
        """The file that a sync is of."""

    @abstractmethod
    def part_of(self, call: Call) -> Callable[[int, int], object]:
        """How some bytes of a write arrive, from one place in them up to another; where they go is decided now."""

    def applies(self, fault: str, call: Call) -> bool:
        """Whether a fault of this class can hit this call."""
        if fault in _ANY_CALL:
            return True
        if fault == "disk_full":
            return call.step in _SPACE
        if fault in ("short_write", "torn_write"):
            return call.step in _WRITES
        if fault == "late_write":
            return self._network and call.op == "write" and call.step == "pwrite"
        if fault == "stall_at_call":
            return call.step in _DECIDING and not call.name.startswith(self._world.names.data_prefix())
        return fault == "sync_error" and call.step in _SYNCS

    def busy_fault(self, call: Call) -> str:
        """The fault that a bad time brings to a call that had none of its own."""
        if self._world.scheduler.now >= self._world.faults.full_until:
            self.busy = False
            return ""
        return "full" if call.step in _SPACE else ""

    def suffer(self, wire: Wire, call: Call, fault: str) -> Any:
        """Let a fault happen to a call."""
        world = self._world
        random = world.faults.random
        wire.pause()
        wire.lose(call)
        if fault == "torn_write":
            self.write_a_part(call)
            call.process.crash()
            raise GreenletExit
        if fault == "late_write":
            self._write_later(call)
            raise wire.timed_out(call)
        if fault == "io_error":
            if call.step == "unlink" or random.random() < 0.2:
                call.late()  # EIO after the fact happens, too
            raise StorageUnavailable(f"{call.step} of {call.name}: Input/output error", object=call.name)
        if fault == "sync_error":
            inode = self.inode_of(call)
            if inode is not None:
                inode.sync_fails()
            raise StorageUnavailable(f"{call.step} of {call.name}: Input/output error", object=call.name)
        if fault == "disk_full" and world.faults.active:
            world.faults.full_until = world.scheduler.now + int(world.timeout_ns * (0.2 + 5 * random.random()))
            self.busy = True
        if fault == "short_write" or (call.step in _WRITES and random.random() < 0.3):
            self.write_a_part(call)
        raise StorageFull(f"{call.step} of {call.name}: No space left on device", object=call.name)

    def _write_later(self, call: Call) -> None:
        """Where files lie behind a network, a write that nobody waits for any more still goes to the place it was meant for."""
        assert call.data is not None
        part, size = self.part_of(call), len(call.data)
        call.apply = lambda: part(0, size)
        self._world.scheduler.at(int(self._world.timeout_ns * 10 * self._world.faults.random.random()), call.late)

    def write_a_part(self, call: Call) -> int:
        """Some of the bytes of a write arrive; returns how many."""
        assert call.data is not None
        kept = int(self._world.faults.random.random() * len(call.data))
        if kept:
            whole, before, part = call.data, call.apply, self.part_of(call)
            call.data = whole[:kept]
            call.apply = lambda: part(0, kept)
            call.late()
            call.data, call.apply = whole, before
        return kept

    def tear(self, call: Call, kept: int) -> None:
        """The first ``kept`` bytes of a held write are visible now; releasing the call brings the rest of them."""
        assert call.data is not None
        assert not call.applied
        part, size = self.part_of(call), len(call.data)
        part(0, kept)

        def rest() -> int:
            part(kept, size)
            return size

        call.apply = rest

    def die_with(self, call: Call) -> None:
        """The caller of a system call has died: it is done, or not begun; a write may be torn."""
        world = self._world
        dice = world.faults.random.random()
        if call.step == "pwrite" and world.faults.active and world.faults.weather.torn_write and dice < 0.7:
            world.faults.note("torn_write")
            self.write_a_part(call)
        elif dice < 0.5:
            call.late()
