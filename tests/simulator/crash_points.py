"""Merging and spilling, interrupted at every request and system call of the real bindings: ``python -m tests.simulator.crash_points``.

A process merges chunks, or makes one of extents; one call of it is chosen. It dies before or behind the call's effect, the request or its
reply is lost, on a file system the power goes. Then an heir opens the container without any cache: the bytes must be what they were, the
deep check must find nothing, whatever it was told, one sweep must leave nothing that no row names, and doing it again must do what was left
undone.

``tests/faults`` has the same for every operation, call by call of the port, and on a disk; this is what lies below the port: the
temporaries and renames of HDFS, the parts of a multipart upload, the links of files.
Exit status: 0, or 1 if a case failed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

from chunkstore.config import DefragPolicy, JournalMode, RollingPolicy, Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError
from chunkstore.metadata.codec import decode_chunk
from chunkstore.metadata.keys import CHUNK
from chunkstore.records import KIND_OBJECT
from chunkstore.storage import iter_listing
from tests.simulator.world import Process, StorageKind, World
from tests.support.merging import merge

__all__ = ["GROUNDS", "OUTCOMES", "VERBS", "Case", "Ground", "cases_of", "main", "run_case"]

Outcome = Literal["dies before", "dies behind", "request lost", "reply lost", "power cut"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("dies before", "dies behind", "request lost", "reply lost", "power cut")
_BYTES: Final = b"".join(b"<%05d>" % number for number in range(12))
_START: Final = 9
_ENDS: Final = 8
"""Power cuts behind the last call: what was not synced is kept by chance."""


class Ground(NamedTuple):
    """Where it happens."""

    storage: StorageKind
    mode: JournalMode


GROUNDS: Final = (Ground("s3", "slot"), Ground("hdfs", "slot"), Ground("posix", "slot"), Ground("posix", "append"))


class Case(NamedTuple):
    """What happens to call number ``at`` of a verb; behind the last one, where it is negative: another number is another chance.
    ``call`` is what it was in the run without a fault."""

    ground: Ground
    verb: str
    at: int
    call: str
    outcome: Outcome


def _defrag(store: ChunkedSegmentStorage) -> object:
    return store.defrag("log", policy=DefragPolicy(fanout=2))


def _replace(store: ChunkedSegmentStorage) -> object:
    return store.commit([merge(store, "log", 0, 5, parts=2, leave_head=True)])


def _spill(store: ChunkedSegmentStorage) -> object:
    store._spiller.spill_all("log")
    return None


VERBS: Final[dict[str, Callable[[ChunkedSegmentStorage], object]]] = {
    "defrag": _defrag,
    "replace": _replace,
    "spill": _spill,
    "spill-grows": _spill,
}


def _world(ground: Ground, verb: str, seed: int = 1) -> World:
    settings = Settings(
        journal_mode=ground.mode,
        op_deadline_s=20.0,
        resolve_s=1.0,
        lease_s=0,
        collect_s=0,
        gc_grace_s=0,
        io_workers=4,
        inline_bytes_max=64 if VERBS[verb] is _spill else 0,
        spill_s=3600.0,
    )
    return World(seed, ground.storage, settings=settings, timeout_s=0.5, bindings=True)


def _prepared(world: World, verb: str) -> tuple[Process, ChunkedSegmentStorage]:
    """A segment of a dozen small chunks, the first with a dead head, in which chunks may be longer; for a spill, of extents, or of a chunk
    that another spill has made and extents behind it."""
    process = world.process("z")
    store = process.open()

    def fill() -> None:
        store.create("small", rolling=RollingPolicy(chunk_size_bytes_max=7))
        store.append("small", _BYTES)
        store.seal("small")
        store.create("log", rolling=RollingPolicy(chunk_size_bytes_max=64))
        store.concat("log", 0, "small")
        store.truncate("log", _START)

    def fill_records() -> None:
        store.create("log", rolling=RollingPolicy(chunk_size_bytes_max=200))
        for begin in range(0, len(_BYTES), 21):
            if verb == "spill-grows" and begin == 42:
                store._spiller.spill_all("log")
            store.append("log", _BYTES[begin : begin + 21])
        store.truncate("log", _START)

    process.run(fill_records if VERBS[verb] is _spill else fill)
    return process, store


def cases_of(ground: Ground, verb: str) -> list[Case]:
    """Run it without a fault, and list everything that can happen to it."""
    with _world(ground, verb) as world:
        process, store = _prepared(world, verb)
        calls: list[str] = []

        def note(call: Any, _result: object, late: bool) -> None:
            if call.process is process and not late:
                calls.append(f"{call.op}/{call.step} {call.name}")

        world.observers.append(note)
        process.run(lambda: VERBS[verb](store))
    outcomes = OUTCOMES if ground.storage == "posix" else OUTCOMES[:-1]
    cases = [Case(ground, verb, at, call, outcome) for at, call in enumerate(calls) for outcome in outcomes]
    if ground.storage == "posix":
        cases += [Case(ground, verb, -number, "the end", "power cut") for number in range(1, _ENDS + 1)]
    return cases


def run_case(case: Case) -> bool:
    """Run it and judge it; whether the chosen call was reached. Raises ``AssertionError``."""
    with _world(case.ground, case.verb, max(1, -case.at)) as world:
        process, store = _prepared(world, case.verb)
        gate = process.gate(skip=case.at) if case.at >= 0 else None
        job = process.start(lambda: VERBS[case.verb](store))
        world.run_until(lambda: job.done or (gate is not None and gate.call is not None))
        call = None if gate is None else gate.call
        if call is not None:
            _strike(world, process, call, case.outcome)
        elif gate is None:
            world.power_cut()
        if not process.dead:
            job.run_to_end()
            assert job.error is None or isinstance(job.error, ChunkstoreError), job.error
        world.advance(5.0)
        heir = world.process("heir", "elsewhere")
        inherited = heir.open()
        heir.run(lambda: _judge(inherited))
        return gate is None or call is not None


def _strike(world: World, process: Process, call: Any, outcome: Outcome) -> None:
    if outcome == "power cut":
        world.power_cut()
    elif outcome == "request lost":
        call.drop()
    elif outcome == "reply lost":
        call.drop_reply()
    else:
        process.inflight.pop(call, None)
        if outcome == "dies behind":
            call.late()
        process.crash()


def _judge(store: ChunkedSegmentStorage) -> None:
    def is_whole() -> None:
        assert store.read("log", _START, 1000) == _BYTES[_START:]
        findings = [item for item in store.check("deep") if item.severity in ("damage", "leak")]
        assert findings == [], findings

    is_whole()
    store.sweep(delete=True, age_s_min=0)
    _nothing_is_left(store)
    store._spiller.spill_all("log")
    store.defrag(policy=DefragPolicy(fanout=2))
    assert store.info("log").chunk_count <= 2
    store.collect()
    is_whole()
    _nothing_is_left(store)


def _nothing_is_left(store: ChunkedSegmentStorage) -> None:
    owned = store._container
    listed = {info.name for info in iter_listing(owned.storage, owned.names.data_prefix())}
    with owned.current.store.view() as view:
        rows = [(key[1:], decode_chunk(repr(key), raw)) for key, raw in view.scan(CHUNK, bytes((CHUNK[0] + 1,)))]
        named = {owned.names.chunk(identity) for identity, chunk in rows if chunk.kind == KIND_OBJECT}
    assert listed == named, f"left: {sorted(listed - named)}, missing: {sorted(named - listed)}"


def _job(case: Case) -> tuple[Case, bool, str]:
    try:
        return case, run_case(case), ""
    except Exception as error:  # noqa: BLE001  (whatever it is, the case has failed)
        return case, True, f"{type(error).__name__}: {error}"


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser("python -m tests.simulator.crash_points", description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    options = parser.parse_args(arguments)
    cases = [case for ground in GROUNDS for verb in VERBS for case in cases_of(ground, verb)]
    done: Counter[str] = Counter()
    unreached = failures = 0
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=500) as pool:
        for case, reached, failure in pool.imap_unordered(_job, cases, chunksize=8):
            done[f"{case.verb} on {'-'.join(case.ground)}"] += 1
            unreached += not reached
            if failure:
                failures += 1
                print(f"FAILED {case}: {failure}", flush=True)
    for name, count in sorted(done.items()):
        print(f"{name}: {count} cases")
    print(f"{sum(done.values()):,} cases, {unreached} not reached; failures: {failures}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
