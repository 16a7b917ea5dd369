"""Askers: processes that own nothing and have the owner do things (protocol 3.19), in a random run.

An asker is somebody who outlives its processes, as a sink is: all it knows of itself is its row, which says how far it has come. It
asks for the next step, the same again where nobody knows what came of it, or another one in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Final

from chunkstore.assembly import open_asker_on
from chunkstore.changes import Attach, Change, Concat, Create, EndSession, Seal, TablePut
from chunkstore.changes.asks import AskCommit, Stage
from chunkstore.changes.sessions import SessionChunk, staged_name
from chunkstore.config import RollingPolicy
from chunkstore.engine.owner import Asker
from chunkstore.errors import ChunkstoreError, Closed, OutcomeUnknown
from chunkstore.operations.session_writer import SessionWriter
from tests.judges.segment_model import Call
from tests.simulator.clients import look_at
from tests.simulator.lives import Lives
from tests.simulator.world import Process

_TABLE: Final = "asked"
_CHUNK_BYTES: Final = 30
_INSISTING: Final = 60
"""How often somebody asks in vain, without faults, before that is a violation."""
_CALM_S: Final = 20.0
_VERBS: Final = ("commit",) * 12 + ("session", "defrag", "snapshot") + ("append",) * 4 + ("pin", "unpin", "collect") * 2


class _Asker:
    """Somebody who asks, whatever becomes of its processes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.key = name.encode()
        self.variants = 0
        self.processes: list[Process] = []
        self.served = False
        """At the end: whether its last step was done."""


class Askers:
    """All askers of one run. ``turn`` at each turn of the nemesis; ``end`` once there are no faults."""

    def __init__(self, run: Lives) -> None:
        self._run = run
        self._all = [_Asker(f"q{number}") for number in range(run.plan.askers)]
        self._ending = False

    def turn(self) -> None:
        """Who has died is begun again, who stalls may be succeeded by a twin; some are struck."""
        random = self._run.random
        for who in self._all:
            who.processes = [process for process in who.processes if not process.dead]
            awake = [process for process in who.processes if process.frozen is None]
            if not awake and len(who.processes) < 3 and random.random() < 0.7:
                self._begin(who)
            for process in awake:
                self._run.strike_reader(process)

    def end(self) -> None:
        """Everybody asks for one thing more, of an owner that stays until all were served."""
        if not self._all:
            return
        run = self._run
        self._ending = True
        for who in self._all:
            who.processes = [process for process in who.processes if not process.dead]
            for process in who.processes:
                process.wall_offset_ns = 0  # who is far behind the owner's clock is refused, for ever
            if not who.processes:
                self._begin(who)
        process = run.process(f"last{len(run.world.processes)}", "host-of-the-last")
        run.lives.append(run.scheduler.spawn(process, lambda: self._serve(process), "last"))

    def _begin(self, who: _Asker) -> None:
        run = self._run
        process = run.process(f"a{len(run.world.processes)}", f"host{run.random.randrange(run.plan.machines)}")
        who.processes.append(process)
        run.lives.append(run.scheduler.spawn(process, lambda: self._live(who, process), "asker"))

    def _live(self, who: _Asker, process: Process) -> None:
        run, random = self._run, Random(f"asker {self._run.plan.seed} {process.name}")
        asked = lives = 0
        while not who.served and asked < _INSISTING:
            since = run.recorder.now()
            lives += 1
            try:
                replica = process.opening_replica()()
            except ChunkstoreError as error:
                run.recorder.judge("opening an asker", process.name, error, since)
                run.world.runtime.sleep_s(run.plan.latency_s * 50)
                continue
            run.checks.watch_replica(process, replica)
            with open_asker_on(process.storage, replica) as asker:
                life = _Life(run, who, process, asker, random, f"{process.name}.{lives}")
                for _ in range(random.randrange(1, 12)):
                    asked += self._ending
                    with suppress(Closed):
                        life.work(insists=self._ending)
                    if who.served:
                        return
                    run.world.runtime.sleep_s(run.plan.latency_s * 10 * random.random())
        if not who.served:
            run.world.fail(f"invariant 33: without faults, nobody has done what {who.name} asked for")

    def _serve(self, process: Process) -> None:
        run, random = self._run, Random(f"last {self._run.plan.seed}")
        lives = 0
        while not all(who.served for who in self._all) and not run.world.failures:
            lives += 1
            store = run.claim(process, random, f"{process.name}.{lives}")
            with suppress(ChunkstoreError):
                while store is not None and not all(who.served for who in self._all):
                    run.world.runtime.sleep_s(run.plan.timeout_s)
                    self._begin_again()
                    store.exists("s0")
            if store is None:
                run.world.runtime.sleep_s(run.plan.timeout_s)

    def _begin_again(self) -> None:
        """Whoever has died since faults were over: of a call that had been struck before."""
        for who in self._all:
            if not who.served and all(process.dead for process in who.processes):
                self._begin(who)


class _Life:
    """A life of one process of an asker."""

    def __init__(self, run: Lives, who: _Asker, process: Process, asker: Asker, random: Random, name: str) -> None:
        self._run = run
        self._who = who
        self._process = process
        self._asker = asker
        self._random = random
        self._name = name
        self._variant = 0

    def work(self, *, insists: bool) -> None:
        """Ask for something. ``insists``: for the next step, until it is done. Raises ``Closed``."""
        verb = "commit" if insists else self._random.choice(_VERBS)
        since = self._run.recorder.now()
        try:
            if verb == "commit":
                self._step(insists=insists)
            else:
                getattr(self, f"_{verb}")()
        except Closed:
            raise
        except ChunkstoreError as error:
            if not self._run.world.scheduler.killing:
                self._run.recorder.judge(f"asking for a {verb}", "", error, since)

    # Steps: commits that the row counts

    def _step(self, *, insists: bool) -> None:
        """Ask for the step behind the one that the row names, until it is done, refused, or given up."""
        asker, random, who = self._asker, self._random, self._who
        asker.replica.refresh()
        version, number = self._row()
        # At the end often: where a claim stands above an owner that serves, whoever is refused is never told so (decision 0019).
        if random.random() < (0.5 if insists else 0.1):
            who.variants += 1
            self._variant = who.variants
        changes, told = self._changes(number + 1)
        once = TablePut(_TABLE, who.key, b"%d.%d" % (number + 1, self._variant), version)
        args = (told, (once.namespace, once.key, once.value, version))
        call = partial(asker.commit, changes, once, wait_s=_CALM_S if insists else self._wait_s())
        while True:
            try:
                self._run.recorder.call(self._name, "ask", "", args, lambda: 0, call)
                who.served = insists
                break
            except OutcomeUnknown:
                if insists or random.random() < 0.7:
                    if random.random() < 0.5:
                        return  # the same again, by what the row says then, and with chunks of its own
                    continue
            except Closed:
                raise
            except ChunkstoreError:
                if random.random() < 0.3:
                    continue  # asked for again
            # Something else is asked for in its place, so only one of both can happen.
            who.variants += 1
            self._variant = who.variants
            return
        with suppress(ChunkstoreError):
            self._row()
            look_at(self._run.recorder, random, self._name, asker.replica, told[0][1] if told else "s0")

    def _row(self) -> tuple[int, int]:
        """Version and number of our row, as the replica shows it."""
        replica = self._asker.replica
        lsn = replica.lsn

        def look() -> tuple[bytes, int] | None:
            row = replica.table(_TABLE).get(self._who.key)
            return None if row is None else (row.value, row.version)

        args = (_TABLE, self._who.key, None, lsn)
        row = self._run.recorder.call(self._name, "replica_get", "", args, lambda: replica.epoch, look)
        return (0, 0) if row is None else (row[1], int(row[0].split(b".")[0]))

    def _changes(self, number: int) -> tuple[Sequence[Change], tuple[Call, ...]]:
        """What a step consists of: the same whenever it is asked for, but for the chunks that hold its bytes."""
        name = f"{self._who.name}.{number}.{self._variant}"
        random = Random(f"step {self._run.plan.seed} {name}")
        dice, segment = random.random(), f"s{random.randrange(self._run.plan.segments)}"
        if dice < 0.15:
            return (), ()
        data = [
            b"<%s#%d%s>" % (name.encode(), part, b"." * random.choice((0, 5)))
            for part in range(random.choice((1, 1, 2, 3)))
        ]
        if dice < 0.3:
            size = random.choice((7, 30, 100))
            changes: list[Change] = [Create(segment, RollingPolicy(chunk_size_bytes_max=size))]
            told: list[Call] = [("create", segment, (size,))]
        elif dice < 0.5:
            fresh = f"s{name}"
            changes, told = (
                [Create(fresh, RollingPolicy(chunk_size_bytes_max=_CHUNK_BYTES))],
                [("create", fresh, (_CHUNK_BYTES,))],
            )
            segment, into = fresh, segment
        else:
            changes, told = [], []
        writer, chunks = self._written(name, data)
        if random.random() < 0.3:
            source = self._stage(writer, chunks, b"".join(data))
            changes.append(Concat(segment, source))
            told.append(("concat", segment, (None, source)))
        else:
            changes.append(Attach(segment, writer.session_id, chunks))
            told.append(("attach", segment, (b"".join(data), None)))
        if 0.3 <= dice < 0.5:
            changes += [Seal(segment), Concat(into, segment)]
            told += [("seal", segment, ()), ("concat", into, (None, segment))]
        elif dice > 0.9:
            changes.append(Seal(segment))
            told.append(("seal", segment, ()))
        changes.append(EndSession(writer.session_id))
        return changes, tuple(told)

    def _stage(self, writer: SessionWriter, chunks: tuple[SessionChunk, ...], data: bytes) -> str:
        """Have chunks staged; the name of their segment, which only a commit says."""
        name = staged_name(writer.session_id, (chunk.id for chunk in chunks))
        told = (("create", name, (None,)), ("attach", name, (data, None)), ("seal", name, ()))

        def stage() -> int:
            self._asker.run(AskCommit((), Stage(writer.session_id, (chunks,))), wait_s=self._wait_s())
            return 0

        self._run.recorder.call(self._name, "ask", "", (told, None), lambda: 0, stage)
        return name

    def _written(self, name: str, data: Sequence[bytes]) -> tuple[SessionWriter, tuple[Any, ...]]:
        writer = self._asker.session(name, wait_s=self._wait_s())
        return writer, tuple(writer.write_chunk(self._process.storage, part, item) for part, item in enumerate(data))

    def _wait_s(self) -> float:
        unit_s = self._run.unit_ns / 1e9
        return min(600.0, unit_s * self._random.choice((0.5, 2, 10, 40)))

    # What has no row

    def _append(self) -> None:
        """The present event of a writer; owners' clients may append it as well."""
        writer = self._random.choice(self._run.writers)
        number, data, name = writer.number, writer.data(), writer.name
        append = partial(
            self._asker.append, writer.segment, data, writer_id=name, event_number=number, wait_s=self._wait_s()
        )
        self._run.recorder.call(self._name, "append", writer.segment, (data, None, name, number), lambda: 0, append)
        if writer.number == number:
            writer.number += 1

    def _session(self) -> None:
        self._asker.session(f"{self._who.name}/{self._random.randrange(3)}", wait_s=self._wait_s())

    def _pin(self) -> None:
        expires_s = self._random.choice((None, self._run.plan.latency_s * 30))
        self._asker.pin(f"p{self._random.randrange(2)}", expires_s=expires_s, wait_s=self._wait_s())

    def _unpin(self) -> None:
        self._asker.unpin(f"p{self._random.randrange(2)}", wait_s=self._wait_s())

    def _collect(self) -> None:
        self._asker.collect(wait_s=self._wait_s())

    def _defrag(self) -> None:
        segment = f"s{self._random.randrange(self._run.plan.segments)}"
        self._asker.defrag(self._random.choice((None, segment)), wait_s=self._wait_s())

    def _snapshot(self) -> None:
        self._asker.snapshot(wait_s=self._wait_s())
