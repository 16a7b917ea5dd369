"""One container under fault: a world of its own, a faulty wire, what the container says, and a workload to go on with."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.metadata.keys import SESSION
from chunkstore.records.segments import AttributeValue
from tests.support.alone import abandon
from tests.support.disk import Disk, DiskStorage
from tests.support.faulty import FaultyChunkStorage, Outcome
from tests.support.worlds import FULL_RUN, VARIANTS, Kind, Mode, World

__all__ = [
    "AMPLE_S", "FULL_RUN", "GROUNDS", "WRITER", "Ground", "Place", "SegmentView", "State", "Wire", "fast_folder", "observe", "work",
]  # fmt: skip

Place = Kind | Literal["disk"]
"""Where a container lies: as the worlds have it, or on a disk that can lose its power."""
GROUNDS: tuple[tuple[Place, Mode], ...] = (*VARIANTS, ("disk", "slot"), ("disk", "append"))
Wire = FaultyChunkStorage | DiskStorage
"""A process's way to the storage, with faults."""

WRITER = b"writer"
TABLES = ("rows", "work")
FAST = {"op_deadline_s": 2.0, "resolve_s": 0.0, "undecided_s_max": 2.0, "lease_s": 5.0, "gc_grace_s": 0.0}
AMPLE_S = 60.0
"""Of whoever is to succeed."""


class SegmentView(NamedTuple):
    """What readers can learn about a segment."""

    start: int
    data: bytes
    sealed: bool
    attributes: dict[str, AttributeValue]
    event: int
    """The last event number of ``WRITER``."""


class State(NamedTuple):
    """What readers can learn about a container: two states that are equal cannot be told apart by a user."""

    segments: dict[str, SegmentView]
    rows: dict[tuple[str, bytes], bytes]
    sessions: int


def observe(store: ChunkedSegmentStorage) -> State:
    """Read everything, through the public face where there is one."""
    segments: dict[str, SegmentView] = {}
    for info in store.segments():
        data = store.read(info.name, info.start_offset, info.length - info.start_offset + 1)
        assert len(data) == info.length - info.start_offset
        event = store.last_event_number(info.name, WRITER)
        segments[info.name] = SegmentView(info.start_offset, data, info.sealed, dict(info.attributes), event)
    rows = {(name, entry.key): entry.value for name in TABLES for entry in store.table(name).scan()}
    with store._container.current.store.view() as view:
        sessions = sum(1 for _ in view.scan(SESSION, bytes((SESSION[0] + 1,))))
    return State(segments, rows, sessions)


def work(store: ChunkedSegmentStorage, state: State, tag: str) -> State:
    """A little of everything on what is there; returns the state it must lead to."""
    segments = dict(state.segments)
    for name, segment in state.segments.items():
        if segment.sealed:
            store.truncate(name, segment.start + len(segment.data) // 2)
            half = len(segment.data) // 2
            segments[name] = segment._replace(start=segment.start + half, data=segment.data[half:])
            continue
        more = f"<{tag} on {name}>".encode()
        offset = store.append(name, more)
        assert offset == segment.start + len(segment.data), name
        segments[name] = segment._replace(data=segment.data + more)
    name = f"made-{tag}"
    store.create(name)
    store.append(name, b"first ")
    store.append(name, b"second")
    segments[name] = SegmentView(0, b"first second", False, {}, 0)
    store.table("work").put(tag.encode(), b"done")
    return State(dict(sorted(segments.items())), {**state.rows, ("work", tag.encode()): b"done"}, state.sessions)


@contextmanager
def fast_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where the system has one: here processes die, not machines, so no disk is needed."""
    if not os.path.isdir("/dev/shm") or not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    folder = tempfile.mkdtemp(prefix="chunkstore-faults-", dir="/dev/shm")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class DiskWorld(World):
    """A world on a disk whose power can be cut; the metadata cache lies on the machine's shelf."""

    def __init__(self, mode: Mode, tmp_path: Path) -> None:
        super().__init__("memory", mode, tmp_path)
        self.disk = Disk()

    @property
    def appends(self) -> bool:
        return True

    def raw_storage(self) -> DiskStorage:
        storage = DiskStorage(self.disk)
        self._storages.append(storage)
        return storage


class Ground:
    """A world for one case."""

    def __init__(self, kind: Place, mode: Mode, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.world = DiskWorld(mode, folder) if kind == "disk" else World(kind, mode, folder)
        self.world.defaults = {**self.world.defaults, **FAST, **settings}
        self.wire = self.new_wire()

    def new_wire(self) -> Wire:
        """A process's way to the storage."""
        raw = self.world.raw_storage()
        return raw if isinstance(raw, DiskStorage) else FaultyChunkStorage(raw)

    def power_cut(self, outcome: Outcome, seed: int) -> None:
        """The power goes after a call. All processes must be dead."""
        assert isinstance(self.world, DiskWorld)
        self.world.disk.power_cut(outcome, seed)

    def open(self, wire: Wire | None = None) -> ChunkedSegmentStorage:
        """Open behind ``wire``, or directly on a storage object of its own: there all goes well, and may take its time."""
        if wire is not None:
            return self.world.open(storage=wire)
        return self.world.open(storage=self.world.raw_storage(), op_deadline_s=AMPLE_S)

    def abandon(self, store: ChunkedSegmentStorage) -> None:
        """Its process ends."""
        abandon(store)
        if store in self.world._open:
            self.world._open.remove(store)

    def close(self) -> None:
        self.world.close()
        if self.world.kind == "filesystem":
            shutil.rmtree(self.folder, ignore_errors=True)
