"""``offload --source`` and ``ledger rm`` from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Call


@pytest.fixture
def source(tmp_path: Path) -> str:
    folder = tmp_path / "ledgers"
    folder.mkdir()
    for ledger in (1, 2, 3):
        payloads = [b"%d of %d" % (entry, ledger) for entry in range(10 * ledger)]
        data = b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)
        (folder / f"{ledger}.entries").write_bytes(data)
    return str(folder)


def test_offload_a_directory(call: Call, tmp_path: Path, source: str) -> None:
    root = (tmp_path / "root").as_uri()
    arguments = ("offload", root, "--topic", "t", "--source", source, "--json")
    assert call(*arguments, "--to", "3:0").document == {"topic": "t", "first_left": "3:0"}
    assert call(*arguments).document == {"topic": "t", "first_left": "4:0"}
    rows = call("ledger", "ls", root, "--json").lines
    assert [(row["ledger"], row["entries"], row["complete"]) for row in rows] == [
        (1, 10, True),
        (2, 20, True),
        (3, 30, True),
    ]
    again = call(*arguments).document  # nothing is left to do
    assert again == {"topic": "t", "first_left": "4:0"}
    assert len(call("ls", root, "offload/t/", "--json").lines) == 6


def test_a_bucket_without_user_metadata_and_misuse(call: Call, tmp_path: Path, source: str) -> None:
    root = (tmp_path / "root").as_uri()
    arguments = ("offload", root, "--topic", "t", "--source", source, "--json")
    assert call(*arguments, "--format", "v1", code=1).error["error"] == "Unsupported"
    for wrong in (("--to", "3"), ("--ledger", "1"), ("--resume",), ("--format", "v3")):
        assert call(*arguments, *wrong, code=2).error["error"] == "InvalidArgument"
    for given in ((), ("--ledger", "1"), (source, "--ledger", "1", "--to", "1:0")):
        assert call("offload", root, "--topic", "t", *given, "--json", code=2).error["error"] == "InvalidArgument"


def test_stream_a_directory(call: Call, tmp_path: Path, source: str) -> None:
    root = (tmp_path / "root").as_uri()
    arguments = ("offload", root, "--topic", "t", "--source", source, "--streaming", "--json")
    first = call(*arguments, "--to", "2:5", "--permits", "100000000").document
    assert first == {"topic": "t", "segments": 0, "last": None}
    rows = call("ledger", "ls", root, "--json").lines
    assert [(row["ledger"], row["last_entry"], row["complete"]) for row in rows] == [(1, 9, False), (2, 4, False)]
    assert call(*arguments, "--close").document == {"topic": "t", "segments": 1, "last": "3:29"}
    rows = call("ledger", "ls", root, "--json").lines
    assert [(row["ledger"], row["last_entry"] + 1, row["complete"]) for row in rows] == [
        (number, 10 * number, True) for number in (1, 2, 3)
    ]
    assert call(*arguments, "--close").document == {"topic": "t", "segments": 0, "last": None}
    other = (tmp_path / "other").as_uri()
    elsewhere = ("offload", other, "--topic", "t", "--source", source, "--json")
    assert call(*elsewhere, "--streaming", "--format", "v1", code=1).error["error"] == "Unsupported"
    assert not (tmp_path / "other").exists()
    for wrong in (("--close",), ("--permits", "-1")):
        assert call(*elsewhere, *wrong, code=2).error["error"] == "InvalidArgument"


def test_delete_a_ledger(call: Call, tmp_path: Path, source: str) -> None:
    root = (tmp_path / "root").as_uri()
    call("offload", root, "--topic", "t", "--source", source)
    victim = ("ledger", "rm", root, "--topic", "t", "--ledger", "2", "--json")
    planned = call(*victim, "--dry-run").document
    assert len(call("ledger", "ls", root, "--json").lines) == 3
    done = call(*victim).document
    assert done == {"topic": "t", "ledger": 2, "deleted": True, "segments": 1, "bytes": planned["bytes"]}
    assert [action["bytes"] for action in planned["actions"]] == [done["bytes"]]
    assert [row["ledger"] for row in call("ledger", "ls", root, "--json").lines] == [1, 3]
    assert len(call("ls", root, "offload/t/", "--json").lines) == 4
    assert call(*victim, code=1).error["error"] == "LedgerNotFound"
