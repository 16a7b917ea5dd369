"""Bits that flip in the metadata cache: ``python -m tests.faults.flips [--flips N] [--live N] [--seed S] [--save]``.

Each trial copies a container, flips one bit of the cache's file among those that mean something, and goes on with it in a
process that may die of it. At rest (after a clean close, or after a kill; half of ``--flips`` each) the next owner has to show the
exact state, and to go on with it. Under an owner that has the file open (``--live``), what it found has to be right; what
the tree hides (rows that seem absent, a process that LMDB brings down) is counted. Always, the journal alone has to lead to what was
acknowledged. ``--only KIND NUMBER`` repeats one trial.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from chunkstore import runtime
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import CacheDamaged, Damaged, SegmentExists, SegmentNotFound
from tests.faults import cache_files
from tests.faults.cache_files import NAMESPACE, Made, Model, Watching, append, copied, data_file, flip, open_in, put
from tests.faults.tiny import InlineRuntime, rows_of
from tests.support.data import problems
from tests.support.report import Report

TRIAL_S = 120.0
"""A trial that takes longer hangs: its process ends, and says where it was."""
KINDS = ("closed", "killed", "live")
REPLAYED_SHARE = 20
"""Of the trials at rest whose cache was given up, one in so many is replayed: the cache made anew was a replay already."""


class Wrong(AssertionError):
    """An answer or a record that is not what was acknowledged."""


class Template(NamedTuple):
    """What the trials of one kind copy: a container, the stretches of the cache's file that mean something, and its rows."""

    made: Made
    used: list[range]
    rows: dict[bytes, bytes]


def template(folder: Path, kind: str) -> Template:
    made = cache_files.make(folder, closed=kind != "killed")
    used = cache_files.used_bytes(data_file(made.folder / "cache"))
    with open_in(copied(made, folder / "pristine").folder) as store:
        rows = rows_of(store._container.current.store).rows
    shutil.rmtree(folder / "pristine")
    return Template(made, used, rows)


def draw(used: list[range], chance: random.Random) -> tuple[int, int]:
    """A position and a bit, every used one as likely as another."""
    index = chance.randrange(sum(map(len, used)))
    for span in used:
        if index < len(span):
            return span[index], chance.randrange(8)
        index -= len(span)
    raise AssertionError("beyond the last stretch")


def trial(found: Template, kind: str, number: int, seed: int, folder: Path) -> Counter[str]:
    """One bit. Raises ``Wrong``, or what the container raises and must not."""
    chance = random.Random(f"{seed} {kind} {number}")
    made = copied(found.made, folder)
    position, bit = draw(found.used, chance)
    try:
        return _live(made, position, bit, chance) if kind == "live" else _at_rest(found, made, position, bit, chance)
    except BaseException as error:
        error.add_note(f"{kind} {number}: byte {position}, bit {bit}")
        raise


def _at_rest(found: Template, made: Made, position: int, bit: int, chance: random.Random) -> Counter[str]:
    flip(data_file(made.folder / "cache"), position, bit)
    with open_in(made.folder) as store:
        used = store.report.source == "cache"
        if rows_of(store._container.current.store).rows != found.rows:
            raise Wrong("the rows are not those that were there")
        if wrong := problems(store.check("quick")):
            raise Wrong(str(wrong))
        for name in chance.sample(sorted(made.model.segments), 4):
            append(store, made.model, name, chance.randrange(1, 60), event=chance.choice((0, 100)))
        put(store, made.model, b"key %03d" % chance.randrange(60), b"new")
        try:
            store.create(chance.choice(sorted(made.model.segments)))
            raise Wrong("a segment was created twice")
        except SegmentExists:
            pass
    if used or chance.randrange(REPLAYED_SHARE) == 0:
        _replay(made)
    return Counter({"the cache was used" if used else "the cache was given up": 1})


def _replay(made: Made) -> None:
    if wrong := cache_files.replayed_differs(made):
        raise Wrong(f"replay: {wrong}")


def _live(made: Made, position: int, bit: int, chance: random.Random) -> Counter[str]:
    counts: Counter[str] = Counter()
    watching, touched = Watching(), chance.sample(sorted(made.model.segments), 8)
    with open_in(made.folder, watching) as store:
        for name in touched[:4]:  # these are remembered when the bit flips
            append(store, made.model, name, 10)
        flip(data_file(made.folder / "cache"), position, bit)
        for name in touched:
            _use(store, made.model, name, chance, counts)
        store.create("new")
        made.model.segments["new"] = b""
        append(store, made.model, "new", 10)
    counts["noticed"] += bool(watching.damage)
    # The next owner may find a cache that was closed with hidden rows, whose records are right all the same.
    with open_in(made.folder) as store:
        for name in touched[:4]:
            _use(store, made.model, name, chance, counts)
        store.check("quick")
        if wrong := cache_files.state_differs(store, made.model):
            raise Wrong(f"after a check: {wrong}")
    _replay(made)
    return counts


def _use(store: ChunkedSegmentStorage, model: Model, name: str, chance: random.Random, counts: Counter[str]) -> None:
    try:
        if store.read(name, 0, 999) != model.segments[name]:
            raise Wrong(f"bytes of {name}")
        append(store, model, name, chance.randrange(1, 60))
    except SegmentNotFound:
        counts["a segment was hidden"] += 1
    except (Damaged, CacheDamaged):
        counts["an error said so"] += 1
    key = chance.choice(sorted(model.table))
    row = store.table(NAMESPACE).get(key)
    if row is None:
        counts["a table row was hidden"] += 1
    elif row.value != model.table[key]:
        raise Wrong(f"row {key!r}")


# ---- processes


def _work(found: Template, kind: str, seed: int, numbers: range, folder: Path, at: Any, pipe: Connection) -> None:
    """In a process of its own: the counts of each trial, or what was wrong."""
    runtime.install(InlineRuntime())
    for number in numbers:
        at.value = number
        faulthandler.dump_traceback_later(TRIAL_S, exit=True)
        here = folder / str(number)
        try:
            pipe.send((trial(found, kind, number, seed, here), ""))
        except Exception as error:  # noqa: BLE001  (whatever it is, it is what is looked for)
            pipe.send((Counter(), f"{'; '.join(error.__notes__)}: {type(error).__name__}: {error}"))
        shutil.rmtree(here)
    pipe.send(None)


def run(kind: str, numbers: range, seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """These trials, in a process that is begun anew where it dies; what happened, and what was wrong."""
    found = template(folder / kind, kind)
    context = multiprocessing.get_context("fork")
    at = context.Value("q", numbers.start, lock=False)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    while numbers:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(found, kind, seed, numbers, folder, at, theirs))
        process.start()
        theirs.close()
        try:
            while (message := ours.recv()) is not None:
                counts += message[0]
                counts["flips"] += 1
                wrong += [message[1]] if message[1] else []
            numbers = range(0)
        except EOFError:
            numbers = range(at.value + 1, numbers.stop)
            counts["flips"] += 1
            counts["the process died"] += 1
            if kind != "live":
                wrong.append(f"{kind} {at.value}: the process died")
            shutil.rmtree(folder / str(at.value), ignore_errors=True)
        process.join()
        ours.close()
    return counts, wrong


def main() -> int:
    """See the module; 1 where something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.flips", description=__doc__)
    parser.add_argument("--flips", type=int, default=10_000, help="bits that flip at rest")
    parser.add_argument("--live", type=int, default=1_000, help="bits that flip under an owner")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs=2, metavar=("KIND", "NUMBER"))
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/flips.json")
    options = parser.parse_args()
    plan = {"closed": range(options.flips // 2), "killed": range(options.flips // 2), "live": range(options.live)}
    if options.only:
        number = int(options.only[1])
        plan = {options.only[0]: range(number, number + 1)}
    report = Report("flips")
    failures: list[str] = []
    for kind, numbers in plan.items():
        began = time.monotonic()
        folder = Path(
            tempfile.mkdtemp(prefix="chunkstore-flips-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        )
        try:
            counts, wrong = run(kind, numbers, options.seed, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        failures += wrong
        seconds = time.monotonic() - began
        print(f"{kind}: {dict(counts)} in {seconds:,.0f} s; wrong: {len(wrong)}", *wrong[:20], sep="\n  ", flush=True)
        report.add(
            f"{kind}: bits flipped", counts.pop("flips", 0), "flips", detail=f"seed {options.seed}, {seconds:,.0f} s"
        )
        for name, count in sorted(counts.items()):
            report.add(f"{kind}: {name}", count, "times")
        report.add(f"{kind}: wrong answers, wrong records, and stores that do not open", len(wrong), "flips", at_most=0)
    if options.save:
        report.save()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
