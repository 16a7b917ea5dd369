"""Segments as files of fsspec: what is flushed is durable, reading claims nothing, and one store serves a whole process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.errors import ContainerNotFound, InvalidArgument, Unsupported

fsspec = pytest.importorskip("fsspec", reason="not tested: segments as files (fsspec is not installed)")

Files = Callable[..., Any]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """``files(**options)``: a file system on a fresh root; the first one closes all at the end."""
    fsspec.register_implementation("chunkstore", "chunkstore.fs.ChunkstoreFileSystem", clobber=True)
    monkeypatch.setenv("CHUNKSTORE_ROOT", str(tmp_path / "log"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CHUNKSTORE_CONTAINER", raising=False)
    with fsspec.filesystem("chunkstore"):
        yield lambda **options: fsspec.filesystem("chunkstore", **options)


def stored(tmp_path: Path, name: str) -> bytes:
    with chunkstore.open_replica(tmp_path / "log") as replica:
        return replica.read(name, 0, 1 << 30)


def test_what_is_flushed_is_durable(files: Files, tmp_path: Path) -> None:
    with files().open("a", "ab") as file:
        assert file.write(b"first;") == 6
        file.flush()
        assert stored(tmp_path, "a") == b"first;"
        file.write(memoryview(b"x" * (20 << 20)))
        assert file.tell() == 6 + (20 << 20)
    assert stored(tmp_path, "a") == b"first;" + b"x" * (20 << 20)
    with files().open("a", "a", encoding="utf-8") as text:
        text.write("grün\n")
    assert stored(tmp_path, "a").endswith("xgrün\n".encode())


def test_nothing_is_overwritten(files: Files, tmp_path: Path) -> None:
    files().pipe_file("a", b"first")
    for mode in ("wb", "xb", "w"):
        with pytest.raises(FileExistsError, match="never overwritten"):
            files().open("a", mode)
    with pytest.raises(InvalidArgument, match="mode"):
        files().open("a", "r+b")
    with pytest.raises(Unsupported):
        files().open("b", "ab", autocommit=False)
    assert stored(tmp_path, "a") == b"first"


def test_names_make_folders(files: Files) -> None:
    fs = files()
    for name in ("top", "runs/1/events", "runs/2/events", "runs", "ünder"):
        fs.pipe_file(name, name.encode())
    assert fs.ls("", detail=False) == ["runs", "top", "ünder"]
    assert [(item["name"], item["type"]) for item in fs.ls("chunkstore://runs/1/")] == [("runs/1/events", "file")]
    assert fs.ls("top", detail=False) == ["top"]
    assert fs.glob("runs/*/events") == ["runs/1/events", "runs/2/events"]
    assert fs.find("") == ["runs", "runs/1/events", "runs/2/events", "top", "ünder"]
    info = fs.info("top")
    assert (info["size"], info["type"], info["start_offset"], info["sealed"]) == (3, "file", 0, False)
    assert fs.isdir("runs/1") and fs.isdir("") and fs.isfile("runs") and fs.exists("runs/2")
    assert not fs.exists("run") and not fs.isfile("runs/1") and not fs.isdir("absent")
    for call in (fs.info, fs.ls, fs.open, fs.cat_file):
        with pytest.raises(FileNotFoundError, match="run"):
            call("run")


def test_a_file_begins_where_its_segment_does(files: Files, tmp_path: Path) -> None:
    lines = [b"%d\n" % number for number in range(3000)]
    with chunkstore.open(tmp_path / "log") as store:
        store.create("a")
        store.append("a", b"gone" + b"".join(lines))
        store.truncate("a", 4)
    fs = files()
    with fs.open("a", "rb", block_size=100) as file:
        fs.pipe_file("b", b"")
        with fs.open("a", "ab") as more:
            more.write(b"later")
        assert list(file) == lines  # what was there when it was opened
        assert file.seek(-5, 2) == file.size - 5 and file.read() == b"2999\n"
        assert file.seek(2) == 2 and file.read(4) == b"1\n2\n"
    assert fs.cat_ranges(["a"] * 4, [0, 2, -5, 9], [2, 4, None, 9]) == [b"0\n", b"1\n", b"later", b""]
    assert fs.cat("b") == b"" and fs.read_text("a").splitlines()[2999] == "2999"


def test_reading_claims_nothing_and_sees_what_is_new(files: Files, tmp_path: Path) -> None:
    with pytest.raises(ContainerNotFound):
        files().exists("a")
    with chunkstore.open(tmp_path / "log") as store:
        store.create("a")
        for expected in (b"1", b"12"):
            store.append("a", expected[-1:])
            assert files().cat("a") == expected
        assert store.epoch == 1


def test_one_store_serves_all_objects_and_threads(files: Files, tmp_path: Path) -> None:
    """fsspec makes an object for each thread; a store for each would depose the one before."""

    def write(number: int) -> None:
        with fsspec.open("chunkstore://a", "ab", root=str(tmp_path / "log"), container="default") as file:
            file.write(b"%d" % number)

    files().touch("a")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert sorted(files().cat("a")) == sorted(b"0123")
    assert chunkstore.assembly.describe_owner(tmp_path / "log")["claimed_epoch"] == 1
    again = pickle.loads(pickle.dumps(files(root=tmp_path / "log")))
    assert len(again.cat("a")) == 4


def test_close_writes_what_is_queued_and_gives_the_container_back(files: Files, tmp_path: Path) -> None:
    file = files().open("a", "ab")
    file.write(b"queued")
    files().close()
    assert file.closed
    assert "'released': True" in str(chunkstore.assembly.describe_owner(tmp_path / "log"))
    with files().open("a", "ab") as file:  # opened again
        file.write(b";more")
    assert stored(tmp_path, "a") == b"queued;more"


def test_options_that_cannot_hold_are_refused(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ContainerNotFound):
        files(create=False).open("a", "ab")
    files(create=True).touch("a")
    with pytest.raises(InvalidArgument, match="other options"):
        files(wait_s=5)
    with pytest.raises(TypeError, match="contianer"):
        files(contianer="typo")
    monkeypatch.setenv("CHUNKSTORE_CONTAINER", "second")
    with files() as second:
        second.touch("b")
        assert second.find("") == ["b"]
    monkeypatch.delenv("CHUNKSTORE_ROOT")
    with pytest.raises(InvalidArgument, match="CHUNKSTORE_ROOT"):
        files()
