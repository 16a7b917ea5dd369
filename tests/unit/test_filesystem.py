"""What is special about files: crashes, links, full disks, failed syncs, names, and other processes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from chunkstore.errors import (
    InvalidArgument,
    InvalidOffset,
    StorageFull,
    StorageUnavailable,
    Unsupported,
)
from chunkstore_bindings.filesystem import FilesystemChunkStorage, chunk_files, posix
from chunkstore_bindings.filesystem.folders import TEMPORARY_FOLDER
from tests.faults.disks import small_disk
from tests.support.files import failing, temporaries


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def storage(root: Path) -> Iterator[FilesystemChunkStorage]:
    storage = FilesystemChunkStorage(root, medium="ext4")
    yield storage
    storage.close()


# Crashes and temporaries


def test_temporaries_are_invisible_and_cannot_be_named(storage: FilesystemChunkStorage, root: Path) -> None:
    assert storage.create_if_absent("a", b"x")
    (root / TEMPORARY_FOLDER / "left-by-a-crash").write_bytes(b"torn")
    assert [item.name for item in storage.list().items] == ["a"]
    assert storage.list(".").items == ()
    assert storage.list(TEMPORARY_FOLDER).items == ()
    assert storage.list(TEMPORARY_FOLDER + "/").items == ()
    for name in (TEMPORARY_FOLDER, TEMPORARY_FOLDER + "/left-by-a-crash"):
        for call in (storage.exists, storage.stat, storage.open_read, storage.delete):
            with pytest.raises(InvalidArgument, match="holds temporaries"):
                call(name)
        with pytest.raises(InvalidArgument):
            storage.create(name, b"x")
    assert storage.create_if_absent(TEMPORARY_FOLDER + "-is-a-prefix-only", b"x")


def test_old_temporaries_are_swept_and_young_ones_left(root: Path) -> None:
    folder = root / TEMPORARY_FOLDER
    folder.mkdir(parents=True)
    for name, age_s in [("old", 25 * 3600), ("young", 23 * 3600)]:
        (folder / name).write_bytes(b"torn")
        os.utime(folder / name, (time.time() - age_s,) * 2)
    storage = FilesystemChunkStorage(root)
    assert {path.name for path in folder.iterdir()} == {"old", "young"}
    storage.create_if_absent("a", b"x")
    assert {path.name for path in folder.iterdir()} == {"young"}
    storage.close()


def test_a_crash_before_the_link_leaves_nothing_under_the_name(
    storage: FilesystemChunkStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PowerCut(BaseException):
        pass

    def cut(*_arguments: object, **_options: object) -> NoReturn:
        raise PowerCut

    monkeypatch.setattr(os, "link", cut)
    with pytest.raises(PowerCut):
        storage.create_if_absent("a", b"x")
    monkeypatch.undo()
    assert not storage.exists("a")
    assert storage.create_if_absent("a", b"y")
    assert (root / "a").read_bytes() == b"y"
    assert (root / "a").stat().st_nlink == 1


def test_order_of_effects_of_create_if_absent(
    storage: FilesystemChunkStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content synced before the link, the folder after it: nothing else survives a power cut at every point."""
    storage.create_if_absent("e/first", b"x")
    seen: list[str] = []

    def spy(module: object, name: str, label: str) -> None:
        real = getattr(module, name)

        def call(*arguments: object, **options: object) -> object:
            seen.append(label)
            return real(*arguments, **options)

        monkeypatch.setattr(module, name, call)

    spy(posix, "write_all", "write")
    spy(posix, "sync_all", "sync")
    spy(os, "link", "link")
    spy(posix, "sync_directory", "sync folder:")
    spy(os, "replace", "replace")
    spy(os, "unlink", "unlink")
    assert storage.create_if_absent("e/second", b"y")
    # (a folder's sync opens it and syncs that)
    assert seen == ["write", "sync", "link", "unlink", "sync folder:", "sync"]
    seen.clear()
    assert not storage.create_if_absent("e/second", b"z")
    assert seen == ["write", "sync", "link", "unlink", "sync folder:", "sync"]
    seen.clear()
    storage.put("e/hint", b"h")
    assert seen == ["write", "sync", "replace", "sync folder:", "sync"]
    assert temporaries(root) == []


@pytest.mark.parametrize("number", [errno.EIO, errno.ETIMEDOUT, errno.EEXIST])
def test_a_link_whose_reply_was_lost_has_succeeded(
    storage: FilesystemChunkStorage, root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = os.link

    def link(source: str, target: str, **directories: Any) -> NoReturn:
        real(source, target, **directories)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    assert storage.create_if_absent("a", b"mine") is True
    assert (root / "a").read_bytes() == b"mine"
    assert temporaries(root) == []


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.ENOSYS])
def test_no_hard_links_is_said_clearly(
    storage: FilesystemChunkStorage, root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "link", failing(number))
    with pytest.raises(Unsupported, match="hard links do not work here") as caught:
        storage.create_if_absent("a", b"x")
    assert caught.value.feature == "create_if_absent"
    assert not storage.exists("a")
    assert temporaries(root) == []


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EIO, StorageUnavailable), (errno.EACCES, StorageUnavailable), (errno.ENOSPC, StorageFull)],
)
def test_link_errors(
    storage: FilesystemChunkStorage, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    monkeypatch.setattr(os, "link", failing(number))
    with pytest.raises(kind, match=os.strerror(number)) as caught:
        storage.create_if_absent("a", b"x")
    assert isinstance(caught.value.__cause__, OSError)


# Failed syncs


def test_a_failed_sync_is_never_repeated(storage: FilesystemChunkStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = storage.create("a", b"safe")
    storage.sync(["a"])
    storage.write(handle, 4, b"lost?")
    monkeypatch.setattr(posix, "sync_data", failing(errno.EIO))
    with pytest.raises(StorageUnavailable, match="in doubt") as caught:
        storage.sync(["a"])
    assert caught.value.object == "a"
    monkeypatch.undo()
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="in doubt"):
            storage.sync(["a"])
        with pytest.raises(StorageUnavailable, match="in doubt"):
            storage.write(handle, 9, b"x")
    assert storage.read(handle, 0, 4) == b"safe"
    storage.harden("a")
    monkeypatch.setattr(chunk_files, "_O_DIRECT", 0)
    assert storage.read_uncached(handle, 0, 9) == b"", (
        "who cannot look at the disk does not believe the page cache behind that"
    )
    storage.delete("a")
    storage.create("a", b"anew")
    storage.sync(["a"])


@pytest.mark.parametrize(
    ("call", "number", "kind", "later"),
    [
        ("write_all", errno.ENOSPC, StorageFull, InvalidOffset),
        ("write_all", errno.EIO, StorageUnavailable, InvalidOffset),
        ("sync_data", errno.EIO, StorageUnavailable, StorageUnavailable),
    ],
)
def test_a_log_takes_nothing_after_an_error(
    storage: FilesystemChunkStorage,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
    kind: type[Exception],
    later: type[Exception],
) -> None:
    storage.create("c/log")
    storage.create_if_absent("c/claim", b"mine")
    log = storage.log_appender("c/log", absent="c/newer", present="c/claim", identity=storage.identity("c/claim"))
    log.write_durable(0, b"safe")
    assert log.look()
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", failing(number))
        assert not log.look(), "what cannot be looked at is not absent"
        patch.setattr(posix, call, failing(number))
        with pytest.raises(kind, match=os.strerror(number)):
            log.write_durable(4, b"lost?")
    for _ in range(2):
        with pytest.raises(later):
            log.write_durable(4, b"x")


# Errors of the system


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EIO, errno.ESTALE, errno.EPERM, 9999])
def test_system_errors_carry_text_and_remedy(
    storage: FilesystemChunkStorage, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    handle = storage.create("a", b"x" * 10)
    monkeypatch.setattr(os, "pread", failing(number))
    monkeypatch.setattr(os, "preadv", failing(number))
    monkeypatch.setattr(os, "pwrite", failing(number))
    for call in (
        lambda: storage.read(handle, 0, 5),
        lambda: storage.read_into(handle, 0, bytearray(5)),
        lambda: storage.write(handle, 10, b"x"),
    ):
        with pytest.raises(StorageUnavailable) as caught:
            call()
        assert caught.value.object == "a"
        assert isinstance(caught.value.__cause__, OSError)
        text, _, remedy = str(caught.value).partition("; ")
        assert os.strerror(number) in text
        assert remedy


def test_exists_never_takes_an_error_for_absence(
    storage: FilesystemChunkStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence is an ``exists``: a failing disk must not look like a free road."""
    for name in ("a", "c/a"):
        storage.create(name, b"x")
    monkeypatch.setattr(os, "stat", failing(errno.EIO))
    for name in ("a", "c/a"):
        for call in (storage.exists, storage.stat, storage.harden if "/" in name else storage.exists):
            with pytest.raises(StorageUnavailable):
                call(name)


def test_short_writes_are_finished(
    storage: FilesystemChunkStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, bytes(data)[:7], offset))
    data = bytes(range(100))
    handle = storage.create("a", data)
    assert storage.write(handle, 100, memoryview(data)[50:]) == 50
    assert storage.create_if_absent("b", bytearray(data))
    assert (root / "a").read_bytes() == data + data[50:]
    assert (root / "b").read_bytes() == data


def test_short_reads_are_finished(storage: FilesystemChunkStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(100))
    handle = storage.create("a", data)
    real, real_into = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: real(fd, min(length, 7), offset))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: real_into(fd, [memoryview(buffers[0])[:7]], offset))
    assert storage.read(handle, 10, 50) == data[10:60]
    buffer = bytearray(150)
    assert storage.read_into(handle, 10, buffer) == 90
    assert buffer == data[10:] + bytes(60)


@pytest.fixture
def full_soon(tmp_path: Path) -> Iterator[Path]:
    with small_disk("tmpfs", tmp_path / "small", 1 << 20) as disk:
        yield disk.path


def test_a_full_disk(full_soon: Path) -> None:
    storage = FilesystemChunkStorage(full_soon)
    assert storage.capabilities.medium == "tmpfs"
    handle = storage.create("c/a", bytes(600_000))
    storage.sync(["c/a"])
    with pytest.raises(StorageFull):
        storage.create("c/b", bytes(600_000))
    assert not storage.exists("c/b")
    for call in (storage.create_if_absent, storage.put):
        with pytest.raises(StorageFull):
            call("c/b", bytes(600_000))
    assert temporaries(full_soon) == []
    with pytest.raises(StorageFull) as caught:
        storage.write(handle, 600_000, bytes(600_000))
    assert caught.value.object == "c/a"
    # After a failed write the chunk may be longer, but what was synced is there, and freed space can be used again.
    assert storage.read(handle, 0, 600_000) == bytes(600_000)
    storage.delete("c/a")
    assert storage.create_if_absent("c/c", bytes(600_000))
    storage.close()
