"""Quota and safe mode: what is refused, what never is, and that truncate and collect always lead out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import chunkstore
from chunkstore.changes import (
    Append,
    Create,
    Seal,
    TablePut,
    Truncate,
)
from chunkstore.errors import InvalidArgument, StorageFull
from chunkstore.observer import Observer
from chunkstore_bindings.filesystem import mounts
from chunkstore_bindings.memory import forget_memory
from tests.support.settings import tuned

ROOT = "memory://tests-of-the-quota"  # a page of docs/ has an example on memory://quota, in the same process


class Modes(Observer):
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def safe_mode(self, reason: str) -> None:
        self.reasons.append(reason)


@pytest.fixture
def fresh() -> Iterator[Callable[..., chunkstore.ChunkedSegmentStorage]]:
    opened: list[chunkstore.ChunkedSegmentStorage] = []

    def make(root: str = ROOT, *, observer: Observer | None = None, **given: Any) -> chunkstore.ChunkedSegmentStorage:
        rolling = chunkstore.RollingPolicy(chunk_size_bytes_max=10)
        chosen = {"gc_grace_s": 0, "lease_s": 0, "default_rolling": rolling, **given}
        opened.append(chunkstore.open(root, settings=tuned(**chosen), observer=observer))
        return opened[-1]

    yield make
    for store in opened:
        store.close()
    forget_memory(ROOT)


def used_bytes(store: chunkstore.ChunkedSegmentStorage) -> int:
    used = store.usage()
    return used.live_bytes + used.dead_head_bytes + (used.garbage_bytes or 0)


def test_what_adds_is_refused_and_what_frees_is_not(fresh: Callable[..., chunkstore.ChunkedSegmentStorage]) -> None:
    modes = Modes()
    store = fresh(quota_bytes=100, observer=modes)
    for name in ("a", "b"):
        store.create(name)
    session = store.session("somebody")
    store.table("rows").put(b"key", b"value")
    store.pin("kept")
    store.append("a", bytes(90))
    with pytest.raises(StorageFull, match="quota_bytes=100 leaves room for 10 bytes"):
        store.append("a", bytes(11))
    assert store.usage().safe_mode is False, "a smaller one fits"
    store.append("a", bytes(8))
    with pytest.raises(StorageFull):
        store.append("a", bytes(3))
    assert (store.usage().safe_mode, store.usage().quota_bytes) == (True, 100)
    refused: list[Callable[[], object]] = [
        lambda: store.append("a", b"x"),
        lambda: store.create("c"),
        lambda: store.table("rows").put(b"key", b"other"),
        lambda: store.session("one more"),
        lambda: store.pin("more"),
        lambda: store.commit([Create("c"), Seal("a")]),
        lambda: store.commit([Truncate("a", 20), Append("b", b"x")]),
    ]
    for call in refused:
        with pytest.raises(StorageFull, match="safe mode"):
            call()
    store.seal("a")
    store.unseal("a")
    store.update_attributes("a", {"position": 1})
    store.set_retention("*", chunkstore.RetentionPolicy(size_bytes_max=50))
    store.table("rows").delete(b"key")
    store.commit([Truncate("a", 5), TablePut("rows", b"position", b"5")])
    store.seal("b")
    store.concat("a", 98, "b")
    session.end()
    assert store.snapshot().lsn > 0
    store.unpin("kept")
    store.truncate("a", 15)
    assert used_bytes(store) == 98, "garbage counts until it is collected"
    assert store.usage().safe_mode
    store.collect()
    assert (used_bytes(store), store.usage().safe_mode) == (88, False)
    store.create("c")
    store.append("c", bytes(12))
    assert [bool(reason) for reason in modes.reasons] == [True, False]


def test_what_is_admitted_while_the_totals_are_read_counts(
    fresh: Callable[..., chunkstore.ChunkedSegmentStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fresh(quota_bytes=100)
    store.create("a")
    space, rows = store._container.space, store._container.current.store
    measure = space.measure_quota

    def slowly(store_: Any) -> tuple[int, int]:
        found = measure(store_)
        monkeypatch.undo()
        store.append("a", bytes(90))
        return found

    space.forget_quota()
    monkeypatch.setattr(space, "measure_quota", slowly)
    space.admit(rows, 0)
    with pytest.raises(StorageFull, match="leaves room for 10 bytes"):
        store.append("a", bytes(11))


def test_a_stored_quota_is_in_force_for_every_owner(fresh: Callable[..., chunkstore.ChunkedSegmentStorage]) -> None:
    store = fresh(quota_bytes=500)
    store.create("a")
    store.append("a", bytes(50))
    assert store.set_quota(100), "lower than what was admitted so far: in force at once"
    with pytest.raises(StorageFull, match="quota_bytes=100 leaves room for 50 bytes"):
        store.append("a", bytes(51))
    store.close()
    later = fresh()
    assert later.usage().quota_bytes == 100
    with pytest.raises(StorageFull, match="quota_bytes=100"):
        later.append("a", bytes(51))
    with chunkstore.open_replica(ROOT) as replica:
        assert replica.usage().quota_bytes == 100
    later.append("a", bytes(50))
    with pytest.raises(StorageFull):
        later.append("a", b"x")
    assert later.usage().safe_mode
    assert later.set_quota(None) and not later.set_quota(None), "safe mode refuses neither"
    later.append("a", bytes(1000))
    assert (later.usage().quota_bytes, later.usage().safe_mode) == (None, False)
    for wrong in (0, -1, True, 1.5, 1 << 63):
        with pytest.raises(InvalidArgument):
            later.set_quota(wrong)  # type: ignore[arg-type]


STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "append", "append", "truncate", "delete", "collect"]), st.integers(1, 80)),
    max_size=30,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_never_above_the_quota_and_always_a_way_out(steps: list[tuple[str, int]]) -> None:
    forget_memory(ROOT)
    rolling = chunkstore.RollingPolicy(chunk_size_bytes_max=10)
    chosen = chunkstore.Settings(quota_bytes=200, gc_grace_s=0, lease_s=0, default_rolling=rolling)
    with chunkstore.open(ROOT, settings=chosen) as store:
        store.create("a")
        for step, size in steps:
            before = used_bytes(store)
            if step == "append":
                safe = store.usage().safe_mode
                try:
                    store.append("a", bytes(size))
                except StorageFull:
                    assert safe or before + size > 200
                else:
                    assert before + size <= 200
                    assert not safe
            elif step == "truncate":
                info = store.info("a")
                store.truncate("a", min(info.length, info.start_offset + size))
            elif step == "delete":
                store.delete("a")
                store.collect()
                store.create("a")
            else:
                store.collect()
            assert used_bytes(store) <= 200
        store.truncate("a", store.info("a").length)
        store.collect()
        assert store.usage().safe_mode is False
        store.append("a", bytes(200))
    forget_memory(ROOT)


def test_a_disk_with_little_left(
    fresh: Callable[..., chunkstore.ChunkedSegmentStorage], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [10_000]
    monkeypatch.setattr(mounts, "free_bytes", lambda _path: free[0])
    settings = {"free_bytes_min": 4000, "cache_dir": str(tmp_path / "cache")}
    store = fresh((tmp_path / "root").as_uri(), **settings)
    reserve = tmp_path / "root" / "default" / "reserve"
    assert reserve.stat().st_size == 1000
    store.create("a")
    free[0] = 3999
    space, cache = store._container.space, store._container.current.store
    space.tend(cache)
    with pytest.raises(StorageFull, match="the storage disk has 3999 bytes left, fewer than free_bytes_min=4000"):
        store.append("a", b"x")
    store.truncate("a", 0)
    assert reserve.exists(), "there is room for a record"
    assert (store.usage().free_bytes, store.usage().safe_mode) == (3999, True)
    free[0] = 999
    with pytest.raises(StorageFull):
        store.append("a", b"x")
    assert reserve.exists(), "not for what adds"
    store.seal("a")
    assert not reserve.exists()
    free[0] = 5199
    space.tend(cache)
    assert space.reason, "a twentieth and the reserve above where it began"
    assert not reserve.exists()
    free[0] = 5200
    space.tend(cache)
    assert not space.reason
    assert reserve.stat().st_size == 1000
    free[0] = 10
    store.close()
    assert not reserve.exists()
