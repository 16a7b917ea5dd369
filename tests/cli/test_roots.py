"""Roots as people write them: paths, the variables of the command line, and paths that are misspelt."""

from __future__ import annotations

from pathlib import Path

import pytest

import chunkstore
from chunkstore import backup
from chunkstore.buckets import open_bucket
from chunkstore.errors import ContainerNotFound, RootUnavailable
from chunkstore.pulsar import PulsarBucket
from chunkstore.spark.options import parse_options
from chunkstore.spark.write_options import parse_write_options
from tests.cli.conftest import Call
from tests.support.data import refused


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a file."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "file").write_bytes(b"hello")
    monkeypatch.chdir(folder)
    return folder


def test_paths_are_taken_wherever_a_root_is(here: Path) -> None:
    with chunkstore.open("log") as store:
        store.create("a")
        store.append("a", b"hello")
        with chunkstore.open_asker(Path("log")) as asker:
            assert asker.replica.read("a", 0, 5) == b"hello"
        assert store.scrub(repair_from=_copied(here, store)).ok
    with chunkstore.open_replica(here / "log") as replica:
        assert backup.export(replica, "export.cks", pin=False).segments == 1
    backup.backup(Path("log"), Path("backups"))
    assert len(list(backup.list_backups("backups"))) == 1
    backup.restore(Path("backups"), Path("again"))
    backup.import_(Path("third"), Path("export.cks"), from_=Path("log"))
    for name in ("again", "third"):
        with chunkstore.open_replica(name) as replica:
            assert replica.read("a", 0, 5) == b"hello"
    url = (here / "log").as_uri()
    assert parse_options({"path": "log", "segments": "a"}).path == url
    assert parse_write_options({"path": "log", "segments": "a"}, streaming=False).path == url
    with PulsarBucket(Path("log")) as bucket:
        assert list(bucket.ledgers()) == []


def _copied(here: Path, store: chunkstore.Store) -> Path:
    backup.backup(store, "copy", pin=False)
    return Path("copy")


def test_a_misspelt_path_makes_nothing(call: Call, here: Path) -> None:
    refused(
        RootUnavailable,
        lambda: chunkstore.open("mispelt/log"),
        lambda: open_bucket("mispelt/bucket").put("a/b", b"x"),
    )
    refused(ContainerNotFound, lambda: chunkstore.open("log", create=False), lambda: chunkstore.open_replica("log"))
    call("put", "log", "a", "file")
    before = sorted(here.rglob("*"))
    call("put", "mispelt/log", "a", "file", code=1)
    call("backup", "log", "mispelt/backups", code=1)
    call("restore", "log", "mispelt/new", code=1)
    for arguments, error in (
        (("put", "lgo", "a", "file", "--append"), "ContainerNotFound"),
        (("put", "log", "a", "file", "--append", "--container", "x"), "ContainerNotFound"),
        (("put", "log", "b", "file", "--append"), "SegmentNotFound"),
        (("offload", "lgo", "file", "--topic", "t", "--ledger", "1", "--append"), "ContainerNotFound"),
    ):
        assert call(*arguments, "--json", code=1).error["error"] == error
    made = {path.relative_to(here).parts[:2] for path in set(here.rglob("*")) - set(before)}
    assert made <= {("log", "default")}  # claims and pins of the verbs that found the container
    assert call("ls", "log", "--json").lines[0]["name"] == "a"
    conflict = call("offload", "log", "file", "--topic", "t", "--ledger", "1", "--append", "--json", code=1).error
    assert (conflict["error"], call("ledger", "ls", "log", "--json").lines) == ("Conflict", [])


def test_the_variables_stand_for_what_is_left_out(call: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHUNKSTORE_ROOT", "log")
    monkeypatch.setenv("CHUNKSTORE_CONTAINER", "orders")
    call("put", "a", "file")
    assert call("cat", "--offset", "1", "a").out == b"ello"
    assert call("containers", "--json").lines == [{"container": "orders"}]
    assert call("pins", "add", "p", "--json").document["name"] == "p"
    call("put", "other", "a", "file", "--container", "carts")  # what is given counts
    assert call("containers", "other", "--json").lines == [{"container": "carts"}]
    assert b'write "$CHUNKSTORE_ROOT"' in call("ls", "a", code=1).err  # with optional arguments the first one is ROOT
    assert call("ls", "log", "b", "--json").lines == []
    assert b"CHUNKSTORE_ROOT" in call("ls", "--help").out
    assert b"SEGMENT" in call("cat", code=2).err
    monkeypatch.delenv("CHUNKSTORE_ROOT")
    assert b"SEGMENT" in call("cat", "a", code=2).err
