"""Interrupted: a backup, one that gives up old ones, an export (``crash_runs`` has the rest)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chunkstore import backup, runtime
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkNotFound, ContainerNotFound
from chunkstore.following import open_replica_on
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.replica import Replica
from chunkstore.storage import ChunkHandle, ChunkStorage, iter_listing
from tests.faults.crash_runs import ACKNOWLEDGED, END, Case, Interrupted, perform
from tests.faults.ground import Ground, Place
from tests.judges.backup_root import BackupRoot
from tests.support.backups import drop_old
from tests.support.faulty import Call
from tests.support.worlds import Mode, World

__all__ = ["BackupRun", "ExportRun"]

_DAYS_MS = 2 * 86_400_000
Content = dict[str, bytes]


def _content(store: ChunkedSegmentStorage | Replica) -> Content:
    return {info.name: store.read(info.name, info.start_offset, 10_000) for info in store.segments()}


def _make(store: ChunkedSegmentStorage, name: str) -> None:
    store.create(name)
    store.append(name, name.encode() * 40)


class BackupRun(Interrupted):
    """What is interrupted is all that happens in the backup root; the container lies elsewhere, and lives on."""

    def __init__(self, drops: bool, kind: Place, mode: Mode, folder: Path) -> None:
        self.drops = drops
        self.ground = Ground(kind, mode, folder / "target")
        self.source = World("memory", "append", folder / "source")
        self.store = self.source.open(rolling=32, gc_grace_s=0)
        for name in ("goes", "stays"):
            _make(self.store, name)
        self.states = [_content(self.store)]
        self._backup(self._target())
        self.store.delete("goes")
        _make(self.store, "comes")
        self.states.append(_content(self.store))

    def _target(self) -> ChunkStorage:
        return self.ground.world.raw_storage()

    def _backup(self, target: ChunkStorage) -> None:
        backup.backup(self.store, target)
        if self.drops:
            drop_old(target)

    def trace(self) -> tuple[list[Call], None]:
        trace = self.record(self._backup)
        self._judge(self.states[1:])
        return trace, None

    def run(self, case: Case, expected: None) -> None:
        promise = self.interrupt(case, self._backup)
        self._judge(self.states[1:] if promise is ACKNOWLEDGED and not self.power_cut else self.states)
        self._later()

    def _later(self) -> None:
        """Whatever was left, the next one goes on with, a day later; and what nobody needs is dropped."""
        self.store.append("stays", b"more")
        with pytest.MonkeyPatch.context() as patch:
            now_ms = runtime.now_ms() + _DAYS_MS
            patch.setattr(runtime, "now_ms", lambda: now_ms)
            self._backup_twice()
        left = [info.name for info in iter_listing(self._target(), "default/running/")]
        assert left == [], left

    def _backup_twice(self) -> None:
        for _ in range(2):
            backup.backup(self.store, self._target())
            drop_old(self._target())
            self._judge([_content(self.store)])

    def _judge(self, states: list[Content]) -> None:
        """What counts is whole, and the newest shows one of these states."""
        target, wrong = self._target(), list[str]()
        root = BackupRoot("default", lambda name: _read(target, name), self._chunk, wrong.append)
        root.look_again([info.name for info in iter_listing(target, "default/")])
        assert wrong == [], wrong
        cache = MemoryMetadataCache(bytes(16), "here", "replica", shelf=MemoryShelf())
        try:
            with open_replica_on(target, settings=self.ground.world.settings(), cache=cache) as replica:
                assert _content(replica) in states
                assert replica.check("deep") == []
        except ContainerNotFound:
            pytest.fail("no backup counts any more")

    def _chunk(self, name: str) -> bytes | None:
        return _read(self.source.raw_storage(), name)

    def close(self) -> None:
        self.source.close()
        self.ground.close()


def _read(storage: ChunkStorage, name: str) -> bytes | None:
    try:
        return storage.read(ChunkHandle(name, False), 0, 1 << 20)
    except ChunkNotFound:
        return None


class ExportRun(Interrupted):
    """What is interrupted is what the owner does for an export: its pin, and reads."""

    def __init__(self, kind: Place, mode: Mode, folder: Path) -> None:
        self.ground = Ground(kind, mode, folder / "source", gc_grace_s=0)
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.store = self.ground.open(self.ground.wire)
        for name in ("goes", "stays"):
            _make(self.store, name)

    def _export(self, store: ChunkedSegmentStorage, name: str) -> str:
        path = str(self.folder / name)
        backup.export(store, path, pin_name=name)
        return path

    def trace(self) -> tuple[list[Call], None]:
        self.ground.wire.watch()
        path = self._export(self.store, "traced")
        trace = self.ground.wire.trace
        self.ground.wire.heal()
        self._judge(self.store, path)
        return trace, None

    def run(self, case: Case, expected: None) -> None:
        wire = self.ground.wire
        self.arm(wire, case)
        promise, _ = perform(lambda: self._export(self.store, "interrupted"))
        if case.call is END:
            self.end_by_power(wire, case, [self.store])
        elif wire.dead:
            self.ground.abandon(self.store)
        else:
            wire.heal()
            self.store.close()
        there = [name for name in os.listdir(self.folder) if name.startswith("interrupted")]
        assert there == (["interrupted"] if promise is ACKNOWLEDGED else [])
        if case.number % 2:
            self.ground.world.forget_cache()
        with self.ground.open() as store:
            if promise is ACKNOWLEDGED:
                self._judge(store, str(self.folder / "interrupted"))
            self._judge(store, self._export(store, "again"))
            self.clean(store)

    def _judge(self, store: ChunkedSegmentStorage, path: str) -> None:
        """What it names stays, whatever is removed and collected."""
        if store.exists("goes"):
            store.delete("goes")
        store.collect()
        names = {info.name for info in backup.read_segments(backup.read_export(path))}
        found = backup.read_export(path)
        for key, _ in found:
            if key[:1] == b"C":
                assert store._container.storage.exists(store._container.names.chunk(key[1:])), key
        assert names >= {"stays"}

    def close(self) -> None:
        if self.ground.wire.dead and self.store in self.ground.world._open:
            self.ground.abandon(self.store)
        self.ground.wire.heal()
        self.ground.close()
