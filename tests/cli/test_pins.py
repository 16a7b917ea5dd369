"""``pins ls``, ``add`` and ``rm``: what they print, and what they claim."""

from __future__ import annotations

from pathlib import Path

import chunkstore
from tests.cli.conftest import Call


def test_add_ls_rm(call: Call, root: str, tmp_path: Path) -> None:
    assert call("pins", "add", root, "p", "--json", code=1).error["error"] == "ContainerNotFound"
    (tmp_path / "file").write_bytes(b"12345")
    call("put", root, "a", tmp_path / "file")
    assert call("pins", "ls", root, "--json").lines == []
    made = call("pins", "add", root, "p", "--note", "before\x1b the upgrade", "--expires-s", "60", "--json").document
    assert list(made) == ["name", "lsn", "holder", "note", "created_at", "expires_at"]
    assert made["name"] == "p" and made["expires_at"] == made["created_at"] + 60_000
    assert b"never" in call("pins", "add", root, "q").out
    [first, second] = call("pins", "ls", root, "--json").lines
    assert first == made and (second["name"], second["expires_at"], second["note"]) == ("q", None, "")
    shown = call("pins", "ls", root).out
    assert b"p\t%d\t" % made["lsn"] in shown and b"\x1b" not in shown
    error = call("pins", "add", root, "p", "--json", code=1).error
    assert error["error"] == "Conflict" and str(made["lsn"]) in error["fields"]["found"]
    assert call("pins", "rm", root, "p", "--json").document == {"pin": "p", "removed": True}
    assert call("pins", "rm", root, "p", "--json", code=1).error == {
        "error": "NoSuchPin",
        "message": "no pin 'p' here; pins ls lists the pins",
        "fields": {"pin": "p"},
    }
    assert [row["name"] for row in call("pins", "ls", root, "--json").lines] == ["q"]
    claimed = call("owner", root, "--json").document["claimed_epoch"]
    call("pins", "ls", root)
    assert call("owner", root, "--json").document["claimed_epoch"] == claimed
    assert call("pins", "add", root, "", code=2).err and call("pins", "add", root, "x", "--expires-s", "-1", code=2).err
    assert call("owner", root, "--json").document["claimed_epoch"] == claimed, "nobody is fenced for what is refused"
    with chunkstore.open(root) as store:
        assert [pin.name for pin in store.pins()] == ["q"]
        assert {record["kind"] for record in call("journal", root, "--json").lines} >= {"PIN", "UNPIN"}
