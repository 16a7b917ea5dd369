"""One exact append: how many Python calls it takes, and that the benchmark's floor stores the very same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore import Settings, runtime
from chunkstore.assembly import open_store_on
from chunkstore.changes import Append
from chunkstore.metadata.codec import decode_chunk, decode_segment
from chunkstore.metadata.lmdb import open_reader
from chunkstore.metadata.lmdb.rows import Tally, unsealed
from chunkstore.metadata.lmdb.store import HEAD_KEY, pack_head
from chunkstore.names import ContainerNames
from chunkstore.storage import ChunkHandle, iter_listing
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory
from chunkstore_journal.container import read_format
from chunkstore_journal.history import Streams
from chunkstore_journal.payloads import decode_ops
from tests.support.append_floor import Floor, settle_cache
from tests.support.clock import StoppedClock
from tests.support.profile_append import operations_entered, profile_append

CALLS_MAX = 98
FILES_MAX = 8
NOW_MS = 1_700_000_000_000


def test_an_append_enters_few_functions_and_files() -> None:
    calls = profile_append()
    assert len(calls) <= CALLS_MAX, "\n".join(calls)
    assert len(operations_entered(calls)) <= FILES_MAX, operations_entered(calls)


class OneMoment(StoppedClock):
    def now_ns(self) -> int:
        return NOW_MS * 1_000_000


@pytest.fixture
def moment() -> Iterator[None]:
    runtime.install(OneMoment(1))
    yield
    runtime.install(None)


def contents(storage: MemoryChunkStorage) -> dict[str, bytes]:
    return {item.name: storage.read(ChunkHandle(item.name, False), 0, item.length) for item in iter_listing(storage)}


def test_the_floor_stores_the_same_bytes(tmp_path: Path, moment: None) -> None:
    ours, floors = MemoryChunkStorage("memory://path-engine"), MemoryChunkStorage("memory://path-floor")
    names = [f"s{number}" for number in range(64)]
    cache_dir = str(tmp_path / "cache")
    settings = Settings(cache_dir=cache_dir, journal_mode="append", lease_s=0, inline_bytes_max=0)
    with open_store_on(ours, settings=settings) as store:
        for name in names:
            store.create(name)
            store.append(name, b"first")
        settle_cache(store)
        cache = store._container.current.store.path  # type: ignore[attr-defined]
        floor = Floor(ours, floors, cache, tmp_path / "floor")
        assert contents(floors) == contents(ours)
        tails = [floor.tail(name) for name in names]
        for data in (b"a", b"bc" * 500, b"d"):
            store.append("s7", data)
            floor.append(tails[7:8], data, NOW_MS)
        store.commit([Append(name, b"together") for name in names])
        floor.append(tails, b"together", NOW_MS)
        assert contents(floors) == contents(ours)

        # Not only equal: the journal and the codec read it.
        container = ContainerNames("default")
        streams = Streams(floors, container, read_format(floors, container))
        *_, last = streams.log_reader(1, 0)
        ops, rows = decode_ops(last.payload, object="log", position=0)
        assert (len(ops), len(rows)) == (64, 128)
        settle_cache(store)
        reader = open_reader(cache, streams.container)
        assert reader is not None
        with reader.view() as view, floor.lmdb.begin() as txn:
            assert [(key, value) for key, value in txn.cursor() if key >= b"\x01"] == list(view.scan(b"\x01", b"\xff"))
            # Without the CRCs and the tally: the floor believes its disk.
            assert txn.get(HEAD_KEY) == unsealed(HEAD_KEY, pack_head(streams.container, view.head, Tally(0, 0)))
            stored = {key: value for key, value in rows if value is not None}
            segment = decode_segment("s7", stored[b"Ss7"])
            assert segment.length == 5 + 1 + 1000 + 1 + 8
            assert decode_chunk("tail", stored[b"C" + segment.last_chunk]).length == segment.length
        reader.close(clean=False)
    floor.lmdb.close()
    forget_memory("memory://path-engine")
    forget_memory("memory://path-floor")
