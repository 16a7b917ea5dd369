"""The optimiser in virtual time: what it collects by itself and when, what it costs, when it stands back, how it ends."""

from __future__ import annotations

from typing import Any

import pytest

from chunkstore.config import OptimiserPolicy, RetentionPolicy, RollingPolicy
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import InvalidArgument
from chunkstore.journal import RecordKind
from chunkstore.upkeep.optimiser import StorageOptimiser
from tests.simulation.scene import ALL, Owner, Scene, scene_of, worlds

SMALL = RollingPolicy(chunk_size_bytes_max=10)


def chunks(scene: Scene) -> int:
    prefix = scene.names.data_prefix()
    return sum(name.startswith(prefix) for name in scene.world.backend.names())


def litter(owner: Owner, count: int) -> None:
    """So many chunks of garbage."""

    def make(store: ChunkedSegmentStorage) -> None:
        store.create("litter", rolling=SMALL)
        store.append("litter", bytes(10 * count))
        store.delete("litter")

    owner.run(make)


def optimised(owner: Owner, policy: OptimiserPolicy) -> StorageOptimiser:
    """As if the store had been opened with this policy."""
    owner.run(lambda store: store._maintenance.background.clear())
    owner.run(lambda store: store._make_optimiser(policy))
    return owner.store.optimiser


@worlds(*ALL)
def test_what_was_removed_is_deleted_after_its_grace_by_default(scene: Scene) -> None:
    owner = scene.first("z", "a", collect_s=300.0, gc_grace_s=3600.0)
    litter(owner, 20)
    scene.world.advance(3_500)
    assert chunks(scene) == 21
    scene.world.advance(500)
    assert chunks(scene) == 1
    assert owner.run(lambda store: store.usage().garbage_bytes) == 0
    assert scene.judge() == ["a"]


@worlds(*ALL)
def test_it_can_be_switched_off(scene: Scene) -> None:
    owner = scene.first("z", "a", collect_s=0.0, gc_grace_s=0.0)
    litter(owner, 3)
    scene.world.advance(10_000)
    assert chunks(scene) == 4
    assert owner.store.optimiser.status().jobs[0].next_s is None
    assert owner.run(lambda store: store.optimiser.run_once()).freed_bytes == {"collect": 30}, "asked for, it runs"
    assert chunks(scene) == 1


@worlds("posix-append", "s3-slot")
def test_garbage_behind_a_pin_and_in_its_grace_stays(scene: Scene) -> None:
    owner = scene.first("z", "a", collect_s=10.0, gc_grace_s=100.0)
    owner.run(lambda store: store.pin("p", expires_s=1_000))
    litter(owner, 5)
    scene.world.advance(900)
    assert chunks(scene) == 6
    scene.world.advance(200)
    assert chunks(scene) == 1, "its end came with a collection"


@worlds("posix-append")
def test_it_stands_back_while_commits_queue_but_not_for_ever(scene: Scene) -> None:
    owner = scene.first("z", "a", collect_s=1.0, gc_grace_s=0.0)
    queue = owner.store._container.current.queue
    litter(owner, 2)
    kind = type(queue)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "idle", property(lambda self: False))
        scene.world.advance(4)
        assert chunks(scene) == 3
        scene.world.advance(4)
        assert chunks(scene) == 1, "one step in five seconds"


@worlds("posix-append")
def test_paused_it_does_nothing_and_goes_on(scene: Scene) -> None:
    owner = scene.first("z", "a", collect_s=1.0, gc_grace_s=0.0)
    optimiser = owner.store.optimiser
    optimiser.pause()
    assert optimiser.status().paused
    litter(owner, 2)
    scene.world.advance(100)
    assert chunks(scene) == 3
    planned = owner.run(lambda store: store.optimiser.run_once(dry_run=True))
    assert (planned.freed_bytes, chunks(scene)) == ({"collect": 20}, 3)
    optimiser.resume()
    scene.world.advance(2)
    assert chunks(scene) == 1
    [job] = optimiser.status().jobs
    assert (job.name, job.freed_bytes, job.errors, job.moved_bytes) == ("collect", 20, 0, 0)


@worlds("posix-append")
def test_retention_is_applied_where_it_is_asked_for(scene: Scene) -> None:
    owner = scene.first("z", "a", collect_s=5.0, gc_grace_s=0.0)

    def fill(store: ChunkedSegmentStorage) -> None:
        for number in range(300):
            store.create(f"r{number:03}", rolling=SMALL)
            store.append(f"r{number:03}", bytes(30))
        store.set_retention("r*", RetentionPolicy(size_bytes_max=10))

    owner.run(fill)
    scene.world.advance(60)
    assert chunks(scene) == 901
    optimiser = optimised(owner, OptimiserPolicy(interval_s=5, retention=True))
    assert owner.run(lambda store: store.optimiser.run_once(dry_run=True)).freed_bytes["retention"] == 300 * 20
    scene.world.advance(60)
    assert chunks(scene) == 301
    retention = next(job for job in optimiser.status().jobs if job.name == "retention")
    assert (retention.freed_bytes, retention.findings) == (300 * 20, ())
    assert retention.steps > retention.passes, "300 segments are more than one step"


@worlds("s3-slot", "posix-append")
@pytest.mark.parametrize("end", ["close", "deposed"])
def test_a_collection_under_way_ends_with_its_owner(scene: Scene, end: str) -> None:
    owner = scene.first("z", "a", collect_s=1.0, gc_grace_s=0.0)
    owner.store.optimiser.pause()
    litter(owner, 1_500)
    owner.store.optimiser.resume()
    delete = owner.process.until(op="delete", skip=20)
    if end == "close":
        job = owner.process.start(owner.store.close, "close")
        delete.release()
        job.run_to_end()
        left = chunks(scene)
        assert left > 800, "it did not wait for the end of the pass"
    else:
        heir = scene.owner("y", "other", collect_s=0.0)
        delete.release()
        heir.append("b")
        scene.world.advance(30)
        left = chunks(scene)
        assert left > 800
    scene.world.advance(100)
    assert chunks(scene) == left
    scene.judge()


def test_commits_go_on_beside_a_large_collection() -> None:
    """No commit waits for more than a step's own record."""
    with scene_of("posix-append", collect_s=1.0, gc_grace_s=0.0) as scene:
        owner = scene.first("z", "a")
        owner.store.optimiser.pause()
        litter(owner, 3_000)
        owner.store.optimiser.resume()
        for number in range(50):
            owner.append(f"b{number}")
            scene.world.advance(0.1)
        assert chunks(scene) < 3_000
        assert len(scene.judge()) == 51


def test_a_deletion_that_hangs_does_not_keep_an_owner_from_closing_cleanly() -> None:
    with scene_of("posix-append", collect_s=1.0, gc_grace_s=0.0) as scene:
        owner = scene.first("z", "a")
        litter(owner, 3)
        owner.process.until(op="delete")  # and it stays there
        owner.process.run(owner.store.close)
        assert [record.header.kind for record in scene.records(1)][-1] is RecordKind.CLOSE


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval_s": 0},
        {"bytes_s": -1},
        {"requests_s": "x"},
        {"step_deadline_s": 0},
        {"retention": 1},
        {"sweep_s": None},
    ],
)
def test_a_policy_is_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        OptimiserPolicy(**wrong)
    assert caught.value.argument == next(iter(wrong))
