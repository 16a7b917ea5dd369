"""Opening is polite: a live owner stays, an absent one is followed, and nothing of it costs a request (protocol A15)."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

import chunkstore
from chunkstore import backup
from chunkstore.assembly import open_store_on
from chunkstore.config import DefragPolicy, OptimiserPolicy, Settings, Tuning
from chunkstore.engine import Store
from chunkstore.errors import ContainerBusy, InvalidArgument, NotOwner
from chunkstore.operations import maintenance
from chunkstore.writer import StorageWriter
from chunkstore_bindings.memory import MemoryChunkStorage
from chunkstore_bindings.wrappers.metered import MeteredChunkStorage

NUMBERS = itertools.count()
OFTEN = Settings(lease_s=0.2)
OWNER = """
import sys, chunkstore
store = chunkstore.open(sys.argv[1], settings=chunkstore.Settings(cache_dir=sys.argv[2]))
store.create("a")
print("owns", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def no_watching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where an owner is watched."""
    monkeypatch.delattr("chunkstore_journal.lease.paced_s")


def test_a_live_owner_is_deposed_only_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chunkstore_journal.lease._LEASES_WATCHED", 1000)  # its keeper may be held up
    root = "memory://polite-live"
    with chunkstore.open(root, settings=OFTEN) as first:
        first.create("a")
        with pytest.raises(ContainerBusy, match=rf"this process.*pid {os.getpid()} on .*open_asker.*take_over=True"):
            chunkstore.open(root, settings=OFTEN)
        first.append("a", b"undisturbed")
        with chunkstore.open(root, settings=OFTEN, take_over=True) as second:
            assert second.read("a", 0, 20) == b"undisturbed"
            with pytest.raises(NotOwner):
                first.append("a", b"late")


@pytest.mark.parametrize(
    "call",
    [
        lambda root: chunkstore.open(root, wait_s=1, take_over=True),
        lambda root: chunkstore.open(root, take_over="yes"),  # type: ignore[arg-type]
        lambda root: backup.restore(root, root, wait_s=1, take_over=True),
        lambda root: backup.backup(root, root, wait_s=1, take_over=True),
    ],
    ids=["open", "flag", "restore", "backup"],
)
def test_taking_over_does_not_wait(call: Callable[[str], object]) -> None:
    root = "memory://polite-arguments"
    chunkstore.open(root).close()
    with pytest.raises(InvalidArgument, match="take_over"):
        call(root)


@pytest.mark.usefixtures("no_watching")
def test_politeness_costs_no_request() -> None:
    """Neither of a new container, nor after a clean close."""
    spent: dict[bool, list[int]] = {}
    for take_over in (False, True):
        spent[take_over] = []
        for _ in range(2):
            storage = MeteredChunkStorage(MemoryChunkStorage(f"memory://polite-costs-{take_over}"))
            store = open_store_on(storage, take_over=take_over, settings=Settings(tuning=Tuning(collect_s=0, ask_s=0)))
            counts = storage.snapshot()
            spent[take_over].append(sum(each.requests for name, each in counts.items() if name != "put"))
            store.close()
    assert spent[False] == spent[True]


@pytest.mark.proof
@pytest.mark.usefixtures("no_watching")
def test_an_owner_that_was_killed_is_followed_at_once(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    command = [sys.executable, "-c", OWNER, root, str(tmp_path / "cache")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"owns\n"
        owner.send_signal(signal.SIGKILL)
        owner.wait(60)
        with chunkstore.open(root, settings=Settings(cache_dir=str(tmp_path / "cache"))) as store:
            assert store.exists("a")


@pytest.mark.parametrize(
    "use", [lambda store: store.table("t"), lambda store: store.session("s"), lambda store: store.writer("a")]
)
def test_a_store_that_is_forgotten_shows_no_lease_any_more(
    monkeypatch: pytest.MonkeyPatch, use: Callable[[Store], object]
) -> None:
    """Whatever runs in the background: its keeper ends. What can still change the container keeps it."""
    monkeypatch.setattr(maintenance, "_TICK_S", 0.005)
    monkeypatch.setattr("chunkstore_journal.lease._RENEWED_LATE_S", 0.0)
    policy = OptimiserPolicy(retention=True, sweep_s=3600, defrag=DefragPolicy(), scrub_bytes_s=1000)
    root = f"memory://polite-forgotten-{next(NUMBERS)}"
    store = chunkstore.open(root, settings=Settings(headers="import", lease_s=0.1), optimiser=policy)
    store.create("a")
    keeper, there, used = store._maintenance._keeper, weakref.ref(store), use(store)
    assert keeper is not None
    del store
    gc.collect()
    assert there() is not None
    if isinstance(used, StorageWriter):
        used.close()
    with pytest.warns(ResourceWarning, match="unclosed <Store"):  # noqa: PT031
        del used
        gc.collect()
    keeper.join(60)
    assert not keeper.is_alive()
    chunkstore.open(root, settings=Settings(lease_s=0.1)).close()


def test_an_idle_owner_that_is_rung_for_shows_life_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease is due in an hour; nothing else of it moves."""
    root = f"memory://polite-rung-{next(NUMBERS)}"
    with chunkstore.open(root, settings=Settings(lease_s=3600.0)) as owner:
        with pytest.raises(ContainerBusy):
            chunkstore.open(root, settings=Settings(lease_s=3600.0))
        owner.create("a")
