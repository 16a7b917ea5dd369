"""A take-over ends, however busy the owner is that it deposes (protocol 3.4: anyone may claim at any time; invariant 33)."""

from __future__ import annotations

import pytest

from chunkstore.errors import ChunkstoreError, NotOwner
from tests.simulation.scene import ALL, SEGMENT, Scene, worlds


@worlds(*ALL)
@pytest.mark.parametrize("clients", [1, 4])
def test_a_busy_owner_is_deposed_in_bounded_time(scene: Scene, clients: int) -> None:
    """A claimant asks and writes one slot after the other; without the owner's help it would lose every race for the next."""
    z = scene.first("z", "a")
    answers: list[ChunkstoreError] = []

    def client() -> None:
        while True:
            try:
                z.store.append(SEGMENT, b"<more>")
            except ChunkstoreError as error:
                answers.append(error)
                return

    for number in range(clients):
        z.process.start(client, f"client {number}")
    scene.world.advance(1)
    _, opening = scene.opening("n")
    scene.world.advance(3)
    assert opening.done, f"n has asked the storage {len(scene.seen(process='n'))} times, and does not serve yet"
    opening.result()
    scene.world.advance(3)
    assert len(answers) == clients
    assert all(isinstance(error, NotOwner) for error in answers)
    assert isinstance(z.begin("late").failure(), NotOwner)
