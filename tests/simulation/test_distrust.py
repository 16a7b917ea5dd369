"""What runs may not take for granted: drawn, told, put right, and judged. (That each class bites is for its planted bug to show.)"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from chunkstore.errors import Damaged, NotOwner, OutcomeUnknown
from tests.simulator import Weather, World
from tests.simulator.at_rest import cut_tail
from tests.simulator.copies import CopiedRun
from tests.simulator.distrust import Distrust
from tests.simulator.drawing import draw_plan
from tests.simulator.gateways import ignore_conditions, show_old_answers
from tests.simulator.lies import CLASSES, ENABLED, SELDOM, draw_distrust
from tests.simulator.rot import RottenObject
from tests.simulator.runs import Run, run_seed
from tests.simulator.s3 import S3Backend
from tests.simulator.scheduler import SimProcessState
from tests.simulator.wire import Call
from tests.simulator.world import StorageKind

pytestmark = pytest.mark.proof

STORAGES: tuple[StorageKind, ...] = ("s3", "posix")


def test_a_class_is_drawn_in_half_of_the_runs_and_by_itself() -> None:
    drawn = Counter(name for seed in range(400) for name, _ in draw_distrust(seed, "s3", CLASSES))
    assert set(drawn) == set(CLASSES)
    assert all(150 <= drawn[name] <= 250 for name in ENABLED - SELDOM.keys()), drawn
    assert all(1 <= drawn[name] <= 100 for name in SELDOM), drawn
    for seed in range(20):
        alone = draw_distrust(seed, "s3", ("rotten_chunk",))
        assert alone == tuple(item for item in draw_distrust(seed, "s3", CLASSES) if item[0] == "rotten_chunk")
    assert draw_plan(13, distrust=()).distrust == ()
    with pytest.raises(ValueError, match="no such class: rust"):
        draw_distrust(1, "s3", ("rust",))


def test_only_an_object_store_has_a_gateway() -> None:
    names = {name for seed in range(50) for name, _ in draw_distrust(seed, "posix", CLASSES)}
    assert names == set(CLASSES) - {"late_list", "old_answer", "ignored_condition"}


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


@pytest.mark.parametrize("storage", STORAGES)
def test_a_copy_has_its_own_objects_history_and_judge(storage: StorageKind) -> None:
    run = Run(draw_plan(13, distrust=(), storage=storage))
    world = run.world
    try:
        owner = world.process("o1", "host0")
        store = owner.open()
        owner.run(lambda: store.create("s0"))
        copied = CopiedRun(run, "copy0/")
        owner.run(lambda: store.append("s0", b"original"))
        assert copied.checks.stored.lsn + 1 == run.checks.stored.lsn
        heir = copied.process("o2", "elsewhere")
        other = heir.open()
        heir.run(lambda: other.append("s0", b"a copy"))
        assert heir.run(lambda: other.read("s0", 0, 10)) == b"a copy"
        assert owner.run(lambda: store.read("s0", 0, 10)) == b"original"
        assert copied.checks.stored.last_claim == 2
        assert run.checks.stored.last_claim == 1
        assert not world.failures
    finally:
        world.close()


def _calm_run() -> Run:
    plan = draw_plan(13, distrust=(), storage="s3", bindings=False)
    return Run(replace(plan, weather=Weather(), replicas=0, pace=1.0))


@pytest.mark.parametrize("side", ["", "copy0/"])
def test_who_is_deposed_does_not_meet_the_gateway_of_who_opens(side: str) -> None:
    run = _calm_run()
    world = run.world
    world.trace = []
    try:
        root = CopiedRun(run, side) if side else run
        zombie, successor = root.process("o1", "host0"), root.process("o2", "host0")
        store = zombie.open()
        job = zombie.start(lambda: store.create("s0"))
        record = zombie.until_record()
        successor.open()  # its SEAL takes the name
        seal = world.backend.content(record.name)
        run.scheduler.spawn(SimProcessState("nemesis", 0), partial(ignore_conditions, run, Random(1)), "nemesis")
        world.scheduler.at(1, partial(record.release))
        world.advance(100)
        assert any("who opens is answered Unsupported" in line for line in world.trace)
        assert isinstance(job.failure(), NotOwner | OutcomeUnknown)
        assert world.backend.content(record.name) == seal is not None
        assert not world.failures
    finally:
        world.close()


def test_old_answers_excuse_who_looks_for_what_is_rightly_gone() -> None:
    run = _calm_run()
    try:
        owner = run.process("o1", "host0")
        store = owner.open()
        owner.run(lambda: store.create("s0"))
        owner.run(lambda: store.append("s0", b"a"))
        (name,) = run.checks.referenced_chunks()
        old = show_old_answers(run, Random(1))
        error = Damaged("absent", object=name)
        backend = run.world.backend
        assert isinstance(backend, S3Backend)
        data = backend.content(name)
        assert data is not None
        owner.run(lambda: store.append("s0", b"b"))
        backend.remove(name)
        for _ in range(9):
            owner.run(lambda: owner.storage.exists(run.world.names.slot(1, 3)))  # the record of that
        assert not old.excuses(error), "history refers to it"
        backend.put(name, data, only_if_absent=True)
        owner.run(lambda: store.delete("s0"))
        assert not old.excuses(error), "it is there"
        backend.remove(name)
        assert old.excuses(error), "who collects removes the object first, and then writes that its row goes"
    finally:
        run.world.close()


def test_what_is_cut_off_does_not_come_back_by_a_request_that_is_under_way() -> None:
    run = _calm_run()
    world = run.world

    def send_again(call: Call, _result: object, late: bool) -> None:
        if call.name.endswith(".s") and not late:
            world.scheduler.at(8 * run.unit_ns, call.late)  # behind the cut, and before anybody reads what was cut

    world.observers.append(send_again)
    try:
        for number in range(3):
            run.scheduler.spawn(SimProcessState("nemesis", 0), partial(cut_tail, run, Random(number)), "nemesis")
            world.advance(100)
        assert world.faults.fired["cut_tail"] == 3
        assert not world.failures
    finally:
        world.close()


def test_rows_rot_in_runs_whose_caches_are_in_lmdb() -> None:
    seed = next(seed for seed in range(1000) if any(name == "rotten_rows" for name, _ in draw_plan(seed).distrust))
    runs = [run_seed(seed, claims=12) for _ in range(2)]
    assert runs[0].lmdb
    assert runs[0].fired["rotten_rows"]
    assert runs[0].violations == []
    assert runs[0].trace_hash == runs[1].trace_hash


def test_a_run_with_every_class_is_one_run() -> None:
    seeds = [seed for seed in range(100) if len(draw_plan(seed, distrust=ENABLED).distrust) >= 3][:3]
    hashes = [run_seed(seed, claims=6, distrust=ENABLED).trace_hash for seed in seeds]
    assert [run_seed(seed, claims=6, distrust=ENABLED).trace_hash for seed in seeds] == hashes
