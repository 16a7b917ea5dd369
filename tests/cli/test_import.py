"""``import`` and ``restore`` as commands: one segment back from last night's backup, whole containers, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

import chunkstore
from chunkstore.config import RollingPolicy
from tests.cli.conftest import Call
from tests.support.data import pattern


@pytest.fixture
def filled(root: str) -> str:
    with chunkstore.open(root) as store:
        store.create("orders-7", rolling=RollingPolicy(chunk_size_bytes_max=1000))
        store.append("orders-7", pattern(0, 10_000), writer_id="w", event_number=3)
        store.create("orders-8")
        store.append("orders-8", b"xyz")
    return root


@pytest.fixture
def other(tmp_path: Path) -> str:
    return (tmp_path / "other").as_uri()


def test_one_segment_that_was_deleted_by_mistake_comes_back(
    call: Call, filled: str, other: str, tmp_path: Path
) -> None:
    backups, file = tmp_path / "backups", tmp_path / "data"
    call("backup", filled, backups.as_uri())
    call("rm", filled, "orders-7")
    dry = call("restore", backups.as_uri(), other, "--segments", "orders-7", "--dry-run", "--json").document
    assert dry["dry_run"] and (dry["segments"], dry["chunks"], dry["missing"]) == (1, 10, [])
    done = call("restore", backups.as_uri(), other, "--segments", "orders-7", "--json").document
    assert done == {**dry, "dry_run": False}
    file.write_bytes(call("cat", other, "orders-7").out)
    call("put", filled, "orders-7", str(file))
    assert call("cat", filled, "orders-7").out == pattern(0, 10_000)
    assert call("check", filled, "--deep", "--json").document["ok"]
    said = call("restore", backups.as_uri(), other, "--segments", "orders-8", "--json", code=2).error
    assert said["fields"] == {"argument": "new_root"}


def test_an_export_as_a_new_container(call: Call, filled: str, other: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.cks"
    call("export", filled, file)
    done = call("import", other, file, "--json").document
    assert (done["container"], done["segments"], done["rows"]) == ("default", 2, 0)
    with chunkstore.open(other) as store:
        assert all(info.id >> 32 == 1 for info in store.segments())
        assert store.read("orders-7", 0, 99_999) == pattern(0, 10_000)
        assert store.append("orders-7", pattern(0, 10_000), writer_id="w", event_number=3) == 0
    call("import", other, file, code=2)
    assert b"imported" in call("import", other, file, "orders-8", "--as", "second").out
    assert call("cat", other, "orders-8", "--container", "second").out == b"xyz"
    assert call("import", other, filled, "orders-8", "--as", "third", "--lsn", "5", "--json").document["lsn"] == 5
    given = ("--segments", "orders-*", "--from", filled, "--new-container", "fourth")
    assert call("restore", file, other, *given, "--json").document["segments"] == 2
