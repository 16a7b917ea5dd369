"""A record whose slot is in doubt is never reported as "did not happen", whatever the storage answers to the next attempt.

Before, only ``StorageUnavailable`` and ``StorageFull`` were taken for doubt. After a reply that was lost, a turn that did not
come (a throttle), a token that had expired or a storage that was being closed made the append fail; it was in history all
the same, and the next record offered other bytes for the same slot (invariants 27, 29).
"""

from __future__ import annotations

import pytest

from chunkstore.errors import (
    ChunkstoreError,
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    StorageFull,
    StorageUnavailable,
)
from tests.regressions.test_commit_queue import hooked
from tests.support.data import problems
from tests.support.worlds import World

SLOTS = [pytest.param(("memory", "slot"), id="memory-slot"), pytest.param(("filesystem", "slot"), id="filesystem-slot")]


@pytest.mark.parametrize("world", SLOTS, indirect=True)
@pytest.mark.parametrize(
    "answer",
    [DeadlineExceeded("a turn", deadline_s=60), InvalidArgument("token expired"), Closed("x"), StorageFull("full")],
    ids=lambda answer: type(answer).__name__,
)
def test_what_is_told_is_what_is_there(world: World, answer: ChunkstoreError) -> None:
    store, gate = hooked(world)
    store.create("s")
    attempts: list[str] = []

    def is_record(operation: str, names: tuple[str, ...]) -> bool:
        return operation == "create_if_absent" and "/j/" in names[0] and store.epoch == 1

    def before(operation: str, names: tuple[str, ...]) -> None:
        if is_record(operation, names) and len(attempts) == 1:
            attempts.append(names[0])
            raise answer.copy()

    def after(operation: str, names: tuple[str, ...]) -> None:
        if is_record(operation, names) and not attempts:
            attempts.append(names[0])
            raise StorageUnavailable("the reply was lost")

    gate.before, gate.after = before, after
    assert store.append("s", b"first ") == 0
    assert store.append("s", b"second") == 6
    assert len(attempts) == 2
    store.close()
    world.forget_cache()
    with world.open() as later:
        assert later.read("s", 0, 99) == b"first second"
        assert problems(later.check("deep")) == []
