"""Lazy lengths (decision 0012): what is journaled when, what the owner and its replicas see, and what every other change does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import chunkstore
from chunkstore.assembly import open_replica_on, open_store_on
from chunkstore.changes import Append, Create
from chunkstore.config import RollingPolicy, Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import BadOffset, NotOwner, Unsupported
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.operations.lazy import settle
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_bindings.memory import MemoryChunkStorage

Opener = Callable[..., ChunkedSegmentStorage]


@pytest.fixture(params=["append", "slot"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    stores: list[ChunkedSegmentStorage] = []

    def opener(**changes: object) -> ChunkedSegmentStorage:
        settings = {"journal_mode": request.param, "lengths": "lazy", "lease_s": 0, **changes}
        root = tmp_path / "root"
        cache = str(tmp_path / f"cache-{len(stores)}")
        store = chunkstore.open(f"file://{root}", settings=Settings(**{"cache_dir": cache, **settings}))
        stores.append(store)
        return store

    yield opener
    for store in stores:
        store.close()


def lsn(store: ChunkedSegmentStorage) -> int:
    return store._core.journal.head.lsn


def begun(store: ChunkedSegmentStorage) -> ChunkedSegmentStorage:
    store._core.lifecycle._stopping.set()  # whatever is journaled is journaled by the test
    store.create("s", rolling=RollingPolicy(chunk_size_bytes_max=20))
    store.append("s", b"first")
    return store


def lost(store: ChunkedSegmentStorage) -> None:
    """It is gone without a word, as after kill -9: nothing more of it reaches the storage."""
    store._core.broken = store._core.closed = True  # type: ignore[assignment]


def test_an_append_into_a_growing_chunk_has_no_record_and_is_read_at_once(opened: Opener) -> None:
    store = begun(opened())
    before = lsn(store)
    assert store.append("s", b" second") == 5
    assert store.append("s", b" 3rd", expected_offset=12) == 12
    assert lsn(store) == before
    with pytest.raises(BadOffset):
        store.append("s", b"x", expected_offset=12)
    assert store.read("s", 0, 99) == b"first second 3rd"
    assert store.info("s").length == 16 == next(iter(store.segments())).length
    assert [(chunk.length, chunk.state) for chunk in store.layout("s")] == [(16, "active")]
    assert store.wait("s", 15, 0).length == 16
    assert store.check("deep") == []


def test_what_does_not_fit_begins_a_chunk_with_a_record(opened: Opener) -> None:
    store = begun(opened())
    for _ in range(9):
        store.append("s", b"123456")
    assert [chunk.length for chunk in store.layout("s")] == [17, 18, 18, 6]
    assert store.read("s", 0, 99) == b"first" + b"123456" * 9
    assert store.append("s", b"x" * 50) == 59
    assert store.read("s", 55, 99) == b"3456" + b"x" * 50
    assert store.check("deep") == []


def test_settling_journals_what_is_acknowledged_and_replicas_see_it(opened: Opener) -> None:
    store = begun(opened())
    with open_replica_on(store._core.storage, cache=MemoryMetadataCache(
        store._core.service._format.uuid, "replica", shelf=MemoryShelf()  # type: ignore[attr-defined]
    )) as replica:  # fmt: skip
        store.append("s", b" second")
        replica.refresh()
        assert replica.read("s", 0, 99) == b"first"
        settle(store._core)
        assert not store._core.ahead
        before = lsn(store)
        store.append("s", b" 3rd")
        assert lsn(store) == before, "the chunk grows on"
        replica.refresh()
        assert replica.read("s", 0, 99) == b"first second"
    assert store.read("s", 0, 99) == b"first second 3rd"


@pytest.mark.parametrize("lengths", ["lazy", "exact"])
def test_a_take_over_measures_and_says_the_crc(opened: Opener, lengths: str) -> None:
    store = begun(opened())
    store.append("s", b" second")
    lost(store)
    heir = opened(lengths=lengths)
    assert heir.read("s", 0, 99) == b"first second"
    (chunk,) = heir.layout("s")
    assert (chunk.length, chunk.state) == (12, "closed")
    assert chunk.crc32c is not None
    assert heir.check("deep") == []
    assert heir.append("s", b"!") == 12


def test_a_clean_close_leaves_nothing_to_measure(opened: Opener) -> None:
    store = begun(opened())
    store.append("s", b" second")
    store.close()
    before = len(list(chunkstore.assembly.journal_records(store._core.storage.url)))
    heir = opened()
    assert len(list(chunkstore.assembly.journal_records(store._core.storage.url))) == before + 1, "its OPEN"
    assert heir.read("s", 0, 99) == b"first second"


def concatenated(store: ChunkedSegmentStorage) -> None:
    store.create("t")
    store.append("t", b"t")
    store.seal("s")
    store.concat("t", 1, "s")


CHANGES: dict[str, Callable[[ChunkedSegmentStorage], object]] = {
    "event": lambda store: store.append("s", b"e", writer_id=b"w", event_number=1),
    "seal": lambda store: store.seal("s"),
    "truncate": lambda store: store.truncate("s", 7),
    "truncate all": lambda store: store.truncate("s", 12),
    "attributes": lambda store: store.update_attributes("s", {"a": 1}),
    "commit": lambda store: store.commit([chunkstore.changes.Append("s", b"c")]),
    "concat": concatenated,
    "delete": lambda store: store.delete("s"),
}


@pytest.mark.parametrize("change", [*CHANGES])
def test_other_changes_see_the_acknowledged_length_and_close_the_chunk(opened: Opener, change: str) -> None:
    store = begun(opened())
    store.append("s", b" second")
    CHANGES[change](store)
    shown = {info.name: store.read(info.name, info.start_offset, 99) for info in store.segments()}
    assert store.check("deep") == []
    lost(store)
    heir = opened()
    assert {info.name: heir.read(info.name, info.start_offset, 99) for info in heir.segments()} == shown
    assert heir.check("deep") == []


def test_an_exactly_once_writer_among_plain_appends(opened: Opener) -> None:
    store = begun(opened())
    store.append("s", b"1")
    assert store.append("s", b"2", writer_id=b"w", event_number=1) == 6
    assert store.append("s", b"3") == 7
    assert store.append("s", b"2", writer_id=b"w", event_number=1) == 6
    assert store.append("s", b"4", writer_id=b"w", event_number=2) == 8
    assert store.read("s", 0, 99) == b"first1234"


def test_where_it_cannot_be_safe_it_is_refused(tmp_path: Path) -> None:
    settings = Settings(lengths="lazy", journal_mode="slot", cache_dir=str(tmp_path / "cache"))
    nfs = FilesystemChunkStorage(str(tmp_path / "nfs"), medium="nfs4")
    for storage in (MemoryChunkStorage("memory://lazy", append=False), nfs):
        with pytest.raises(Unsupported, match="lengths"):
            open_store_on(storage, settings=settings)
        storage.close()


@pytest.mark.parametrize("change", ["seal", "append", "create"])
def test_a_deposed_owner_beside_its_successors_rows_says_so(opened: Opener, tmp_path: Path, change: str) -> None:
    """Found by the simulator, seed 60122: both share a cache, whose rows have more bytes than the older one knows of.

    Its records then had a negative length: ``InvalidArgument``.
    """
    shared = str(tmp_path / "shared")
    old = begun(opened(cache_dir=shared))
    old.append("s", b" more")
    new = opened(cache_dir=shared)
    new.append("s", b" and more of it")
    with pytest.raises(NotOwner):
        if change == "seal":
            old.seal("s")
        elif change == "append":
            old.append("s", b"too long for this chunk")
        else:
            old.commit([Append("s", b"x"), Create("t")])
    assert new.read("s", 0, 99) == b"first more and more of it"
