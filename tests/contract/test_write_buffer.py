"""Appends that wait for company in the store: they are seen at once, written before anything else is shown, and lost without harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chunkstore.journal import OpCode
from chunkstore.metadata.fold import fold
from chunkstore.metadata.keys import segment_key
from chunkstore.metadata.lmdb import LmdbMetadataCache
from chunkstore.metadata.port import GENESIS, Commit, Head, MetadataStore
from chunkstore.metadata.write_buffer import WriteBuffer
from tests.support.lmdb_caches import CONTAINER, lmdb_of
from tests.support.metadata_basics import compare
from tests.support.metadata_history import History, World


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


def lined(cache: LmdbMetadataCache) -> tuple[World, MetadataStore]:
    """A world with one segment, and its store, in which no lines wait."""
    world, store = World(), cache.create()
    assert store.apply([world.create()], verify=True)
    return world, store


def stored(store: MetadataStore) -> int:
    """The lsn that another process would find in the store."""
    with lmdb_of(store).begin() as txn:
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


def test_so_many_wait_and_no_more(store: MetadataStore, history: History) -> None:
    for number in range(1, 300):
        assert store.apply([appended(history, number)], verify=False)
        assert history.position.lsn - stored(store) <= 128
    assert stored(store) > 1
    store.close(clean=True)


def test_so_many_lines_wait_and_no_more(cache: LmdbMetadataCache) -> None:
    world, store = lined(cache)
    for _ in range(300):
        assert store.apply([world.lines((1, 1, b""))], verify=False)
        assert world.history.position.lsn - stored(store) <= 128
    begun = stored(store)
    assert begun > 1
    assert store.apply([world.lines(*[(1, 1, b"")] * 1100)], verify=False)
    assert store.apply([world.lines((1, 1, b""))], verify=False)
    assert stored(store) > begun, "one record holds as many lines as may wait"
    store.close(clean=True)


def test_lines_wait_until_their_rows_are_wanted(cache: LmdbMetadataCache) -> None:
    for ask in (
        lambda store, world: store.get(segment_key("segment-1")) == world.history.rows[segment_key("segment-1")],
        lambda store, world: store.head().digest == world.history.digest,
        lambda store, world: store.view().close() is None,
    ):
        world, store = lined(cache)
        assert store.apply([world.lines((1, 5, b"w"), (1, 6, b"w"), (1, 7, b""))], verify=False)
        assert store.apply([world.grow(1, 0)], verify=False)
        assert store.apply([world.lines((1, 8, b""))], verify=False)
        assert stored(store) == 1, "they wait"
        assert store.position == world.history.position
        assert ask(store, world)
        assert stored(store) == 4
        with store.view() as view:
            compare(view, world)
            view.audit()
        cache.discard(store)


def test_the_last_record_that_states_a_digest_says_where_a_store_stands(cache: LmdbMetadataCache) -> None:
    """Whoever asks for the head may do so while lines are added: it is of one commit, whole."""
    world, store = lined(cache)
    assert store.apply([world.lines((1, 5, b""))], verify=False)
    assert store.apply([world.grow(1, 0)], verify=False)
    assert store.head() == Head(world.history.position, world.history.digest)
    assert stored(store) == 1, "for that nothing had to be written"
    store.close(clean=True)


def test_any_other_change_comes_after_lines(cache: LmdbMetadataCache) -> None:
    world, store = lined(cache)
    for verify in (False, True):
        assert store.apply([world.lines((1, 5, b"w"))], verify=False)
        assert store.apply([world.create()], verify=verify)
        assert store.apply([world.concat(1, max(world.segments))], verify=verify)
    assert store.apply([world.lines((1, 5, b"w"))], verify=False)
    with store.view() as view:
        compare(view, world)
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


def test_what_does_not_follow_is_refused_while_others_wait(store: MetadataStore, history: History) -> None:
    assert store.apply([appended(history, 1)], verify=False)
    again = Commit(history.position, bytes(16), history.digest, ((int(OpCode.APPEND), 1, 1, 0, ()),), ((b"Ca", b"no"),))
    assert not store.apply([again], verify=False)
    assert store.get(b"Ca") == b"1"
    assert store.head().position == history.position
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
    monkeypatch.setattr("chunkstore.metadata.store.fold", spied(fold))
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
