"""Many seeds on several cores: ``make simulate``.

Promises: every seed that was run is counted; what was violated is printed with the one line that replays it; totals are added
to a file, so that campaigns add up, and each says which sources it ran (``sources_digest``), so that what was told since the last
change of production code can be told from the rest. Rates are per core, in processor time: the machine may be shared.
Leaves out: reducing what was found.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tests.simulator.checks import Level
from tests.simulator.lies import ENABLED
from tests.simulator.runs import RunResult, run_seed

__all__ = ["SOURCES", "Tally", "campaign", "firing_rates", "measure", "save", "sources_digest", "totals"]

_BATCH_S = 2.0
_WORKER_S = 120.0
SOURCES: Final = (
    ("chunkstore", "*.py"),
    ("chunkstore.codec", "*.py"),
    ("chunkstore.headers", "**/*.py"),
    ("chunkstore.metadata", "**/*.py"),
    ("chunkstore.operations", "**/*.py"),
    ("chunkstore.upkeep", "**/*.py"),
    ("chunkstore_journal", "**/*.py"),
    ("chunkstore_bindings", "*.py"),
    ("chunkstore_bindings.bucket", "port.py"),
    ("chunkstore_bindings.wrappers", "**/*.py"),
    ("chunkstore_bindings.filesystem", "**/*.py"),
    ("chunkstore_bindings.s3", "**/*.py"),
    ("chunkstore_bindings.hdfs", "**/*.py"),
)
"""The production code that runs import: packages, and which of their files."""


def sources_digest() -> str:
    """Sixteen hex digits over the production code that runs import: the same as long as none of it changes."""
    digest = blake2b(digest_size=8)
    for package, pattern in SOURCES:
        (root,) = import_module(package).__path__
        for path in sorted(Path(root).glob(pattern)):
            digest.update(f"{package}/{path.relative_to(root)}".encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@dataclass(slots=True)
class Tally:
    """What some runs came to. Adds up."""

    runs: int = 0
    claims: int = 0
    served: int = 0
    points: int = 0
    switches: int = 0
    storage_calls: int = 0
    events: int = 0
    acknowledged: int = 0
    cpu_s: float = 0.0
    allowed: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    claims_of: Counter[str] = field(default_factory=Counter)
    """By world."""
    violations: list[dict[str, Any]] = field(default_factory=list)

    def add(self, run: RunResult, extra: str = "") -> None:
        """Count one run. ``extra``: options that replay it."""
        self.runs += 1
        for name in ("claims", "served", "points", "switches", "storage_calls", "events", "acknowledged"):
            setattr(self, name, getattr(self, name) + getattr(run, name))
        self.kinds[run.kind] += 1
        self.claims_of[run.kind] += run.claims
        self.allowed.update(run.allowed)
        self.fired.update(name for name in run.allowed if run.fired.get(name))
        if run.violations:
            self.violations.append({"seed": run.seed, "what": run.violations[:5], "replay": run.replay(extra)})

    def merge(self, other: Tally) -> None:
        """Count what another tally has counted."""
        self.runs += other.runs
        for name in ("claims", "served", "points", "switches", "storage_calls", "events", "acknowledged", "cpu_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.kinds.update(other.kinds)
        self.claims_of.update(other.claims_of)
        self.allowed.update(other.allowed)
        self.fired.update(other.fired)
        self.violations += other.violations

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        plain["cpu_s"] = round(self.cpu_s, 1)
        for name in ("allowed", "fired", "kinds", "claims_of"):
            plain[name] = dict(sorted(plain[name].items()))
        if self.cpu_s:
            plain["claims_per_core_hour"] = round(self.claims / self.cpu_s * 3600)
            plain["points_per_core_s"] = round(self.points / self.cpu_s)
        return plain


def firing_rates(tally: Tally) -> list[tuple[str, int, int]]:
    """(fault class, runs that allowed it, runs of those in which it fired), rarest first."""
    rates = [(name, count, tally.fired[name]) for name, count in tally.allowed.items()]
    return sorted(rates, key=lambda item: (item[2] / item[1], item[0]))


def measure(seeds: range, *, claims: int, level: Level, distrust: Iterable[str] = ENABLED) -> Tally:
    """Run seeds in this process."""
    tally = Tally()
    began = time.process_time()
    for seed in seeds:
        tally.add(run_seed(seed, claims=claims, level=level, distrust=distrust))
    tally.cpu_s = time.process_time() - began
    return tally


def _settle() -> None:
    # Each run ends with a collection of garbage: a third of what it walked through were modules, which never become any.
    gc.collect()
    gc.freeze()


def _batch(
    first: int, step: int, claims: int, level: Level, distrust: frozenset[str], upkeep: bool, asks: bool
) -> tuple[int, Tally]:
    """Run seeds for a moment; returns how many."""
    tally = Tally()
    began, wall = time.process_time(), time.monotonic()
    count = 0
    while not count or time.monotonic() - wall < _BATCH_S:
        seed = first + count * step
        run = run_seed(
            seed,
            claims=claims,
            level=level,
            distrust=distrust,
            upkeep=upkeep or None,
            asks=asks or None,
        )
        tally.add(run, " --upkeep" * upkeep + " --asks" * asks)
        count += 1
    tally.cpu_s = time.process_time() - began
    return count, tally


def campaign(
    *,
    first_seed: int,
    jobs: int,
    claims: int,
    level: Level,
    distrust: frozenset[str] = ENABLED,
    upkeep: bool = False,
    asks: bool = False,
    seconds: float | None = None,
    total_claims: int | None = None,
    progress: Callable[[Tally], None] = lambda _tally: None,
) -> Tally:
    """Run seeds ``first_seed``, ``first_seed + 1``, ... until the time is over or so many claims were made.

    ``distrust``: the classes of that name that may be drawn. ``upkeep``: all of its verbs in every run, and no lies.
    ``asks``: somebody asks in every run, and no lies.
    """
    whole = Tally()
    end = None if seconds is None else time.monotonic() + seconds
    # Worker k takes the seeds that leave the remainder k: all of them are run, and none twice.
    next_seed = {worker: first_seed + worker for worker in range(jobs)}

    def is_over() -> bool:
        late = end is not None and time.monotonic() >= end
        return late or (total_claims is not None and whole.claims >= total_claims)

    while not whole.runs or not is_over():
        # Workers are replaced now and then: the memory of a run's stacks comes back in pieces that fit no other run, and a
        # process grows by a MiB a run. (The executor's own way to replace them can hang in Python 3.11.)
        retired = time.monotonic() + _WORKER_S
        # Fresh interpreters: what a fork would inherit (locks, environments) is no part of a run.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=_settle) as pool:
            running: dict[Future[tuple[int, Tally]], int] = {}
            for worker in range(jobs):
                running[pool.submit(_batch, next_seed[worker], jobs, claims, level, distrust, upkeep, asks)] = worker
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    worker = running.pop(future)
                    count, tally = future.result()
                    whole.merge(tally)
                    progress(whole)
                    next_seed[worker] += count * jobs
                    if not is_over() and time.monotonic() < retired:
                        running[pool.submit(_batch, next_seed[worker], jobs, claims, level, distrust, upkeep, asks)] = (
                            worker
                        )
    return whole


def totals(path: Path, sources: str | None = None) -> dict[str, Any]:
    """What all campaigns saved so far came to; with ``sources``, those of them that ran these sources."""
    saved = [item for item in _load(path) if sources is None or item.get("sources") == sources]
    return {
        "campaigns": len(saved),
        "claims": sum(item["claims"] for item in saved),
        "runs": sum(item["runs"] for item in saved),
        "violations": sum(len(item["violations"]) for item in saved),
        "cpu_s": round(sum(item["cpu_s"] for item in saved), 1),
    }


def _load(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    loaded: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["campaigns"]
    return loaded


def save(path: Path, tally: Tally, **more: Any) -> None:
    """Add a campaign to the file, atomically; beside the campaigns it says what they come to, and those of the present sources."""
    sources = sources_digest()
    saved = _load(path)
    saved.append(
        {
            "sources": sources,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "machine": platform.machine(),
            **more,
            **tally.to_plain(),
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    _write(temporary, {"campaigns": saved})
    sums = {"all": totals(temporary), "sources": sources, "of_these_sources": totals(temporary, sources)}
    _write(temporary, {**sums, "campaigns": saved})
    temporary.replace(path)


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
