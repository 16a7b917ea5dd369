"""A restored backup takes a root's place, by the command line and in Python; what a machine has seen of it, and what it has not."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import chunkstore
from chunkstore import Settings
from chunkstore.errors import Damaged, RolledBack
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkHandle
from tests.cli.conftest import Call
from tests.support.servers.s3server import S3Server


@dataclass
class Place:
    """A root, and its objects as somebody copies them who knows nothing of chunkstore."""

    root: str
    settings: Settings

    def objects(self) -> dict[str, bytes]:
        if self.root.startswith("file:"):
            folder = Path(urlsplit(self.root).path)
            return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        storage = open_storage(self.root, self.settings)
        names = [item.name for item in storage.list("", limit=10_000).items]
        found = {name: storage.read(ChunkHandle(name, False), 0, 1 << 24) for name in names}
        storage.close()
        return found

    def become(self, objects: dict[str, bytes]) -> None:
        if self.root.startswith("file:"):
            folder = Path(urlsplit(self.root).path)
            shutil.rmtree(folder)
            for name, data in objects.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            return
        storage = open_storage(self.root, self.settings)
        for item in storage.list("", limit=10_000).items:
            storage.delete(item.name)
        for name, data in objects.items():
            storage.put(name, data)
        storage.close()


# What this machine has seen lies beside its caches, whatever the storage.
FILES = pytest.mark.parametrize("place", ["file-append", "file-slot"], indirect=True)


@pytest.fixture(params=["file-append", pytest.param("s3-slot", marks=pytest.mark.proof)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    kind, _, mode = request.param.partition("-")
    if kind == "s3":
        server = request.getfixturevalue("moto")
        assert isinstance(server, S3Server)
        root = server.root(server.make_bucket(), "store")
    else:
        root = (tmp_path / "store").as_uri()
    found = Place(root, Settings(journal_mode="append" if mode == "append" else "slot"))
    chunkstore.open(root, settings=found.settings).close()
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(256)) * 20)
    return path


def restored(call: Call, place: Place, file: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """A backup after a close, the root goes on, and the backup comes back. Both states."""
    call("put", place.root, "a", file)
    backup = place.objects()
    call("put", place.root, "b", file)
    call("put", place.root, "c", file)
    newer = place.objects()
    place.become(backup)
    return backup, newer


def test_a_restored_backup_and_the_way_on(call: Call, place: Place, file: Path, tmp_path: Path) -> None:
    backup, newer = restored(call, place, file)
    error = call("put", place.root, "d", file, "--json", code=1).error
    assert error["error"] == "RolledBack"
    assert error["fields"]["lsn_seen"] > error["fields"]["lsn_now"] > 0
    assert "a restored backup" in error["message"]
    assert "--accept-rollback" in error["message"]
    assert place.objects() == backup, "it is as it was restored"
    with pytest.raises(RolledBack):
        chunkstore.open(place.root, settings=place.settings)
    found = call("check", place.root, "--json", code=1).document["findings"]
    assert {item["invariant"] for item in found} == {12}
    assert {item["severity"] for item in found} == {"damage"}
    assert call("cat", place.root, "a").out == file.read_bytes(), "readers do no harm"
    # Put right, all goes on; restored once more, and accepted:
    place.become(newer)
    call("put", place.root, "d", file)
    place.become(backup)
    call("put", place.root, "e", file, "--accept-rollback")
    call("put", place.root, "f", file)
    assert call("check", place.root, "--deep", "--json").document["ok"]
    shutil.rmtree(tmp_path / "cache")
    call("put", place.root, "g", file)
    assert [line["name"] for line in call("ls", place.root, "--json").lines] == ["a", "e", "f", "g"]
    assert call("cat", place.root, "f").out == file.read_bytes()


@FILES
def test_a_lost_format_is_named_and_never_made_anew(call: Call, place: Place, file: Path) -> None:
    """Before, it was said that there is no container, and where no claims were left, another one was made in its place."""
    file.write_bytes(bytes(100_000))  # more than goes into a record
    call("put", place.root, "a", file)
    whole = place.objects()
    for kept in ("/epoch/", "/j/", "/d/"):
        left = {name: data for name, data in whole.items() if kept in name}
        assert left
        place.become(left)
        for verb in (("cat", place.root, "a"), ("put", place.root, "b", file), ("rm", place.root, "a")):
            error = call(*verb, "--json", code=1).error if verb[0] != "cat" else None
            if error is None:
                assert b"default/FORMAT" in call(*verb, code=1).err
            else:
                assert (error["error"], error["fields"]["object"]) == ("Damaged", "default/FORMAT")
        [finding] = call("check", place.root, "--json", code=1).document["findings"]
        assert finding["object"] == "default/FORMAT"
        for create in (True, False):
            with pytest.raises(Damaged) as raised:
                chunkstore.open(place.root, settings=place.settings, create=create)
            assert raised.value.object == "default/FORMAT"
        assert place.objects() == left
    place.become(whole)
    assert call("cat", place.root, "a").out == file.read_bytes()
