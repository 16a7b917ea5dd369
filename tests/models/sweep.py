"""Sessions of writers outside the owner, owners' own chunks, and the sweep of orphans by owners and zombies (protocol 3.14,
A9; #30, #31, #32).

A session is opened and ended by commits; its chunks carry its id in their names; attaching them and ending it is one record.
An owner writes a chunk and then commits a reference to it. Anybody who ever was an owner may sweep at any time with the state
it knew last: it lists the storage, chooses what that state does not refer to, and deletes one chunk after the other,
however late. A commit may be adopted by a successor without its author knowing.

Left out: how commits are fenced (the other models): here a commit is decided if its author still is the owner, and when it is
taken over the successor decides. Ages of objects: a sweep that only waited for them would be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from tests.models.explorer import replaced

__all__ = ["MUTANTS", "SweepModel"]

MUTANTS = ("sweepequal", "sweepabove", "sweepopen", "unknownended", "attachended", "endfirst", "cleanup")
"""sweepequal: chunks of the own epoch are swept. sweepabove: of any epoch. sweepopen: of sessions that are open. unknownended: a
session that the sweeper's state does not know counts as ended. attachended: an ended session may still attach. endfirst: the
session ends in one record and attaches in the next. cleanup: the chunk of a commit whose outcome is unknown is deleted."""

NONE, OPEN, ENDED = 0, 1, 2
Chunk: TypeAlias = tuple[str, int]
"""("own", epoch) or ("session", number)."""
ATTACHED: Chunk = ("session", 0)
"""What the session attaches; its other chunks stay behind."""


class View(NamedTuple):
    """The state: as history has it, or as an owner knew it last."""

    lsn: int = 0
    session: int = NONE
    session_lsn: int = 0
    """Where the session was opened: its id, and so in its chunks' names."""
    referenced: frozenset[Chunk] = frozenset()


class Owner(NamedTuple):
    """``prepared``: the commit it has sent. ``wrote``: its own chunk was written. ``victims``: chosen, not deleted yet."""

    view: View
    prepared: str = ""
    wrote: bool = False
    victims: frozenset[Chunk] = frozenset()
    swept: bool = False


class State(NamedTuple):
    """``owners``: one for each epoch; the last one is the owner, the others are zombies. ``asked``: the writer wants to attach."""

    history: View
    store: frozenset[Chunk]
    owners: tuple[Owner, ...]
    asked: bool
    wrote: frozenset[Chunk]
    """What the session's writer has written: each chunk once, under a name of its own."""


class SweepModel:
    """See the module. ``epochs``: how many owners there will be. ``chunks``: how many the session writes."""

    def __init__(self, *, epochs: int = 2, chunks: int = 1, mutants: frozenset[str] = frozenset()) -> None:
        self._epochs = epochs
        self._chunks: tuple[Chunk, ...] = tuple(("session", number) for number in range(chunks))
        self._mutants = mutants

    def initial(self) -> State:
        return State(View(), frozenset(), (Owner(View()),), False, frozenset())

    def violation(self, state: State) -> str | None:
        if not state.history.referenced <= state.store:
            return "a chunk that history refers to was deleted"
        return None

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._writer(state)
        for at, owner in enumerate(state.owners):
            yield from self._commits(state, at, owner)
            yield from self._sweeps(state, at, owner)
        if len(state.owners) < self._epochs:
            yield from self._takes_over(state)

    def _writer(self, state: State) -> Iterator[tuple[str, State]]:
        if state.history.session == NONE:
            return
        for chunk in self._chunks:
            # Late writes, too: the session may have ended meanwhile.
            if chunk not in state.wrote:
                yield "session writes", state._replace(store=state.store | {chunk}, wrote=state.wrote | {chunk})
        if ATTACHED in state.wrote and not state.asked:
            yield "session asks to attach", state._replace(asked=True)

    def _after(self, view: View, commit: str, epoch: int) -> View:
        """The state behind a commit."""
        lsn = view.lsn + 1
        if commit == "open":
            return View(lsn, OPEN, lsn, view.referenced)
        if commit == "own":
            return view._replace(lsn=lsn, referenced=view.referenced | {("own", epoch)})
        if commit in ("abort", "end"):
            return view._replace(lsn=lsn, session=ENDED)
        return view._replace(lsn=lsn, session=ENDED, referenced=view.referenced | {ATTACHED})

    def _wishes(self, state: State, epoch: int, owner: Owner) -> Iterator[str]:
        """What this owner may commit, as far as it knows."""
        view = owner.view
        if view.session == NONE:
            yield "open"
        if view.session == OPEN:
            yield "abort"
        can_attach = view.session == OPEN or (view.session == ENDED and "attachended" in self._mutants)
        if state.asked and ATTACHED in state.store and ATTACHED not in view.referenced:
            if can_attach and "endfirst" not in self._mutants:
                yield "attach"
            elif can_attach:
                yield "end"
            elif view.session == ENDED and "endfirst" in self._mutants:
                yield "attach"
        if owner.wrote and ("own", epoch) not in view.referenced:
            yield "own"

    def _commits(self, state: State, at: int, owner: Owner) -> Iterator[tuple[str, State]]:
        epoch = at + 1
        current = epoch == len(state.owners)
        if not owner.wrote and current:
            put = state.store | {("own", epoch)}
            yield "owner writes", self._with(state._replace(store=put), at, owner._replace(wrote=True))
        if not owner.prepared and current:
            for wish in self._wishes(state, epoch, owner):
                yield f"sends {wish}", self._with(state, at, owner._replace(prepared=wish))
        elif owner.prepared and current:
            view = self._after(owner.view, owner.prepared, epoch)
            decided = owner._replace(view=view, prepared="")
            yield f"commits {owner.prepared}", self._with(state._replace(history=view), at, decided)
        elif owner.prepared:
            # Fenced. Whether its successor has adopted the record it does not know.
            store = state.store
            if "cleanup" in self._mutants and owner.prepared == "own":
                store = store - {("own", epoch)}
            yield "outcome unknown", self._with(state._replace(store=store), at, owner._replace(prepared=""))

    @staticmethod
    def _with(state: State, at: int, owner: Owner) -> State:
        return state._replace(owners=replaced(state.owners, at, owner))

    def _takes_over(self, state: State) -> Iterator[tuple[str, State]]:
        before = state.owners[-1]
        heirs = (*state.owners, Owner(state.history))
        yield "take-over", state._replace(owners=heirs)
        if before.prepared:
            adopted = self._after(before.view, before.prepared, len(state.owners))
            yield "take-over, adopts", state._replace(history=adopted, owners=(*state.owners, Owner(adopted)))

    def _may_sweep(self, view: View, epoch: int, chunk: Chunk, session_lsn: int) -> bool:
        kind, number = chunk
        if chunk in view.referenced:
            return False
        if kind == "own":
            return (
                number < epoch
                or ("sweepequal" in self._mutants and number == epoch)
                or ("sweepabove" in self._mutants and number > epoch)
            )
        if view.lsn < session_lsn:
            return "unknownended" in self._mutants
        return view.session == ENDED or "sweepopen" in self._mutants

    def _sweeps(self, state: State, at: int, owner: Owner) -> Iterator[tuple[str, State]]:
        epoch = at + 1
        if not owner.swept:
            # One pass each is enough: what a second one may delete, a first one that begins later may delete, too.
            session_lsn = state.history.session_lsn
            victims = frozenset(
                chunk for chunk in state.store if self._may_sweep(owner.view, epoch, chunk, session_lsn)
            )
            yield "sweep begins", self._with(state, at, owner._replace(swept=True, victims=victims))
        for chunk in owner.victims:
            left = owner._replace(victims=owner.victims - {chunk})
            yield "sweep deletes", self._with(state._replace(store=state.store - {chunk}), at, left)
