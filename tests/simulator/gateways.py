"""Gateways to an object store that stop obeying, beside live owners: late lists, old answers, a condition that is ignored.

Only what somebody can notice is asked of the product. Left out, and named in README.md: old answers about claims (a fenced read
rests on them), and an ignored condition under anybody but who opens: at any root, also a copy, some may claim or be deposed.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Final

from chunkstore.checksum import BytesLike
from chunkstore.errors import ChunkstoreError, Damaged
from tests.simulator.at_rest import let
from tests.simulator.roots import RootRun
from tests.simulator.s3 import Object, S3Backend, S3ChunkStorage
from tests.simulator.world import Process

__all__ = ["LateLists", "OldAnswers", "ignore_conditions", "list_late", "show_old_answers"]

_OLD: Final = 0.5
"""How often an answer is old, while some are."""


class LateLists:
    """LIST shows what there was when this began, mostly."""

    def __init__(self, backend: S3Backend) -> None:
        self._backend = backend
        backend.lists_late = True

    def __repr__(self) -> str:
        return "lists come late"

    def undo(self) -> None:
        """LIST is up to date."""
        self._backend.lists_late = False

    def excuses(self, error: ChunkstoreError) -> bool:
        """Nothing rests on a LIST."""
        return False


class OldAnswers:
    """GET and HEAD answer as they did when this began, every other time: 404, or an older version."""

    def __init__(self, run: RootRun, random: Random) -> None:
        self._run = run
        self._random = random
        self._backend = _backend(run)
        self._before = dict(self._backend.objects)
        self._shown: set[str] = set()
        self._backend.old_answer = self._answer

    def __repr__(self) -> str:
        return "answers are old"

    def _answer(self, name: str, found: Object | None) -> Object | None:
        names = self._run.world.names
        known = name.startswith(f"{names.container}/") and not name.startswith(names.epoch_prefix())
        if not known or self._random.random() >= _OLD:
            return found
        before = self._before.get(name)
        if before is not found:
            self._shown.add(name)
        return before

    def undo(self) -> None:
        """Answers are up to date."""
        self._backend.old_answer = None

    def excuses(self, error: ChunkstoreError) -> bool:
        """Whether it names an object about which something old was told; or, where anything was, a chunk that is rightly gone: who is not
        shown the newer records still looks for it."""
        name = error.object if isinstance(error, Damaged) else ""
        chunk = name.startswith(self._run.world.names.data_prefix()) and self._backend.content(name) is None
        rightly = chunk and self._run.checks.may_miss(name)
        return (rightly and bool(self._shown)) or any(name in str(error) for name in self._shown)


class _DisobeyingStorage(S3ChunkStorage):
    """If-None-Match is ignored; says of its server what a real binding does, so that it is probed at every open."""

    def _put(self, op: str, name: str, data: BytesLike, only_if_absent: bool) -> bool:
        return super()._put(op, name, data, only_if_absent=False)

    def server_identity(self) -> Mapping[str, str]:
        return {}

    def check_root(self) -> str:
        return ""


def _backend(run: RootRun) -> S3Backend:
    backend = run.world.backend
    assert isinstance(backend, S3Backend)
    return backend


def list_late(run: RootRun, _random: Random) -> LateLists:
    """From now on LIST comes late."""
    return LateLists(_backend(run))


def show_old_answers(run: RootRun, random: Random) -> OldAnswers:
    """From now on answers are old. Who takes over then may not find the last record's label of time (invariant 30)."""
    run.checks.forgive(30)
    return OldAnswers(run, random)


def ignore_conditions(run: RootRun, random: Random) -> None:
    """Somebody opens the container at a gateway that ignores If-None-Match, while all others use one that obeys: he refuses to."""
    world, backend = run.world, _backend(run)
    run.distrust.put_right()
    world.faults.note("ignored_condition")
    world.log("conditions are ignored")

    def open_it(process: Process) -> object:
        process.storage = world.wrap(_DisobeyingStorage(world, process, backend))
        return process.opening()()

    job = let(run, run.process(f"t{len(world.processes)}", f"host{random.randrange(run.plan.machines)}"), open_it)
    if job.done and job.error is None:
        world.fail("invariant 1: a container is opened at a gateway that ignores If-None-Match")
    world.log(f"who opens is answered {job.error!r}")
