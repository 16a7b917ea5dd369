"""From a root's URL to its storage, and what is refused with which words."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from chunkstore import registry
from chunkstore.config import Settings
from chunkstore.errors import ChunkstoreError, InvalidArgument
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory

SETTINGS = Settings()


def test_memory() -> None:
    url = f"memory://{uuid.uuid4()}"
    first = open_storage(url, SETTINGS)
    assert isinstance(first, MemoryChunkStorage)
    assert first.url == url
    first.create("a", b"x")
    assert open_storage(url, SETTINGS).exists("a")
    forget_memory(url)


def test_file_with_odd_characters(tmp_path: Path) -> None:
    folder = tmp_path / "a b%c?d#e ü"
    quoted = str(tmp_path) + "/a%20b%25c%3Fd%23e%20%C3%BC"
    for url in (f"file://{quoted}", f"file://localhost{quoted}", f"FILE://{quoted}/"):
        storage = open_storage(url, SETTINGS)
        assert isinstance(storage, FilesystemChunkStorage)
        assert storage.url == f"file://{quoted}"
        storage.close()
    again = open_storage(storage.url, SETTINGS)
    again.create("x", b"here")
    assert (folder / "x").read_bytes() == b"here"
    again.close()


def test_paths_are_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolved once: a later change of the working directory moves nothing. A tilde is a name."""
    (tmp_path / "~").mkdir()
    monkeypatch.chdir(tmp_path)
    for root, quoted in (
        ("a b%?#ü", "a%20b%25%3F%23%C3%BC"),
        (Path("~/x"), "~/x"),
        (str(tmp_path / "y"), "y"),
        (".", ""),
    ):
        storage = open_storage(root, SETTINGS)
        monkeypatch.chdir("/")
        storage.create("c", b"here")
        assert storage.url == f"file://{tmp_path}/{quoted}".rstrip("/")
        assert (tmp_path / root / "c").read_bytes() == b"here"
        storage.close()
        monkeypatch.chdir(tmp_path)


def test_opening_a_root_makes_nothing(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}/yet", SETTINGS)
    assert storage.list().items == ()
    assert not storage.exists("a")
    assert list(tmp_path.iterdir()) == []
    assert storage.create_if_absent("a", b"x")
    assert (tmp_path / "yet" / "a").read_bytes() == b"x"
    storage.close()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "write a path, file:///absolute/path"),
        ("file:/srv/log", "two slashes"),
        (Path("s3://bucket/x"), "given as text"),
        ("srv/\0log", "must be a path"),
        ("srv/\ud800", "is not a path here"),
        ("file://srv/log", "three slashes"),
        ("file:///srv/log?medium=ext4", "takes no options"),
        ("file:///srv/log#x", "%23"),
        ("file:///srv/log?", "%3F"),
        ("file://", "absolute path"),
        ("file:///srv/%00", "absolute path"),
        ("memory://", "memory://NAME"),
        ("memory://x?append=0", "without options"),
        ("gopher://x/y", "no binding for gopher://"),
        ("file://[bad/x", "not a URL"),
        (None, "must be a path or a URL"),
    ],
)
def test_refused(url: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=r".") as caught:
        open_storage(url, SETTINGS)
    assert text in str(caught.value)
    assert caught.value.argument == "root"


@pytest.mark.parametrize("scheme", ["gopher", "s3", "hdfs", "memory", "file"])
def test_credentials_never_reach_a_message(scheme: str) -> None:
    with pytest.raises(ChunkstoreError) as caught:
        open_storage(f"{scheme}://user:sesame@host/path?secret=sesame", SETTINGS)
    assert "sesame" not in str(caught.value)
    assert "user" not in str(caught.value)


def test_other_packages_add_schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MemoryChunkStorage(f"memory://{uuid.uuid4()}")
    asked: list[tuple[str, Settings]] = []

    class Entry:
        def load(self) -> object:
            def make(url: str, settings: Settings) -> ChunkStorage:
                asked.append((url, settings))
                return made

            return make

    def found(*, group: str, name: str) -> list[Entry]:
        return [Entry()] if (group, name) == (registry.ENTRY_POINT_GROUP, "tape") else []

    monkeypatch.setattr("importlib.metadata.entry_points", found)
    assert open_storage("tape://drive/1", SETTINGS) is made
    assert asked == [("tape://drive/1", SETTINGS)]
