"""Restoring in place against deletions that former owners were entitled to (protocol 3.15, A3; #44, #50).

A chunk is created and removed by commits. Whoever has seen the removal as an owner may delete the chunk at any later time, also
when it has been deposed long ago. A restore cuts history in front of the removal: a new epoch whose OPEN refers to copies of
what was removed in the part that is cut off, made before OPEN. A replica that was ahead of the cut sees from the hash of its
position that it is not on history any more.

Left out: how owners are fenced; several restores of one container; garbage's grace (it only delays deletions).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["MUTANTS", "RestoreModel"]

MUTANTS = ("nocopy", "copyafter", "checkonly", "samename", "lsnonly")
"""nocopy: the restored state refers to the chunk itself. copyafter: OPEN first, copies afterwards. checkonly: the chunk is seen to
exist and referred to. samename: the copy has the chunk's own name. lsnonly: a replica compares its lsn, not the hash."""

CHUNK, COPY = "chunk", "copy"
RECORDS = 3
"""lsn 1 creates the chunk, lsn 2 removes it, lsn 3 is another commit."""


class State(NamedTuple):
    """``branch``: 0, or 1 behind the restore; (branch, lsn) stands for a record's hash. ``reference``: what the state refers to.

    ``entitled``: deletions that owners may still perform. ``restoring``: where the restore stands; ``found`` is what it holds in
    its hands. ``replica``: its (branch, lsn) and what its state refers to.
    """

    branch: int
    lsn: int
    reference: str
    store: frozenset[str]
    entitled: bool
    restoring: str
    found: str
    replica: tuple[int, int]
    replica_reference: str


class RestoreModel:
    """See the module."""

    def __init__(self, *, mutants: frozenset[str] = frozenset()) -> None:
        self._mutants = mutants

    def initial(self) -> State:
        return State(0, 1, CHUNK, frozenset((CHUNK,)), False, "", "", (0, 1), CHUNK)

    def violation(self, state: State) -> str | None:
        if state.reference and state.reference not in state.store:
            return "the restored state refers to a chunk that was deleted"
        branch, lsn = state.replica
        if (branch, lsn) == (state.branch, state.lsn) and state.replica_reference != state.reference:
            return "a replica at history's end has another state"
        if branch == 0 and state.branch == 1 and lsn > 1 and state.replica_reference == "believed":
            return "a replica goes on from a record that was cut off"
        return None

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.entitled:
            # By whoever was an owner when the removal was committed; however late, any number of times.
            yield "an old owner deletes", state._replace(store=state.store - {CHUNK})
        if state.restoring == "" and state.lsn < RECORDS and state.branch == 0:
            following = state._replace(lsn=state.lsn + 1)
            if following.lsn == 2:
                yield "removes", following._replace(reference="", entitled=True)
            else:
                yield "commits", following
        if state.branch == 0 and state.lsn > 1:
            yield from self._restore(state)
        if state.branch == 1 and state.lsn < RECORDS:
            yield "commits behind the restore", state._replace(lsn=state.lsn + 1)
        if state.restoring == "copies" and state.found:
            name = CHUNK if "samename" in self._mutants else COPY
            yield "copies late", state._replace(restoring="", store=state.store | {name}, reference=name)
        yield from self._follow(state)

    def _restore(self, state: State) -> Iterator[tuple[str, State]]:
        """To lsn 1, where the chunk was there. It has fenced the owner before it begins: ``restoring`` stops commits."""
        present = CHUNK in state.store
        if state.restoring == "" and not present:
            yield "restore refused", state._replace(restoring="refused")
        elif state.restoring == "":
            # What it reads it holds; what it only looked at may be gone in a moment.
            yield "restore reads", state._replace(restoring="read", found=CHUNK)
        elif state.restoring == "read":
            if "nocopy" in self._mutants or "checkonly" in self._mutants:
                yield "opens", self._opened(state, CHUNK)
            elif "copyafter" in self._mutants:
                yield "opens", self._opened(state, CHUNK)._replace(restoring="copies", found=CHUNK)
            else:
                name = CHUNK if "samename" in self._mutants else COPY
                yield "copies", state._replace(restoring="copied", store=state.store | {name}, found=name)
        elif state.restoring == "copied":
            yield "opens", self._opened(state, state.found)

    @staticmethod
    def _opened(state: State, reference: str) -> State:
        return state._replace(branch=1, lsn=2, reference=reference, restoring="", found="")

    def _follow(self, state: State) -> Iterator[tuple[str, State]]:
        branch, lsn = state.replica
        here = (state.branch, state.lsn)
        if state.replica == here:
            return
        on_history = branch == state.branch or lsn == 1
        if on_history:
            yield "replica follows", state._replace(replica=here, replica_reference=state.reference)
        elif "lsnonly" in self._mutants and lsn < state.lsn:
            yield "replica goes on", state._replace(replica=here)
        elif "lsnonly" in self._mutants and lsn == state.lsn:
            yield "replica believes", state._replace(replica=here)
        else:
            yield "replica rebuilds", state._replace(replica=here, replica_reference=state.reference)
