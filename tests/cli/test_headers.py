"""``import --headers`` and ``export --headers`` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Call


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A root with the header files of two segments."""
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / "a$header").write_bytes(b"maxsize=5&0=a$offset.0&5=a$offset.5&")
    (folder / "a$offset.0").write_bytes(b"01234")
    (folder / "a$offset.5").write_bytes(b"56")
    (folder / "b$header").write_bytes(b"0=bytes&")
    (folder / "bytes").write_bytes(b"of b")
    return folder


def test_an_old_root_is_taken_over_and_given_back(call: Call, old: Path, root: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    planned = call("import", root, old, "--headers", "--dry-run", "--json").document
    assert planned["segments"] == ["a", "b"]
    assert not (old / "default").exists()
    found = call("import", root, old, "a", "--headers", "--json").document
    assert (found["segments"], found["there"], found["length"]) == (["a"], [], 7)
    found = call("import", root, old, "--headers", "--json").document
    assert (found["segments"], found["there"]) == (["b"], ["a"])
    call("put", root, "b", tmp_path / "file", "--append")
    assert call("cat", root, "b").out == b"of b12345"
    report = call("export", root, old, "--headers", "--replace", "--json").document
    assert report["segments"] == 2
    call("export", root, old, "--headers", code=2)
    other = (tmp_path / "other").as_uri()
    assert b"imported" in call("import", other, old, "--headers").out
    assert call("cat", other, "b").out == b"of b12345"
    for wrong in (["--no-pin"], ["--topic", "t"], ["--expires", "5"]):
        call("export", root, old, "--headers", *wrong, code=2)
    for other_option in (["--from", "x"], ["--lsn", "0"], ["--merge"], ["--as", "x"]):
        call("import", other, old, "--headers", *other_option, code=2)
    call("export", root, tmp_path / "file.cks", "--replace", code=2)
