"""Named schedules: the metadata cache of a machine, and who may change it (protocol 3.18: 35 to 37; 3.8, P7)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from chunkstore.errors import Damaged, NotOwner, RolledBack
from chunkstore.metadata.lmdb import LmdbMetadataCache
from chunkstore.metadata.lmdb.cache import environment_of
from chunkstore.metadata.lmdb.environment import abandon
from chunkstore.metadata.port import Commit, MetadataCache
from tests.simulation.scene import ALL, Owner, Scene, scene_of, worlds
from tests.simulator import Process


def watch_apply(owner: Owner) -> list[bool]:
    """What the owner's cache answers from now on when it is to apply a commit."""
    answers: list[bool] = []
    writer = owner.store._container.current.writer
    apply = writer.apply

    def watched(commits: Sequence[Commit]) -> bool:
        answers.append(apply(commits))
        return answers[-1]

    writer.apply = watched  # type: ignore[assignment]
    return answers


@pytest.mark.parametrize("cache", ["memory", "lmdb"])
@pytest.mark.parametrize("kind", ALL)
def test_35_two_processes_one_lmdb(kind: str, cache: str, tmp_path: Path) -> None:
    with scene_of(kind, lmdb_folder=str(tmp_path) if cache == "lmdb" else None) as scene:
        z = scene.first("z", "a")
        answers = watch_apply(z)
        event = z.begin("b")
        call = z.until_decided()
        n = scene.owner("n", "host")
        assert n.store.report.source != "cache", "z holds it"
        theirs = n.store._container.current.store
        head = theirs.head()
        assert head.position.epoch == 2
        assert z.store._container.current.store.head().position.lsn == head.position.lsn - 2 and answers == []
        call.release()
        event.acknowledged()
        assert event.epoch == 1, "it was decided before the claim"
        assert answers == [True], "z applies it to a store that is its own"
        assert theirs.head() == head
        assert isinstance(z.begin("c").failure(), NotOwner)
        n.append("d")
        assert scene.judge() == ["a", "b", "d"]


def apply_too_early(scene: Scene, z: Owner) -> None:
    """Planted: z's cache has a record that the journal never gets, because z dies."""
    call = z.process.until_record("send")
    commit = scene.commit_in(call)
    container = z.store._container
    assert z.process.run(lambda: container.current.store.apply([commit], verify=True))
    z.process.crash()


@worlds(*ALL)
def test_36_lmdb_ahead(scene: Scene) -> None:
    """Nothing else has happened: the cache is a witness of records that are gone, and nobody sweeps that under the rug."""
    z = scene.first("z", "a")
    event = z.begin("phantom")
    apply_too_early(scene, z)
    assert event.outcome == "unknown"
    _, opening = scene.opening("n", "host")
    error = opening.failure()
    assert isinstance(error, Damaged)
    assert "accept_rollback=True" in error.message
    assert not scene.slot or scene.seal(1) is None, "restoring the storage must stay possible"
    scene.world.machine("host").shelf.clear()
    assert scene.owner("m", "host").content() == ["a"]
    assert scene.judge() == ["a"]


@worlds(*ALL)
def test_36_lmdb_ahead_of_a_history_that_went_on(scene: Scene) -> None:
    z = scene.first("z", "a")
    z.begin("phantom")
    apply_too_early(scene, z)
    m = scene.owner("m", "other")
    m.append("b", "c")
    _, opening = scene.opening("n", "host")
    error = opening.failure()
    assert isinstance(error, RolledBack)
    assert "another history" in error.message, "its hash differs"
    n = scene.served(*scene.opening("n2", "host", accept_rollback=True))
    assert n.store.report.source != "cache"
    assert n.content() == ["a", "b", "c"]
    assert scene.judge() == ["a", "b", "c"]


@pytest.mark.parametrize("ended", ["closed", "killed", "power cut"])
@pytest.mark.parametrize("kind", ALL)
def test_37_lmdb_unclean(kind: str, ended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with scene_of(kind) as scene:
        world = scene.world

        def one_folder(process: Process, role: str) -> MetadataCache:
            return LmdbMetadataCache(str(tmp_path / process.machine.name), world.format.uuid, "here", role)

        monkeypatch.setattr(world, "make_cache", one_folder)
        z = scene.first("z", "a", "b")
        store = environment_of(z.store._container.current.store).path
        if ended == "closed":
            z.run(lambda store: store.close())
        if ended == "killed":
            z.process.crash()
        else:
            world.machine("host").power_cut()
        abandon(str(tmp_path))
        if ended == "power cut":
            # What was not synced may be anything now.
            with Path(store, "data.mdb").open("r+b") as file:
                file.write(os.urandom(64 * 1024))
        n = scene.owner("n", "host")
        assert (n.store.report.source == "cache") is (ended == "closed")
        assert (environment_of(n.store._container.current.store).path == store) is (ended == "closed")
        assert n.content() == ["a", "b"]
        n.append("c")
        assert scene.judge() == ["a", "b", "c"]
