"""A row of the metadata cache that is not what was written: noticed, thrown away, made anew from the journal (protocol 3.8)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from chunkstore.assembly import open_store
from chunkstore.config import Settings, Tuning
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.following import open_replica
from chunkstore.metadata.keys import segment_key, table_key
from chunkstore.metadata.lmdb.cache import environment_of
from chunkstore.metadata.port import MetadataStore
from tests.support.data import problems

SEGMENT, KEY = "log", b"key"
CONTENT = b"0123456789"


def settings(cache: Path) -> Settings:
    return Settings(
        cache_dir=str(cache), lease_s=0, inline_bytes_max=0, tuning=Tuning(io_workers=1, lmdb_map_bytes=1 << 26)
    )


def open_in(folder: Path) -> ChunkedSegmentStorage:
    return open_store(f"file://{folder}/root", settings=settings(folder / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A container that was closed cleanly."""
    with open_in(tmp_path) as store:
        store.create(SEGMENT)
        store.append(SEGMENT, CONTENT)
        store.table("rows").put(KEY, b"value")
    return tmp_path


def flip(file: Path, key: bytes, raw: bytes) -> None:
    """One bit of every place where a row lies, in place: what has the file mapped sees it."""
    data = file.read_bytes()
    at = data.find(key + raw)
    assert at >= 0
    with file.open("r+b", buffering=0) as opened:
        while at >= 0:
            middle = at + len(key) + len(raw) // 2
            opened.seek(middle)
            opened.write(bytes((data[middle] ^ 1,)))
            at = data.find(key + raw, at + 1)


def rot_live(store: MetadataStore, key: bytes) -> None:
    with environment_of(store).handle.begin() as txn:
        raw = txn.get(key)
    assert raw is not None
    flip(Path(environment_of(store).path, "data.mdb"), key, raw)


def judge(folder: Path, store: ChunkedSegmentStorage, content: bytes) -> None:
    """The container is right, goes on, and its journal alone leads to the same."""
    assert store.read(SEGMENT, 0, 99) == content
    store.append(SEGMENT, b"more", expected_offset=len(content))
    assert problems(store.check("deep")) == []
    store.close()
    with open_store(f"file://{folder}/root", settings=settings(folder / "another")) as again:
        assert again.report.source != "cache"
        assert again.read(SEGMENT, 0, 99) == content + b"more"
        assert problems(again.check("deep")) == []


def test_a_row_rots_while_the_container_is_closed(folder: Path) -> None:
    """The wrong length of a segment would be journaled, and with it a digest that no replay reaches."""
    (state,) = (folder / "cache").glob("*/owner/*/STATE")
    file = state.with_name("data.mdb")
    with lmdb.open(str(file.parent), lock=False, readonly=True) as environment, environment.begin() as txn:
        raw = txn.get(segment_key(SEGMENT))
    assert raw is not None
    flip(file, segment_key(SEGMENT), raw)
    store = open_in(folder)
    assert store.report.source != "cache"
    judge(folder, store, CONTENT)


USES: dict[str, tuple[bytes, Callable[[ChunkedSegmentStorage], object]]] = {
    "append": (segment_key(SEGMENT), lambda store: store.append(SEGMENT, b"+")),
    "read": (segment_key(SEGMENT), lambda store: store.read(SEGMENT, 0, 10)),
    "table put": (table_key("rows", KEY), lambda store: store.table("rows").put(KEY, b"new")),
}


@pytest.mark.parametrize("use", USES)
def test_a_row_rots_under_an_open_store(folder: Path, use: str) -> None:
    key, call = USES[use]
    with open_in(folder) as store:
        epoch = store.epoch
        rot_live(store._container.current.store, key)
        call(store)
        assert store.epoch > epoch
        assert store.report.source != "cache"
        judge(folder, store, CONTENT + b"+" * (use == "append"))


def test_a_replica_meets_rot(folder: Path) -> None:
    with (
        open_in(folder) as store,
        open_replica(f"file://{folder}/root", settings=settings(folder / "theirs")) as replica,
    ):
        rows = replica._follower.store
        assert rows is not None
        rot_live(rows, segment_key(SEGMENT))
        assert replica.info(SEGMENT).length == len(CONTENT)
        store.append(SEGMENT, b"+")
        store.append(SEGMENT, b"+")
        replica.refresh()
        assert replica.read(SEGMENT, 0, len(CONTENT) + 1) == CONTENT + b"+"
