"""Appends that wait for company in the store: they are seen at once, written before anything else is shown, and lost without harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chunkstore.journal import OpCode
from chunkstore.metadata.fold import Fold
from chunkstore.metadata.lmdb import LmdbMetadataCache, environment_of
from chunkstore.metadata.ordered_map import WriteBuffer
from chunkstore.metadata.port import GENESIS, Commit, MetadataStore
from tests.support.lmdb_caches import CONTAINER
from tests.support.metadata_history import History


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[LmdbMetadataCache]:
    cache = LmdbMetadataCache(str(tmp_path / "cache"), CONTAINER, "here")
    yield cache
    cache.close()


@pytest.fixture
def store(cache: LmdbMetadataCache, history: History) -> MetadataStore:
    """A store that knows where it stands: it has written a commit."""
    store = cache.create()
    assert store.apply([history.commit([(b"Ca", b"0")])], verify=True)
    return store


@pytest.fixture
def history() -> History:
    return History()


def appended(history: History, number: int) -> Commit:
    """A commit of an append into the last chunk, which changes one row."""
    return history.commit([(b"Ca", b"%d" % number)], [(int(OpCode.APPEND), 1, number, 0, ())])


def stored(store: MetadataStore) -> int:
    """The lsn that another process would find in the store."""
    with environment_of(store).handle.begin() as txn:
        return int.from_bytes(txn.get(b"\0head", b"")[17:25], "big")


def test_what_waits_is_seen_and_a_view_has_it_written(store: MetadataStore, history: History) -> None:
    assert store.apply([appended(history, 1)], verify=False)
    assert store.apply([appended(history, 2)], verify=False)
    assert stored(store) == 1, "it waits"
    assert store.get(b"Ca") == b"2"
    assert (store.head().position, store.head().digest) == (history.position, history.digest)
    assert stored(store) == 1, "for that nothing had to be written"
    with store.view() as view:
        assert dict(view.scan(b"", b"\xff")) == history.rows
        assert view.head.position == history.position
        view.audit()
    assert stored(store) == 3
    store.close(clean=True)


def test_any_other_change_comes_after_them(store: MetadataStore, history: History) -> None:
    assert store.apply([appended(history, 1)], verify=False)
    assert store.apply([history.commit([(b"Cb", b"x")], [(int(OpCode.SEAL), 1)])], verify=False)
    assert stored(store) == 3
    assert store.apply([appended(history, 2)], verify=False)
    assert store.apply([history.commit([(b"Cb", b"y")])], verify=True)
    with store.view() as view:
        assert dict(view.scan(b"", b"\xff")) == history.rows
        assert view.head.digest == history.digest
    store.close(clean=True)


def test_another_handle_sees_what_waits_and_a_close_writes_it(
    cache: LmdbMetadataCache, store: MetadataStore, history: History
) -> None:
    cache.make_current(store)
    assert store.apply([appended(history, 1)], verify=False)
    other = cache.open_current()
    assert other is not None
    assert other.get(b"Ca") == b"1"
    assert other.head().position == history.position
    assert other.apply([appended(history, 2)], verify=False)
    store.close(clean=True)
    other.close(clean=True)
    again = cache.open_current()
    assert again is not None
    assert again.head().position == history.position
    assert again.head().position != GENESIS
    again.close(clean=True)


def test_the_position_is_known_unless_it_moves(
    store: MetadataStore, cache: LmdbMetadataCache, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that has seen a commit never finds the position before it."""
    seen: list[object] = []

    def spied(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            seen.append(store.position)
            return real(*arguments, **named)

        return call

    monkeypatch.setattr(WriteBuffer, "add", spied(WriteBuffer.add))
    monkeypatch.setattr(Fold, "apply", spied(Fold.apply))
    assert store.apply([appended(history, 1)], verify=False)
    assert (store.position, seen) == (history.position, [None])
    with store.view() as view:
        assert view.head.position == store.position == history.position
    assert store.apply([history.commit([(b"Cb", b"")])], verify=True)
    assert (store.position, seen) == (history.position, [None, None, None])
    assert not store.apply([history.commit([]), history.commit([])][1:], verify=True)
    assert store.position in (None, store.head().position), "nothing was changed"
    assert store.position == store.head().position
    store.close(clean=True)
    assert store.position is None
