"""A container that nobody changes is left alone: its keeper writes nothing that asks for more of the same."""

from __future__ import annotations

import pytest

from tests.simulation.scene import ALL, Scene, scene_of, worlds


def _snapshots(scene: Scene) -> int:
    prefix = scene.names.snapshot_prefix()
    return sum(call.op == "create" and call.name.startswith(prefix) for call in scene.seen(step="PUT*")) + sum(
        call.name.startswith(prefix) for call in scene.seen(step="creat")
    )


@worlds(*ALL)
@pytest.mark.parametrize("tiny", [{}, {"snapshot_bytes_min": 1, "snapshot_slots_min": 1}], ids=["by time", "by size"])
def test_one_change_is_worth_one_snapshot(scene: Scene, tiny: dict[str, int]) -> None:
    """The journal's record that notes a snapshot counted as a change since that snapshot: an idle container wrote one every
    five minutes, and at every tick where little was enough."""
    owner = scene.first("z", "a", **tiny)
    scene.world.advance(700)
    assert _snapshots(scene) == 1
    scene.world.advance(3_000)
    assert _snapshots(scene) == 1, "nothing has changed since the first one"
    owner.append("b")
    scene.world.advance(700)
    assert _snapshots(scene) == 2, "and a change is still worth one"


def test_many_records_without_a_change_are_worth_a_snapshot() -> None:
    """Where a read costs a record, reads alone make the journal long: what a recovery replays is records."""
    with scene_of("posix-slot", fence_by_stat=False, snapshot_slots_min=20) as scene:
        owner = scene.first("z", "a")
        scene.world.advance(700)
        assert _snapshots(scene) == 1
        for _ in range(15):
            owner.content()
        scene.world.advance(700)
        assert _snapshots(scene) == 1
        for _ in range(10):
            owner.content()
        scene.world.advance(5)
        assert _snapshots(scene) == 2
        scene.world.advance(3_000)
        assert _snapshots(scene) == 2
