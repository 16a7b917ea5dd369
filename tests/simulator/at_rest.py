"""What happens to a root while nobody runs: the end of its journal is cut off, an older backup is put in its place.

Each is a procedure of the nemesis: everybody dies, the root changes, claimants are asked what they make of it. What was cut off comes
back, and so does the newer root, unless history goes on from the backup; then what came after it is given up, and the judges go back with
it. Leaves out: a backup behind which former owners still run (epoch numbers recur, protocol 3.2).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from chunkstore.errors import ChunkstoreError, Damaged, RolledBack
from chunkstore_journal.objects import decode_lease
from tests.simulator.posix import PosixBackend
from tests.simulator.roots import RootRun
from tests.simulator.told import Backup
from tests.simulator.world import Job, Machine, Process

__all__ = ["cut_tail", "let", "restore_backup", "show_backup"]

_NO_ANSWER: Final = Damaged("no answer", object="")
_TURNS: Final = 200
"""How often a claimant is looked after before it counts as hanging."""


class KeptCaches:
    """Caches that know more than the root: they are held against it until somebody accepts the loss."""

    def undo(self) -> None:
        """Only accepting it helps."""

    def excuses(self, error: ChunkstoreError) -> bool:
        """Whether it says so."""
        return isinstance(error, RolledBack)


def _objects(run: RootRun) -> dict[str, bytes]:
    backend, prefix = run.world.backend, f"{run.world.container}/"
    return {name: backend.content(name) or b"" for name in backend.names() if name.startswith(prefix)}


def _take(run: RootRun) -> Backup:
    checks = run.checks.copied()
    checks.pause()
    numbers = [writer.number for writer in run.writers]
    stored = checks.stored
    return Backup(_objects(run), stored.point(stored.lsn), checks, run.recorder.copied(), numbers)


def _put(run: RootRun, objects: dict[str, bytes]) -> None:
    """Nothing else is there, and nothing is on its way to what was there."""
    run.world.drop_requests()
    backend = run.world.backend
    for name in _objects(run).keys() - objects.keys():
        backend.remove(name)
    for name, data in objects.items():
        backend.overwrite(name, data)
    if isinstance(backend, PosixBackend):
        backend.settle()  # else a power cut would bring back what was deleted before


def restore_backup(run: RootRun, random: Random) -> None:
    """First a backup is taken; the next time it is put in the root's place, and stays: some machines have lost their caches."""
    backup, run.distrust.backup = run.distrust.backup, None
    if backup is None:
        run.distrust.backup = _take(run)
        return
    run.distrust.put_right()
    replicas = run.shut_down()
    run.checks.history(run.recorder.finish())
    _put(run, backup.objects)
    for machine in run.world.machines.values():
        if random.random() < 0.5:
            machine.shelf.clear()
        else:
            run.accepting.append(machine)
    run.distrust.tell_for_ever(KeptCaches())
    run.checks.pause()
    backup.checks.pause(paused=False)
    run.go_on_as(backup.recorder, backup.checks)
    for writer, number in zip(run.writers, backup.numbers, strict=True):
        writer.number = number
    run.world.log(f"a backup of lsn {backup.point[0]} is in the root's place")
    run.world.faults.note("restored_backup")
    run.begin_replicas(replicas)


def show_backup(run: RootRun, random: Random) -> None:
    """A backup is in the root's place for a while, on a machine whose cache is ahead of it: whoever opens it is told so."""
    backup, run.distrust.old_backup = run.distrust.old_backup, None
    if backup is None:
        run.distrust.old_backup = _take(run)
        return
    address = run.world.observer_storage().address
    lsn, holds = backup.point[0], run.checks.stored.holds
    ahead = [
        machine
        for machine in run.world.machines.values()
        if (head := machine.seen(address)) is not None and head.position.lsn > lsn and holds(*head.position[:2])
    ]
    if not ahead or not holds(*backup.point):
        return
    run.distrust.put_right()
    replicas = run.shut_down()
    newer = _objects(run)
    run.checks.pause()
    _put(run, backup.objects)
    run.world.faults.note("rolled_back")
    run.world.log(f"a backup of lsn {lsn} is in the root's place, for a while")
    for _ in range(random.choice((1, 2, 4))):
        # What the first one leaves behind must not deceive the next.
        answer = _ask(run, random.choice(ahead))
        if answer is None:
            run.world.fail(f"history lost-ack: a backup of lsn {lsn} is served on a machine that has seen more")
        elif isinstance(answer, Damaged) and not isinstance(answer, RolledBack) and answer is not _NO_ANSWER:
            run.world.fail(f"history wrong-refusal: a backup of lsn {lsn} is called {answer!r}")
    _put(run, newer)
    run.checks.pause(paused=False)
    run.begin_replicas(replicas)


def cut_tail(run: RootRun, random: Random) -> None:
    """Records before a clean close are gone: whoever opens it is told so, until they are back."""
    world, history = run.world, run.checks.stored
    run.distrust.put_right()
    replicas = run.shut_down()
    let(run, run.process(f"o{len(world.processes)}", "host0"), run.serve_and_close)
    lease = world.backend.content(world.names.lease)
    released = None if lease is None else decode_lease(lease, object=world.names.lease)
    if released is None or not released.released or not released.epoch == history.last_claim == history.top:
        run.begin_replicas(replicas)
        return
    world.drop_requests()  # a record that is sent once more would bring back what is cut
    before = _objects(run)
    cut = _cut(run, history.top, random)
    if cut:
        world.faults.note("cut_tail")
        world.log(f"cut off: {cut}")
        machines = [*world.machines.values(), world.machine("host-without-a-cache")]
        if _ask(run, random.choice(machines)) is None:
            world.fail(f"history lost-ack: a journal is served whose end is gone: {cut}")
        world.drop_requests()
        for name in cut:
            world.backend.overwrite(name, before[name])
    run.begin_replicas(replicas)


def _cut(run: RootRun, epoch: int, random: Random) -> list[str]:
    """Cut records off the end of a stream; returns the objects that are shorter or gone."""
    world = run.world
    if world.mode == "append":
        log = world.names.log(epoch)
        data = world.backend.content(log) or b""
        if data:
            world.backend.overwrite(log, data[: random.choice((0, random.randrange(len(data)), len(data) - 1))])
        return [log] if data else []
    last = 0
    while world.backend.content(world.names.slot(epoch, last + 1)) is not None:
        last += 1
    cut = [world.names.slot(epoch, index) for index in range(max(1, last + 1 - random.choice((1, 1, 2, 5))), last + 1)]
    for name in cut:
        world.backend.remove(name)
    return cut


def let(run: RootRun, process: Process, call: Callable[[Process], object]) -> Job[object]:
    """Let a process do something while nobody else does; it is dead afterwards."""
    job: Job[object] = process.start(lambda: call(process))
    for _ in range(_TURNS):
        if job.done or process.dead or process.frozen is not None:
            break
        run.world.scheduler.pause(run.unit_ns)
    run.forget_stall(process)
    process.crash()
    return job


def _ask(run: RootRun, machine: Machine) -> ChunkstoreError | None:
    """What a claimant is answered: an error, or None if it serves. It is dead afterwards."""
    world = run.world
    process = run.process(f"t{len(world.processes)}", machine.name)
    job = let(run, process, lambda _: process.opening()())
    if job.done and job.error is None:
        return None
    world.log(f"{process.name} was answered {job.error!r}")
    if job.error is not None and not isinstance(job.error, ChunkstoreError):
        world.fail(f"opening was answered {job.error!r}, which is not chunkstore's")
    return job.error if isinstance(job.error, ChunkstoreError) else _NO_ANSWER
