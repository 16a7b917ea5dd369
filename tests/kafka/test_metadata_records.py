"""The records of ``__remote_log_metadata``: those of a genuine broker, both versions, and what is refused."""

from __future__ import annotations

import pytest

from chunkstore.codec.kafka.checkpoints import LeaderEpoch
from chunkstore.codec.kafka.names import uuid_text
from chunkstore.codec.kafka.records import iter_records
from chunkstore.codec.kafka.remote_metadata import (
    MetadataRecord,
    RecordKind,
    decode_metadata_record,
    encode_metadata_record,
)
from chunkstore.errors import Damaged, InvalidArgument
from tests.kafka.support_batches import source_of
from tests.kafka.support_logdir import FIXTURES
from tests.kafka.support_records import DELETION, SEGMENT, SNAPSHOT, STORED, UPDATE

NAMES = ("RemoteLogSegmentMetadata", "RemoteLogSegmentMetadataUpdate")


def as_kafka_prints_it(record: MetadataRecord) -> str:
    place = f"{uuid_text(record.topic_id)}:{record.topic}-{record.partition}"
    name = f"RemoteLogSegmentId{{topicIdPartition={place}, id={uuid_text(record.segment_id)}}}"
    size = record.custom_metadata
    custom = "Optional.empty" if size is None else f"Optional[CustomMetadata{{{len(size)} bytes}}]"
    if record.kind == RecordKind.SEGMENT_METADATA_UPDATE:
        text = (
            f"customMetadata={custom}, state={record.state.name}, eventTimestampMs={record.event_timestamp_ms}, "
            f"brokerId={record.broker_id}"
        )
    else:
        epochs = ", ".join(f"{epoch}={start}" for epoch, start in record.leader_epochs)
        text = (
            f"startOffset={record.start_offset}, endOffset={record.end_offset}, brokerId={record.broker_id}, "
            f"maxTimestampMs={record.max_timestamp_ms}, eventTimestampMs={record.event_timestamp_ms}, "
            f"segmentLeaderEpochs={{{epochs}}}, segmentSizeInBytes={record.size_bytes}, customMetadata={custom}, "
            f"state={record.state.name}"
        )
    return f"{NAMES[record.kind]}{{remoteLogSegmentId={name}, {text}}}"


def test_genuine_records_say_what_kafka_prints_and_are_written_again() -> None:
    log = FIXTURES / "remote-log-metadata/__remote_log_metadata-1/00000000000000000000.log"
    values = [record.value or b"" for record in iter_records(source_of(log.read_bytes()), "t", 0)]
    lines = (FIXTURES / "remote-log-metadata.txt").read_text().splitlines()
    records = [decode_metadata_record(value) for value in values]
    assert [as_kafka_prints_it(record) for record in records] == [line.split("payload: ")[1] for line in lines]
    assert [encode_metadata_record(record) for record in records] == values
    assert any(record.custom_metadata for record in records)


@pytest.mark.parametrize(
    "record",
    [SEGMENT, SEGMENT._replace(txn_index_empty=True, custom_metadata=None), UPDATE, DELETION, SNAPSHOT],
    ids=lambda record: record.kind.name,
)
def test_each_kind_comes_back(record: MetadataRecord) -> None:
    """Scenario 34: all four kinds, there and back."""
    data = encode_metadata_record(record)
    assert data[:3] == bytes((1, record.kind, 0))
    assert data == STORED.get(record, data)
    assert decode_metadata_record(data) == record
    for end in range(len(data)):
        with pytest.raises(Damaged):
            decode_metadata_record(data[:end])


def with_tags(record: MetadataRecord, version: int, tags: str) -> MetadataRecord:
    data = bytearray(encode_metadata_record(record))
    data[2] = version
    return decode_metadata_record(bytes(data[:-1]) + bytes.fromhex(tags))


def test_tags_of_version_1_and_unknown_ones() -> None:
    """Tag 1 is the broker's epoch in one record and the end offset in another; version 0 knows neither."""
    both = "02 00 01 01 01 04 00000009"
    assert with_tags(SEGMENT, 1, both) == SEGMENT._replace(txn_index_empty=True, broker_leader_epoch=9)
    assert with_tags(SEGMENT, 0, both) == SEGMENT._replace(txn_index_empty=True)
    assert with_tags(SNAPSHOT, 1, both) == SNAPSHOT._replace(txn_index_empty=True, broker_leader_epoch=9)
    other = "03 00 04 00000009 01 08 0000000000000011 05 02 FFFF"
    for record in (UPDATE, DELETION):
        assert with_tags(record, 1, other) == record._replace(broker_leader_epoch=9, end_offset=17)
        assert with_tags(record, 0, other) == record


def test_what_is_no_record() -> None:
    """Scenario 34: an unknown kind, and other damage."""
    good = encode_metadata_record(SEGMENT)
    for wrong, position in (
        (b"\2" + good[1:], 3), (b"\1\4\0" + good[3:], 3), (b"\1\0\2" + good[3:], 3), (b"\1\xff\xff\xff\xff\xff\1", 6),
        (good[:-2] + b"\4\0", len(good) - 1), (good + b"\0", len(good)), (good[:-1] + b"\1\0\2\1\0", len(good) + 3),
        (good[:-1] + b"\2\3\0\3\0", len(good) + 4), (good[:3] + b"\3.." + good[5:], len(good) + 1),
    ):  # fmt: skip
        with pytest.raises(Damaged) as caught:
            decode_metadata_record(wrong, object="log", position=100)
        assert (caught.value.object, caught.value.position) == ("log", 100 + position), caught.value


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "a/b"}, {"leader_epochs": ()}, {"end_offset": 9}, {"size_bytes": 1 << 31}, {"topic_id": b"short"}, {"partition": -1},
        {"leader_epochs": (LeaderEpoch(2, 1), LeaderEpoch(2, 5))},
    ],
)  # fmt: skip
def test_what_would_not_be_read_is_not_written(change: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        encode_metadata_record(SEGMENT._replace(**change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0274", "022f"), (f"{20:016x}", f"{9:016x}"), (f"{20:016x}", "f" * 16), (f"{4096:08x}", "f" * 8), ("0000000700", "ffffffff00"),
        (f"{4:08x}{15:016x}", f"{1:08x}{15:016x}"), (f"03{1:08x}", f"01{1:08x}"), (f"{1:08x}{10:016x}", f"{1:08x}{'f' * 16}"),
    ],
)  # fmt: skip
def test_impossible_values_are_refused(old: str, new: str) -> None:
    """No topic's name, offsets that go back, sizes, partitions and epochs that cannot be."""
    good = STORED[SEGMENT].hex()
    assert old in good
    with pytest.raises(Damaged):
        decode_metadata_record(bytes.fromhex(good.replace(old, new)))
