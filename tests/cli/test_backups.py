"""``export``: what it prints, what it claims, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Call


@pytest.fixture
def filled(call: Call, root: str, tmp_path: Path) -> str:
    (tmp_path / "file").write_bytes(b"12345")
    for name in ("a", "b"):
        call("put", root, name, tmp_path / "file")
    return root


def test_export_and_list(call: Call, filled: str, tmp_path: Path) -> None:
    path = tmp_path / "x.cks"
    report = call("export", filled, path, "--expires", "3600", "--json").document
    assert list(report) == ["path", "lsn", "segments", "chunks", "chunk_bytes", "rows", "file_bytes", "pin"]
    assert (report["path"], report["segments"], report["chunk_bytes"]) == (str(path), 2, 10)
    [pin] = call("pins", "ls", filled, "--json").lines
    assert pin == report["pin"] and pin["name"] == "export-x.cks" and pin["expires_at"] is not None
    header, *infos = call("export", "--list", path, "--json").lines
    assert list(header) == [
        "container", "uuid", "root", "lsn", "hash", "digest", "time", "segments", "pin"
    ]  # fmt: skip
    assert (header["lsn"], header["root"], header["pin"]) == (report["lsn"], filled, "export-x.cks")
    assert infos == call("ls", filled, "--json").lines
    assert b"everything" in call("export", "--list", path).out
    new = tmp_path / "new"
    assert call("restore", path, new, "--dry-run", "--json").document["missing"] == []
    [line, _] = [line for name in "ab" for line in call("layout", filled, name, "--json").lines]
    (tmp_path / "store" / line["name"]).unlink()
    [item] = call("restore", path, new, "--dry-run", "--json", code=1).document["missing"]
    assert (item["chunk"], item["reason"]) == (line["name"], "absent") and not new.exists()


def test_backup_and_what_is_read_of_it(call: Call, filled: str, tmp_path: Path) -> None:
    target = (tmp_path / "backups").as_uri()
    made = call("backup", filled, target, "--json").document
    assert list(made) == [
        "run", "lsn", "hash", "time_ms", "segments", "chunks", "chunk_bytes", "copied_chunks", "copied_bytes",
    ]  # fmt: skip
    assert (made["segments"], made["chunk_bytes"], made["copied_bytes"]) == (2, 10, 10)
    claimed = call("owner", filled, "--json").document["claimed_epoch"]
    again = call("backup", filled, target, "--no-pin", "--json").document
    assert call("owner", filled, "--json").document["claimed_epoch"] == claimed
    _, listed = call("backup", "ls", target, "--json").lines
    assert listed == {**again, "complete": True}
    assert again["run"].encode() in call("backup", "ls", target).out
    assert b"copied" in call("backup", filled, target).out
    assert b"sound (3 backups" in call("backup", "verify", target).out
    assert call("ls", target, "--json").lines == call("ls", filled, "--json").lines
    assert call("cat", target, "a").out == b"12345"
    assert call("check", target, "--deep", "--json").document == {"ok": True, "level": "deep", "findings": []}
    assert call("usage", target, "--json").document["live_bytes"] == 10
    for arguments in (("put", target, "z", tmp_path / "file"), ("owner", target), ("backup", target, filled + "2")):
        error = call(*arguments, "--json", code=1).error
        assert (error["error"], error["fields"]) == ("Unsupported", {"feature": "backup"})
