"""Going back in place: a moment of history is kept in mind, and some time later somebody makes it the present again (protocol 3.15, A3).

A procedure of the nemesis: owners and replicas die, but what they have asked the storage for may still land, their deletions too; caches
stay as they are. The judge of stored bytes goes back with the OPEN that says so: the state is then that of the moment, by the digest, and
refers to nothing that a former owner may delete. Clients go back to what they had been told at the moment, so that whatever they read is
compared with the bytes of then. Where what is needed is gone, or the storage fails, everything goes on as if nothing had been asked.
"""

from __future__ import annotations

from random import Random

from chunkstore.errors import ChunksMissing, ChunkstoreError, PastCollected
from tests.simulator.at_rest import let
from tests.simulator.posix import PosixBackend
from tests.simulator.roots import RootRun
from tests.simulator.told import Moment

__all__ = ["go_back"]


def go_back(run: RootRun, random: Random) -> None:
    """The first time a moment is kept in mind; the next time the container goes back to it, if it is still a point of history."""
    world, stored = run.world, run.checks.stored
    moment, run.distrust.moment = run.distrust.moment, None
    if moment is None or not stored.holds(*moment.point):
        run.distrust.moment = _now(run)
        return
    run.distrust.put_right()
    replicas = run.shut_down()
    run.checks.history(run.recorder.finish())
    rewound = stored.rewound
    process = run.process(f"b{len(world.processes)}", f"host{random.randrange(run.plan.machines)}")
    job = let(run, process, lambda _: process.going_back(moment.point[0])())
    if not job.done or job.error is not None:
        world.drop_requests()  # else its OPEN may still land, and nobody knows when
    if isinstance(world.backend, PosixBackend):
        world.backend.settle()  # a power cut that takes the OPEN back would bring back what has gone
    if stored.rewound != rewound:
        run.go_on_as(moment.recorder, run.checks)
        for writer, number in zip(run.writers, moment.numbers, strict=True):
            writer.number = number
        world.faults.note("went_back")
        world.log(f"{process.name} went back to lsn {moment.point[0]}")
    elif isinstance(job.error, (ChunksMissing, PastCollected)):
        world.log(f"{process.name} was refused lsn {moment.point[0]}: {job.error!r}")
    elif job.error is not None and not isinstance(job.error, ChunkstoreError):
        world.fail(f"going back was answered {job.error!r}, which is not chunkstore's")
    run.begin_replicas(replicas)


def _now(run: RootRun) -> Moment:
    stored = run.checks.stored
    numbers = [writer.number for writer in run.writers]
    return Moment(stored.point(stored.lsn), run.recorder.copied(), numbers)
