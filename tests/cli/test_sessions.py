"""``sessions ls`` and ``end``: what they print, what they end, and what they claim."""

from __future__ import annotations

from contextlib import closing

import chunkstore
from chunkstore.config import Settings
from chunkstore.engine.owner import find_session
from chunkstore.operations.session_writer import SessionWriter
from chunkstore.registry import open_storage
from tests.cli.conftest import Call


def left_open(root: str, *holders: str) -> list[int]:
    """Sessions whose writers were killed when each had written a chunk."""
    with chunkstore.open(root) as store:
        store.create("a")
        found = [find_session(store, holder).session_id for holder in holders]
        with closing(open_storage(root, Settings())) as storage:
            for session_id in found:
                SessionWriter(store.container, session_id).write_chunk(storage, 0, b"12345")
    return found


def claims(call: Call, root: str) -> int:
    epoch = call("owner", root, "--json").document["claimed_epoch"]
    assert isinstance(epoch, int)
    return epoch


def test_what_a_killed_writer_left_is_ended_and_swept(call: Call, root: str) -> None:
    one, two = left_open(root, "spark\x1b job", "stream")
    listed = call("sessions", "ls", root, "--json").lines
    assert [list(item) for item in listed] == [["id", "holder", "opened_at", "expires_at"]] * 2
    assert [item["id"] for item in listed] == [one, two]
    assert b"\x1b" not in call("sessions", "ls", root).out
    assert call("sessions", "ls", root, "--older-than", "86400").out == b""
    assert call("gc", root, "--orphans", "--age-s", "0", "--json").document["orphans"]["orphans"] == 0
    claimed = claims(call, root)
    plan = call("sessions", "end", root, str(one), "--dry-run", "--json").document
    assert plan == {"actions": [{"action": "end", "id": one, "holder": "spark\x1b job"}], "bytes": 0, "requests": 0}
    assert b"\x1b" not in call("sessions", "end", root, str(one), "--dry-run").out
    assert call("sessions", "end", root, "--older-than", "86400", "--json").out == b""
    assert claims(call, root) == claimed, "nobody is fenced for nothing"
    assert len(call("sessions", "ls", root, "--json").lines) == 2
    done = call("sessions", "end", root, str(one), str(one), "--json").document
    assert done == {"id": one, "holder": "spark\x1b job", "ended": True}
    assert [item["id"] for item in call("sessions", "ls", root, "--json").lines] == [two]
    report = call("gc", root, "--orphans", "--delete", "--age-s", "0", "--json").document["orphans"]
    assert report["deleted"] == 1 and report["by_kind"] == {"session chunk": {"objects": 1, "size_bytes": 5}}
    assert b"stream" in call("sessions", "end", root, "--older-than", "0").out
    assert call("sessions", "ls", root, "--json").lines == []
