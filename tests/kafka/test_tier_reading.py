"""Tiers and log directories are read as consumers read them through a broker: genuine ones, hostile ones, and some that change."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from chunkstore.cli.app import main
from chunkstore.codec.kafka.records import Isolation, Record
from chunkstore.errors import (
    AccessDenied,
    ChunkNotFound,
    Damaged,
    InvalidArgument,
    SegmentNotFound,
)
from chunkstore.kafka.bucket import KafkaBucket
from chunkstore_bindings.bucket.files import FileBucket
from tests.kafka.support_batches import Made, batch_of, control_of
from tests.kafka.support_logdir import FIXTURES, LOG_DIR
from tests.kafka.support_tier import (
    METADATA_LOG,
    PEM,
    TIERS,
    changed,
    copied_logs,
    copied_tier,
    expected_rows,
    lines,
    opened,
    records_of,
    segment_at,
)

UNDECIDED = {"plain": 402, "zstd": 406, "encrypted": 405}
"""The first offset of a transaction whose marker was only in the active segment."""


@pytest.mark.parametrize("metadata_log", [None, METADATA_LOG], ids=["without metadata log", "with metadata log"])
@pytest.mark.parametrize("name", TIERS)
def test_a_tier_gives_what_consumers_got(name: str, metadata_log: str | None) -> None:
    expected = expected_rows("aiven.records.jsonl")[f"tiered-{name}", 0]
    with opened(FIXTURES / "aiven-bucket" / name, metadata_log=metadata_log) as tier:
        end = max(segment.end_offset for segment in tier.segments())
        found = records_of(tier)
        assert tier.source.lineage == ("leader epochs and higher ends" if metadata_log is None else "the metadata log")
        assert len([note for note in tier.notes if "158-" in note]) == (name == "plain")
        assert any(f"from offset {UNDECIDED[name]} on are left out" in note for note in tier.notes)
        assert list(tier.verify()) == []
    for row in expected:  # what the tier cannot know is not shown as committed
        row["committed"] &= row["offset"] < UNDECIDED[name]
    assert found == {(f"tiered-{name}", 0): [row for row in expected if row["offset"] <= end]}


@pytest.mark.parametrize("indexed", [True, False])
def test_a_log_directory_gives_what_consumers_got(tmp_path: Path, indexed: bool) -> None:
    folder, expected = copied_logs(tmp_path), expected_rows("logdir-3.9.records.jsonl")
    for path in folder.glob("*/*"):
        if not indexed and path.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
            path.unlink()
    with KafkaBucket(str(folder)) as logs:
        assert records_of(logs) == {place: rows for place, rows in expected.items() if rows}
        note = "a transaction of producer 1000 has no end here: all records from offset 60 on are left out"
        assert f"still-open-0: {note}" in logs.notes
        assert list(logs.read("__transaction_state"))
        assert list(logs.verify()) == []


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_any_range_and_arrow_give_the_same_records(isolation: Isolation) -> None:
    with KafkaBucket(str(LOG_DIR)) as logs:
        everything = list(logs.read("transactions", 0, isolation=isolation))
        for start in range(0, 420, 7):
            some = list(logs.read("transactions", 0, isolation=isolation, start_offset=start, end_offset=start + 31))
            assert some == [record for record in everything if start <= record.offset < start + 31]
        rows = [
            row for batch in logs.record_batches("transactions", 0, isolation=isolation) for row in batch.to_pylist()
        ]
        assert [row["offset"] for row in rows] == [record.offset for record in everything]
        assert [row["value"] for row in rows] == [record.value for record in everything]


def made_logs(folder: Path, *segments: tuple[int, bytes], topic: str = "t") -> Path:
    (folder / f"{topic}-0").mkdir(parents=True, exist_ok=True)
    for start, data in segments:
        (folder / f"{topic}-0" / f"{start:020d}.log").write_bytes(data)
    (folder / f"{topic}-0" / "partition.metadata").write_text("version: 0\ntopic_id: qYZJDbTjSHma2lSUyvPuSQ")
    return folder


def offsets(records: Any) -> list[int]:
    return [record.offset for record in cast("list[Record]", list(records))]


def in_transaction(base: int, producer: int) -> bytes:
    return batch_of([Made()], base, transactional=True, producer_id=producer, producer_epoch=3)


def test_a_transaction_whose_marker_is_in_a_gap_is_withheld_and_named(tmp_path: Path) -> None:
    first = in_transaction(0, 7) + in_transaction(1, 8) + batch_of([Made()], 2)
    second = control_of(9, 8, 1) + in_transaction(10, 7) + control_of(11, 7, 1)
    folder = made_logs(tmp_path, (0, first), (3, b""), (9, second))
    (folder / "t-0" / f"{3:020d}.log").unlink()
    tier = KafkaBucket(str(folder))
    listing = tier.source.listing("t")
    listing.segments[0] = listing.segments[0]._replace(end_offset=2)
    tier.source.listing = lambda *_: listing  # type: ignore[method-assign]  # as a tier names the end
    with tier:
        assert offsets(tier.read()) == [0, 1, 2, 10]
        assert offsets(tier.read(isolation="read_committed")) == [2, 10]
        assert [note.partition(":")[2] for note in tier.notes] == [
            " offsets 3 to 8 are not here",
            " a transaction of producer 7 has no end here: its records from offset 0 on are left out",
            " a transaction of producer 8 has no end here: its records from offset 1 on are left out",
        ]


def test_a_torn_tail_is_named_and_the_whole_batches_read(tmp_path: Path) -> None:
    whole, torn = batch_of([Made()] * 3), batch_of([Made()], 3)[:-1]
    folder = made_logs(tmp_path, (0, whole + torn))
    with KafkaBucket(str(folder)) as logs:
        assert offsets(logs.read()) == [0, 1, 2]
        assert list(logs.notes) == [
            f"t-0/{0:020d}.log: the last {len(torn)} bytes are not a whole batch and were not read"
        ]
        assert [(each.end_offset, each.bytes) for each in logs.segments()] == [(2, len(whole))]
        changed(folder / "t-0" / f"{0:020d}.log", lambda data: data[: len(whole)] + bytes(999))  # preallocated
        assert offsets(logs.read()) == [0, 1, 2]
        made_logs(folder, (3, batch_of([Made()], 3)))  # rolled: now its end is damage
        with pytest.raises(Damaged, match=f"{0:020d}.log at byte {len(whole)}"):
            list(logs.read())


def test_segments_that_roll_and_go_while_they_are_read(tmp_path: Path) -> None:
    several = [(start, batch_of([Made()], start)) for start in range(4)]
    folder = made_logs(tmp_path, *several)
    files = [folder / "t-0" / f"{start:020d}.log" for start in range(5)]
    with KafkaBucket(str(folder)) as logs:
        records = logs.read()
        assert next(records).offset == 0
        files[0].rename(folder / "t-0" / f"{0:020d}.log.deleted")
        made_logs(folder, (4, batch_of([Made()], 4)))
        assert offsets(records) == [1, 2, 3]
        records = logs.read()
        assert next(records).offset == 1
        files[2].unlink()
        with pytest.raises(ChunkNotFound, match=f"{2:020d}"):
            next(records)
        records = logs.read("t")
        assert next(records).offset == 1
        files[3].write_bytes(b"")  # as compaction swaps a file
        with pytest.raises(ChunkNotFound, match=f"{3:020d}"):
            next(records)
        shutil.rmtree(folder / "t-0")
        assert offsets(logs.read()) == []
        with pytest.raises(SegmentNotFound, match="kafka ls"):
            list(logs.read("t"))


def test_lost_manifests_are_named_after_all_other_records(tmp_path: Path) -> None:
    folder = copied_tier(tmp_path)
    segment_at(folder, 95, "rsm-manifest").write_bytes(b"[" * 100_000)
    changed(
        segment_at(folder, 247, "rsm-manifest"), lambda data: data.replace(b'"startOffset":247', b'"startOffset":24')
    )
    found: list[int] = []
    with opened(folder) as tier:
        with pytest.raises(Damaged, match="was not read from offset 95 on"):
            found += (record.offset for record in tier.read())
        assert found[-1] > 325
        assert [offset for offset in found if 95 <= offset <= 157 or 247 <= offset <= 325] == []
        assert "tiered-plain-0: offsets 95 to 157 are not here" in tier.notes
        assert "tiered-plain-0: offsets 247 to 325 are not here" in tier.notes
        assert sum("rsm-manifest" in note for note in tier.notes) == 2
        assert max(offsets(tier.read("tiered-plain", 0, end_offset=95))) < 95


def test_keys_are_each_tried_and_must_fit() -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    made = rsa.generate_private_key(65537, 2048)
    other = made.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    folder = FIXTURES / "aiven-bucket" / "encrypted"
    with opened(folder, keys=[other, PEM]) as tier:
        assert len(list(tier.read())) == 397
    for keys in ([], [other]):
        with opened(folder, keys=keys) as tier:
            with pytest.raises(InvalidArgument, match=f"none of the {len(keys)} keys"):
                list(tier.read())
            assert {finding.kind for finding in tier.verify()} == {"key"}


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    for options in ({"metadata_log": METADATA_LOG}, {"prefix": "x"}):
        with pytest.raises(InvalidArgument, match="log directory"):
            KafkaBucket(str(LOG_DIR), **cast("Any", options))
    with pytest.raises(InvalidArgument, match="__remote_log_metadata-N"):
        opened(tmp_path, metadata_log=str(made_logs(tmp_path, (0, b""))))
    with KafkaBucket(str(LOG_DIR)) as logs:
        with pytest.raises(InvalidArgument, match="isolation"):
            list(logs.read(isolation=cast("Any", "serializable")))
        with pytest.raises(InvalidArgument, match="orphans"):
            logs.orphans()
        with pytest.raises(SegmentNotFound):
            list(logs.read("codecs", 7))


@pytest.mark.parametrize("name", ["list", "read"])
def test_a_bucket_without_permission_is_not_damage(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> bytes:
        raise AccessDenied("no permission", object="x")

    monkeypatch.setattr(FileBucket, name, refused)
    with opened(FIXTURES / "aiven-bucket" / "plain") as tier:
        for call in (tier.read, tier.verify):
            with pytest.raises(AccessDenied):
                list(call())


def test_the_command_line_prints_rows_as_they_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    url = (FIXTURES / "aiven-bucket").as_uri()
    rows = lines(capsys, "ls", url, "--prefix", "plain/", "--metadata-log", METADATA_LOG)
    assert rows[0] == {
        "topic": "tiered-plain", "topic_id": "qYZJDbTjSHma2lSUyvPuSQ", "partition": 0, "start_offset": 0, "end_offset": 94,
        "uuid": "0xXdgs8oSAmwjVKdO467sw", "state": "COPY_SEGMENT_FINISHED", "bytes": 57961,
    }  # fmt: skip
    assert Counter(row["state"] for row in rows) == {"COPY_SEGMENT_FINISHED": 5, "COPY_SEGMENT_STARTED": 1}
    assert [row["state"] for row in lines(capsys, "ls", str(LOG_DIR), "--topic", "appended")] == [
        "ROLLED",
        "ROLLED",
        "ACTIVE",
    ]
    key = str(FIXTURES / "aiven-keys" / "key1-private.pem")
    bounds = ("--offset", "330", "--until", "340", "--isolation", "read_committed")
    rows = lines(
        capsys, "read", f"{url}/encrypted", "--key", key, "--topic", "tiered-encrypted", "--partition", "0", *bounds
    )
    assert {row["offset"] for row in rows} <= set(range(330, 340))
    assert list(rows[0]) == [
        "topic", "partition", "offset", "timestamp", "timestamp_type", "key_b64", "value_b64", "headers", "leader_epoch", "transactional",
    ]  # fmt: skip
    rows = lines(capsys, "read", str(LOG_DIR), "--topic", "codecs", "--until", "5")
    assert [name for row in rows for name, _ in row["headers"]]
    assert main(["kafka", "read", str(LOG_DIR), "--topic", "idempotent", "--until", "2"]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2
    assert shown.err == "chunkstore: lineage from the log directory\n"
    assert main(["kafka", "read", str(LOG_DIR), "--offset", "-1"]) == 2
