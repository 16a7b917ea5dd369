"""The storage manager: ranges, indexes, deletions, copies that meet or die, and two lineages in one container."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import chunkstore
from chunkstore.changes import Change, TablePut
from chunkstore.codec.sources import DataSource
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkNotFound, Conflict, Damaged, InvalidArgument
from chunkstore.kafka import rows
from chunkstore.kafka.bucket import KafkaBucket
from chunkstore.kafka.model import RemoteLogSegmentMetadata, RemoteResourceNotFoundException, TopicIdPartition
from chunkstore.kafka.storage import STORED, IndexType, LogSegmentData, RemoteStorageManager, RemoteStorageReader
from chunkstore.kafka.tier import restore
from chunkstore.operations.table_rows import TableEntry
from tests.kafka.support_batches import Made, batch_of
from tests.kafka.support_metadata import PARTITION, Store, fresh_root, segment
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


def test_wrong_arguments_are_refused(shared: RemoteStorageManager) -> None:
    for start, end in ((-1, None), (5, 4), (len(LOG) + 1, None)):
        with pytest.raises(InvalidArgument):
            shared.fetch_log_segment(ITEM, start, end)
    with pytest.raises(InvalidArgument):
        shared.fetch_index(ITEM, "other")


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


def test_of_two_copies_of_one_id_the_later_one_counts(store: Store) -> None:
    manager = RemoteStorageManager(store)

    def read(offset: int, length: int) -> bytes:
        manager.copy_log_segment_data(ITEM, DATA)
        return bytes(length)

    late = DATA._replace(log_segment=DataSource("log", 100, read))
    with pytest.raises(Conflict):
        manager.copy_log_segment_data(ITEM, late)
    for other, data in ((ITEM, late), (replace(ITEM, end_offset=ITEM.end_offset + 1), DATA)):
        with pytest.raises(Conflict, match="another end or length"):
            manager.copy_log_segment_data(other, data)
    assert manager.copy_log_segment_data(ITEM, DATA) is not None
    assert manager.fetch_log_segment(ITEM, 0).read() == LOG


def test_of_two_copies_that_begin_at_once_one_counts(store: Store) -> None:
    class Late:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def commit(self, changes: list[Change]) -> object:
            manager.copy_log_segment_data(ITEM, DATA)
            return store.commit(changes)

    manager, late = RemoteStorageManager(store), RemoteStorageManager(store)
    late._store = cast("ChunkedSegmentStorage", Late())
    with pytest.raises(Conflict):
        late.copy_log_segment_data(ITEM, DATA)
    assert manager.fetch_log_segment(ITEM, 0).read() == LOG


def test_files_are_read_from_paths_and_a_replica_reads_them(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(LOG)
    root = (tmp_path / "root").as_uri()
    item = segment(1, 0, 20, {0: 0}, partition=TopicIdPartition(bytes(16), "n" * 248, 0))
    with chunkstore.open(root) as store:
        RemoteStorageManager(store).copy_log_segment_data(item, DATA._replace(log_segment=tmp_path / "log"))
    with chunkstore.open_replica(root) as replica:
        reader = RemoteStorageReader(replica)
        [stored] = reader.stored_segments("n" * 248)
        assert (stored.remote_log_segment_id, stored.segment_size_in_bytes) == (item.remote_log_segment_id, len(LOG))
        assert reader.fetch_log_segment(item, 256, 511).read() == LOG[256:512]


def log_of(first: int, last: int, epoch: int) -> LogSegmentData:
    batches = (batch_of([Made(b"%d of %d" % (at, epoch))], at, leader_epoch=epoch) for at in range(first, last + 1))
    return LogSegmentData(b"".join(batches), b"", b"", None, None)


def test_of_two_lineages_one_log_is_read_and_put_back(tmp_path: Path) -> None:
    root, partition = fresh_root(), TopicIdPartition(bytes(16), "orders", 0)
    with chunkstore.open(root) as store:
        for number, (first, last, epoch) in enumerate(((0, 9, 0), (5, 14, 1))):
            item: RemoteLogSegmentMetadata = segment(number, first, last, {epoch: first}, partition=partition)
            RemoteStorageManager(store).copy_log_segment_data(item, log_of(first, last, epoch))
        restore(store, str(tmp_path / "back"))
        with KafkaBucket(root) as container:
            assert container.source.lineage == "leader epochs and higher ends"
            found = [each[:3] + each[5:7] for each in container.read()]
            assert [each.value for each in container.read()] == [b"%d of %d" % (at, int(at > 4)) for at in range(15)]
    with KafkaBucket(str(tmp_path / "back")) as back:
        assert [each[:3] + each[5:7] for each in back.read()] == found


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
