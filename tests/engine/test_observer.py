"""The observer port: what it is called with, and that nothing it does reaches the store."""

from __future__ import annotations

from typing import Any

import pytest

import chunkstore
from chunkstore.errors import ChunkstoreError, StorageUnavailable
from chunkstore.journal import JournalBroken, SnapshotReport, TakeOverReport
from chunkstore.observer import Observer
from tests.support.hooked import replace_steps


class Noting(Observer):
    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def note(self, kind: str, what: object) -> None:
        self.calls.append((kind, what))

    def committed(self, lsn: int) -> None:
        self.note("committed", lsn)

    def took_over(self, report: TakeOverReport) -> None:
        self.note("took_over", report.epoch)

    def collected(self, chunks: int, chunk_bytes: int) -> None:
        self.note("collected", (chunks, chunk_bytes))

    def snapshot_taken(self, report: SnapshotReport) -> None:
        self.note("snapshot_taken", report.lsn)

    def failed(self, error: ChunkstoreError) -> None:
        self.note("failed", type(error).__name__)


class Raising(Noting):
    def note(self, kind: str, what: object) -> None:
        super().note(kind, what)
        raise ValueError(kind)


@pytest.mark.parametrize("kind", [Noting, Raising])
def test_it_is_called_and_whatever_it_raises_is_ignored(kind: type[Noting]) -> None:
    observer = kind()
    settings = chunkstore.Settings(gc_grace_s=0, lease_s=0)
    with chunkstore.open(f"memory://observed-{kind.__name__}", settings=settings, observer=observer) as store:
        store.create("s")
        store.append("s", b"kept")
        store.create("t")
        store.append("t", b"gone")
        store.delete("t")
        store.snapshot()
        store.collect()

        def fail(*_batch: object) -> Any:
            raise JournalBroken(StorageUnavailable("planted"), happened=None)

        replace_steps(store, append_lines=fail)
        with pytest.raises(StorageUnavailable):
            store.append("s", b"lost")
        assert store.read("s", 0, 9) == b"kept"
        assert store.append("s", b" on") == 4
        assert store.epoch == 2
    kinds = [name for name, _ in observer.calls]
    assert {"took_over", "committed", "snapshot_taken", "collected", "failed"} == set(kinds)
    assert [what for name, what in observer.calls if name == "took_over"] == [1, 2]
    assert ("collected", (1, 4)) in observer.calls
    lsns = [what for name, what in observer.calls if name == "committed"]
    assert lsns == sorted(lsns)
