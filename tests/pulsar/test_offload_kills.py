"""Offloading, deleting and trimming, with an error or an end before and after each single call: nothing is lost, and nothing leaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count, product

import pytest

import chunkstore
from chunkstore import runtime
from chunkstore.codec.pulsar.offload_metadata import OffloadContext, decode_metadata
from chunkstore.config import Settings
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError
from chunkstore.pulsar import (
    ContainerOffloader,
    LedgerNotFound,
    LedgerOffloader,
    ManagedLedger,
    ManagedLedgerConfig,
    MemorySource,
    Position,
    PulsarObjects,
    offload_context,
)
from chunkstore.pulsar.ledger_rows import LedgerRows
from chunkstore.pulsar.offload_ledger import uuid_text
from tests.pulsar.support_bucket import Died, FakeBucket, Script, hooked

T = "persistent://public/default/orders"
MINUTE_MS = 60_000
BLOCK_BYTES = 8192
PAYLOADS = {ledger: [b"%d" % entry * 100 for entry in range(40 * ledger)] for ledger in (1, 2, 3)}
NAMES = count()
OPEN: list[ChunkedSegmentStorage] = []


class World:
    """A container, a bucket and a source. Ledger 1 is older than retention, 2 is not, 3 is open."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.root = f"memory://offload-kills-{next(NAMES)}"
        self.bucket = FakeBucket(keeps_metadata=True)
        self.source = MemorySource(PAYLOADS, {1: 0, 2: 6 * MINUTE_MS, 3: None})
        self.store = self._open()

    def _open(self) -> ChunkedSegmentStorage:
        OPEN.append(chunkstore.open(self.root, settings=Settings(gc_grace_s=3600.0), take_over=True))
        return OPEN[-1]

    def close(self) -> None:
        OPEN.remove(self.store)
        self.store.close()

    def take_over(self) -> None:
        fenced, self.store = self.store, self._open()
        OPEN.remove(fenced)
        fenced.close()

    def offloader(self) -> LedgerOffloader:
        return PulsarObjects(self.bucket) if self.kind == "bucket" else ContainerOffloader(self.store, T)

    def managed(self) -> ManagedLedger:
        config = ManagedLedgerConfig(
            offloader=self.offloader(),
            offload_deletion_lag_s=0,
            offload_threads_max=1,
            block_bytes_max=BLOCK_BYTES,
            retention_time_in_minutes=60,
        )
        return ManagedLedger(self.store, T, self.source, config)

    def live(self) -> None:
        """Everything that is done to ledgers, once."""
        managed = self.managed()
        for step in (lambda: managed.offload_prefix(Position(3, 0)).result(), managed.trim, managed.delete_due):
            with suppress(ChunkstoreError):
                step()

    def objects(self) -> set[tuple[str, int, str]]:
        """What was written anywhere: UUID, ledger (0: in a container), and which part of it."""
        found = set()
        pending = {upload.key for upload in self.bucket.pending}
        for key in [*self.bucket.objects, *pending]:
            uuid, ledger = key.removesuffix("-index").split("-ledger-")
            part = "upload" if key in pending else "index" if key.endswith("-index") else "data"
            found.add((uuid, int(ledger), part))
        for info in self.store.segments(f"offload/{T}/"):
            name = info.name.removesuffix("-index")
            found.add((name.rpartition("/")[2], 0, "index" if info.name != name else "data"))
        return found

    def check(self) -> None:
        """What holds at every moment."""
        rows = LedgerRows(self.store, T).all()
        named = {uuid_text(attempt.uuid) for row in rows.values() for attempt in row.attempts}
        objects = self.objects()
        assert {uuid for uuid, _, _ in objects} <= named, "an object that no row names"
        assert all((*item[:2], "data") in objects for item in objects if item[2] == "index"), "an index without data"
        managed = self.managed()
        for ledger, payloads in PAYLOADS.items():
            row = rows.get(ledger)
            if ledger not in self.source.entries:
                assert ledger == 1 if row is None else row.bookkeeper_deleted or row.deleted, "deleted before its mark"
            if row is None or row.deleted:
                assert ledger == 1 or row is None, "deleted"
                continue
            with managed.open(ledger) as handle:
                assert [entry.payload for entry in handle.iter_entries()] == payloads, "lost"
            if row.complete:
                context = decode_metadata(OffloadContext, offload_context(self.store, T, ledger), object="context")
                with managed.config.offloader.read_offloaded(ledger, context).result() as handle:
                    assert handle.last_add_confirmed == len(payloads) - 1

    def check_end(self) -> None:
        """What holds once everything was done without an error."""
        self.check()
        rows = LedgerRows(self.store, T).all()
        assert set(rows) == {2}, "rows that concern nothing, or none"
        row = rows[2]
        assert row.complete
        assert row.bookkeeper_deleted
        assert row.attempt is not None
        assert not row.stale
        place = 2 if self.kind == "bucket" else 0
        assert self.objects() == {(uuid_text(row.attempt.uuid), place, part) for part in ("data", "index")}, "a leak"
        assert set(self.source.entries) == {3}
        with pytest.raises(LedgerNotFound):
            offload_context(self.store, T, 1)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One moment; and what a failed test left open is closed."""
    monkeypatch.setattr(runtime, "now_ms", lambda: 62 * MINUTE_MS)
    yield
    while OPEN:
        OPEN.pop().close()


def prepare(kind: str) -> World:
    """An earlier attempt of ledger 1 has failed half way, and could not clean up."""
    world = World(kind)
    dry = Script()
    with hooked(dry, world.bucket):
        world.live()
    world.close()
    last = "put index" if kind == "bucket" else "Store.commit"
    first = dry.calls.index(last) if kind == "bucket" else [n for n, name in enumerate(dry.calls) if name == last][1]
    world = World(kind)
    with hooked(Script(first, dies=True), world.bucket), suppress(Died):
        world.live()
    world.take_over()
    world.check()
    assert world.objects()
    return world


def run(kind: str, script: Script) -> None:
    """A life under a script, by the rest of which the next one cleans up."""
    world = prepare(kind)
    with hooked(script, world.bucket), suppress(Died):
        world.live()
    if script.dies:
        world.take_over()
    world.check()
    world.live()
    world.check_end()
    world.close()


def every_kill(kind: str) -> list[Script]:
    whole = Script()
    run(kind, whole)
    each = product(range(len(whole.calls)), (True, False), (True, False))
    return [Script(at, before=before, dies=dies) for at, before, dies in each]


@pytest.mark.parametrize("kind", ["bucket", "container"])
def test_nothing_is_lost_and_nothing_leaks(kind: str) -> None:
    scripts = every_kill(kind)
    assert len(scripts) > 60
    for script in scripts:
        try:
            run(kind, script)
        except AssertionError as error:
            when = "before" if script.before else "after"
            raise AssertionError(f"{when} {script.calls[script.at]} ({script.at}), dies: {script.dies}") from error
