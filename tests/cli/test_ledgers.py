"""The verbs about ledgers, as people and programs call them."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from tests.cli.conftest import Call

LINES = b"first\n\nthird \xff\x00\nlast, without an end"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines"
    path.write_bytes(LINES)
    return path


def test_lines_become_entries_and_lines_again(call: Call, root: str, lines: Path) -> None:
    result = call("offload", root, "--topic", "t", "--ledger", "5", lines, "--json").document
    assert result == {
        "topic": "t", "ledger": 5, "first_entry": 0, "last_entry": 3, "entries": 4, "bytes": len(LINES) - 3,
        "segments": 1, "epoch": 1,
    }  # fmt: skip
    more = call("offload", root, lines, "--topic", "t", "--ledger", "5", "--append", "--json").document
    assert (more["first_entry"], more["last_entry"]) == (4, 7)
    assert call("ledger", "read", root, "--topic", "t", "--ledger", "5", "--last", "3").out == LINES + b"\n"
    rows = call("ledger", "read", root, "--topic", "t", "--ledger", "5", "--first", "6", "--json").lines
    assert rows == [
        {"ledger": 5, "entry": entry, "length": len(data), "payload_b64": base64.b64encode(data).decode()}
        for entry, data in ((6, b"third \xff\x00"), (7, b"last, without an end"))
    ]
    [row] = call("ledger", "ls", root, "--json").lines
    assert (row["topic"], row["ledger"], row["first_entry"], row["last_entry"]) == ("t", 5, 0, 7)
    assert (row["segments"], row["complete"]) == (2, True)
    assert call("ledger", "ls", root, "--topic", "t").out.split(b"\t")[:5] == [b"t", b"5", b"0", b"7", b"2"]


def test_several_segments_and_resume(call: Call, root: str, tmp_path: Path) -> None:
    path = tmp_path / "many"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(3000)))
    options = ("--topic", "t", "--ledger", "1", "--block-size", "4096", "--segment-size", "10000")
    assert call("offload", root, path, *options, "--json").document["segments"] > 3
    with path.open("ab") as file:
        file.write(b"one more\n")
    resumed = call("offload", root, path, *options, "--resume", "--json").document
    assert (resumed["first_entry"], resumed["entries"]) == (3000, 1)
    again = call("offload", root, path, *options, "--resume", "--json").document
    assert (again["first_entry"], again["entries"], again["segments"]) == (None, 0, 0)
    assert call("ledger", "read", root, "--topic", "t", "--ledger", "1").out == path.read_bytes()
    path.write_bytes(b"short\n")
    assert call("offload", root, path, *options, "--resume", "--json", code=2).error["error"] == "InvalidArgument"


def test_what_is_missing_or_wrong(call: Call, root: str, lines: Path) -> None:
    assert call("ledger", "ls", root, "--json", code=1).error["error"] == "ContainerNotFound"
    call("offload", root, lines, "--topic", "t", "--ledger", "5")
    again = call("offload", root, lines, "--topic", "t", "--ledger", "5", "--json", code=1).error
    assert again["error"] == "Conflict" and "--resume" in again["message"], "the same command twice appends once"
    error = call("ledger", "read", root, "--topic", "t", "--ledger", "6", "--json", code=1).error
    assert (error["error"], error["fields"]) == ("LedgerNotFound", {"topic": "t", "ledger": 6})
    assert call("ledger", "ls", root, "--topic", "u", "--json", code=1).error["error"] == "LedgerNotFound"
    call("offload", root, lines, "--topic", "t", "--ledger", "-1", "--json", code=2)
    call("offload", root, "/nowhere", "--topic", "t", "--ledger", "1", "--json", code=2)
    call("offload", root, lines, "--topic", "", "--ledger", "1", "--json", code=2)
    call("ledger", "read", root, "--topic", "t", "--ledger", "5", "--first", "-2", "--json", code=2)
    call("ledger", code=2)


def test_segments_are_pulsar_objects(call: Call, root: str, lines: Path, tmp_path: Path) -> None:
    call("offload", root, lines, "--topic", "t", "--ledger", "5")
    data, index = [row["name"] for row in call("ls", root, "offload/t/", "--json").lines]
    assert index == data + "-index"
    for name, file in ((data, "data"), (index, "index")):
        (tmp_path / file).write_bytes(call("cat", root, name).out)
    rows = call("pulsar", "decode", tmp_path / "data", (tmp_path / "index").as_uri(), "--json").lines
    entries = LINES.split(b"\n")
    assert rows == [
        {"ledger": 5, "entry": number, "length": len(entry), "sha256": hashlib.sha256(entry).hexdigest()}
        for number, entry in enumerate(entries)
    ]
