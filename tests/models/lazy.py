"""Lazy lengths of active chunks beside the journal (protocol 3.10; #26 to #29, A2, P5, P6).

The owner commits a record that names its new chunk, and then appends without records: write, sync, look for the next claim,
acknowledge. A successor claims first, reads the journal (that is: which chunks there are), syncs the chunk, and takes the size
it sees into its OPEN; the chunk is closed then. The last unacknowledged append may survive in part. The bytes of one append land in
order, those of two that are on their way at once do not: there may be a hole between them. After a write of unknown fate the
owner closes the chunk by a record, at what it has acknowledged; the rest may land yet. Power cuts take what was not synced.

Left out: the journal's own fence (``append``): a record is committed if no claim was made before its check. More than one
chunk; lengths that are journaled from time to time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from tests.models.explorer import replaced

__all__ = ["MUTANTS", "LazyModel"]

MUTANTS = (
    "nocheck", "checkbefore", "nosync", "sizefirst", "nosyncsize", "unknownchunk", "resize", "parallel", "reuse", "unclamped",
)  # fmt: skip
"""nocheck: acknowledged without looking for a claim. checkbefore: looked before writing. nosync: acknowledged unsynced.
sizefirst: the successor takes the size before it claims. nosyncsize: it does not sync what it saw. unknownchunk: bytes are
acknowledged before the chunk's record is committed. resize: a successor takes the size of a chunk that a record or an OPEN has
closed. parallel: two appends to one chunk at once. reuse: the chunk is written on after an append of unknown fate. unclamped:
readers read what is there, not what is recorded."""

EPOCHS = 3
PARTS = 2
"""An append is so many pieces, which land one after the other."""
Piece: TypeAlias = tuple[int, int]
"""(append, piece)."""
HOLE: Piece = (-1, 0)


class Owner(NamedTuple):
    """The owner of epoch 1. ``step``: where its program stands in append number ``append``, the chunk ``known`` or not."""

    step: str = "create"
    append: int = 0
    landed: int = 0
    known: bool = False


class Heir(NamedTuple):
    """A claimant of epoch 2 or 3."""

    step: str = "new"
    epoch: int = 0
    size: int = -1


class State(NamedTuple):
    """``chunk``: the pieces that are visible; ``durable`` of them survive a power cut. ``sizes``: the length each OPEN recorded
    (-1: none yet; -2: opened, the chunk was not known). ``late``: pieces of failed writes, with their places.
    """

    claims: int
    chunk: tuple[Piece, ...]
    durable: int
    recorded: bool
    """The record that names the chunk is in history."""
    sizes: tuple[int, ...]
    owner: Owner
    heirs: tuple[Heir, ...]
    acked: frozenset[int]
    late: frozenset[tuple[int, Piece]]
    power: int
    faults: int
    taken: tuple[Piece, ...]
    """What the recorded length covered when it was recorded."""
    closed: int
    """The length at which the owner closed the chunk by a record; -1: it did not."""


class LazyModel:
    """See the module. ``appends``: how many the owner makes."""

    def __init__(
        self, *, appends: int = 2, power: int = 1, faults: int = 1, mutants: frozenset[str] = frozenset()
    ) -> None:
        self._appends = appends
        self._power = power
        self._faults = faults
        self._mutants = mutants

    def initial(self) -> State:
        sizes = (-1,) * (EPOCHS + 1)
        return State(
            1,
            (),
            0,
            False,
            sizes,
            Owner(),
            (Heir(), Heir()),
            frozenset(),
            frozenset(),
            self._power,
            self._faults,
            (),
            -1,
        )

    def violation(self, state: State) -> str | None:
        opened = [size for size in (state.closed, *state.sizes) if size != -1]
        if not opened:
            return None
        length = opened[-1]
        readable = state.chunk if "unclamped" in self._mutants else state.chunk[: max(length, 0)]
        if length > len(state.chunk):
            return "the recorded length lies beyond the chunk's bytes"
        for append in state.acked:
            if not all((append, part) in readable for part in range(PARTS)):
                return "acknowledged bytes are not in the recorded length"
        if readable != state.taken:
            return "what is read has changed after it was recorded"
        if len({size for size in opened if size != -2}) > 1:
            return "a recorded length has changed"
        return None

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.owner.step not in ("dead", "done"):
            yield "owner dies", state._replace(owner=Owner("dead"))
            yield from self._owner(state, state.owner)
        for item in state.late:
            place, piece = item
            if any(other[1][0] == piece[0] and other[0] < place for other in state.late):
                continue  # the bytes of one write land in order
            yield "a late write lands", self._lands(state, place, piece)._replace(late=state.late - {item})
        for at, heir in enumerate(state.heirs):
            if heir not in state.heirs[:at]:
                yield from self._heir(state, at, heir)
        if state.power:
            heirs = tuple(heir if heir.step == "new" else Heir("dead") for heir in state.heirs)
            yield (
                "power cut",
                state._replace(
                    chunk=state.chunk[: state.durable],
                    owner=Owner("dead"),
                    heirs=heirs,
                    late=frozenset(),
                    power=state.power - 1,
                ),
            )

    @staticmethod
    def _lands(state: State, place: int, piece: Piece) -> State:
        chunk = (*state.chunk, *((HOLE,) * (place - len(state.chunk))))
        return state._replace(chunk=(*chunk[:place], piece, *chunk[place + 1 :]))

    def _owner(self, state: State, owner: Owner) -> Iterator[tuple[str, State]]:
        if not owner.known and owner.step in ("create", "name late"):
            # C3 and C4 of the record that names the chunk; a claim before the check leaves it undecided: not acknowledged.
            if state.claims == 1:
                following = "acknowledge" if owner.step == "name late" else "idle"
                named = owner._replace(step=following, known=True)
                yield "names the chunk", state._replace(recorded=True, owner=named)
            else:
                yield "fenced", state._replace(owner=Owner("dead"))
            if "unknownchunk" in self._mutants and owner.step == "create":
                yield "goes on unnamed", state._replace(owner=owner._replace(step="idle"))
        elif owner.step == "idle" and owner.append < self._appends:
            looked = "checkbefore" in self._mutants
            if looked and state.claims != 1:
                yield "fenced", state._replace(owner=Owner("dead"))
            else:
                yield "begins an append", state._replace(owner=owner._replace(step="write", landed=0))
        elif owner.step == "write":
            yield from self._writes(state, owner)
        elif owner.step == "close":
            yield from self._closes(state, owner)
        elif owner.step == "sync":
            durable = state.durable if "nosync" in self._mutants else len(state.chunk)
            yield "syncs", state._replace(durable=durable, owner=owner._replace(step="look"))
        elif owner.step == "look":
            if "nocheck" in self._mutants or "checkbefore" in self._mutants or state.claims == 1:
                yield "looks: no claim", state._replace(owner=owner._replace(step="acknowledge"))
            else:
                yield "fenced", state._replace(owner=Owner("dead"))
        elif owner.step == "acknowledge":
            done = owner._replace(step="idle", append=owner.append + 1)
            yield "acknowledges", state._replace(owner=done, acked=state.acked | {owner.append})

    def _closes(self, state: State, owner: Owner) -> Iterator[tuple[str, State]]:
        if state.claims == 1 and state.recorded:
            length = len(state.acked) * PARTS
            opened = state._replace(closed=length, taken=state.chunk[:length], owner=Owner("done"))
            yield "closes the chunk", opened
        else:
            yield "fenced", state._replace(owner=Owner("dead"))

    def _writes(self, state: State, owner: Owner) -> Iterator[tuple[str, State]]:
        begin = owner.append * PARTS
        place, piece = begin + owner.landed, (owner.append, owner.landed)
        if "parallel" in self._mutants and owner.append == 0 and self._appends > 1:
            # Both appends are on their way; either may land first.
            both = frozenset((append * PARTS + part, (append, part)) for append in range(2) for part in range(PARTS))
            yield "two at once", state._replace(late=state.late | both, owner=Owner("done"))
            return
        landed = self._lands(state, place, piece)
        last = owner.landed == PARTS - 1
        following = owner._replace(step="sync") if last else owner._replace(landed=owner.landed + 1)
        yield "a piece lands", landed._replace(owner=following)
        if state.faults:
            # An error, and nobody knows: the rest may land at any time. The chunk is closed for ever (A2).
            rest = frozenset((begin + part, (owner.append, part)) for part in range(owner.landed, PARTS))
            failed = state._replace(late=state.late | rest, faults=state.faults - 1)
            if "reuse" in self._mutants and owner.append + 1 < self._appends:
                yield (
                    "write fails, goes on",
                    failed._replace(owner=owner._replace(step="idle", append=owner.append + 1)),
                )
            else:
                yield "write fails", failed._replace(owner=owner._replace(step="close"))

    def _heir(self, state: State, at: int, heir: Heir) -> Iterator[tuple[str, State]]:
        def moved(heir: Heir, state: State = state) -> State:
            return state._replace(heirs=tuple(sorted(replaced(state.heirs, at, heir))))

        first = "sizefirst" in self._mutants
        if heir.step == "new":
            if first and heir.size == -1:
                yield "takes the size too early", moved(heir._replace(size=len(state.chunk)))
            elif state.claims < EPOCHS:
                epoch = state.claims + 1
                claimed = state._replace(claims=epoch)
                yield "claim", moved(Heir("claimed", epoch, heir.size), claimed)
        elif heir.step == "claimed":
            yield "dies", moved(Heir("dead"))
            yield from self._takes_size(state, at, heir)
        elif heir.step == "sized":
            yield "dies", moved(Heir("dead"))
            # A later claimant makes this stream void before it opens its own.
            if any(size != -1 for size in state.sizes[heir.epoch + 1 :]) or self._is_void(state, heir.epoch):
                yield "overtaken", moved(Heir("dead"))
            else:
                sizes = replaced(state.sizes, heir.epoch, heir.size)
                before = any(size != -1 for size in (state.closed, *state.sizes))
                taken = state.taken if before else state.chunk[: max(heir.size, 0)]
                yield "OPEN", moved(Heir("dead"), state._replace(sizes=sizes, taken=taken))

    @staticmethod
    def _is_void(state: State, epoch: int) -> bool:
        return any(heir.epoch > epoch and heir.step == "sized" for heir in state.heirs)

    def _takes_size(self, state: State, at: int, heir: Heir) -> Iterator[tuple[str, State]]:
        closed = [size for size in (state.closed, *state.sizes[: heir.epoch]) if size != -1]
        durable = state.durable if "nosyncsize" in self._mutants else len(state.chunk)
        if closed and "resize" not in self._mutants:
            # An OPEN has closed the chunk: its length stands there.
            size = closed[-1]
        elif not state.recorded:
            size = -2
        else:
            size = heir.size if "sizefirst" in self._mutants else len(state.chunk)
        sized = Heir("sized", heir.epoch, size)
        yield (
            "reads, syncs, takes the size",
            state._replace(durable=durable, heirs=tuple(sorted(replaced(state.heirs, at, sized)))),
        )
