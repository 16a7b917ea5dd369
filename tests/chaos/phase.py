"""One phase: a container, its processes, and what happens to them until the time is up.

Promises: the kills that were asked for happen within the phase; at intervals everybody is stopped (or killed) and the judge looks;
the phase ends at the first verdict with violations. A disk that is filled is freed again within seconds; when nothing stands in
the way, something must be acknowledged within two minutes.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from chunkstore import runtime
from chunkstore.assembly import open_store
from chunkstore.config import RollingPolicy
from tests.chaos.arena import Arena, Life
from tests.chaos.disk import SmallDisk
from tests.chaos.ledger import Ledger, Opening
from tests.chaos.notes import Notes
from tests.chaos.plan import CHUNK_SIZES, GROWING, Phase
from tests.chaos.survey import survey
from tests.chaos.verdict import Verdict
from tests.support.settings import tuned

__all__ = ["Outcome", "PhaseRun"]

_TICK_S: Final = 0.02
_READ_S: Final = 0.2
_LATE_S: Final = 120.0
"""A phase whose machine stood still goes on for so much longer, until all kills have happened and something was acknowledged."""
_STARVED_S: Final = 120.0


@dataclass(slots=True)
class Outcome:
    """What a phase came to."""

    name: str
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


class PhaseRun:
    """Runs one phase; see the module. ``show`` is told the figures from time to time."""

    def __init__(
        self,
        phase: Phase,
        folder: str,
        *,
        seed: int,
        rate: float,
        disk: SmallDisk | None,
        show: Callable[[dict[str, Any]], None],
    ) -> None:
        self._phase = phase
        self._folder = folder
        self._chance = random.Random(f"{seed} {phase.name}")
        self._disk = disk
        self._show = show
        container = os.path.join(disk.path if disk is not None else folder, "container")
        self._arena = Arena(phase, folder, container, self._chance, rate)
        self._ledger = Ledger(self._arena.notes)
        self._verdict = Verdict(mode=phase.mode, folder=container, kept=self._arena.kept, container="default")
        self._fills = self._checks = 0
        self._disk_free_s = 0.0
        self._began_s = self._progress_s = runtime.monotonic_s()
        self._settings: dict[str, Any] = {"journal_mode": phase.mode, "lease_s": 0.0, "lmdb_map_bytes": 1 << 28}

    def run(self) -> Outcome:
        """Do it. Raises nothing that a violation could cause: that is reported."""
        began_s = self._began_s = runtime.monotonic_s()
        self._prepare()
        try:
            self._play(began_s, began_s + self._phase.seconds)
        finally:
            self._arena.close()
            if self._disk is not None:
                self._disk.free()
        if not self._verdict.violations:
            self._judge()
        outcome = Outcome(self._phase.name, runtime.monotonic_s() - began_s, self._verdict.violations, self.figures())
        self._show(outcome.figures)
        return outcome

    def _prepare(self) -> None:
        settings = tuned(cache_dir=os.path.join(self._folder, "cache-judge"), **self._settings)
        notes = Notes(os.path.join(self._arena.notes, "judge.notes"))
        notes.write("opening", 0.0, os.getpid())
        with open_store(self._arena.root, settings=settings) as store:
            for name in GROWING:
                notes.write("try", f"judge.{name}", "create", store.epoch, name)
                made = store.create(name, rolling=RollingPolicy(chunk_size_bytes_max=CHUNK_SIZES.get(name, 900)))
                notes.write("ok", f"judge.{name}", store.epoch, made.segment_id)
        notes.close()
        self._ledger.read()
        self._ledger.opening_now.clear()

    def _play(self, began_s: float, end_s: float) -> None:
        chance, arena, phase = self._chance, self._arena, self._phase
        self._progress_s = began_s
        next_read = next_stop = next_fill = began_s
        next_kill, next_cache = began_s + 1.0, began_s + 3.0
        next_check = began_s + phase.check_every_s
        while not self._verdict.violations:
            now_s = runtime.monotonic_s()
            # Who is killed while he starts has shown nothing. Behind the last kill somebody gets to work.
            done = arena.kills >= phase.kills and self._ledger.events_acknowledged > 0
            if now_s >= end_s and (done or now_s >= end_s + _LATE_S):
                break
            arena.look_for_deaths()
            arena.start_missing()
            if now_s >= next_read:
                self._ledger.read()
                self._show(self.figures())
                self._watch_progress(now_s)
                next_read = now_s + _READ_S
                for life in arena.find_sleepers():
                    self._stop(life, now_s)
            arena.wake_due(now_s, self._newest_epoch())
            if now_s >= next_kill and arena.kills < phase.kills:
                self._kill_somebody()
                pause_s = max(0.0, end_s - 2.0 - now_s) / max(1, phase.kills - arena.kills) * chance.uniform(0.4, 1.4)
                next_kill = now_s + pause_s
            if now_s >= next_stop:
                self._stop_somebody(now_s)
                next_stop = now_s + chance.expovariate(1 / 2.5)
            if now_s >= next_cache:
                self._lose_a_cache()
                next_cache = now_s + chance.expovariate(1 / 12.0)
            if self._disk is not None and now_s >= next_fill:
                next_fill = now_s + self._fill_or_free(now_s)
            if now_s >= next_check:
                self._check()
                next_check = runtime.monotonic_s() + phase.check_every_s
            runtime.sleep_s(_TICK_S)

    def _newest_epoch(self) -> int:
        return max((opening.epoch for opening in self._ledger.openings[-8:]), default=0)

    def _owner(self) -> Life | None:
        return self._arena.by_notes(self._ledger.present_owner())

    def _kill_somebody(self) -> None:
        chance, arena = self._chance, self._arena
        lives = list(arena.lives.values())
        opening = [life for life in lives if life.notes in self._ledger.opening_now]
        choice = chance.random()
        owner = self._owner()
        if choice < 0.5 and owner is not None:
            arena.kill(owner)
        elif choice < 0.75 and opening:
            arena.kill(chance.choice(opening))
        elif lives:
            arena.kill(chance.choice(lives))

    def _stop_somebody(self, now_s: float) -> None:
        chance, arena = self._chance, self._arena
        running = [life for life in arena.lives.values() if not life.stopped_s]
        if len(running) < 2:
            return
        owner = self._owner()
        victim = owner if owner is not None and chance.random() < 0.7 and owner in running else chance.choice(running)
        self._stop(victim, now_s)

    def _stop(self, life: Life, now_s: float) -> None:
        if self._chance.random() < 0.7:
            # A real zombie: woken when somebody else has taken over.
            self._arena.stop(life, now_s + 8.0, wake_at_epoch=self._newest_epoch() + 1)
        else:
            self._arena.stop(life, now_s + self._chance.choice((0.02, 0.3, 1.5, 14.0)) * self._chance.random())

    def _lose_a_cache(self) -> None:
        caches = [name for name in os.listdir(self._folder) if name.startswith("cache-") and "judge" not in name]
        if caches:
            shutil.rmtree(os.path.join(self._folder, self._chance.choice(caches)), ignore_errors=True)
            self._arena.caches_lost += 1

    def _fill_or_free(self, now_s: float) -> float:
        """Seconds until the next one."""
        assert self._disk is not None
        if self._disk_free_s:
            self._disk.free()
            self._disk_free_s = 0.0
            self._progress_s = now_s
            return self._chance.expovariate(1 / 3.0)
        self._disk.fill(self._chance.choice((0, 0, 3000, 40_000, 400_000)))
        self._fills += 1
        self._disk_free_s = now_s
        return self._chance.choice((0.2, 1.0, 4.0))

    def _watch_progress(self, now_s: float) -> None:
        self._progress_s = max(self._progress_s, self._ledger.last_ok_s)
        if now_s - self._progress_s > _STARVED_S:
            self._verdict.report(f"nothing was acknowledged for {_STARVED_S:g} s, though nothing stood in the way")

    # Checking

    def _check(self) -> None:
        """Stop or kill everybody, judge, let them go on: the stopped ones as zombies."""
        arena = self._arena
        if self._disk is not None and self._disk_free_s:
            self._disk.free()
        running = arena.stop_everybody()
        if self._chance.random() < 0.4:
            for life in list(arena.lives.values()):
                arena.kill(life)
        self._judge()
        for life in running:
            if life.process.poll() is None and life.slot in arena.lives:
                arena.wake(life)
        self._progress_s = runtime.monotonic_s()

    def _judge(self) -> None:
        self._checks += 1
        self._ledger.read()
        began_s = runtime.monotonic_s()
        try:
            found = survey(self._arena.root, self._folder, self._settings)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is a violation: everybody else stands still)
            self._verdict.report(f"the judge could not open, check and read everything: {error!r}")
            return
        self._ledger.openings.append(
            Opening(found.epoch, began_s, runtime.monotonic_s(), "judge", "judge", None, polite=True)
        )
        self._verdict.judge(self._ledger, found, began_s, runtime.monotonic_s())
        self._verdict.violations += self._arena.problems
        if not self._verdict.violations:
            temporary = f"{self._arena.verified}.new"
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump({name: found.segments[name].length for name in GROWING if name in found.segments}, file)
            os.replace(temporary, self._arena.verified)

    def figures(self) -> dict[str, Any]:
        """Counts so far."""
        ledger, arena = self._ledger, self._arena
        openings = [opening for opening in ledger.openings if opening.process != "judge"]
        quick = [
            opening.opened_s - opening.began_s
            for opening in openings
            if not opening.polite and not arena.was_stopped(opening.process, opening.began_s, opening.opened_s)
        ]
        return {
            "seconds": round(runtime.monotonic_s() - self._began_s, 1),
            "kills": arena.kills,
            "stops": arena.stops,
            "caches_lost": arena.caches_lost,
            "disk_fills": self._fills,
            "checks": self._checks,
            "take_overs": len(openings),
            "take_over_s_max": round(max(quick, default=0.0), 3),
            "tails_cut": sum(opening.tail_cut is not None for opening in openings),
            "acknowledged": ledger.outcomes["ok"],
            "failed": ledger.outcomes["no"],
            "events_acknowledged": ledger.events_acknowledged,
            "unknown": len(ledger.attempts) - ledger.outcomes["ok"] - ledger.outcomes["no"],
            "refused_opens": dict(ledger.refused),
            **self._verdict.summary(),
        }
