"""Storages without append, as object stores are: every append is a chunk, and several are written at the same time."""

from __future__ import annotations

import random
import threading

import pytest

import chunkstore
from chunkstore.assembly import open_store_on
from chunkstore.checksum import BytesLike
from chunkstore.errors import StorageUnavailable, Unsupported
from chunkstore.following import open_replica_on
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory
from tests.support.data import run_threads


class Unsteady(MemoryChunkStorage):
    """Loses some creates of chunks before they happen, and lets the others overtake each other."""

    failing = False

    def do_create(self, name: str, data: BytesLike | None) -> None:
        if self.failing:
            if random.random() < 0.05:
                raise StorageUnavailable("lost on the way", object=name)
            threading.Event().wait(random.random() * 0.002)
        super().do_create(name, data)


def open_on(storage: MemoryChunkStorage) -> chunkstore.ChunkedSegmentStorage:
    return open_store_on(storage, settings=chunkstore.Settings(lease_s=0, inline_bytes_max=0))


@pytest.mark.parametrize("segments", [1, 4])
def test_what_is_acknowledged_is_there_in_order_and_what_failed_is_not(segments: int) -> None:
    url = f"memory://without-append-{segments}"
    forget_memory(url)
    storage = Unsteady(url, append=False)
    store = open_on(storage)
    assert store.report.journal_mode == "slot"
    for number in range(segments):
        store.create(f"s{number}")
    storage.failing = True
    acknowledged: dict[tuple[str, int], bytes] = {}
    failed = [0]

    def work(thread: int) -> None:
        for number in range(60):
            name = f"s{number % segments}"
            piece = b"%02d:%03d;" % (thread, number)
            try:
                acknowledged[name, store.append(name, piece)] = piece
            except StorageUnavailable:
                failed[0] += 1

    run_threads(16, work)
    storage.failing = False
    assert failed[0] > 0
    for number in range(segments):
        name = f"s{number}"
        offset = 0
        for (_, at), piece in sorted(item for item in acknowledged.items() if item[0][0] == name):
            assert at == offset
            assert store.read(name, at, len(piece)) == piece
            offset += len(piece)
        assert store.info(name).length == offset
    assert [item for item in store.check("deep") if item.severity == "damage"] == []
    store.close()
    with open_on(MemoryChunkStorage(url, append=False)) as again:
        assert sum(item.length for item in again.segments()) == sum(map(len, acknowledged.values()))


def test_an_append_journal_opens_read_only_where_nothing_can_grow() -> None:
    url = "memory://append-journal"
    forget_memory(url)
    with open_store_on(MemoryChunkStorage(url), settings=chunkstore.Settings(journal_mode="append")) as store:
        store.create("s")
        store.append("s", b"kept")
    storage = MemoryChunkStorage(url, append=False)
    for mode in ("auto", "append"):
        with pytest.raises(Unsupported, match="cannot append; open it read-only"):
            open_store_on(storage, settings=chunkstore.Settings(journal_mode=mode))
    with open_replica_on(storage) as replica:
        assert replica.read("s", 0, 9) == b"kept"
    forget_memory(url)
