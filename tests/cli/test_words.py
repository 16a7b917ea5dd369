"""Sizes, ages and times as people write them; examples, other names and completion of verbs; words that are no roots."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from chunkstore.cli import transfer
from chunkstore.cli.app import load_verb
from chunkstore.cli.verbs import EXAMPLES
from tests.cli.conftest import Call


@pytest.mark.parametrize(("text", "size"), [("7", 7), ("1KiB", 1024), ("1.5 kib", 1536), ("0.1kB", 100), ("5B", 5)])
def test_sizes(call: Call, root: str, tmp_path: Path, text: str, size: int) -> None:
    (tmp_path / "file").write_bytes(bytes(range(256)) * 8)
    call("put", root, "a", tmp_path / "file")
    assert len(call("cat", root, "a", "--length", text).out) == size
    assert call("truncate", root, "a", text, "--dry-run", "--json").document["bytes"] == size


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1 XiB", "nan", "0x10", "1e999", "KiB"])
def test_what_is_no_size_or_age_is_told_its_forms(call: Call, root: str, text: str) -> None:
    assert b"64MiB" in call("cat", root, "a", f"--length={text}", code=2).err
    if text != "1.5":
        assert b"90d" in call("gc", root, f"--age-s={text}", code=2).err


def test_a_date_is_its_midnight(call: Call, root: str) -> None:
    call("put", root, "a", __file__)
    first, second = (
        call("cat", root, "a", "--at-time", text, "--json", code=1).error
        for text in ("2001-01-01", "2001-01-01T00:00:00Z")
    )
    assert first == second and first["error"] != "InvalidArgument"


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_commands(name: str, call: Call) -> None:
    for example in EXAMPLES[name]:
        words = shlex.split(example)
        assert words[: len(name.split())] == name.split()
        command: Any = load_verb(words[0])
        if " " in name:
            command = command.commands[words[1]]
        command.make_context(name, words[len(name.split()) :])
        assert example.split()[-1].encode() in call(*name.split(), "--help").out


@pytest.mark.parametrize(
    ("words", "completions"), [("chunkstore re", ["retention", "restore"]), ("chunkstore kafka t", ["tier"])]
)
def test_completion(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str, completions: list[str]
) -> None:
    from chunkstore.cli import main

    monkeypatch.setenv("_CHUNKSTORE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out.split() == completions


@pytest.mark.parametrize("verb", ["import", "backup", "restore"])
def test_a_verb_is_no_new_root(
    call: Call, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.chdir(tmp_path)
    call("put", root, "a", __file__)
    order = ("ls", root) if verb == "import" else (root, "ls")
    assert b"./ls" in call(verb, *order, code=2).err
    assert not (tmp_path / "ls").exists()
    call(verb, *(item.replace("ls", "./ls") if item == "ls" else item for item in order))
    assert call("cat", "./ls", "a").out == Path(__file__).read_bytes()


def test_tail(call: Call, root: str, tmp_path: Path) -> None:
    for text, lines, end in (
        ("1\n2\n3", 2, "2\n3"),
        ("1\n2\n", 1, "2\n"),
        ("\n\n", 5, "\n\n"),
        ("1\n2", 0, ""),
        ("", 1, ""),
    ):
        (tmp_path / "file").write_text(text)
        call("put", root, "a", tmp_path / "file")
        assert call("tail", root, "a", "-n", str(lines)).out.decode() == end
        call("rm", root, "a")
    long = b"begin\n" + b"x" * 3_000_000 + b"\n" + b"end\n" * 9
    (tmp_path / "file").write_bytes(long)
    call("put", root, "a", tmp_path / "file", "--seal")
    assert call("tail", root, "a", "--follow").out == long[6:]
    assert call("tail", root, "a", "--bytes", "5").out == long[-5:]
    call("tail", root, "a", "--bytes", "5", "-n", "1", code=2)


def test_get(call: Call, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call("put", root, "a", __file__)
    folder = tmp_path / "folder"
    folder.mkdir()
    target, data = folder / "copy", Path(__file__).read_bytes()
    assert call("get", root, "a", target, "--json").document["length"] == len(data)
    assert target.read_bytes() == data
    target.write_bytes(b"mine")
    assert b"--force" in call("get", root, "a", target, code=2).err
    assert target.read_bytes() == b"mine"
    late = folder / "late"
    copy_out = transfer._copy_out
    with monkeypatch.context() as patch:

        def appears(*given: Any, **named: Any) -> None:
            copy_out(*given, **named)
            late.write_bytes(b"theirs")

        patch.setattr(transfer, "_copy_out", appears)
        call("get", root, "a", late, code=2)
    assert late.read_bytes() == b"theirs"
    call("get", root, "a", target, "--force")
    assert target.read_bytes() == data
    call("get", root, "a", folder, code=2)
    assert call("get", root, "a", folder / "no" / "copy", "--json", code=1).error["error"] == "FileUnwritable"
    call("get", root, "b", folder / "other", code=1)
    assert sorted(path.name for path in folder.iterdir()) == ["copy", "late"]
