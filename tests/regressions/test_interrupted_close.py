"""A close that is interrupted can be repeated, and one without threads to be had still closes everything, as does an open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chunkstore import runtime
from chunkstore.assembly import describe_owner, journal_records, open_store_on
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Closed
from chunkstore.journal import Ownership
from chunkstore.metadata.lmdb import environment
from chunkstore_journal.service import ContainerJournal
from tests.support.data import problems
from tests.support.forwarding import Hooked
from tests.support.worlds import World


class Closing(Hooked):
    """Counts how often it was closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1
        super().close()


class InterruptedTask:
    """Whoever waits for it the first time is interrupted."""

    def __init__(self, task: runtime.Task) -> None:
        self._task = task
        self._interrupted = False

    def join(self, timeout: float | None = None) -> None:
        if not self._interrupted:
            self._interrupted = True
            raise KeyboardInterrupt
        self._task.join(timeout)

    def is_alive(self) -> bool:
        return self._task.is_alive()


def opened(world: World) -> tuple[ChunkedSegmentStorage, Closing]:
    storage = Closing(world.raw_storage())
    store = open_store_on(
        storage,
        settings=world.settings(lease_s=5.0, op_deadline_s=60.0),
        cache=world._cache(storage, "default", "owner", None),
        close_storage=True,
    )
    store.create("s")
    store.append("s", b"0123")
    return store, storage


def check_closed(world: World, store: ChunkedSegmentStorage, storage: Closing) -> None:
    container = store._container
    assert container.released and container.current.queue.ended and storage.closed == 1
    store.close()
    assert storage.closed == 1, "once is enough"
    url = world.url if world.kind == "memory" else f"file://{world.root}"
    kinds = [record["kind"] for record in journal_records(url, epoch=store.epoch)]
    assert kinds.count("CLOSE") == 1 and kinds[-1] == "CLOSE"
    lease = describe_owner(url)["lease"]
    assert isinstance(lease, dict) and lease["released"]
    if world.kind == "filesystem":
        assert not any(path.startswith(str(world.tmp_path)) for path in environment._environments)
    with world.open() as again:
        assert again.read("s", 0, 9) == b"0123"
        assert problems(again.check()) == []


@pytest.mark.parametrize("step", range(4))
def test_interrupted_in_one_of_its_last_steps(world: World, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waits for CLOSE, for the stores, for the pool, and for what it was given to close."""
    store, storage = opened(world)
    spawn, begun = runtime.spawn, 0

    def interrupted(call: Callable[[], None], name: str) -> runtime.Task:
        nonlocal begun
        task = spawn(call, name)
        if name != "chunkstore-last":
            return task
        begun += 1
        return InterruptedTask(task) if begun == step + 1 else task

    monkeypatch.setattr(runtime, "spawn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.close()
    store.close()
    monkeypatch.undo()
    check_closed(world, store, storage)


def without_threads(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    spawn = runtime.spawn

    def refusing(call: Callable[[], None], name: str) -> runtime.Task:
        if name in names:
            raise RuntimeError("can't start new thread")
        return spawn(call, name)

    monkeypatch.setattr(runtime, "spawn", refusing)


def test_an_owner_that_cannot_be_made_leaves_nothing_open(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The take-over was done, and no thread could be started for the keeper: journal and store stayed open."""
    made: list[Ownership] = []
    take_over = ContainerJournal.take_over

    def kept(self: ContainerJournal, **arguments: Any) -> Ownership:
        made.append(take_over(self, **arguments))
        return made[-1]

    monkeypatch.setattr(ContainerJournal, "take_over", kept)
    without_threads(monkeypatch, "chunkstore-keeper")
    with pytest.raises(RuntimeError, match="new thread"):
        world.open(metadata="lmdb")
    monkeypatch.undo()
    journal: Any = made[0].journal
    assert isinstance(journal._end, Closed)
    with pytest.raises(Closed):
        made[0].store.head()
    assert not any(path.startswith(str(world.tmp_path)) for path in environment._environments)
    with world.open(metadata="lmdb") as store:
        assert store.epoch == 2
