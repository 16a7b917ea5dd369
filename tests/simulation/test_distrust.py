"""What runs may not take for granted: drawn, told, put right, and judged. (That each class bites is for its planted bug to show.)"""

from __future__ import annotations

import pytest

from chunkstore.errors import Damaged
from tests.simulator import World
from tests.simulator.distrust import Distrust
from tests.simulator.drawing import draw_plan
from tests.simulator.lies import ENABLED
from tests.simulator.rot import RottenObject
from tests.simulator.runs import Run, run_seed
from tests.simulator.world import StorageKind

pytestmark = pytest.mark.proof

STORAGES: tuple[StorageKind, ...] = ("s3", "posix")


@pytest.mark.parametrize("storage", STORAGES)
def test_rot_is_seen_by_who_reads_and_by_no_judge_and_is_put_right(storage: StorageKind) -> None:
    with World(seed=1, storage=storage) as world:
        process = world.process("p")
        store = process.open()
        process.run(lambda: store.create("orders"))
        process.run(lambda: store.append("orders", b"good bytes"))
        (name,) = (name for name in world.backend.names() if name.startswith(world.names.data_prefix()))
        rot = RottenObject(world, name, 3, 0)
        assert world.backend.content(name) == b"good bytes"
        damaged = process.start(lambda: store.read("orders", 0, 10)).failure()
        assert isinstance(damaged, Damaged)
        assert rot.excuses(damaged)
        assert not rot.excuses(Damaged("x", object="something else"))
        rot.undo()
        assert process.run(lambda: store.read("orders", 0, 10)) == b"good bytes"


def test_damage_is_excused_by_a_lie_of_its_time_only() -> None:
    run = Run(draw_plan(13, distrust=()))
    try:
        distrust = Distrust(run)
        error = Damaged("wrong CRC", object=run.world.names.format)
        assert not distrust.excuses(error, 0)
        rot = RottenObject(run.world, run.world.names.format, 0, 0)
        distrust.tell("rotten_journal", rot, 1)
        assert distrust.excuses(error, 0)
        run.scheduler.now = over = run.scheduler.now + 10
        distrust.turn()  # it has lasted long enough
        assert rot.is_over
        assert distrust.excuses(error, over)
        assert not distrust.excuses(error, over + 1), "asked after it was put right"
    finally:
        run.world.close()


def test_a_run_with_every_class_is_one_run() -> None:
    seeds = [seed for seed in range(100) if len(draw_plan(seed, distrust=ENABLED).distrust) >= 3][:3]
    hashes = [run_seed(seed, claims=6, distrust=ENABLED).trace_hash for seed in seeds]
    assert [run_seed(seed, claims=6, distrust=ENABLED).trace_hash for seed in seeds] == hashes
