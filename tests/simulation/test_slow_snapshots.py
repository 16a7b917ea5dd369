"""A snapshot may take an hour, or fail for days: the rest of the upkeep goes on, and the storage is not asked for it twice a second."""

from __future__ import annotations

from itertools import pairwise

from chunkstore import runtime
from chunkstore.errors import ContainerBusy, StorageUnavailable
from tests.simulation.scene import ALL, APPEND, SLOT, Owner, Scene, worlds
from tests.simulator import Call


def _snapshot_under_way(scene: Scene, **settings: float) -> tuple[Owner, Call]:
    """An owner whose keeper is writing a snapshot; it is held there."""
    owner = scene.first("z", "a", snapshot_bytes_min=1, snapshot_slots_min=1, **settings)
    scene.world.advance(3)
    owner.begin("b")
    return owner, owner.process.until(op="create", name=scene.names.snapshot_prefix() + "*")


@worlds(*ALL)
def test_an_idle_owner_shows_that_it_lives(scene: Scene) -> None:
    """The keeper wrote the snapshot itself, and no lease meanwhile: any polite claimant deposed the owner."""
    owner, writing = _snapshot_under_way(scene, lease_s=2.0)
    _, opening = scene.opening("n", wait_s=20.0, lease_s=2.0)
    assert isinstance(opening.failure(), ContainerBusy)
    writing.release()
    assert owner.content() == ["a", "b"]
    assert scene.judge() == ["a", "b"]


@worlds(*SLOT)
def test_a_busy_owner_gives_way(scene: Scene) -> None:
    owner, writing = _snapshot_under_way(scene)
    n, opening = scene.opening("n")
    claimed = n.until(op="create_if_absent", name=scene.names.epoch(owner.epoch + 1), stage="reply")
    owner.begin("c")
    scene.world.advance(2)
    assert owner.store._container.fence.error is not None, "it has looked for newer claims, and stopped"
    claimed.release()
    writing.release()
    scene.served(n, opening)
    assert scene.judge()[:2] == ["a", "b"]


@worlds(*APPEND)
def test_replicas_get_their_heartbeat(scene: Scene) -> None:
    owner, writing = _snapshot_under_way(scene)
    scene.world.advance(1)
    lsn = owner.store._container.current.journal.head.lsn
    scene.world.advance(3)
    assert owner.store._container.current.journal.head.lsn == lsn + 1
    writing.release()


@worlds(*ALL)
def test_closing_does_not_wait_for_it_for_ever(scene: Scene) -> None:
    owner, writing = _snapshot_under_way(scene)
    closing = owner.process.start(owner.store.close, "close")
    scene.world.advance(30)
    assert closing.done, "op_deadline_s is 5"
    writing.release()
    assert scene.judge() == ["a", "b"]


@worlds(*ALL)
def test_one_that_fails_is_tried_ever_more_rarely(scene: Scene) -> None:
    """It was tried again at every tick, for ever, and nobody was told."""
    owner = scene.first("z", "a", snapshot_bytes_min=1, snapshot_slots_min=1)
    owner.run(lambda store: store.snapshot())
    service = owner.store._container.service
    tried: list[float] = []
    real = service.write_snapshot

    def failing(*arguments: object, **named: object) -> object:
        tried.append(runtime.monotonic_s())
        raise StorageUnavailable("read-back differs")

    service.write_snapshot = failing  # type: ignore[assignment]
    owner.append("b")
    scene.world.advance(3600)
    pauses = [after - before for before, after in pairwise(tried)]
    assert 10 < len(tried) < 25
    assert all(after > before * 1.3 for before, after in pairwise(pauses[:7]))
    assert max(pauses) < 601
    assert "read-back differs" in owner.store.report.snapshot_failure
    service.write_snapshot = real  # type: ignore[method-assign]
    scene.world.advance(601)
    assert owner.store.report.snapshot_failure == ""
    # And the next one that fails is tried again soon.
    service.write_snapshot = failing  # type: ignore[assignment]
    tried.clear()
    owner.append("c")
    scene.world.advance(10)
    assert len(tried) >= 3
    service.write_snapshot = real  # type: ignore[method-assign]
    assert scene.judge() == ["a", "b", "c"]
