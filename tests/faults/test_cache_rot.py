"""A metadata cache that does not hold what was written to it: noticed, thrown away, made anew (protocol 3.8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest

from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import CacheDamaged, SegmentExists
from chunkstore.following import open_replica
from chunkstore.metadata.keys import segment_key, table_key
from chunkstore.metadata.port import GENESIS, Head, MetadataStore
from chunkstore.metadata.store import HEAD_KEY
from chunkstore_journal.recovery import Materialised
from chunkstore_journal.takeover import TakeOver
from tests.faults import cache_files
from tests.faults.cache_files import Made, Watching, append, copied, data_file, flip, open_in, put, settings
from tests.support.data import problems
from tests.support.lmdb_caches import environment_of, lmdb_of

SEGMENT = "segment/004"
GENESIS_HEAD = Head(GENESIS, 0)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return cache_files.make(tmp_path_factory.mktemp("clean"))


def store_of(store: ChunkedSegmentStorage) -> MetadataStore:
    return store._container.current.store


def rot_row(file: Path, key: bytes, *, part: str = "value") -> None:
    """Flip one bit of every place where the row lies: in its middle, or in its key's last byte."""
    with lmdb.open(str(file.parent), lock=False, readonly=True) as environment, environment.begin() as txn:
        raw = txn.get(key)
        assert raw is not None
    data = file.read_bytes()
    at = data.find(key + raw)
    assert at >= 0
    while at >= 0:
        flip(file, at + len(key) + (len(raw) // 2 if part == "value" else -1), 1)
        at = data.find(key + raw, at + 1)


def rot_live(store: ChunkedSegmentStorage, key: bytes) -> None:
    """The same of a row in an open store."""
    with lmdb_of(store_of(store)).begin() as txn:
        raw = txn.get(key)
        assert raw is not None
    file = Path(environment_of(store_of(store)).path, "data.mdb")
    data = file.read_bytes()
    at = data.find(key + raw)
    while at >= 0:
        flip(file, at + len(key) + len(raw) // 2, 1)
        at = data.find(key + raw, at + 1)


def hide_row(store: ChunkedSegmentStorage, key: bytes) -> None:
    """Take a row out of an open store; all the others, and the tree, stay sound."""
    with lmdb_of(store_of(store)).begin(write=True) as txn:
        assert txn.delete(key)


def go_on_and_judge(folder: Path, made: Made, store: ChunkedSegmentStorage) -> None:
    """What is there is right, more is written, and the journal alone leads to the same."""
    assert cache_files.state_differs(store, made.model) == ""
    append(store, made.model, SEGMENT, 45)
    append(store, made.model, SEGMENT, 5, event=9)
    put(store, made.model, b"key 001", b"another")
    with pytest.raises(SegmentExists):
        store.create("segment/001")
    assert problems(store.check("quick")) == []
    store.close()
    with open_in(folder) as again:
        assert again.report.source == "cache"
        assert cache_files.state_differs(again, made.model) == ""
    assert cache_files.replayed_differs(made) == ""


# ---- at rest


@pytest.mark.parametrize("part", ["value", "key"])
def test_a_row_rots_while_the_container_is_closed(clean: Made, tmp_path: Path, part: str) -> None:
    """The wrong length of a segment would be journaled, and with it a digest that no replay reaches."""
    here = copied(clean, tmp_path)
    rot_row(data_file(tmp_path / "cache"), segment_key(SEGMENT), part=part)
    store = open_in(tmp_path)
    assert store.report.source != "cache"
    go_on_and_judge(tmp_path, here, store)


def test_an_intact_cache_is_used(clean: Made, tmp_path: Path) -> None:
    here = copied(clean, tmp_path)
    store = open_in(tmp_path)
    assert store.report.source == "cache"
    go_on_and_judge(tmp_path, here, store)


def test_what_a_kill_leaves_is_made_anew(clean: Made, tmp_path: Path) -> None:
    """Rows may be missing, and pages be no pages: nothing of it is read."""
    here = copied(clean, tmp_path / "here")
    with open_in(here.folder) as store:
        hide_row(store, segment_key(SEGMENT))
        left = copied(here, tmp_path / "left")
    again = open_in(left.folder)
    assert again.report.source != "cache"
    go_on_and_judge(left.folder, left, again)


# ---- live


@contextmanager
def opened(made: Made, folder: Path) -> Iterator[tuple[Made, ChunkedSegmentStorage, Watching]]:
    here, watching = copied(made, folder), Watching()
    store = open_in(folder, watching)
    try:
        yield here, store, watching
    finally:
        store.close()


def append_and_look(store: ChunkedSegmentStorage, made: Made) -> None:
    """An append waits in the cache; what is asked behind it has it written."""
    append(store, made.model, SEGMENT, 5)
    store.info(SEGMENT)


USES: dict[str, tuple[bytes, Callable[[ChunkedSegmentStorage, Made], object]]] = {
    "append": (segment_key(SEGMENT), lambda store, made: append(store, made.model, SEGMENT, 5)),
    "read": (segment_key(SEGMENT), lambda store, made: store.read(SEGMENT, 0, 10)),
    "list": (segment_key(SEGMENT), lambda store, made: list(store.segments())),
    "table scan": (table_key("facts", b"key 001"), lambda store, made: list(store.table("facts").scan(b"key 001"))),
    "table put": (table_key("facts", b"key 001"), lambda store, made: put(store, made.model, b"key 001", b"new")),
    "heartbeat": (b"\0head", append_and_look),
}


@pytest.mark.parametrize("use", USES)
def test_a_row_rots_under_an_open_store(clean: Made, tmp_path: Path, use: str) -> None:
    key, call = USES[use]
    with opened(clean, tmp_path) as (here, store, watching):
        epoch = store.epoch
        rot_live(store, key)
        call(store, here)
        assert store.epoch > epoch
        assert store.report.source != "cache"
        assert watching.damage
        go_on_and_judge(tmp_path, here, store)


def test_a_collection_meets_rot(clean: Made, tmp_path: Path) -> None:
    with opened(clean, tmp_path) as (here, store, watching):
        with store_of(store).view() as view:
            (garbage,) = [key for key, _ in view.scan(b"G", b"H")]
        rot_live(store, garbage)
        assert store.collect().chunks == 3
        assert watching.damage
        go_on_and_judge(tmp_path, here, store)


def test_rows_that_contradict_one_another_are_the_caches_fault_first(clean: Made, tmp_path: Path) -> None:
    """A chunk's row is hidden: the list leads to nothing."""
    with opened(clean, tmp_path) as (here, store, watching):
        with store_of(store).view() as view:
            chunk = next(key for key, _ in view.scan(b"C", b"D"))
        hide_row(store, chunk)
        assert cache_files.state_differs(store, here.model) == ""
        assert watching.damage
        go_on_and_judge(tmp_path, here, store)


def test_check_finds_what_is_hidden(clean: Made, tmp_path: Path) -> None:
    with opened(clean, tmp_path) as (here, store, watching):
        hide_row(store, segment_key(SEGMENT))
        (finding,) = problems(store.check("quick"))
        assert (finding.invariant, finding.severity) == (12, "warning")
        assert watching.damage
        go_on_and_judge(tmp_path, here, store)


def test_a_damaged_cache_says_so_to_all_and_is_not_opened_again(clean: Made, tmp_path: Path) -> None:
    with opened(clean, tmp_path) as (_, store, _):
        rows = store_of(store)
        rot_live(store, segment_key(SEGMENT))
        with pytest.raises(CacheDamaged) as caught:
            rows.get(segment_key(SEGMENT))
        assert caught.value.object == environment_of(rows).path
        for call in (rows.head, rows.view, lambda: rows.get(b"Sx"), lambda: rows.finish_load(GENESIS_HEAD)):
            with pytest.raises(CacheDamaged):
                call()


# ---- replicas


def test_a_replica_meets_rot(clean: Made, tmp_path: Path) -> None:
    theirs = settings(tmp_path / "theirs")
    with (
        opened(clean, tmp_path) as (here, store, _),
        open_replica(f"file://{tmp_path}/root", settings=theirs) as replica,
    ):
        rows = replica._follower.store
        with lmdb_of(rows).begin() as txn:
            raw = txn.get(segment_key(SEGMENT))
        assert raw is not None
        file = Path(environment_of(rows).path, "data.mdb")
        data, at = file.read_bytes(), -1
        while (at := data.find(raw, at + 1)) >= 0:
            flip(file, at + 20, 0)
        assert replica.info(SEGMENT).length == len(here.model.segments[SEGMENT])
        append(store, here.model, SEGMENT, 9)
        append(store, here.model, SEGMENT, 1)
        replica.refresh()
        assert replica.read(SEGMENT, 0, 999)[:-1] in here.model.segments[SEGMENT]
        assert problems(replica.check("quick")) == []


def test_a_take_over_meets_rot(clean: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the opening of the cache and OPEN: the claim is made, and stays the only one."""
    here = copied(clean, tmp_path)
    build = TakeOver._build_open
    rotten: list[Materialised] = []

    def rot_first(self: TakeOver, attempt: Any, previous: Any, closed: Any, found: Materialised, *rest: Any) -> bytes:
        if not rotten:
            rotten.append(found)
            with lmdb_of(found.store).begin(write=True) as txn:
                txn.put(HEAD_KEY, b"\0" + txn.get(HEAD_KEY, b"")[1:])
        return build(self, attempt, previous, closed, found, *rest)

    monkeypatch.setattr(TakeOver, "_build_open", rot_first)
    with open_in(tmp_path) as before:
        epoch = before.epoch
        assert any("during the take-over" in finding for finding in before.report.findings)
        go_on_and_judge(tmp_path, here, before)
    assert epoch == 2
