"""A restore that was killed before its first record: nobody takes what is there for a container."""

from __future__ import annotations

import itertools

import pytest

from chunkstore.errors import Unsupported
from tests.backup_restore.test_restore import Cut, described, restored, target
from tests.support.data import pattern, problems
from tests.support.worlds import World

pytestmark = pytest.mark.proof

__all__ = ["target"]


class KilledError(BaseException):
    """Nothing handles it."""


class KilledBehindFormat(Cut):
    """From the call of this number on behind the one that puts FORMAT, nothing reaches the storage."""

    is_there = is_open = False

    def __call__(self, operation: str, names: tuple[str, ...]) -> None:
        if self.is_there and operation in ("create", "create_if_absent", "put", "write", "sync"):
            self.left -= 1
            if self.left <= 0:
                raise KilledError
        self.is_there |= operation == "create_if_absent" and names[0].endswith("/FORMAT")
        self.is_open |= operation == "create_if_absent" and names[0].endswith(f"/{0:016x}.s")


def test_nobody_opens_what_a_restore_leaves_behind_format(world: World, target: World) -> None:
    """Wherever it is killed between FORMAT and its first record, owners and replicas are refused; and the same call goes on."""
    store = world.open(rolling=8)
    world.still(store)
    store.create("a")
    store.append("a", pattern(0, 20), writer_id="w", event_number=4)
    lsn, expected = store.pin("before").lsn, described(store)
    for number in itertools.count(1):
        container, killed = f"c{number}", KilledBehindFormat(number)
        with pytest.raises(KilledError):
            restored(world, target, wrap=killed.around(after=False), lsn=lsn, new_container=container)
        target.forget_cache()
        if killed.is_open:
            break
        for opened in (target.replica, target.open):
            with pytest.raises(Unsupported) as caught:
                opened(container)
            assert caught.value.feature == "unfinished_import", f"killed at call {number}"
            target.forget_cache()
        restored(world, target, lsn=lsn, new_container=container)
        with target.open(container) as new:
            assert described(new) == expected
    # Whatever comes behind the first record: it is whole.
    assert number > 5
    with target.open(container) as new:
        assert described(new) == expected
        assert problems(new.check("deep")) == []
