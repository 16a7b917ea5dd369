"""What is special about files: crashes, links, full disks, failed syncs, names, and other processes."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from chunkstore.errors import (
    AccessDenied,
    ChunkstoreError,
    InvalidArgument,
    StorageFull,
    StorageUnavailable,
    Unsupported,
)
from chunkstore.storage import ConcatArgument
from chunkstore_bindings.filesystem import FilesystemChunkStorage, chunk_files, posix
from chunkstore_bindings.filesystem.folders import TEMPORARY_FOLDER
from chunkstore_bindings.filesystem.storage import SYNC_WORKERS
from tests.faults.disks import small_disk
from tests.support.files import failing, makers, temporaries


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


@pytest.mark.parametrize("call", ["mkdir", "open", "link"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_who_may_change_nothing_is_told_so(
    storage: FilesystemChunkStorage, root: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    storage.create_if_absent("b", b"x")
    monkeypatch.setattr(os, call, failing(number))
    with pytest.raises(AccessDenied, match=f"{root}: {os.strerror(number)}; "):
        storage.create_if_absent("new/a", b"x")
    monkeypatch.undo()
    assert not storage.exists("new/a") and temporaries(root) == []


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


def test_one_failure_among_many_is_raised_and_the_others_are_synced(
    storage: FilesystemChunkStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"c/{number}" for number in range(10)]
    for name in names:
        storage.create(name, b"x")
    bad = storage._open["c/4"].fd
    synced = []
    real = posix.sync_data

    def sync(fd: int) -> None:
        if fd == bad:
            raise OSError(errno.EIO, "disk on fire")
        real(fd)
        synced.append(fd)

    monkeypatch.setattr(posix, "sync_data", sync)
    with pytest.raises(StorageUnavailable, match="disk on fire") as caught:
        storage.sync(names)
    assert caught.value.object == "c/4"
    assert len(synced) == 9
    storage.sync([name for name in names if name != "c/4"])


def synced_folders(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[str]:
    """The folders that are synced from here on, seen from the root."""
    synced: list[str] = []
    real = posix.sync_directory

    def spy(path: str, make_room: Callable[[], None], dir_fd: int | None = None) -> None:
        held = "" if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
        synced.append(os.path.relpath(os.path.join(held, path), root))
        real(path, make_room, dir_fd)

    monkeypatch.setattr(posix, "sync_directory", spy)
    return synced


def test_a_failed_sync_of_a_folder_is_tried_again(
    storage: FilesystemChunkStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike file pages, a directory's entry is metadata: a later sync of it covers it or fails again."""
    storage.create("f/first", b"x")
    storage.sync(["f/first"])
    storage.create("f/a", b"x")
    monkeypatch.setattr(posix, "sync_directory", failing(errno.EIO))
    with pytest.raises(StorageUnavailable, match="unknown"):
        storage.sync(["f/a"])
    monkeypatch.undo()
    synced = synced_folders(monkeypatch, root)
    storage.sync(["f/a"])
    assert synced == ["f"]
    storage.sync(["f/a"])
    assert len(synced) == 1


def test_folders_are_made_durable_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = synced_folders(monkeypatch, root)
    storage = FilesystemChunkStorage(root)
    storage.create("c/d/00/x", b"x")
    assert synced == ["..", ".", "c", "c/d"]
    storage.create("c/d/00/y", b"x")
    storage.create("c/d/01/y", b"x")
    assert synced[4:] == ["c/d"]
    synced.clear()
    storage.sync(["c/d/00/x", "c/d/00/y", "c/d/01/y"])
    assert sorted(synced) == ["c/d/00", "c/d/01"]
    storage.close()
    # Another process: what it finds may not be durable yet, so it is synced once more.
    synced.clear()
    second = FilesystemChunkStorage(root)
    second.create("c/d/00/z", b"x")
    assert synced == ["..", ".", "c", "c/d"]
    second.close()


def test_folders_that_somebody_removed_are_made_again(storage: FilesystemChunkStorage, root: Path) -> None:
    for number, make in enumerate(makers(storage)):
        name = f"c/d/{number}"
        make(name, b"x")
        subprocess.run(["rm", "-rf", str(root / "c/d"), str(root / TEMPORARY_FOLDER)], check=True)
        make(name, b"again")
        assert (root / name).read_bytes() == b"again"


# Parallel syncs


def test_many_files_are_synced_in_the_time_of_one(
    storage: FilesystemChunkStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"c/{number}" for number in range(SYNC_WORKERS)]
    for name in names:
        storage.create(name, b"x")
    storage.sync(names)
    # Each waits for all others: in the time of one, whatever the machine makes of it.
    together = threading.Barrier(len(names))
    monkeypatch.setattr(posix, "sync_data", lambda _fd: together.wait(60))
    storage.sync(names)
    assert not together.broken


def test_one_file_is_synced_in_the_callers_thread(
    storage: FilesystemChunkStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.create("a", b"x")
    threads: list[threading.Thread] = []
    monkeypatch.setattr(posix, "sync_data", lambda _fd: threads.append(threading.current_thread()))
    storage.sync(["a"])
    assert threads == [threading.current_thread()]


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
    storage.create("a", b"x")
    monkeypatch.setattr(os, "stat", failing(errno.EIO))
    with pytest.raises(StorageUnavailable):
        storage.exists("a")


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


def test_a_short_read_past_the_page_cache_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins at whole blocks: a short one may end before what was asked for begins."""
    data = bytes(range(256)) * 1000
    (tmp_path / "a").write_bytes(data)
    real, lengths = os.preadv, [100_000, 5, 40_000, 0x10000]

    def short(fd: int, buffers: Sequence[Any], offset: int) -> int:
        return min(lengths.pop(0) if lengths else len(data), real(fd, buffers, offset))

    monkeypatch.setattr(os, "preadv", short)
    fd = os.open(tmp_path / "a", os.O_RDONLY)
    try:
        assert posix.read_span_direct(fd, 70_000, 220_000) == data[70_000:220_000]
        assert not lengths
        for beyond in (len(data), len(data) + 100_000):
            assert posix.read_span_direct(fd, beyond, beyond + 5) == b""
        assert posix.read_span_direct(fd, len(data) - 1, len(data) + 100_000) == data[-1:]
    finally:
        os.close(fd)


def test_a_torn_create_is_removed(storage: FilesystemChunkStorage, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    with pytest.raises(StorageFull) as caught:
        storage.create("a", b"x")
    assert caught.value.object == "a"
    assert not (root / "a").exists()
    for call in (storage.create_if_absent, storage.put):
        with pytest.raises(StorageFull):
            call("b", b"x")
    assert temporaries(root) == []


def test_a_kept_error_keeps_no_descriptor(storage: FilesystemChunkStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = storage.create("a", b"x" * 10)
    kept: list[BaseException] = []
    storage.create("b", b"")
    for name in ("pread", "preadv", "pwrite", "fdatasync", "ftruncate"):
        monkeypatch.setattr(os, name, failing(errno.EIO))
    both = [ConcatArgument("a", 1), ConcatArgument("b", 0)]
    calls: list[Callable[[], object]] = [
        partial(storage.read, handle, 0, 5),
        partial(storage.read, handle, 0, 5 << 20),
        partial(storage.read_into, handle, 0, bytearray(5)),
        partial(storage.write, handle, 10, b"x"),
        partial(storage.write, handle, 11, b"x"),
        partial(storage.truncate, handle, 5),
        partial(storage.truncate, handle, 50),
        partial(storage.concat, both),
        partial(storage.sync, ["a"]),
        partial(storage.sync, ["a", "b"]),
    ]
    for call in calls:
        try:
            call()
        except ChunkstoreError as error:
            kept.append(error)
    assert len(kept) == len(calls)
    storage.delete("a")
    storage.delete("b")
    open_now = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # another thread's, closed meanwhile
            open_now.add(os.readlink(f"/proc/self/fd/{fd}"))
    assert not [path for path in open_now if path.endswith("(deleted)") and "/root/" in path]


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
