"""Interrupted: restores (``crash_runs`` has the rest)."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.backup.restore import restore
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import InvalidArgument
from chunkstore.storage import ChunkStorage
from tests.faults.crash_runs import ACKNOWLEDGED, Case, Interrupted
from tests.faults.ground import WRITER, Ground, Place, State, observe, work
from tests.support.disk import POWER_CUTS
from tests.support.faulty import Call
from tests.support.worlds import Mode, ShelfCache, World

__all__ = ["RestoreRun"]


def fill(store: ChunkedSegmentStorage) -> None:
    """One of everything that comes along."""
    store.create("log", attributes={"a": 1})
    store.append("log", b"a" * 70, writer_id=WRITER, event_number=4)
    store.truncate("log", 40)
    store.create("sealed")
    store.append("sealed", b"b" * 20)
    store.seal("sealed")
    store.create("empty")
    store.table("rows").put(b"key", b"value")


class RestoreRun(Interrupted):
    """What is interrupted is all that happens at the new container; the old one lies elsewhere."""

    def __init__(self, kind: Place, mode: Mode, folder: Path) -> None:
        self.ground = Ground(kind, mode, folder / "new")
        self.source = World("memory", "append", folder / "old")
        with self.source.open(rolling=32) as store:
            fill(store)
            self.lsn = store.pin("before").lsn
            self.expected = observe(store)
            store.delete("log")

    def restore(self, new: ChunkStorage) -> None:
        """The call that is interrupted."""
        old, ground = self.source.raw_storage(), self.ground.world

        def caches(role: str) -> ShelfCache:
            of_new = role == "owner"
            return ShelfCache(new if of_new else old, "default", role, (ground if of_new else self.source)._shelf)

        lmdb = ground._uses_lmdb(None)
        restore(old, new, lsn=self.lsn, settings=ground.settings(), caches=None if lmdb else caches)

    def trace(self) -> tuple[list[Call], State]:
        return self.record(self.restore), self.expected

    def run(self, case: Case, expected: State) -> None:
        ground = self.ground
        promise = self.interrupt(case, self.restore)
        if self.power_cut or case.number % 2:
            ground.world.forget_cache()
        if promise is ACKNOWLEDGED:
            with pytest.raises(InvalidArgument):
                self.restore(ground.world.raw_storage())
        else:
            self._finish()
        with ground.open() as store:
            assert observe(store) == expected
            self.clean(store)
            state = work(store, expected, "next")
        if case.outcome in POWER_CUTS or case.number % 2 == 0:
            ground.world.forget_cache()
        with ground.open() as store:
            assert observe(store) == state
            self.clean(store)

    def _finish(self) -> None:
        """Nobody opens what is not whole; the same call makes it whole."""
        try:
            self.restore(self.ground.world.raw_storage())
        except InvalidArgument:
            return  # it was whole, and who asked for it died, or lost sight of it
        with pytest.raises(InvalidArgument):
            self.restore(self.ground.world.raw_storage())

    def close(self) -> None:
        self.source.close()
        self.ground.close()
