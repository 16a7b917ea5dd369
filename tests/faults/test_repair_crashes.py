"""A repair that is killed at any of its storage calls is run again, and ends as if nothing had happened."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

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
from tests.engine.wrecks import wreck
from tests.support.data import problems
from tests.support.forwarding import Hooked

pytestmark = pytest.mark.proof

CHANGING = ("create", "create_if_absent", "put", "write", "sync", "harden", "delete")
"""Between two of these calls the storage is the same wherever the process ends."""


def settings(folder: Path, cache: str) -> Settings:
    return Settings(cache_dir=str(folder / cache), lease_s=0, lmdb_map_bytes=1 << 26)


def hooked(folder: Path, before: Callable[[str, tuple[str, ...]], None]) -> Hooked:
    folder.mkdir(parents=True, exist_ok=True)
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


def killings(fresh: Path, folder: Path) -> Iterator[tuple[int, str]]:
    """A repair of what is in ``fresh`` killed in ``folder``, each time one call later: at which, and the cache of whoever goes on."""
    for number in itertools.count(1):
        shutil.copytree(fresh, folder)
        if not killed_at(folder, number, after=number % 2 == 0):
            return
        yield number, "cache" if number % 3 else "another machine"
        shutil.rmtree(folder)


@pytest.mark.parametrize("mode", ["append", "slot"])
def test_killed_anywhere(mode: Literal["append", "slot"], tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    wreck(mode, fresh)
    whole = tmp_path / "whole"
    shutil.copytree(fresh, whole)
    done = repair(FilesystemChunkStorage(str(whole / "root")), settings=settings(whole, "cache"))
    expected = contents(whole)
    number, continued, folder = 0, 0, tmp_path / "killed"
    for number, cache in killings(fresh, folder):
        report = repair(FilesystemChunkStorage(str(folder / "root")), settings=settings(folder, cache))
        if not report.sound:
            assert report.last_lsn == done.last_lsn and report.segments == done.segments, number
            continued += report.continued
        assert contents(folder) == expected, number
        assert repair(FilesystemChunkStorage(str(folder / "root")), settings=settings(folder, "c")).sound
    assert number >= 10 and continued > 2


def pieces(folder: Path) -> list[bytes | None]:
    """What each append of 30 bytes is, or None where it is damaged."""
    storage = FilesystemChunkStorage(str(folder / "root"))
    found: list[bytes | None] = []
    with open_store_on(storage, settings=settings(folder, "cache-at-the-end"), close_storage=True) as store:
        for start in range(0, store.info("a").length, 30):
            try:
                found.append(store.read("a", start, 30))
            except Damaged:
                found.append(None)
        assert store.append("a", b"goes on") == 30 * len(found)
    return found


@pytest.mark.parametrize(
    ("cut", "mode"), [(False, "slot"), (True, "append")], ids=["bytes-slot", "bytes-and-words-append"]
)
def test_killed_anywhere_with_damaged_bytes_of_appends(
    cut: bool, mode: Literal["append", "slot"], tmp_path: Path
) -> None:
    """Whoever goes on meets them again, in front of what the first repair did and has not ended (protocol 3.15)."""
    fresh, data = tmp_path / "fresh", [bytes([65 + number]) * 30 for number in range(8)]
    fresh.mkdir()
    with open_store_on(
        FilesystemChunkStorage(str(fresh / "root")),
        settings=Settings(cache_dir=str(tmp_path / "first"), journal_mode=mode, lease_s=0, spill_s=3600),
        close_storage=True,
    ) as store:
        store.create("a")
        for number, part in enumerate(data):
            store.append("a", part)
            if number == 4:
                store.table("t").put(b"words", b"w" * 40)
    for part in (data[2], b"w" * 40)[: 1 + cut]:
        (path,) = [path for path in (fresh / "root").rglob("*") if path.is_file() and part in path.read_bytes()]
        path.write_bytes(path.read_bytes().replace(part, part[:-1] + b"!"))
    expected: list[bytes | None] = [*data[:2], None, *data[3:]]
    number, continued, folder = 0, 0, tmp_path / "killed"
    for number, cache in killings(fresh, folder):
        continued += repair(FilesystemChunkStorage(str(folder / "root")), settings=settings(folder, cache)).continued
        assert repair(FilesystemChunkStorage(str(folder / "root")), settings=settings(folder, "c")).sound
        assert pieces(folder) == expected, number
    assert number >= 8 and (continued > 1 or not cut)


def test_opened_between_an_interrupted_repair_and_its_end(tmp_path: Path) -> None:
    """What its owner changed meanwhile is not changed back, and the rest is kept all the same."""
    wreck("append", tmp_path)

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
    assert (lost.segment, lost.kept, lost.lost) == ("plain", (), ((length, length + 20),))
    after = contents(tmp_path)
    assert after["plain"][length:] == b"by its owner"
    assert after["later"] == b"created after it;" and after["rest"].endswith(b"after it;")


def test_a_lease_of_an_epoch_that_was_lost_says_nothing_of_the_repair(tmp_path: Path) -> None:
    """The claim it speaks of is gone, and its epoch becomes the repair's own, which is killed before it has a lease."""
    wreck("append", tmp_path)
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
    assert contents(tmp_path)["later"] == b"created after it;"


def test_a_wreck_stays_one_until_a_person_says_so(tmp_path: Path) -> None:
    wreck("slot", tmp_path)
    repair(FilesystemChunkStorage(str(tmp_path / "root")), settings=settings(tmp_path, "a"), dry_run=True)
    with pytest.raises(Damaged):
        open_store_on(FilesystemChunkStorage(str(tmp_path / "root")), settings=settings(tmp_path, "b"))
