"""What is missing or foreign in a tier or log directory is told: never silence, and never a live object named as garbage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from chunkstore.errors import Damaged
from chunkstore.kafka.bucket import KafkaBucket
from tests.kafka.support_logdir import FIXTURES
from tests.kafka.support_tier import (
    METADATA_LOG,
    changed,
    copied_logs,
    copied_tier,
    findings_of,
    opened,
    records_of,
    segment_at,
)


def test_a_base_offset_that_was_changed_does_not_end_the_segment(tmp_path: Path) -> None:
    folder = copied_tier(tmp_path)
    log = segment_at(folder, 95, "log")
    second = 12 + int.from_bytes(log.read_bytes()[8:12], "big")  # no CRC covers the first eight bytes of a batch

    def flip(data: bytes) -> bytes:
        return data[: second + 2] + bytes([data[second + 2] ^ 64]) + data[second + 3 :]

    changed(log, flip)
    with opened(folder, metadata_log=METADATA_LOG) as tier, pytest.raises(Damaged, match="the segment ends with"):
        records_of(tier)


def test_a_segment_that_ends_early_is_damage_in_a_tier_and_named_in_a_log_directory(tmp_path: Path) -> None:
    logs = copied_logs(tmp_path)
    (lost,) = (path for path in sorted((logs / "codecs-0").glob("*.log"))[1:2])
    lost.unlink()
    with KafkaBucket(str(logs)) as directory:
        records_of(directory, "codecs")
        assert any(": compacted, or lost" in note for note in directory.notes)


def test_a_finished_segment_without_objects_is_found(tmp_path: Path) -> None:
    folder = copied_tier(tmp_path)
    for suffix in ("log", "indexes", "rsm-manifest"):
        segment_at(folder, 0, suffix).unlink()
    with opened(folder, metadata_log=METADATA_LOG) as tier:
        assert "missing" in {finding.kind for finding in findings_of(tier)}


def test_a_foreign_object_makes_no_orphan_of_a_segment(tmp_path: Path) -> None:
    folder = copied_tier(tmp_path)
    log = segment_at(folder, 95, "log")
    log.with_name(log.name + ".bak").touch()
    for metadata_log in (None, METADATA_LOG):
        with opened(folder, metadata_log=metadata_log) as tier:
            found = tier.orphans(older_than_s=0)
        assert log.name not in {Path(orphan.object).name for orphan in found}
        assert [orphan.kind for orphan in found if orphan.object.endswith(".bak")] == ["foreign"]


def test_a_manifest_under_the_key_of_another_segment_is_not_read(tmp_path: Path) -> None:
    folder = copied_tier(tmp_path)
    manifest = segment_at(folder, 0, "rsm-manifest")
    other = manifest.parent.with_name("1")
    other.mkdir()
    for suffix in ("log", "indexes", "rsm-manifest"):
        shutil.copy(segment_at(folder, 0, suffix), other)
    with opened(folder) as tier, pytest.raises(Damaged, match=r"it is of partition 0.*was not read from offset 0 on"):
        records_of(tier)


def test_a_metadata_log_that_lacks_a_partition_is_questioned(tmp_path: Path) -> None:
    folder, metadata = copied_tier(tmp_path), tmp_path / "metadata"
    shutil.copytree(FIXTURES / "remote-log-metadata", metadata)
    for partition in sorted(metadata.iterdir()):
        if partition.is_dir():
            shutil.rmtree(partition)
            break
    with opened(folder, metadata_log=str(metadata)) as one, opened(folder, metadata_log=METADATA_LOG) as both:
        records_of(one)
        records_of(both)
        asked = [any("no record of" in note for note in tier.notes) for tier in (one, both)]
    assert asked[1] is False
    with KafkaBucket(str(tmp_path / "metadata")) as directory:
        (metadata / "newtopic-0").mkdir()
        (metadata / "newtopic-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA")
        assert not [segment for segment in directory.segments() if segment.topic == "newtopic"]
