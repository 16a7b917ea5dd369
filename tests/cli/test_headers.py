"""``import-headers`` and ``export --headers``: segments of the old layout on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Call


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A root of the old layout with two segments."""
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
    for arguments in (["ls", root], ["put", root, "new", tmp_path / "file"], ["import-headers", old, root]):
        error = call(*arguments, "--json", code=2).error
        assert error["fields"] == {"argument": "layout"}
        assert "CODE_ONLY_UPGRADE" in error["message"]
    planned = call("import-headers", old, root, "--dry-run", "--json").document
    assert planned["segments"] == ["a", "b"]
    assert not (old / "default").exists()
    call("import-headers", old, root, "--layout", "NO_UPGRADE", code=2)
    found = call("import-headers", old, root, "a", "--layout", "CODE_ONLY_UPGRADE", "--json").document
    assert (found["segments"], found["length"]) == (["a"], 7)
    # Other verbs go on with what was chosen.
    call("put", root, "b", tmp_path / "file", "--append")
    assert call("cat", root, "b").out == b"of b12345"
    call("import-headers", old, root, "--layout", "CODE_ONLY_UPGRADE", "--resume", "--json", code=0)
    report = call("export", root, old, "--headers", "--replace", "--json").document
    assert report["segments"] == 2
    call("export", root, old, "--headers", code=2)
    other = (tmp_path / "other").as_uri()
    assert b"imported" in call("import-headers", old, other).out
    assert call("cat", other, "b").out == b"of b12345"
    for wrong in (["--no-pin"], ["--topic", "t"], ["--expires", "5"]):
        call("export", root, old, "--headers", *wrong, code=2)
    call("export", root, tmp_path / "file.cks", "--replace", code=2)


def test_damage_is_listed_and_nothing_is_imported(call: Call, old: Path, root: str, tmp_path: Path) -> None:
    (old / "a$offset.0").write_bytes(b"012")
    for more in ([], ["--dry-run"]):
        found = call("import-headers", old, (tmp_path / "new").as_uri(), *more, "--json", code=1).document
        assert [(item["object"], item["position"]) for item in found["findings"]] == [("a$offset.0", 3)]
        assert not (tmp_path / "new").exists() or not [*(tmp_path / "new").iterdir()]
    assert b"not imported" in call("import-headers", old, (tmp_path / "new").as_uri(), code=1).out
    call("import-headers", old, (tmp_path / "new").as_uri(), "b")
