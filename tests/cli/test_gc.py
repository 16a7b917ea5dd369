"""``gc``: what it deletes, what it only tells, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import chunkstore
from chunkstore.records.names import ContainerNames, chunk_id
from tests.cli.conftest import Call

NAMES = ContainerNames("default")


def wreck(root: str, where: Path) -> Path:
    """Two chunks of garbage, and an orphan of the first epoch; returns its path."""
    with chunkstore.open(root, settings=chunkstore.Settings(inline_bytes_max=0)) as store:
        for name in ("a", "b", "c"):
            store.create(name)
            store.append(name, b"12345")
        store.delete("a")
        store.delete("b")
    path = where / "store" / NAMES.chunk(chunk_id(1, 1, 99, 1))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"orphan")
    return path


def test_gc_collects_and_sweeps(call: Call, root: str, tmp_path: Path) -> None:
    orphan = wreck(root, tmp_path)
    before = call("owner", root, "--json").document["claimed_epoch"]
    plan = call("gc", root, "--dry-run", "--orphans", "--age-s", "0", "--json").document
    # Of the present epoch nothing is an orphan yet: for whoever claims next, as the real run does, it is.
    collect = {"action": "collect", "chunks": 0, "bytes": 0}
    sweep = {"action": "sweep", "chunks": 1, "bytes": 6}
    assert plan == {"actions": [collect, sweep], "bytes": 6, "requests": 1, "waiting": 2}
    now = call("gc", root, "--dry-run", "--grace-s", "0", "--json").document
    assert now == {"actions": [collect | {"chunks": 2, "bytes": 10}], "bytes": 10, "requests": 2, "waiting": 0}
    for more in (["--dry-run"], []):
        noted = call("gc", root, *more)
        assert b"2 chunks" in noted.out and b"--grace-s 0 deletes them now, --ask" in noted.err
    before += 1
    assert call("owner", root, "--json").document["claimed_epoch"] == before
    done = call("gc", root, "--json").document
    assert (done["chunks"], done["waiting"], done["orphans"]) == (0, 2, None), "their grace begins with the claim"
    found = call("gc", root, "--orphans", "--age-s", "0", "--grace-s", "0", "--json").document
    assert (found["chunks"], found["orphans"]["orphans"], found["orphans"]["deleted"]) == (2, 1, 0)
    assert orphan.exists()
    plan = call("gc", root, "--dry-run", "--orphans", "--age-s", "0", "--json").document
    assert plan["actions"][1] == {"action": "sweep", "chunks": 1, "bytes": 6}
    young = call("gc", root, "--orphans", "--delete", "--json").document["orphans"]
    assert (young["waiting"], young["deleted"]) == (1, 0)
    said = call("gc", root, "--orphans", "--delete", "--keep-in", "lost", "--age-s", "0").out.decode()
    assert "1, 6 B" in said and not orphan.exists()
    (copy,) = (tmp_path / "store" / "default" / "lost").glob("*/*")
    assert copy.read_bytes() == b"orphan"
    assert call("cat", root, "c").out == b"12345"
    assert call("check", root, "--deep", "--json").document == {"ok": True, "level": "deep", "findings": []}


def test_the_plan_is_what_the_run_does_where_a_pin_keeps_garbage(call: Call, root: str, tmp_path: Path) -> None:
    wreck(root, tmp_path)
    call("pins", "add", root, "p")
    call("rm", root, "c")
    (plan,) = call("gc", root, "--dry-run", "--grace-s", "0", "--json").document["actions"]
    done = call("gc", root, "--grace-s", "0", "--json").document
    assert (plan["chunks"], plan["bytes"]) == (done["chunks"], done["chunk_bytes"]) == (2, 10)
    assert done["pinned"] == 1


def test_misuse(call: Call, root: str, tmp_path: Path) -> None:
    wreck(root, tmp_path)
    for options in (
        ("--delete",),
        ("--keep-in", "lost"),
        ("--orphans", "--keep-in", "lost"),
        ("--orphans", "--delete", "--keep-in", "d"),
        ("--orphans", "--age-s", "-1"),
        ("--grace-s", "-1"),
    ):
        assert call("gc", root, *options, "--json", code=2).error["error"] == "InvalidArgument", options
