"""Keepers: processes that own nothing and keep what a container holds: backups, containers restored elsewhere, looks at the past.

A keeper's process reads beside owners, is struck, stalls and dies as they do; what it had begun another one goes on with, or meets. Some
work side by side on one backup root, or on one container that is being restored.

Promises: whatever they are shown is remembered with its record (``keeping``); an error that fine storage cannot lead to is a violation.
Leaves out: backups and exports by the owner (``upkeep_verbs``), judging at the end (``kept``).
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Final

from chunkstore.assembly import open_asker_on, open_store_on
from chunkstore.config import DefragPolicy
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunksMissing,
    ChunkstoreError,
    InvalidArgument,
    PastCollected,
    SegmentNotFound,
    Unsupported,
)
from chunkstore.following import open_replica_on
from chunkstore.replica import Replica
from tests.judges.imports import AS_IT_IS, Plan
from tests.judges.kept_states import shown_state
from tests.simulator.import_verbs import draw_names
from tests.simulator.keeping import BACKUPS, Keeping, Observation, Target, fresh_cache
from tests.simulator.roots import RootRun
from tests.simulator.world import Process

__all__ = ["Keepers"]

_VERBS: Final = ("backup",) * 4 + ("restore",) * 3 + ("past",) * 3 + ("peek", "kept", "kept", "serve")
_TARGETS_MAX: Final = 3
_BACK: Final = 15


class Keepers:
    """All keepers of one run. ``turn`` at each turn of the nemesis."""

    def __init__(self, run: RootRun, keeping: Keeping) -> None:
        self._run = run
        self._keeping = keeping
        self._processes: list[Process] = []
        self._neighbour: Process | None = None

    def turn(self) -> None:
        """Who has died is begun again; some are struck."""
        run = self._run
        self._processes = [process for process in self._processes if not process.dead]
        awake = [process for process in self._processes if process.frozen is None]
        if len(awake) < run.plan.keepers and len(self._processes) < run.plan.keepers + 2:
            self._begin()
        if run.plan.neighbour and (self._neighbour is None or self._neighbour.dead):
            self._neighbour = self._begin(neighbour=True)
        for process in awake:
            run.strike_reader(process)

    def _begin(self, *, neighbour: bool = False) -> Process:
        run = self._run
        process = run.process(f"k{len(run.world.processes)}", f"host{run.random.randrange(run.plan.machines)}")
        self._processes.append(process)
        self._keeping.readers.add(process)
        life = _Life(run, self._keeping, process)
        run.lives.append(run.scheduler.spawn(process, life.neighbour if neighbour else life.live, "keeper"))
        return process


class _Life:
    """A keeper's process."""

    def __init__(self, run: RootRun, keeping: Keeping, process: Process) -> None:
        self._run = run
        self._keeping = keeping
        self._process = process
        self._random = Random(f"keeper {run.plan.seed} {process.name}")
        self._writers = tuple(writer.name for writer in run.writers)

    def live(self) -> None:
        """Keep, until the run ends."""
        while not self._run.ending:
            self._try(self._random.choice(_VERBS))

    def neighbour(self) -> None:
        """Have another container at work beside the run's, until the run ends."""
        while not self._run.ending:
            whole = any(target.whole for target in self._keeping.targets)
            self._try("serve" if whole and self._random.random() < 0.95 else "restore")

    def _try(self, verb: str) -> None:
        run, random = self._run, self._random
        since, before = run.recorder.now(), set(self._keeping.root.counting)
        try:
            getattr(self, f"_{verb}")()
        except ChunkstoreError as error:
            # A backup that is given up under its reader may be told of in any way; one that no LIST shows is not there.
            given_up = not before <= self._keeping.root.counting.keys()
            unseen = run.plan.weather.stale_list and _is_no_such_backup(error)
            if not run.world.scheduler.killing and not given_up and not unseen:
                run.recorder.judge(f"keeping ({verb})", "", error, since)
        run.world.runtime.sleep_s(run.plan.latency_s * 30 * random.random())

    # Verbs

    def _backup(self) -> None:
        replica = self._process.opening_replica()()
        try:
            if not replica.refresh():
                return  # nobody ever owned it
            if self._run.plan.askers and self._random.random() < 0.7:
                asker = open_asker_on(self._process.storage, replica)
                self._keeping.backup(replica, self._random, pins=asker)
            else:
                self._keeping.backup(replica, self._random, pin=False)
        finally:
            replica.close()

    def _past(self) -> None:
        """A moment of the past, or the present."""
        lsn = self._some_lsn()
        storage = self._process.storage
        if not lsn:
            return
        with (
            suppress(PastCollected),
            open_replica_on(
                storage,
                container=self._run.world.container,
                settings=self._run.world.settings,
                cache=fresh_cache(storage, "past"),
                at_lsn=lsn,
            ) as view,
        ):
            what = f"{self._process.name}'s look at lsn {lsn}"
            self._remember(view, what, lsn)

    def _kept(self) -> None:
        """A backup, where it lies."""
        counting = sorted(self._keeping.root.counting.items())
        if counting:
            run, (lsn, _) = self._random.choice(counting)
            storage = self._process.at(BACKUPS)
            at_lsn = self._random.choice((None, lsn))
            with open_replica_on(
                storage,
                container=self._run.world.container,
                settings=self._run.world.settings,
                cache=fresh_cache(storage, "replica" if at_lsn is None else "past"),
                at_lsn=at_lsn,
            ) as view:
                self._remember(view, f"backup {run}", at_lsn)

    def _remember(self, view: Replica, what: str, lsn: int | None) -> None:
        before = view.lsn
        try:
            shown = shown_state(view, what, self._writers)
        except PastCollected:
            shown = shown_state(view, what, self._writers, data=False)
        if lsn is None and shown.lsn != before:
            return  # the backup was given up meanwhile, and a newer one is shown since: what was read is a part of each
        if lsn is not None and shown.lsn != lsn:
            self._run.world.fail(f"history other-past: {what} shows lsn {shown.lsn}")
        self._keeping.shown.append(Observation(shown, versions=True))

    def _restore(self) -> None:
        """Begin a container, or go on with one that somebody has begun."""
        target = self._target()
        if target is None:
            return
        lsn = target.lsn
        try:
            target.make(self._process, self._run.world.settings)
            target.whole = True
        except (PastCollected, ChunksMissing):
            if target.of_backup:
                raise
        except InvalidArgument as error:
            if error.argument == "lsn" and target.adopts:
                if target.lsn == lsn:
                    target.lsn = self._some_lsn(0)  # behind the pin, which this try has made
                return
            # Else it is whole already, which the end finds out, or its backup was given up long ago.
            known = {lsn for lsn, _ in self._keeping.root.counting.values()}
            if error.argument != "new_root" and not (_is_no_such_backup(error) and target.lsn not in known):
                raise

    def _target(self) -> Target | None:
        targets, random = self._keeping.targets, self._random
        open_ones = [target for target in targets if not target.whole]
        if open_ones and (random.random() < 0.7 or len(targets) == _TARGETS_MAX):
            return random.choice(open_ones)
        if len(targets) == _TARGETS_MAX:
            return None
        counting = sorted(self._keeping.root.counting.items())
        if counting and random.random() < 0.6:
            lsn, of_backup = random.choice(counting)[1][0], True
        else:
            lsn, of_backup = self._some_lsn(), False
        if not lsn:
            return None
        plan, adopts = self._some_plan(lsn, of_backup=of_backup)
        targets.append(Target(f"n{len(targets)}/", lsn, of_backup=of_backup, plan=plan, adopts=adopts))
        return targets[-1]

    def _some_plan(self, lsn: int, *, of_backup: bool) -> tuple[Plan, bool]:
        """Half of all targets are everything as it is; and whether chunks stay where they are, which an owner has to pin."""
        random = self._random
        if random.random() < 0.5:
            return AS_IT_IS, False
        storage = self._process.at(BACKUPS) if of_backup else self._process.storage
        with open_replica_on(
            storage,
            container=self._run.world.container,
            settings=self._run.world.settings,
            cache=fresh_cache(storage, "past"),
            at_lsn=lsn,
        ) as view:
            names = [info.name for info in view.segments()]
        adopts = not of_backup and bool(self._run.plan.askers) and random.random() < 0.5
        return (draw_names(random, names, "x-", usual=False) if names else AS_IT_IS), adopts

    def _some_lsn(self, back: int = _BACK) -> int:
        """The present, or not long ago; 0: there is no history yet."""
        with self._process.opening_replica()() as replica:
            lsn = replica.refresh()
        return max(min(lsn, 1), lsn - (self._random.randrange(back) if back else 0))

    def _serve(self) -> None:
        """Own a container that was made before: cut off, delete, merge and collect what it has, and answer who adopts from there."""
        targets = [target for target in self._keeping.targets if target.whole and not target.is_served]
        if not targets:
            return
        target, random, run = self._random.choice(targets), self._random, self._run
        target.cut, target.server = True, self._process
        storage = self._process.at(target.folder)
        settings = run.world.settings_with({"ask_s": run.plan.latency_s * 2})
        try:
            with open_store_on(
                storage,
                container=run.world.container,
                create=False,
                settings=settings,
                cache=fresh_cache(storage, "owner"),
            ) as store:
                for _ in range(random.choice((5, 20, 80))):
                    if run.ending:
                        return
                    with suppress(SegmentNotFound):
                        self._wear(store)
                    run.world.runtime.sleep_s(run.plan.latency_s * 30 * random.random())
        finally:
            if target.server is self._process:
                target.server = None

    def _wear(self, store: ChunkedSegmentStorage) -> None:
        random = self._random
        names = [info.name for info in store.segments()]
        dice = random.random()
        if dice < 0.4 or not names:
            store.collect()
        elif dice < 0.6:
            info = store.info(random.choice(names))
            store.truncate(info.name, random.randrange(info.start_offset, info.length + 1))
        elif dice < 0.65 and len(names) > 1:
            store.delete(random.choice(names))
        elif dice < 0.8:
            store.defrag(random.choice(names), policy=DefragPolicy(fanout=2))
        else:
            info = store.info(random.choice(names))
            store.read(info.name, info.start_offset, 1 << 16)

    def _peek(self) -> None:
        """Open what is being restored: nobody may, before it is whole."""
        if not self._keeping.targets:
            return
        target = self._random.choice(self._keeping.targets)
        lsn = target.lsn
        storage, container, settings = (
            self._process.at(target.folder),
            self._run.world.container,
            self._run.world.settings,
        )
        try:
            if self._random.random() < 0.5:
                cache = fresh_cache(storage, "replica")
                opened: Replica = open_replica_on(storage, container=container, settings=settings, cache=cache)
            else:
                cache = fresh_cache(storage, "owner")
                opened = open_store_on(storage, container=container, settings=settings, cache=cache, create=False)  # type: ignore[assignment]
        except Unsupported as error:
            if error.feature != "unfinished_import":
                raise
            return
        with opened:
            self._remember_restored(opened, target, lsn)

    def _remember_restored(self, opened: Replica, target: Target, lsn: int) -> None:
        shown = shown_state(opened, f"what was restored in {target.folder}", self._writers, point=(lsn, b""))
        target.whole = True
        item = Observation(shown, versions=False, plan=target.plan, cut=target.cut, founded=target.founded)
        self._keeping.shown.append(item)


def _is_no_such_backup(error: ChunkstoreError) -> bool:
    return isinstance(error, InvalidArgument) and error.argument == "at_lsn" and error.message.startswith("no backup")
