"""``restore`` as a command: what it says, what it refuses, and that a kill at any moment costs nothing but time."""

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
        store.create("a", rolling=RollingPolicy(chunk_size_bytes_max=1000))
        store.append("a", pattern(0, 10_000), writer_id="w", event_number=3)
        store.create("b")
        store.append("b", b"xyz")
    return root


@pytest.fixture
def new_root(tmp_path: Path) -> str:
    return (tmp_path / "new").as_uri()


def test_from_a_named_snapshot_to_another_root(call: Call, filled: str, new_root: str) -> None:
    named = call("snapshot", filled, "--name", "nightly", "--json").document
    assert named["pin"] == "nightly" and named["pin_lsn"] > named["lsn"]
    lsn = str(named["pin_lsn"])
    call("rm", filled, "b")
    assert call("cat", filled, "b", "--at-lsn", lsn).out == b"xyz"
    assert [item["name"] for item in call("ls", filled, "--at-lsn", lsn, "--json").lines] == ["a", "b"]
    assert call("stat", filled, "b", "--at-lsn", lsn, "--json").document["length"] == 3
    dry = call("restore", filled, new_root, "--lsn", lsn, "--dry-run", "--json").document
    assert dry["dry_run"] and (dry["segments"], dry["chunks"], dry["missing"]) == (2, 11, [])
    assert not call("containers", new_root).out
    done = call("restore", filled, new_root, "--snapshot", "nightly", "--json").document
    assert done == {**dry, "dry_run": False}
    assert call("cat", new_root, "a").out == pattern(0, 10_000)
    assert call("cat", new_root, "b").out == b"xyz"
    assert call("check", new_root, "--deep", "--json").document["ok"]
    again = call("restore", filled, new_root, "--snapshot", "nightly", "--json", code=2)
    assert again.error["error"] == "InvalidArgument" and again.error["fields"] == {"argument": "new_root"}
    assert b"restored" in call("restore", filled, new_root, "--new-container", "other").out


def test_misuse(call: Call, filled: str, new_root: str) -> None:
    for given in (
        ("--lsn", "0"),
        ("--lsn", "10000"),
        ("--lsn", "3", "--snapshot", "x"),
        ("--snapshot", "x"),
        ("--time", "yesterday"),
        ("--time", "2026-03-01T12:00:00"),
        ("--time", "9999-03-01T12:00:00Z"),
    ):
        call("restore", filled, new_root, *given, code=2)
    assert b"9999-03-01T12:00:00.000+00:00 is in the future" in call("restore", filled, new_root, *given, code=2).err
    call("cat", filled, "b", "--at-lsn", "3", "--follow", code=2)
    call("ls", filled, "--at-lsn", "3", "--at-time", "5", code=2)
    call("restore", filled + "-other", new_root, code=1)
