"""The storage manager: ranges, indexes, deletions, copies that meet or die, and two lineages in one container."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chunkstore.changes import TablePut
from chunkstore.codec.sources import DataSource
from chunkstore.errors import ChunkNotFound, Damaged
from chunkstore.kafka import rows
from chunkstore.kafka.model import RemoteResourceNotFoundException
from chunkstore.kafka.storage import STORED, IndexType, LogSegmentData, RemoteStorageManager, RemoteStorageReader
from chunkstore.operations.tables import TableEntry
from tests.kafka.support_metadata import PARTITION, Store, segment
from tests.support.format_tables import table

LOG = bytes(range(256)) * 64
ITEM = segment(1, 5, 20, {0: 5})
DATA = LogSegmentData(LOG, b"offsets", b"times", None, b"epochs")


@pytest.fixture
def shared(store: Store) -> RemoteStorageManager:
    manager = RemoteStorageManager(store)
    manager.copy_log_segment_data(ITEM, DATA)
    return manager


@given(start=st.integers(0, len(LOG)), more=st.none() | st.integers(0, 2 * len(LOG)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_ends_of_a_range_are_included(shared: RemoteStorageManager, start: int, more: int | None) -> None:
    end = None if more is None else start + more
    with shared.fetch_log_segment(ITEM, start, end) as stream:
        assert stream.read() == LOG[start : None if end is None else end + 1]


def test_indexes_are_read_back_and_a_missing_one_is_not_found(store: Store) -> None:
    manager = RemoteStorageManager(store)
    files = dict(zip(IndexType, (b"o" * 16, b"t" * 12, b"", b"0\n0\n", b"aborted"), strict=True))
    custom = manager.copy_log_segment_data(ITEM, LogSegmentData(LOG, *files.values()))
    manager.copy_log_segment_data(segment(2, 21, 30, {0: 21}), DATA)
    assert {kind: manager.fetch_index(ITEM, kind).read() for kind in IndexType} == files
    assert len(custom or b"") <= 128
    for kind in (IndexType.TRANSACTION, IndexType.PRODUCER_SNAPSHOT):
        with pytest.raises(RemoteResourceNotFoundException) as caught:
            manager.fetch_index(segment(2, 21, 30, {0: 21}), kind)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_deletion_may_be_repeated_and_leaves_nothing(store: Store) -> None:
    manager = RemoteStorageManager(store)
    manager.delete_log_segment_data(ITEM)
    manager.copy_log_segment(ITEM, DATA)
    stream = manager.fetch_log_segment(ITEM, 0)
    for _ in range(2):
        manager.delete_log_segment_data(ITEM)
        with pytest.raises(RemoteResourceNotFoundException):
            manager.fetch_log_segment(ITEM, 0)
        with pytest.raises(RemoteResourceNotFoundException):
            manager.fetch_index(ITEM, "offset")
    with pytest.raises(RemoteResourceNotFoundException):
        stream.read()
    assert not [*store.segments()]
    assert not [*store.table(rows.NAMESPACE).scan()]


def test_a_copy_that_died_is_listed_unseen_and_replaced(store: Store) -> None:
    manager = RemoteStorageManager(store)
    with pytest.raises(ChunkNotFound):
        manager.copy_log_segment_data(ITEM, LogSegmentData("/no/such/file", None, None, None, None))
    assert manager.copies_under_way() == []

    def read(offset: int, length: int) -> bytes:
        [going] = manager.copies_under_way()
        assert (going.remote_log_segment_id, going.bytes) == (ITEM.remote_log_segment_id, 0)
        assert going.age_s >= 0
        return b"too short"

    with pytest.raises(Damaged):
        manager.copy_log_segment_data(ITEM, DATA._replace(log_segment=DataSource("log", 100, read)))
    assert [*manager.stored_segments()] == []
    with pytest.raises(RemoteResourceNotFoundException):
        manager.fetch_log_segment(ITEM, 0)
    manager.copy_log_segment_data(ITEM, DATA)
    assert manager.copies_under_way() == []
    assert manager.fetch_log_segment(ITEM, 0).read() == LOG


@pytest.mark.parametrize("value", [b"", b"\x93\x01\x00\xc0", rows.encode_segment(ITEM)])
def test_a_damaged_row_is_named(store: Store, value: bytes) -> None:
    key = STORED + rows.partition_key(PARTITION) + rows.number_key(5) + ITEM.remote_log_segment_id.id
    for where in (key, STORED + b"\xff\0short"):
        store.commit([TablePut(rows.NAMESPACE, where, value)])
        with pytest.raises(Damaged, match="kafka"):
            list(RemoteStorageReader(store).stored_segments())


def test_the_rows_are_as_documented(store: Store) -> None:
    manager = RemoteStorageManager(store)
    found: list[TableEntry] = []

    def read(offset: int, length: int) -> bytes:
        found.extend(store.table(rows.NAMESPACE).scan())
        return LOG[offset : offset + length]

    custom = manager.copy_log_segment_data(ITEM, DATA._replace(log_segment=DataSource("log", len(LOG), read)))
    found.extend(store.table(rows.NAMESPACE).scan())
    text = (Path(rows.__file__).parent / "FORMAT.md").read_text()
    for (prefix, _, state, *_), row in zip(table("storage", text), reversed(found), strict=True):
        assert row.key[:2] == b"\0" + prefix[-2:-1].encode()
        assert row.key[2:] == rows.partition_key(PARTITION) + (5).to_bytes(8, "big") + ITEM.remote_log_segment_id.id
        stored = rows.decode_segment(PARTITION, row)
        assert stored.state == int(state)
        assert len(stored.custom_metadata or b"") == (40 if state == "1" else 16)
    assert custom == b"".join(size.to_bytes(8, "big", signed=True) for size in (7, 5, -1, 6, -1))
    [log, indexes] = [each.name for each in store.segments()]
    assert indexes == f"{log}-indexes"
    assert log == f"kafka/dG9waWMgaWQsIDE2IEIuLg/3/{5:020d}-AAAAAAAAAAAAAAAAAAAAAQ"
