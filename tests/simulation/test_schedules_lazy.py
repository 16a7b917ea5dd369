"""Named schedules: appends that are acknowledged without a record of their own (protocol 3.10, 3.18: 26 to 29)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from chunkstore.errors import NotOwner, OutcomeUnknown, StorageUnavailable
from tests.simulation.scene import POSIX, SEGMENT, Owner, Scene, scene_of

lazily = pytest.mark.parametrize("kind", POSIX)


@contextmanager
def lazy_scene(kind: str, seed: int = 3) -> Iterator[tuple[Scene, Owner]]:
    """A world whose first owner has appended one event with a record, and one without."""
    with scene_of(kind, seed, lengths="lazy") as scene:
        z = scene.first("z", "a")
        before = len(scene.records(1))
        z.append("b")
        assert len(scene.records(1)) == before, "it was acknowledged without a record"
        assert z.content() == ["a", "b"], "and its owner reads it"
        yield scene, z


def content(owner: Owner) -> bytes:
    return owner.run(lambda store: store.read(SEGMENT, 0, 99))


@lazily
def test_26_lazy_length_zombie(kind: str) -> None:
    with lazy_scene(kind) as (scene, z):
        late = z.begin("late")
        call = z.process.until(name="*/d/*")
        n = scene.owner("n", "other")
        assert not call.applied, "the successor has taken the chunk's size, and serves"
        assert n.content() == ["a", "b"]
        call.release()
        assert isinstance(late.failure(), OutcomeUnknown)
        assert scene.content(call.name) == b"<a><b><late>", "nothing physical has stopped it"
        assert isinstance(z.begin("later").failure(), NotOwner)
        n.append("c", "d")
        assert scene.judge() == ["a", "b", "c", "d"]


@lazily
def test_26_lazy_length_zombie_and_a_third_owner(kind: str) -> None:
    """What a take-over has recorded is never measured again."""
    with lazy_scene(kind) as (scene, z):
        z.begin("late")
        call = z.process.until(name="*/d/*")
        n = scene.owner("n", "other")
        assert n.content() == ["a", "b"]
        n.process.crash()
        call.release()
        m = scene.owner("m", "third")
        assert m.content() == ["a", "b"]
        assert scene.judge() == ["a", "b"]


@lazily
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_26_lazy_length_zombie_whose_bytes_are_not_durable(kind: str, seed: int) -> None:
    """What a take-over counts, it has made durable (P6). By ``seed`` a power cut takes what is not, or a part of it."""
    with lazy_scene(kind, seed) as (scene, z):
        z.begin("late")
        z.process.until(op="sync", name="*/d/*")
        n = scene.owner("n")
        assert n.content() == ["a", "b", "late"], "all of it was visible, so it counts"
        scene.world.machine("host").power_cut()
        n = scene.owner("n2")
        n.append("c")
        assert scene.judge() == ["a", "b", "late", "c"]


@lazily
@pytest.mark.parametrize("cut", [False, True], ids=["", "power cut"])
def test_27_lazy_length_acked_before_claim(kind: str, cut: bool) -> None:
    """``cut``: and then the power, so that whoever counted bytes that are not durable has counted too many."""
    with lazy_scene(kind) as (scene, z):
        event = z.begin("x")
        call = z.process.until(op="exists", name=scene.names.epoch(2), stage="reply", skip=1)
        n = scene.owner("n")
        assert event.outcome == "unknown"
        call.release()
        event.acknowledged()
        assert n.content() == ["a", "b", "x"]
        if cut:
            scene.world.machine("host").power_cut()
            n = scene.owner("n2")
        n.append("c")
        assert scene.judge() == ["a", "b", "x", "c"]


@lazily
def test_27_lazy_length_acked_before_claim_and_before_a_power_cut(kind: str) -> None:
    with lazy_scene(kind) as (scene, z):
        z.append("x")
        scene.world.machine("host").power_cut()
        n = scene.owner("n")
        n.append("c")
        assert scene.judge() == ["a", "b", "x", "c"]


@lazily
def test_28_lazy_unknown_chunk(kind: str) -> None:
    with scene_of(kind, lengths="lazy") as scene:
        z = scene.first("z")
        first = z.begin("a")
        call = z.process.until(op="sync", name="*/d/*")
        second = z.begin("b")
        scene.world.advance(1.0)
        assert second.outcome == "unknown", "no byte of a chunk is acknowledged that history does not name"
        assert scene.there(call.name), "the chunk is there, and nothing is written to the journal"
        z.process.crash()
        assert first.outcome == "unknown"
        n = scene.owner("n", "other")
        assert n.content() == []
        n.append("c")
        assert scene.judge() == ["c"]


@pytest.mark.parametrize(
    ("kind", "lengths"), [*((kind, "lazy") for kind in POSIX), *((kind, "exact") for kind in POSIX)]
)
def test_29_partial_append_survives(kind: str, lengths: str) -> None:
    """A part of one that nobody was told anything about: allowed where lengths are lazy, and never where they are exact."""
    with scene_of(kind, lengths=lengths) as scene:
        z = scene.first("z", "a", "b")
        z.begin("late")
        call = z.process.until(name="*/d/*")
        scene.posix.tear(call, 3)
        z.process.crash()
        n = scene.owner("n", "other")
        found = b"<a><b><la" if lengths == "lazy" else b"<a><b>"
        assert content(n) == found
        n.append("c")
        replica = scene.replica()
        m = scene.owner("m", "third")
        for shown in (content(m), replica.process.run(lambda: replica.replica.read(SEGMENT, 0, 99))):
            assert shown == found + b"<c>", "it is part of history for everybody, and for ever"
        assert not [item for item in m.run(lambda store: store.check("deep")) if item.severity == "damage"]


@lazily
def test_29_partial_append_survives_never_when_it_was_refused(kind: str) -> None:
    """Before the caller is told that it did not happen, a record has closed the chunk in front of it."""
    with lazy_scene(kind) as (scene, z):
        event = z.begin("late")
        call = z.process.until(name="*/d/*")
        scene.posix.find(call.name).data[6:] = b"<la"
        call.fail(StorageUnavailable("no answer", object=call.name))
        assert isinstance(event.failure(), StorageUnavailable)
        z.process.crash()
        n = scene.owner("n", "other")
        n.append("c")
        assert scene.judge() == ["a", "b", "c"]
