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


def test_export_list_verify(call: Call, filled: str, tmp_path: Path) -> None:
    path = tmp_path / "x.cks"
    report = call("export", filled, path, "--expires", "3600", "--json").document
    assert list(report) == ["path", "lsn", "segments", "chunks", "chunk_bytes", "rows", "file_bytes", "pin"]
    assert (report["path"], report["segments"], report["chunk_bytes"]) == (str(path), 2, 10)
    [pin] = call("pins", "ls", filled, "--json").lines
    assert pin == report["pin"] and pin["name"] == "export-x.cks" and pin["expires_at"] is not None
    header, *infos = call("export", "--list", path, "--json").lines
    assert list(header) == [
        "container", "uuid", "root", "lsn", "hash", "digest", "time", "segments", "topic", "pin"
    ]  # fmt: skip
    assert (header["lsn"], header["root"], header["pin"]) == (report["lsn"], filled, "export-x.cks")
    assert infos == call("ls", filled, "--json").lines
    assert b"everything" in call("export", "--list", path).out
    for more in ([], ["--deep"]):
        found = call("export", "--verify", path, *more, "--json").document
        assert found["ok"] and (found["chunks"], found["chunk_bytes"], found["findings"]) == (2, 10, [])
    [line, _] = [line for name in "ab" for line in call("layout", filled, name, "--json").lines]
    with (tmp_path / "store" / line["name"]).open("r+b") as file:
        file.seek(line["object_offset"])
        file.write(b"1234x")
    assert call("export", "--verify", path, "--json").document["ok"]
    assert b"DAMAGED" in call("export", "--verify", path, "--deep", code=1).out
    [finding] = call("export", filled, "--verify", path, "--deep", "--json", code=1).document["findings"]
    assert (finding["object"], finding["severity"]) == (line["name"], "damage")


def test_backup_and_what_is_read_of_it(call: Call, filled: str, tmp_path: Path) -> None:
    target = (tmp_path / "backups").as_uri()
    made = call("backup", filled, target, "--json").document
    assert list(made) == [
        "run", "lsn", "hash", "time_ms", "segments", "chunks", "chunk_bytes", "copied_chunks", "copied_bytes",
        "linked_chunks", "linked_bytes",
    ]  # fmt: skip
    assert (made["segments"], made["chunk_bytes"], made["copied_bytes"]) == (2, 10, 10)
    claimed = call("owner", filled, "--json").document["claimed_epoch"]
    again = call("backup", filled, target, "--no-pin", "--json").document
    assert call("owner", filled, "--json").document["claimed_epoch"] == claimed
    _, listed = call("backup", "ls", target, "--json").lines
    assert listed == {**{key: again[key] for key in again if not key.startswith("linked_")}, "complete": True}
    assert again["run"].encode() in call("backup", "ls", target).out
    result = call("backup", filled, target)
    assert b"copied 2" in result.out and b"to copy: " in result.err
    assert b"sound (3 backups" in call("backup", "verify", target).out
    linked = call("backup", filled, (tmp_path / "links").as_uri(), "--link")
    assert b"linked 2, copied 0" in linked.out and linked.err.startswith(b"to link: 2 chunks")
    assert b"do not protect from rot" in linked.err
    assert call("ls", target, "--json").lines == call("ls", filled, "--json").lines
    assert call("cat", target, "a").out == b"12345"
    assert call("check", target, "--deep", "--json").document == {"ok": True, "level": "deep", "findings": []}
    assert call("usage", target, "--json").document["live_bytes"] == 10
    for arguments in (("put", target, "z", tmp_path / "file"), ("owner", target), ("backup", target, filled + "2")):
        error = call(*arguments, "--json", code=1).error
        assert (error["error"], error["fields"]) == ("Unsupported", {"feature": "backup"})


def test_a_backup_is_dropped_by_its_name(call: Call, filled: str, tmp_path: Path) -> None:
    target = (tmp_path / "backups").as_uri()
    first, second = (call("backup", filled, target, "--json").document["run"] for _ in range(2))
    look = call("backup", "rm", target, first, "--dry-run", "--json").document
    assert (look["run"], look["readable"], look["dry_run"]) == (first, True, True)
    assert len(call("backup", "ls", target, "--json").lines) == 2
    assert b"can be read" in call("backup", "rm", target, first).out
    assert [line["run"] for line in call("backup", "ls", target, "--json").lines] == [second]
    for arguments in (["rm", target], ["rm", target, "x"], ["rm", target, first], ["ls", target, first]):
        assert call("backup", *arguments, "--json", code=2).error["error"] == "InvalidArgument"
    assert call("backup", filled, target, "--dry-run", "--json", code=2).error["error"] == "InvalidArgument"
    assert call("cat", target, "a").out == b"12345"
