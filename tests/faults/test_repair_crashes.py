"""A repair that is killed at any of its storage calls is run again, and ends as if nothing had happened."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chunkstore.assembly import open_store_on
from chunkstore.config import Settings
from chunkstore.errors import Damaged
from chunkstore.metadata.port import GENESIS
from chunkstore.names import ContainerNames
from chunkstore.repair import repair
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_journal.history import open_streams
from chunkstore_journal.lease import write_lease
from chunkstore_journal.walk import find_last_claim
from tests.support.data import problems
from tests.support.forwarding import Hooked
from tests.support.packed import unpack

GOLDEN = Path(__file__).parents[1] / "golden" / "wrecks"
CHANGING = ("create", "create_if_absent", "put", "write", "sync", "harden", "delete")
"""Between two of these calls the storage is the same wherever the process ends."""


def settings(folder: Path, cache: str) -> Settings:
    return Settings(cache_dir=str(folder / cache), lease_s=0, lmdb_map_bytes=1 << 26)


def hooked(folder: Path, before: Callable[[str, tuple[str, ...]], None]) -> Hooked:
    storage = Hooked(FilesystemChunkStorage(str(folder / "root")))
    storage.before = before
    return storage


def contents(folder: Path) -> dict[str, Any]:
    storage = FilesystemChunkStorage(str(folder / "root"))
    with open_store_on(storage, settings=settings(folder, "cache-at-the-end"), close_storage=True) as store:
        assert problems(store.check("deep")) == []
        row = store.table("colours").get(b"red")
        held: dict[str, Any] = {info.name: store.read(info.name, 0, 999) for info in store.segments()}
        return held | {"row": row and row.value}


def killed_at(folder: Path, number: int, *, after: bool) -> bool:
    """Run a repair in a child process that ends at its changing call ``number``, before or after it; whether it got there."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WIFEXITED(status) and os.WEXITSTATUS(status) in (0, 9)
        return os.WEXITSTATUS(status) == 9
    try:
        seen = 0

        def count(operation: str, _: tuple[str, ...]) -> None:
            nonlocal seen
            if after and seen == number and seen:
                os._exit(9)
            if operation in CHANGING:
                seen += 1
                if not after and seen == number:
                    os._exit(9)

        repair(hooked(folder, count), settings=settings(folder, "cache"))
        os._exit(0)
    finally:
        os._exit(7)


@pytest.mark.slow
@pytest.mark.parametrize("wreck", ["append-flipped-attribute", "slot-flipped-attribute", "append-copied-table"])
def test_killed_anywhere(wreck: str, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    unpack(GOLDEN / f"{wreck}.tar.gz", fresh / "root")
    whole = tmp_path / "whole"
    shutil.copytree(fresh, whole)
    done = repair(FilesystemChunkStorage(str(whole / "root")), settings=settings(whole, "cache"))
    expected = contents(whole)
    number, continued = 0, 0
    while True:
        number += 1
        folder = tmp_path / "killed"
        shutil.copytree(fresh, folder)
        if not killed_at(folder, number, after=number % 2 == 0):
            break
        cache = "cache" if number % 3 else "another machine"
        report = repair(FilesystemChunkStorage(str(folder / "root")), settings=settings(folder, cache))
        if not report.sound:
            assert report.last_lsn == done.last_lsn and report.segments == done.segments, number
            continued += report.continued
        assert contents(folder) == expected, number
        assert repair(FilesystemChunkStorage(str(folder / "root")), settings=settings(folder, "c")).sound
        shutil.rmtree(folder)
    assert number > 10 and continued > 2


def test_opened_between_an_interrupted_repair_and_its_end(tmp_path: Path) -> None:
    """What its owner changed meanwhile is not changed back, and the rest is kept all the same."""
    unpack(GOLDEN / "append-flipped-attribute.tar.gz", tmp_path / "root")

    def dies_behind_open(operation: str, names: tuple[str, ...]) -> None:
        if operation == "write" and "/log.a" in names[0]:
            os._exit(9)

    if os.fork() == 0:
        try:
            repair(hooked(tmp_path, dies_behind_open), settings=settings(tmp_path, "cache"))
        finally:
            os._exit(9)
    os.wait()
    storage = FilesystemChunkStorage(str(tmp_path / "root"))
    with open_store_on(storage, settings=settings(tmp_path, "cache"), close_storage=True) as store:
        assert [item.message for item in store.check("quick")] == ["a repair was interrupted: run it again"]
        length = store.info("plain").length
        store.append("plain", b"by its owner")
    report = repair(FilesystemChunkStorage(str(tmp_path / "root")), settings=settings(tmp_path, "cache"))
    assert report.continued
    [lost] = [item for item in report.segments if item.lost]
    assert (lost.segment, lost.kept, lost.lost) == ("plain", (), ((length, length + 36),))
    after = contents(tmp_path)
    assert after["plain"][length:] == b"by its owner"
    assert after["later"] == b"fourth epoch;" and after["rest"].endswith(b"after it;")


def test_a_lease_of_an_epoch_that_was_lost_says_nothing_of_the_repair(tmp_path: Path) -> None:
    """The claim it speaks of is gone, and its epoch becomes the repair's own, which is killed before it has a lease."""
    unpack(GOLDEN / "append-flipped-attribute.tar.gz", tmp_path / "root")
    storage = FilesystemChunkStorage(str(tmp_path / "root"))
    names = ContainerNames("default")
    lost = find_last_claim(open_streams(storage, names)) + 1
    write_lease(storage, names, epoch=lost, counter=1, released=True, end=GENESIS._replace(lsn=1000, hash=b"x" * 16))

    def dies_behind_open(operation: str, given: tuple[str, ...]) -> None:
        if operation == "write" and given[0] == names.log(lost):
            os._exit(9)

    if os.fork() == 0:
        try:
            repair(hooked(tmp_path, dies_behind_open), settings=settings(tmp_path, "cache"))
        finally:
            os._exit(9)
    os.wait()
    assert open_streams(storage, names).opened(lost)
    report = repair(storage, settings=settings(tmp_path, "another machine"))
    assert report.continued
    assert contents(tmp_path)["later"] == b"fourth epoch;"


def test_a_wreck_stays_one_until_a_person_says_so(tmp_path: Path) -> None:
    unpack(GOLDEN / "slot-flipped-crc.tar.gz", tmp_path / "root")
    repair(FilesystemChunkStorage(str(tmp_path / "root")), settings=settings(tmp_path, "a"), dry_run=True)
    with pytest.raises(Damaged):
        open_store_on(FilesystemChunkStorage(str(tmp_path / "root")), settings=settings(tmp_path, "b"))
