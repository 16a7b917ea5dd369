"""Backups, side by side with dropping old ones (``chunkstore.backup.rounds`` and ``removing``).

A container goes from lsn to lsn; for each way a chunk can come and go there is one. Runs make backups: each relies on one that counts,
copies what that one does not name, writes its export and then lets it count. Whoever gives up keeps the newest only. Everybody may stop
for good, or for a long time, between any two steps; a run may be taken for dead while it is alive.

Left out: chunks that grow (their copies are chunks of their own), a repair that cuts history, exports that cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement
from typing import NamedTuple

from tests.models.explorer import replaced

__all__ = ["MUTANTS", "BackupModel"]

MUTANTS = ("beforefile", "shared", "nomark", "onelist", "onecount", "overwrite", "baseonly", "tombstone")
"""beforefile: a run counts before everything is copied. shared: what goes takes along what others name. nomark: a run does not say what it
relies on. onelist: runs are not listed again once ``done`` was deleted. onecount: what counts is not listed again then. overwrite: a run
counts although it was given up. baseonly: of what a run relies on only its base stays. tombstone: that a run was given up is deleted with
its export."""

VOID = -1
Chunk = tuple[int, int]
"""The first and the last lsn at which it is live."""


class Run(NamedTuple):
    """``step``: what comes next. ``base``: the run that it relies on, -1 for none. ``left``: chunks to be copied."""

    step: str = "pick"
    base: int = -1
    lsn: int = 0
    left: tuple[Chunk, ...] = ()


class Giver(NamedTuple):
    """Who gives up: what it has seen so far. ``goes`` and ``stays``: runs."""

    step: str = "exports"
    stored: frozenset[int] = frozenset()
    running: frozenset[tuple[int, int]] = frozenset()
    goes: tuple[int, ...] = ()
    stays: frozenset[int] = frozenset()
    victims: tuple[Chunk, ...] = ()
    counts: frozenset[int] = frozenset()
    at: int = 0


class State(NamedTuple):
    """``exports``, ``marks`` (lsn of the base) and ``done`` (lsn, or VOID) by run: None where there is none."""

    lsn: int
    copies: frozenset[Chunk]
    exports: tuple[int | None, ...]
    marks: tuple[int | None, ...]
    done: tuple[int | None, ...]
    runs: tuple[Run, ...]
    givers: tuple[Giver, ...]


class BackupModel:
    """See the module. ``runs``, ``givers``: how many there are; ``lsns``: how far the container goes; ``first``: a first run has ended."""

    def __init__(
        self,
        *,
        runs: int = 3,
        givers: int = 1,
        lsns: int = 2,
        first: bool = True,
        mutants: frozenset[str] = frozenset(),
    ) -> None:
        self._size = (runs, givers)
        self._first = first
        self._lsns = lsns
        self._chunks: tuple[Chunk, ...] = tuple(combinations_with_replacement(range(1, lsns + 1), 2))
        self._mutants = mutants

    def _live(self, lsn: int) -> frozenset[Chunk]:
        return frozenset(chunk for chunk in self._chunks if chunk[0] <= lsn <= chunk[1])

    def initial(self) -> State:
        runs, givers = self._size
        none: tuple[int | None, ...] = (None,) * runs
        begun = State(1, frozenset(), none, none, none, (Run(),) * runs, (Giver(),) * givers)
        if not self._first:
            return begun
        there = replaced(none, 0, 1)
        ended = replaced(begun.runs, 0, Run("end"))
        return begun._replace(copies=self._live(1), exports=there, done=there, runs=ended)

    def violation(self, state: State) -> str | None:
        for found in state.done:
            if found is not None and found != VOID and not self._live(found) <= state.copies:
                return "a backup counts, and a copy that it names is not there"
        return None

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.lsn < self._lsns:
            yield "commit", state._replace(lsn=state.lsn + 1)
        for number, run in enumerate(state.runs):
            # Runs are alike: one begins only once those before it have.
            if number == 0 or state.runs[number - 1] != Run():
                for name, following in self._run(state, number, run):
                    yield f"run {number} {name}", following
        for number, giver in enumerate(state.givers):
            for name, following in self._give(state, number, giver):
                yield f"giver {number} {name}", following

    # ---- a run

    def _run(self, state: State, number: int, run: Run) -> Iterator[tuple[str, State]]:
        def went(run: Run, **more: object) -> State:
            return state._replace(runs=replaced(state.runs, number, run), **more)  # type: ignore[arg-type]

        mutants = self._mutants
        if run.step == "pick":
            counts = [other for other, lsn in enumerate(state.done) if lsn is not None and lsn != VOID]
            for base in counts or [-1]:
                yield "picks", went(run._replace(step="mark", base=base, lsn=state.done[base] or 0 if counts else 0))
        elif run.step == "mark":
            marks = state.marks if "nomark" in mutants else replaced(state.marks, number, run.lsn)
            yield "marks", went(run._replace(step="look"), marks=marks)
        elif run.step == "look":
            good = run.base < 0 or state.done[run.base] not in (None, VOID)
            yield "looks", went(run._replace(step="read" if good else "pick"))
        elif run.step == "read":
            known = self._live(run.lsn) if run.base >= 0 else frozenset()
            left = tuple(sorted(self._live(state.lsn) - known))
            step = "decide" if "beforefile" in mutants else "copy"
            yield "reads", went(run._replace(step=step, lsn=state.lsn, left=left))
        elif run.step == "copy" and run.left:
            yield "copies", went(run._replace(left=run.left[1:]), copies=state.copies | {run.left[0]})
        elif run.step == "copy":
            yield "exports", went(run._replace(step="decide"), exports=replaced(state.exports, number, run.lsn))
        elif run.step == "decide":
            won = state.done[number] is None or "overwrite" in mutants
            done = replaced(state.done, number, run.lsn) if won else state.done
            if "beforefile" in mutants and won and run.left:
                yield "decides", went(run._replace(step="copy"), done=done)
            else:
                yield "decides", went(Run("unmark" if won else "end"), done=done)
        elif run.step == "unmark":
            yield "unmarks", went(Run("end"), marks=replaced(state.marks, number, None))

    # ---- giving up

    def _give(self, state: State, number: int, giver: Giver) -> Iterator[tuple[str, State]]:
        def went(giver: Giver, **more: object) -> State:
            return state._replace(givers=replaced(state.givers, number, giver), **more)  # type: ignore[arg-type]

        step = giver.step
        if step == "exports" and any(lsn not in (None, VOID) for lsn in state.done):
            stored = frozenset(run for run, lsn in enumerate(state.exports) if lsn is not None)
            yield "lists exports", went(giver._replace(step="running", stored=stored))
        elif step == "running":
            yield "lists runs", went(giver._replace(step="counts", running=_marked(state)))
            for silent, _ in _marked(state):
                # Taken for dead: it is decided at once.
                done = state.done if state.done[silent] is not None else replaced(state.done, silent, VOID)
                yield "voids", went(giver, done=done)
                yield "voids, and forgets", went(giver, done=done, marks=replaced(state.marks, silent, None))
        elif step == "counts":
            yield from ((name, went(*args)) for name, args in (("chooses", (self._chosen(state, giver),)),))
        elif step == "undo" and giver.at < len(giver.goes):
            run = giver.goes[giver.at]
            deleted = run in giver.counts or "tombstone" in self._mutants
            done = replaced(state.done, run, None) if deleted else state.done
            yield "deletes done", went(giver._replace(at=giver.at + 1), done=done)
        elif step == "undo":
            yield "lists runs again", went(self._looked_again(state, giver))
        elif step == "late":
            yield "lists what counts again", went(self._decided(state, giver))
        elif step == "delete" and giver.victims:
            yield "deletes", went(giver._replace(victims=giver.victims[1:]), copies=state.copies - {giver.victims[0]})
        elif step == "delete":
            exports = tuple(None if run in giver.goes else lsn for run, lsn in enumerate(state.exports))
            yield "deletes exports", went(Giver("end"), exports=exports)

    def _chosen(self, state: State, giver: Giver) -> Giver:
        counts = {run: lsn for run, lsn in enumerate(state.done) if lsn is not None and lsn != VOID}
        newest = max(counts.values(), default=0)
        low = min((base for _, base in giver.running), default=newest)
        wanted = {max((lsn, run) for run, lsn in counts.items())[1]} if counts else set()
        lsns = {run: state.exports[run] or 0 for run in giver.stored}
        bases, busy = {base for _, base in giver.running}, {run for run, _ in giver.running}
        kept = (lambda lsn: lsn in bases) if "baseonly" in self._mutants else (lambda lsn: lsn >= min(low, newest))
        goes = tuple(sorted(run for run in giver.stored if run not in wanted | busy and not kept(lsns[run])))
        stays = giver.stored.difference(goes)
        if not goes:
            return Giver("end")
        return Giver("undo", goes=goes, stays=stays, counts=frozenset(counts))

    def _looked_again(self, state: State, giver: Giver) -> Giver:
        marked = _marked(state) if "onelist" not in self._mutants else frozenset()
        low = min((base for _, base in marked), default=self._lsns + 1)
        goes = tuple(run for run in giver.goes if (state.exports[run] or 0) < low)
        stays = giver.stays | set(giver.goes).difference(goes)
        return Giver("late", goes=goes, stays=stays)

    def _decided(self, state: State, giver: Giver) -> Giver:
        counts = frozenset(run for run, lsn in enumerate(state.done) if lsn not in (None, VOID))
        stays = giver.stays if "onecount" in self._mutants else giver.stays | counts
        named = frozenset[Chunk]().union(*(self._live(state.exports[run] or 0) for run in giver.goes))
        spared = frozenset[Chunk]().union(*(self._live(state.exports[run] or 0) for run in stays))
        victims = tuple(sorted(named if "shared" in self._mutants else named - spared))
        return Giver("delete", goes=giver.goes, stays=stays, victims=victims)


def _marked(state: State) -> frozenset[tuple[int, int]]:
    """The runs that may still come to count, and their bases."""
    marks = zip(state.marks, state.done, strict=True)
    return frozenset((run, base) for run, (base, done) in enumerate(marks) if base is not None and done is None)
