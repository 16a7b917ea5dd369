"""``usage``: totals that nobody scans, and the sizes of journal, snapshots and orphans. Random histories: ``test_state_machine``."""

from __future__ import annotations

from pathlib import Path

import pytest

import chunkstore
from chunkstore.config import Settings
from chunkstore.errors import SegmentNotFound
from chunkstore.metadata.codec import encode_segment
from chunkstore.metadata.lmdb import LmdbMetadataCache, LmdbMetadataStore
from chunkstore.metadata.lmdb.rows import sealed
from chunkstore.metadata.port import NO_TOTALS, Totals
from chunkstore.metadata.totals import changed
from chunkstore.names import session_chunk_id
from chunkstore.upkeep import usage
from chunkstore_journal.container import read_format
from tests.golden.metadata_samples import SEGMENT
from tests.support.clock import jumping_clock
from tests.support.data import pattern
from tests.support.worlds import World

HEAD = b"\0head"


def stored_bytes(world: World, prefix: str, suffixes: tuple[str, ...]) -> int:
    storage = world.raw_storage()
    return sum(storage.stat(name).length for name in world.objects(prefix) if name.endswith(suffixes))


def test_segments_heads_and_garbage(world: World) -> None:
    store = world.open(rolling=10, gc_grace_s=0)
    assert store.usage()._replace(journal_bytes=0, listed_ms=0) == (0, 0, 0, None, 0, 0, 0, 0, 0, None)
    for name in ("a", "b"):
        store.create(name)
        store.append(name, pattern(0, 35))
    store.truncate("a", 24)
    used = store.usage()
    assert (used.segments, used.chunks) == (2, 6)
    assert (used.live_bytes, used.dead_head_bytes, used.garbage_bytes) == (11 + 35, 4, 20)
    one = store.usage("a")
    assert one == chunkstore.Usage(11, None, 4, None, None, None, 2, 1)
    assert store.usage(store.open_read("b")) == chunkstore.Usage(35, None, 0, None, None, None, 4, 1)
    with pytest.raises(SegmentNotFound):
        store.usage("c")
    store.delete("a")
    assert (store.usage().garbage_bytes, store.usage().live_bytes) == (35, 35)
    store.collect()
    used = store.usage()
    assert (used.segments, used.chunks, used.live_bytes, used.dead_head_bytes, used.garbage_bytes) == (1, 4, 35, 0, 0)


def test_journal_and_snapshots_are_what_lies_there(world: World) -> None:
    begun = world.open(gc_grace_s=0, snapshots_kept=1)
    begun.create("a")
    begun.close()
    store = world.open(gc_grace_s=0, snapshots_kept=1)

    def compare() -> None:
        used = store.usage()
        # What begins and ends epochs of ours since the listing is all that is not counted.
        there = stored_bytes(world, "default/j/", (".s", "log.a"))
        assert used.journal_bytes is not None and 0 <= there - used.journal_bytes <= slack
        assert used.snapshot_bytes == stored_bytes(world, "default/snap/", (".sn",))

    slack = 0
    compare()
    for number in range(20):
        store.append("a", pattern(number, 10))
        compare()
    store.snapshot()
    compare()
    listed = store.usage().listed_ms
    store._maintenance._recovery.roll()
    slack = 4_000
    store.append("a", b"x")
    compare()
    assert store.usage().listed_ms == listed
    slack = 0
    store.snapshot()
    store.collect()
    compare()
    assert store.usage().snapshot_bytes


def test_a_replica_lists_once_a_minute(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with jumping_clock() as clock:
        store = world.open()
        store.create("a")
        replica = world.replica()
        store.append("a", pattern(0, 99))
        replica.refresh()
        first = replica.usage()
        store.append("a", pattern(0, 1))
        replica.refresh()
        second = replica.usage()
        assert (first.live_bytes, second.live_bytes) == (99, 100)
        assert first.journal_bytes == second.journal_bytes
        clock.jump(int(usage._FRESH_S) + 1)
        assert replica.usage().journal_bytes == store.usage().journal_bytes != first.journal_bytes


def test_orphans_are_known_when_somebody_looked(world: World) -> None:
    store = world.open()
    storage = world.raw_storage()
    for number in range(3):
        name = store._container.names.chunk(session_chunk_id(77, number, 1))
        storage.create(name, b"x" * 10)
    assert (store.usage().orphan_bytes, store.usage().orphans_ms) == (None, None)
    store.check("quick")
    assert store.usage().orphan_bytes is None
    assert len(store.check("exists")) == 3
    used = store.usage()
    assert used.orphan_bytes == 30 and used.orphans_ms is not None


def test_a_cache_of_the_former_version_is_made_anew(tmp_path: Path) -> None:
    root = f"file://{tmp_path}/root"
    settings = Settings(cache_dir=str(tmp_path / "cache"), lease_s=0, lmdb_map_bytes=1 << 26)
    with chunkstore.open(root, settings=settings) as store:
        store.create("a")
        store.append("a", pattern(0, 50))
        store.truncate("a", 7)
        storage = store._container.storage
        uuid = read_format(storage, store._container.names).uuid
    cache = LmdbMetadataCache(str(tmp_path / "cache"), uuid, storage.address, settings=settings)
    rows = cache.open_current()
    assert isinstance(rows, LmdbMetadataStore)
    with rows.environment.handle.begin(write=True) as txn:
        raw = txn.get(HEAD)
        assert raw is not None
        txn.put(HEAD, sealed(HEAD, b"\x02" + raw[1:113]))
    with pytest.raises(chunkstore.StorageUnavailable, match="version; delete it"):
        rows.head()
    rows.close(clean=True)
    cache.close()
    with chunkstore.open(root, settings=settings) as store:
        assert store.report.source != "cache"
        used = store.usage()
        assert (used.live_bytes, used.dead_head_bytes, used.segments) == (43, 7, 1)


def test_an_audit_compares_totals_with_a_recount(tmp_path: Path) -> None:
    settings = Settings(cache_dir=str(tmp_path / "cache"), lease_s=0, lmdb_map_bytes=1 << 26)
    with chunkstore.open(f"file://{tmp_path}/root", settings=settings) as store:
        store.create("a")
        store.append("a", pattern(0, 50))
        rows = store._container.current.store
        assert isinstance(rows, LmdbMetadataStore)
        with rows.environment.handle.begin(write=True) as txn:
            raw = txn.get(HEAD)
            assert raw is not None
            txn.put(HEAD, sealed(HEAD, raw[:-5] + bytes((raw[-5] ^ 1,))))
        assert store.usage().garbage_bytes == 1
        assert [finding.invariant for finding in store.check("quick")] == [12]
        assert (store.usage().garbage_bytes, store.usage().live_bytes) == (0, 50)


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x93\x01\x00\xa1a", b"\xc0", b"\x80", encode_segment(SEGMENT)[:-1]])
def test_a_row_that_cannot_be_read_counts_as_nothing(value: bytes) -> None:
    for kind in b"SG":
        assert changed(NO_TOTALS, [(kind, None, value)]) == NO_TOTALS
    there = changed(NO_TOTALS, [(ord("S"), None, encode_segment(SEGMENT))])
    assert there != NO_TOTALS
    assert changed(there, [(ord("S"), encode_segment(SEGMENT), value)]) == NO_TOTALS


def test_rows_with_many_attributes_and_sums_beyond_all_bounds() -> None:
    greatest = (1 << 63) - 1
    long = SEGMENT._replace(
        start_offset=0, length=greatest, first_chunk_skip=greatest, attributes={f"{n:03}": n for n in range(128)}
    )
    row = encode_segment(long)
    thrice = changed(NO_TOTALS, [(ord("S"), None, row)] * 3)
    assert thrice == Totals(3, 3 * long.chunk_count, 3 * greatest % (1 << 64), 3 * greatest % (1 << 64), 0)
    assert changed(thrice, [(ord("S"), row, None)] * 3) == NO_TOTALS
