"""The log of an owner on files is longer than its records: what that costs nobody, alive, killed, rolled or closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore import backup
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Damaged
from tests.support.worlds import World

PIECES = [b"<%d>" % number * 20 for number in range(30)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World("filesystem", "append", tmp_path)
    made.defaults = {**made.defaults, "inline_bytes_max": None, "spill_s": 3600.0, "gc_grace_s": 0.0}
    yield made
    made.close()


def log_of(world: World, epoch: int) -> Path:
    return world.root / world.names().log(epoch)


def filled(world: World) -> ChunkedSegmentStorage:
    store = world.open()
    store.create("a")
    for piece in PIECES:
        store.append("a", piece)
    return store


def killed(world: World) -> int:
    """An owner that wrote, and was seen no more; where its records end."""
    store = filled(world)
    end = store._container.current.journal.head.end
    world.crash(store)
    world.forget_cache()
    return end


def test_zeros_that_a_killed_owner_left_are_neither_cut_nor_damage(world: World, tmp_path: Path) -> None:
    end = killed(world)
    log = log_of(world, 1)
    assert log.stat().st_size > end and not log.read_bytes()[end:].strip(b"\0")
    store = world.open()
    assert store.report.tail_cut is None and store.report.findings == ()
    assert store.read("a", 0, 1 << 20) == b"".join(PIECES)
    assert store.check("deep") == []
    assert world.replica(metadata="memory").check("deep") == []
    target = (tmp_path / "backups").as_uri()
    backup.backup(store, target)
    backup.restore(target, (tmp_path / "restored").as_uri())
    store.spill()
    store.snapshot()
    store.append("a", b"more")
    store.collect()
    assert not log.exists()


@pytest.mark.parametrize("lost", [16, 60, 200])
def test_a_record_torn_before_the_zeros_is_cut(world: World, lost: int) -> None:
    end = killed(world)
    with open(log_of(world, 1), "r+b") as file:
        file.seek(end - lost)
        file.write(bytes(lost))
    store = world.open()
    cut = store.report.tail_cut
    assert cut is not None and 0 < cut.bytes < 1000
    assert store.read("a", 0, 1 << 20) == b"".join(PIECES[:-1])
    assert store.check("deep") == []


def test_zeros_in_place_of_a_record_are_damage(world: World) -> None:
    end = killed(world)
    with open(log_of(world, 1), "r+b") as file:
        file.seek(end // 2)
        file.write(bytes(600))
    with pytest.raises(Damaged):
        world.open()
