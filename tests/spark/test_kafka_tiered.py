"""Kafka's tiers, log directories and containers in Spark: what consumers got, whatever becomes a task, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.codec.kafka.records import Record
from chunkstore.errors import ChunkstoreError, Damaged, InvalidArgument, SegmentNotFound
from chunkstore.kafka.bucket import KafkaBucket
from chunkstore.kafka.tier import tier
from chunkstore.spark.errors import original_error
from chunkstore.spark.tier_sources import KafkaTieredSource
from tests.kafka.support_batches import Made, batch_of, control_of
from tests.kafka.support_logdir import FIXTURES, LOG_DIR, row_of
from tests.kafka.support_tier import METADATA_LOG, changed, copied_tier, expected_rows, records_of, segment_at
from tests.support.spark import missing

if missing():
    pytest.skip(missing(), allow_module_level=True)

KEY = str(FIXTURES / "aiven-keys" / "key1-private.pem")
MANY = 1000  # partitions, more than there are segments: each is a task of its own


def frame(spark: Any, source: object, **options: object) -> Any:
    return spark.read.format("kafka-tiered").options(**options).load(str(source))


def offsets(found: Any) -> list[tuple[str, int, int]]:
    return sorted(tuple(row) for row in found.select("topic", "partition", "offset").collect())


def consumed(spark: Any, source: object, **options: object) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """All records as ``expected_rows`` has them, by partition."""
    committed = set(
        offsets(frame(spark, source, isolation="read_committed", columns="topic,partition,offset", **options))
    )
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in frame(spark, source, **options).orderBy("offset").collect():
        record = Record(*row)
        found.setdefault(record[:2], []).append(row_of(record, committed=record[:3] in committed))
    return found


@pytest.mark.proof
def test_a_log_directory_gives_what_consumers_got(spark: Any) -> None:
    expected = expected_rows("logdir-3.9.records.jsonl")
    assert consumed(spark, LOG_DIR, minPartitions=MANY) == {place: rows for place, rows in expected.items() if rows}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("plain", {"metadataLog": METADATA_LOG}),
        ("zstd", {}),
        pytest.param("encrypted", {"keyFiles": KEY}, marks=pytest.mark.proof),
    ],
)
def test_a_tier_gives_what_its_reader_gives(spark: Any, name: str, options: dict[str, str]) -> None:
    url = (FIXTURES / "aiven-bucket" / name).as_uri()
    with KafkaBucket(url, keys=[Path(KEY).read_bytes()]) as bucket:
        expected = records_of(bucket)
    [rows] = expected.values()
    assert {row["committed"] for row in rows} == {True, False}
    assert consumed(spark, url, minPartitions=MANY, **options) == expected


@pytest.mark.proof
def test_a_container_gives_what_was_copied_into_it(spark: Any, tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    with chunkstore.open(url, container="kept") as store:
        tier(str(LOG_DIR), store)
    with KafkaBucket(url, container="kept") as container:
        expected = records_of(container)
    assert consumed(spark, url, minPartitions=MANY, container="kept") == expected
    start = '{"transactions": {"0": 215}}'  # in the middle of a segment
    some = frame(spark, url, container="kept", topic="transactions", partitions=0, startingOffsets=start)
    wanted = [row["offset"] for row in expected["transactions", 0] if row["offset"] >= 215]
    assert wanted == [row[2] for row in offsets(some)] != []


def in_transaction(base: int) -> bytes:
    return batch_of([Made()], base, transactional=True, producer_id=7, producer_epoch=3)


def made_logs(folder: Path) -> Path:
    """Five segments: a transaction begins in the first one and is aborted in the fourth."""
    (folder / "t-0").mkdir()
    for start, data in (
        (0, in_transaction(0)),
        (1, batch_of([Made()], 1)),
        (2, in_transaction(2)),
        (3, control_of(3, 7, 0)),
        (4, in_transaction(4) + control_of(5, 7, 1)),
    ):
        (folder / "t-0" / f"{start:020d}.log").write_bytes(data)
    return folder


@pytest.mark.parametrize("tasks", [1, 2, MANY])
def test_a_task_knows_transactions_that_end_in_others(spark: Any, tmp_path: Path, tasks: int) -> None:
    logs = made_logs(tmp_path)
    found = frame(spark, logs, isolation="read_committed", minPartitions=tasks)
    assert found.rdd.getNumPartitions() == min(tasks, 5)
    assert [row[2] for row in offsets(found)] == [1, 4]
    late = frame(spark, logs, isolation="read_committed", minPartitions=tasks, startingOffsets='{"t": {"0": 2}}')
    assert [row[2] for row in offsets(late)] == [4]
    assert [row[2] for row in offsets(frame(spark, logs, minPartitions=tasks))] == [0, 1, 2, 4]


@pytest.mark.parametrize(
    ("options", "argument", "text"),
    [
        ({"topics": "codecs"}, "topics", "did you mean 'topic'"),
        ({"columns": "ofset"}, "columns", "did you mean 'offset'"),
        ({"isolation": "committed"}, "isolation", "read_committed"),
        ({"partitions": "x"}, "partitions", "'x'"),
        ({"partitions": "0,99"}, "partitions", "99"),
        ({"startingOffsets": '{"codecs": {"7": 1}}'}, "startingOffsets", "codecs-7"),
        ({"endingOffsets": '{"codecs": 1}'}, "endingOffsets", "-1: latest"),
        ({"keyFiles": "missing.pem"}, "keyFiles", "missing.pem"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, str], argument: str, text: str) -> None:
    source = KafkaTieredSource({"path": str(LOG_DIR)} | options)
    with pytest.raises(InvalidArgument, match=text) as caught:
        source.reader(source.schema())
    assert caught.value.argument == argument


def error_of(found: Any) -> ChunkstoreError | None:
    with pytest.raises(Exception) as caught:
        found.collect()
    return original_error(caught.value)


def test_damage_missing_keys_and_topics_are_told(spark: Any, tmp_path: Path) -> None:
    log = segment_at(copied_tier(tmp_path), 95, "log")
    changed(log, lambda data: data[:200] + bytes(9) + data[209:])
    damaged = error_of(frame(spark, (tmp_path / "plain").as_uri()))
    assert isinstance(damaged, Damaged) and damaged.object.endswith(log.name)
    url = (FIXTURES / "aiven-bucket" / "encrypted").as_uri()
    assert "none of the 0 keys fits" in str(error_of(frame(spark, url)))
    assert isinstance(error_of(frame(spark, LOG_DIR, topic="nothing")), SegmentNotFound)
    assert "[kafka,spark]" in str(original_error(ImportError("No module named 'cryptography'")))
