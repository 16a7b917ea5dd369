"""``restore --in-place`` as a command: what it says before, what it does, what it refuses."""

from __future__ import annotations

import pytest

import chunkstore
from chunkstore.config import RollingPolicy
from tests.cli.conftest import Call


@pytest.fixture
def filled(root: str) -> str:
    with chunkstore.open(root) as store:
        store.create("a", rolling=RollingPolicy(chunk_size_bytes_max=4))
        store.append("a", b"first;", writer_id="w", event_number=3)
        store.pin("good")
        store.append("a", b"mistake", writer_id="w", event_number=4)
        store.table("sinks").put(b"job", b"\xff")
        store.truncate("a", 8)
        store.create("b")
    return root


def test_undo(call: Call, filled: str) -> None:
    told = call("restore", filled, "--in-place", "--snapshot", "good", "--dry-run", "--take-over").out.decode()
    for text in ("would go back", "not there", "sinks", "4 to 3"):
        assert text in told
    dry = call("restore", filled, "--in-place", "--snapshot", "good", "--dry-run", "--json").document
    assert dry["epoch"] == 0 and dry["copied_chunks"] == 2 and dry["writers"][0]["then_event_number"] == 3
    done = call("restore", filled, "--in-place", "--snapshot", "good", "--json").document
    assert done == {**dry, "epoch": 2, "dry_run": False}
    assert call("cat", filled, "a").out == b"first;"
    call("check", filled, "--deep")
    assert [item["name"] for item in call("ls", filled, "--json").lines] == ["a"]


def test_refused(call: Call, filled: str, root: str) -> None:
    for extra in ((), ("--lsn", "2", f"{root}/elsewhere"), ("--lsn", "2", "--new-container", "x"), ("--lsn", "900")):
        call("restore", filled, "--in-place", *extra, code=2)
    call("restore", filled, "--lsn", "2", code=2)
