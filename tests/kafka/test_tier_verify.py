"""Planted damage of each kind, losses, and orphans of each kind: all are found, and nothing in genuine files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from chunkstore.kafka.bucket import KafkaBucket
from tests.kafka.support_tier import (
    METADATA_LOG,
    changed,
    copied_logs,
    copied_tier,
    findings_of,
    lines,
    opened,
    segment_at,
)

Change = Callable[[bytes], bytes]


def flipped(at: int) -> Change:
    """One bit of the byte at this place is another one."""
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("name", "suffix", "change", "kind", "position", "message"),
    [
        pytest.param("plain", "log", flipped(40_000), "batch", 39_044, "CRC32C", id="a byte of a record"),
        pytest.param("plain", "log", flipped(7), "batch", 4_505, "offsets 8 to 15, after 8", id="a base offset, of no CRC"),
        pytest.param("plain", "log", flipped(15), "epochs", 0, "leader epoch 1", id="a leader epoch, of no CRC"),
        pytest.param("zstd", "log", flipped(20), "batch", 0, "zstd", id="a compressed chunk"),
        pytest.param("encrypted", "log", flipped(20), "batch", 0, "not authentic", id="an encrypted chunk"),
        pytest.param("plain", "log", lambda data: data[:-5], "length", -5, "the manifest has", id="a cut log"),
        pytest.param("plain", "rsm-manifest", flipped(3), "manifest", 0, "version", id="a manifest's name of a field"),
        pytest.param("plain", "rsm-manifest", lambda _: b"", "manifest", 0, "JSON", id="an empty manifest"),
        pytest.param("encrypted", "indexes", flipped(99), "index", 0, "not authentic", id="an encrypted index"),
        pytest.param("plain", "indexes", flipped(7), "index", 0, "offset index points to byte", id="an offset index"),
        pytest.param("plain", "indexes", lambda data: data[:-900], "index", None, "bytes, but the manifest has", id="cut indexes"),
    ],
)  # fmt: skip
def test_planted_damage_of_a_tier_is_found(
    tmp_path: Path, name: str, suffix: str, change: Change, kind: str, position: int | None, message: str
) -> None:
    folder = copied_tier(tmp_path, name)
    path = segment_at(folder, 0, suffix)
    changed(path, change)
    found = findings_of(opened(folder))
    first = found[0]
    assert (first.kind, first.topic, first.partition) == (kind, f"tiered-{name}", 0)
    assert path.stem in first.object
    if position is not None:
        assert first.position == (position if position >= 0 else path.stat().st_size)
    assert message in first.message
    assert all(f"{0:020d}" in each.object or each.kind == "gap" for each in found)  # and nothing of the others


def test_a_missing_segment_and_missing_objects_are_found(tmp_path: Path) -> None:
    folder = copied_tier(tmp_path)
    segment_at(folder, 95, "log").unlink()
    segment_at(folder, 326, "indexes").unlink()
    found = [(each.kind, each.object.rpartition("/")[2][:20], each.offset) for each in findings_of(opened(folder))]
    assert ("incomplete", f"{95:020d}", 95) in found
    assert ("incomplete", f"{326:020d}", 326) in found
    assert ("gap", f"{158:020d}", 95) in found
    for path in folder.rglob(f"{247:020d}*"):
        path.unlink()
    assert ("gap", 247) in [(each.kind, each.offset) for each in findings_of(opened(folder))]
    assert "missing" in {each.kind for each in findings_of(opened(folder, metadata_log=METADATA_LOG))}


@pytest.mark.parametrize(
    ("place", "start", "suffix", "change", "kind", "position", "message"),
    [
        pytest.param("transactions-0", 34, "log", flipped(61), "batch", 0, "CRC32C", id="a batch"),
        pytest.param("codecs-0", 0, "log", lambda data: data[:-9], "batch", None, "not a whole batch", id="a rolled segment that is cut"),
        pytest.param("codecs-0", 320, "index", flipped(7), "index", 0, "points to byte", id="a position"),
        pytest.param("codecs-0", 320, "index", lambda data: data[:-3], "index", None, "cut row", id="a cut index"),
        pytest.param("codecs-0", 320, "timeindex", flipped(7), "index", 0, "largest timestamp", id="a timestamp"),
        pytest.param("transactions-0", 188, "txnindex", lambda data: data[:34], "index", 0, "aborted", id="a lost abort"),
        pytest.param("transactions-0", 188, "txnindex", flipped(9), "index", 0, "aborted", id="another producer"),
        pytest.param("transactions-0", 188, "txnindex", flipped(1), "index", 0, "version", id="a version"),
        pytest.param("transactions-0", 188, "snapshot", flipped(20), "index", 0, "CRC-32C", id="a snapshot"),
    ],
)  # fmt: skip
def test_planted_damage_of_a_log_directory_is_found(
    tmp_path: Path, place: str, start: int, suffix: str, change: Change, kind: str, position: int | None, message: str
) -> None:
    folder = copied_logs(tmp_path)
    changed(folder / place / f"{start:020d}.{suffix}", change)
    [found] = findings_of(KafkaBucket(str(folder)))
    assert (found.kind, f"{found.topic}-{found.partition}") == (kind, place)
    assert message in found.message
    assert position is None or found.position == position


def test_the_command_line_says_what_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copied_tier(tmp_path)
    assert lines(capsys, "verify", folder.as_uri()) == [{"ok": True, "findings": []}]
    changed(segment_at(folder, 95, "log"), flipped(100))
    [shown] = lines(capsys, "verify", folder.as_uri(), code=1)
    assert shown["ok"] is False
    assert list(shown["findings"][0]) == ["kind", "object", "topic", "partition", "offset", "position", "message"]
    assert [(each["kind"], each["offset"], each["position"]) for each in shown["findings"]] == [("batch", 95, 0)]


def kinds_of(folder: Path, metadata_log: str | None = METADATA_LOG) -> dict[str, list[str]]:
    """Orphans of any age, by kind: starts and suffixes."""
    found: dict[str, list[str]] = {}
    with opened(folder, metadata_log=metadata_log) as tier:
        for each in tier.orphans(older_than_s=0):
            name = each.object.rpartition("/")[2]
            found.setdefault(each.kind, []).append(
                name if each.topic is None else f"{int(name[:20])} {name.rpartition('.')[2]}"
            )
    return found


def test_orphans_of_each_kind_are_listed(tmp_path: Path) -> None:
    never = ["158 indexes", "158 log", "158 rsm-manifest"]
    folder = copied_tier(tmp_path)
    assert kinds_of(folder) == {"never-finished": never}
    assert kinds_of(folder, None) == {}
    [partition] = folder.glob("*/0")
    (folder / "notes.txt").write_text("foreign")
    live = segment_at(folder, 326, "log").name
    (partition / f"{live}.bak").touch()
    for suffix in ("log", "indexes", "rsm-manifest"):
        shutil.copyfile(segment_at(folder, 95, suffix), partition / f"{95:020d}-zUsZDBC2Sry_ltkj_2MHOA.{suffix}")
    (partition / f"{326:020d}-XlL8Cx9nStOHTsSSG6-dZQ.log").write_text("cut off")
    segment_at(folder, 0, "log").unlink()
    for path in partition.glob(f"{247:020d}-*"):
        path.unlink()
    assert kinds_of(folder) == {
        "foreign": ["notes.txt", f"{live}.bak"],
        "metadata-without-object": ["0 log", "247 log"],
        "never-finished": never,
        "object-without-metadata": ["95 indexes", "95 log", "95 rsm-manifest", "326 log"],
    }
    assert kinds_of(folder, None) == {
        "foreign": ["notes.txt", f"{live}.bak"], "metadata-without-object": ["0 log"], "never-finished": ["326 log"],
    }  # fmt: skip
