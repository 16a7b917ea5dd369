"""What people see at a terminal: bars that leave no line, tables that fit, one line for each error with what to type next."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import chunkstore
from chunkstore.cli import output
from chunkstore.errors import StorageFull
from tests.cli.conftest import Call


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "80"), ("LINES", "24")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)


def screen(written: bytes, width: int = 80) -> list[str]:
    """The lines that a terminal shows after these bytes."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|[^\x1b]", written.decode()):
        if part.startswith("\x1b["):
            if part.endswith("A"):
                row -= int(part[2:-1] or 1)
            elif part.endswith("K"):
                lines[row] = lines[row][:column] if part == "\x1b[K" else ""
            continue
        if part == "\n" or (column == width and part != "\r"):
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        if part == "\r":
            column = 0
        elif part != "\n":
            lines[row] = lines[row].ljust(column)[:column] + part + lines[row][column + 1 :]
            column += 1
    return [line for line in lines if line.strip()]


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("segment", ["a", "a-name-that-is-longer-than-the-terminal-" * 3])
def test_bars_leave_no_line(call: Call, root: str, tmp_path: Path, segment: str) -> None:
    (tmp_path / "file").write_bytes(bytes(9_000_000))
    stored = call("put", root, segment, tmp_path / "file").err
    assert b"MiB" in stored and screen(stored) == []
    for verb in (("check", root, "--deep"), ("get", root, segment, tmp_path / "copy"), ("restore", root, root + "2")):
        shown = call(*verb).err
        assert b"MiB" in shown and screen(shown) == [], verb
    assert call("check", root, "--deep", "--json").err == b""


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("name", ["short", "long-" * 20])
def test_tables_fit_a_terminal_and_are_whole_in_a_pipe(
    call: Call, root: str, monkeypatch: pytest.MonkeyPatch, width: int, name: str
) -> None:
    call("put", root, name, __file__)
    monkeypatch.setenv("COLUMNS", str(width))
    assert call("ls", root).out.split(b"\t")[0] == name.encode()
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    shown = call("ls", root).out.decode()
    size = str(len(Path(__file__).read_bytes()))
    assert re.search(rf"\b{size}\b", shown) and re.search(r"\d\d:\d\d:\d\dZ", shown)
    assert name in re.sub(r"\s", "", shown) or width < 200
    if width > 40 or name == "short":
        assert max(map(len, shown.splitlines())) <= width


@pytest.mark.parametrize(
    ("arguments", "next_step"),
    [
        (("cat", "{root}", "b"), "'chunkstore ls ROOT'"),
        (("ls", "{root}", "--container", "c"), "'chunkstore containers ROOT'"),
        (("cat", "{root}", "a"), "'chunkstore check ROOT'"),
        (("put", "{root}", "b", __file__), "'chunkstore gc ROOT --grace-s 0'"),
    ],
)
def test_an_error_says_in_one_line_what_to_type_next(
    call: Call, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], next_step: str
) -> None:
    (tmp_path / "file").write_bytes(bytes(9_000_000))
    call("put", root, "a", tmp_path / "file")
    with chunkstore.open_replica(root) as replica:
        chunk = next(replica.layout("a"))
    assert chunk.kind != "inline"
    os.truncate(tmp_path / "store" / chunk.name, 1)
    if arguments[0] == "put":

        def full(*_: object, **__: object) -> None:
            raise StorageFull("no space left")

        monkeypatch.setattr(chunkstore.ChunkedSegmentStorage, "commit", full)
    [line] = call(*(item.format(root=root) for item in arguments), code=1).err.decode().splitlines()
    assert line.startswith("chunkstore: ") and next_step in line
