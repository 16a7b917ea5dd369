"""Named schedules: what was acknowledged before a clean close, or seen by a machine, and is gone (protocol 3.18: 53, 54)."""

from __future__ import annotations

from chunkstore.errors import Damaged, RolledBack
from tests.simulation.scene import ALL, Owner, Scene, worlds


def closed(owner: Owner) -> None:
    """It ends in peace, and its process with it."""
    owner.run(lambda store: store.close())
    owner.process.crash()


def state(scene: Scene) -> dict[str, bytes]:
    """Every object of the container."""
    return {name: scene.content(name) for name in scene.world.backend.names()}


def become(scene: Scene, objects: dict[str, bytes]) -> None:
    """Somebody puts these in the place of all that is there."""
    for name in {*scene.world.backend.names()} - {*objects}:
        scene.world.backend.remove(name)
    for name, data in objects.items():
        scene.world.backend.overwrite(name, data)


@worlds(*ALL)
def test_53_end_lost_after_close(scene: Scene) -> None:
    """Who has never seen this container notices; nothing takes the lost place, so that it can be put back."""
    z = scene.first("z", "a", "b", "c")
    closed(z)
    whole = state(scene)
    last = max(name for name in whole if scene.names.parse_slot(name) or name == scene.names.log(1))
    lost = {name: data for name, data in whole.items() if name != last}
    if not scene.slot:
        lost[last] = whole[last][:-300]
    become(scene, lost)
    process, opening = scene.opening("n", "elsewhere")
    error = opening.failure()
    assert isinstance(error, Damaged) and error.object == last
    process.crash()
    assert scene.decided(2) is None
    assert scene.there(last) is not scene.slot
    scene.world.backend.overwrite(last, whole[last])
    m = scene.owner("m", "third")
    m.append("d")
    assert scene.judge() == ["a", "b", "c", "d"]


@worlds(*ALL)
def test_54_restored_backup(scene: Scene) -> None:
    """A machine that has seen more refuses the older state, and goes on with the newer one once that is there again."""
    closed(scene.first("z", "a"))
    backup = state(scene)
    n = scene.owner("n", "host")
    n.append("b")
    closed(n)
    newer = state(scene)
    become(scene, backup)
    process, opening = scene.opening("m", "host")
    error = opening.failure()
    assert isinstance(error, RolledBack) and error.lsn_seen > error.lsn_now
    process.crash()
    assert state(scene) == backup
    become(scene, newer)
    m = scene.owner("m", "host")
    assert m.store.report.source == "cache"
    m.append("c")
    assert scene.judge() == ["a", "b", "c"]


@worlds(*ALL)
def test_who_accepts_a_loss_and_dies_before_its_open_leaves_no_witness(scene: Scene) -> None:
    """What it puts in the place of the old lease does not speak of an epoch that was never opened."""
    closed(scene.first("z", "a"))
    backup = state(scene)
    n = scene.owner("n", "host")
    n.append("b")
    closed(n)
    become(scene, backup)
    process, _ = scene.opening("m", "host", accept_rollback=True)
    process.until(op="create_if_absent", name=scene.names.slot(2, 0), stage="send")
    process.crash()
    assert scene.decided(2) is None
    heir = scene.owner("heir", "elsewhere")
    assert heir.content() == ["a"]
