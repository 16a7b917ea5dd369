"""Regressions of reading and collecting: stale replicas, foreign exceptions, pools, two collectors, resumed writers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from chunkstore.config import RollingPolicy
from chunkstore.errors import (
    Closed,
    SegmentNotFound,
)
from chunkstore_journal.claim import new_attempt
from tests.support.data import problems, refused
from tests.support.forwarding import Hooked, nothing
from tests.support.hooked import in_thread, open_hooked
from tests.support.worlds import World


def in_forked_child(call: Callable[[], str], wait_s: float = 20.0) -> str:
    """What ``call`` answers in a child made by fork; nothing if it takes longer than ``wait_s``."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            threading.Timer(wait_s, lambda: os._exit(1)).start()
            answer = call()
        except BaseException as error:  # noqa: BLE001
            answer = f"failed: {error!r}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return answer


def test_two_collectors_do_not_get_in_each_others_way(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower one must not bring back a garbage row that the faster one has finished."""
    from chunkstore.config import LIMITS
    from chunkstore.operations import collect as module

    monkeypatch.setattr(module, "LIMITS", LIMITS.__class__(garbage_unfold_chunks_max=2))
    store = world.open(rolling=4, gc_grace_s=0)
    store.create("s")
    for _ in range(10):
        store.append("s", b"xxxx")
    store.delete("s")
    real = module._delete_objects
    slow, go = threading.Event(), threading.Event()
    first = threading.Lock()

    def slowly(core: object, names: list[str], removed_lsn: int) -> None:
        real(core, names, removed_lsn)  # type: ignore[arg-type]
        if first.acquire(False):
            slow.set()
            go.wait(2)

    monkeypatch.setattr(module, "_delete_objects", slowly)
    one, found_one = in_thread(store.collect)
    assert slow.wait(60)
    two, found_two = in_thread(store.collect)
    two.join(0.5)
    go.set()
    one.join(60)
    two.join(60)
    assert not [item for item in found_one + found_two if isinstance(item, BaseException)]
    assert store.collect().chunks == 0
    assert problems(store.check()) == []
    assert world.chunks() == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_cannot_touch_its_parents_store(world: World) -> None:
    store = world.open()
    store.create("s")
    store.append("s", b"parent;")
    world.still(store)
    before = world.objects()
    sizes = [world.content(name) for name in before]

    def child() -> str:
        refused(
            Closed,
            lambda: store.append("s", b"child;"),
            lambda: store.seal("s"),
            lambda: store.read("s", 0, 1),
            store.collect,
            store.snapshot,
        )
        store.close()
        return "closed"

    assert in_forked_child(child) == "closed"
    assert [world.content(name) for name in before] == sizes
    epoch = store.epoch
    assert store.append("s", b"parent;") == 7
    assert store.epoch == epoch


def test_a_replica_never_misses_what_was_deleted_behind_the_last_record(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulator, seed 2500100401. An owner died behind deleting what its last record had removed, and somebody claimed: in
    an APPEND journal that record counts when one stands behind it, and until then the replica called a healthy segment damaged."""
    store = world.open(gc_grace_s=0)
    store.create("s")
    store.append("s", b"data")
    replica = world.replica()
    store.delete("s")

    def die(*_: object, **_named: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("chunkstore.operations.collect.commit_changes", die)
        with pytest.raises(RuntimeError):
            store.collect()
    assert world.chunks() == []
    claimed = store.epoch + 1
    assert world.storage().create_if_absent(world.names().epoch(claimed), new_attempt(claimed).data)
    world.crash(store)
    refused(SegmentNotFound, lambda: replica.read("s", 0, 9))
    replica.refresh()
    refused(SegmentNotFound, lambda: replica.read("s", 0, 9))


@pytest.mark.parametrize("into", [False, True])
def test_a_name_that_means_another_segment_meanwhile_is_read_as_that(world: World, into: bool) -> None:
    """Where a chunk vanished under a read and its name meant a new, shorter segment by then, bytes were returned that never
    stood anywhere."""
    store, storage = open_hooked(world, Hooked, gc_grace_s=0.0)
    store.create("x", rolling=RollingPolicy(chunk_size_bytes_max=4))
    for word in (b"OLD1", b"OLD2", b"OLD3"):
        store.append("x", word)

    def before(operation: str, names: tuple[str, ...]) -> None:
        if operation == "read" and "/d/" in names[0]:
            storage.before = nothing
            store.delete("x")
            store.collect()
            store.create("x")
            store.append("x", b"new")

    storage.before = before
    if into:
        buffer = bytearray(12)
        assert store.read_into("x", 0, buffer) == 3
        assert buffer[:3] == b"new"
    else:
        assert store.read("x", 0, 12) == b"new"
