"""The fence of APPEND mode (protocol 3.4 T0 to T9, 3.5 C3 and C4, 3.9, 3.13, A1, A15, P5, P6).

Records are appended to one file per epoch: written, synced, then the owner looks for the next claim. A successor claims
first, then reads the file, syncs what it saw, and records in its OPEN where the last commit mark ends; the one record behind
that mark is embedded in OPEN. An owner whose write or sync fails takes over from itself: it may claim the very next epoch and
no other, and what became of its operation is read from history. Power cuts take what was not synced; a sync that failed
once may succeed the next time without having done anything. A replica applies what a later mark covers, or what it has synced
before it saw no claim.

Left out: claims and OPENs are atomic and durable when they are visible; torn records (a CRC cuts them); the cache; chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from tests.models.explorer import replaced

MUTANTS = (
    "nocheck", "checkbefore", "nofsync", "noembed", "novoid", "selftrust", "failtail", "reclaim", "rnocheck", "rnofsync",
)  # fmt: skip
"""nocheck: acknowledged without looking for a claim. checkbefore: looked before writing. nofsync: acknowledged unsynced.
noembed: the cut covers the whole file, nothing is embedded. novoid: undecided streams are passed over. selftrust: a
self-successor cuts at what it had acknowledged itself. failtail: it reports "did not happen" without reading history. reclaim:
a fenced owner climbs over the foreign claim. rnocheck, rnofsync: a replica does not look for a claim, does not sync."""
HARMLESS = ("nofsyncseal",)
"""nofsyncseal: a successor does not sync what it read. What a mark covers was synced by its owner, and the one record behind it
is embedded; so only without the embedding (``noembed``) does this lose anything. Successors sync all the same."""

EPOCHS = 3
Operation: TypeAlias = tuple[int, int]
"""(epoch, number in its stream). Record n of a stream says that the n records before it are committed."""


class File(NamedTuple):
    """``durable`` of the ``records`` survive a power cut. ``lying``: a sync failed, later ones do nothing."""

    records: tuple[Operation, ...] = ()
    durable: int = 0
    lying: bool = False

    def synced(self) -> File:
        """After a sync that reports success."""
        return self if self.lying else File(self.records, len(self.records), False)


class Head(NamedTuple):
    """Slot 0 of a stream: void, or OPEN with its predecessor, the records of it that count, and the one that is embedded."""

    void: bool
    previous: int = 0
    end: int = 0
    embedded: Operation | None = None


class Process(NamedTuple):
    """``own`` is the epoch a self-take-over began in (0: came by open). ``pending``: an operation nobody has answered yet."""

    step: str
    epoch: int = 0
    below: int = 0
    previous: int = 0
    end: int = 0
    embedded: Operation | None = None
    done: int = 0
    own: int = 0
    pending: Operation | None = None

    def order(self) -> tuple[object, ...]:
        """To sort by: tuples with None in them cannot be compared."""
        return (*self[:5], self.embedded or (), self.done, self.own, self.pending or ())


class Replica(NamedTuple):
    """``applied`` operations, in order; between reading and applying, the epoch and the operations read."""

    applied: tuple[Operation, ...] = ()
    epoch: int = 0
    read: tuple[Operation, ...] = ()


class State(NamedTuple):
    """``refused``: operations that a caller was told did not happen. ``late``: writes that failed and may land yet."""

    claims: int
    heads: tuple[Head | None, ...]
    files: tuple[File, ...]
    processes: tuple[Process, ...]
    acked: frozenset[Operation]
    refused: frozenset[Operation]
    late: frozenset[Operation]
    replica: Replica | None
    power: int
    faults: int


NEW, DEAD = Process("new"), Process("dead")
VOID = Head(True)


def history(state: State) -> tuple[int, tuple[Operation, ...] | None]:
    """The top epoch and every operation of history in order; None where a cut lies beyond its file."""
    heads, files = state.heads, state.files
    epoch = top = max((at for at in range(1, len(heads)) if heads[at] not in (None, VOID)), default=0)
    if not top:
        return 0, ()
    found = files[top].records
    while True:
        head = heads[epoch]
        assert head is not None
        if head.embedded is not None:
            found = (head.embedded, *found)
        if not head.previous:
            return top, found
        epoch = head.previous
        if head.end > len(files[epoch].records):
            return top, None
        found = files[epoch].records[: head.end] + found


class AppendModel:
    """See the module. ``faults``: writes and syncs that may fail. ``readers_hear``: whether a replica's sync reports a failure
    that the owner's sync has seen before.
    """

    def __init__(
        self,
        *,
        processes: int = 3,
        operations: int = 1,
        power: int = 1,
        faults: int = 1,
        replica: bool = True,
        readers_hear: bool = True,
        epochs: int = EPOCHS,
        mutants: frozenset[str] = frozenset(),
    ) -> None:
        self._processes = processes
        self._operations = operations
        self._power = power
        self._faults = faults
        self._replica = replica
        self._readers_hear = readers_hear
        self._epochs = epochs
        self._mutants = mutants

    def initial(self) -> State:
        nothing: frozenset[Operation] = frozenset()
        return State(
            0, (None,) * (self._epochs + 1), (File(),) * (self._epochs + 1), (NEW,) * self._processes, nothing, nothing, nothing,
            Replica() if self._replica else None, self._power, self._faults,
        )  # fmt: skip

    def violation(self, state: State) -> str | None:
        _, found = history(state)
        if found is None:
            return "a hole: the cut lies beyond the file"
        if not state.acked <= set(found):
            return "an acknowledged record is lost"
        if len(set(found)) != len(found):
            return "an operation was applied twice"
        if any(process.own and process.epoch > process.own + 1 for process in state.processes):
            return "a fenced owner climbed over a foreign claim"
        if state.refused & set(found):
            return "an operation that did not happen is in history"
        replica = state.replica
        if replica is not None and found[: len(replica.applied)] != replica.applied:
            return "a replica applied what is not history"
        return None

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for at, process in enumerate(state.processes):
            if process.step != "dead" and process not in state.processes[:at]:
                yield from self._of_process(state, at, process)
        for operation in state.late:
            epoch = operation[0]
            file = state.files[epoch]
            landed = File((*file.records, operation), file.durable, file.lying)
            yield (
                "a late write lands",
                state._replace(files=replaced(state.files, epoch, landed), late=state.late - {operation}),
            )
        if state.replica is not None:
            yield from self._follow(state, state.replica)
        if state.power:
            yield "power cut", self._powerless(state)

    def _powerless(self, state: State) -> State:
        files = tuple(File(file.records[: file.durable], file.durable) for file in state.files)
        processes = tuple(sorted((item if item.step == "new" else DEAD for item in state.processes), key=Process.order))
        replica = None if state.replica is None else Replica(state.replica.applied)
        return state._replace(
            files=files, processes=processes, replica=replica, late=frozenset(), power=state.power - 1
        )

    @staticmethod
    def _moved(state: State, at: int, process: Process, file: tuple[int, File] | None = None) -> State:
        files = state.files if file is None else replaced(state.files, *file)
        processes = tuple(sorted(replaced(state.processes, at, process), key=Process.order))
        return State(state.claims, state.heads, files, processes, *state[4:])

    def _of_process(self, state: State, at: int, process: Process) -> Iterator[tuple[str, State]]:
        step, epoch = process.step, process.epoch
        if step == "new":
            yield "looks for the top claim", self._moved(state, at, Process("claim", end=state.claims + 1))
            return
        yield "crash", self._moved(state, at, DEAD)
        if step == "claim":
            wanted = process.end
            if wanted <= self._epochs and state.claims >= wanted:
                yield "claim taken", self._moved(state, at, NEW)
            elif wanted <= self._epochs:
                claimed = state._replace(claims=wanted)
                yield "claim", self._moved(claimed, at, Process("resolve", wanted, wanted - 1))
        elif step == "reclaim":
            yield from self._claim_again(state, at, process)
        elif step == "resolve":
            yield from self._resolve(state, at, process)
        elif step == "tail":
            yield from self._read_tail(state, at, process)
        elif step == "open":
            yield from self._open(state, at, process)
        elif step in ("idle", "looked"):
            yield from self._write(state, at, process)
        elif step == "written":
            yield from self._sync(state, at, process)
        elif step == "synced":
            if "nocheck" in self._mutants or "checkbefore" in self._mutants or state.claims == epoch:
                yield "acknowledged", self._acknowledged(state, at, process)
            else:
                yield "fenced", self._moved(state, at, DEAD)

    def _acknowledged(self, state: State, at: int, process: Process) -> State:
        assert process.pending is not None
        done = process._replace(step="idle", done=process.done + 1, pending=None)
        return self._moved(state._replace(acked=state.acked | {process.pending}), at, done)

    def _write(self, state: State, at: int, process: Process) -> Iterator[tuple[str, State]]:
        epoch = process.epoch
        if process.done >= self._operations:
            return
        if "checkbefore" in self._mutants and process.step == "idle":
            looked = process._replace(step="looked") if state.claims == epoch else DEAD
            yield "looks before", self._moved(state, at, looked)
            return
        file = state.files[epoch]
        operation = (epoch, len(file.records))
        written = process._replace(step="written", pending=operation)
        grown = File((*file.records, operation), file.durable, file.lying)
        yield "write", self._moved(state, at, written, (epoch, grown))
        if state.faults:
            less = state._replace(faults=state.faults - 1)
            failed = written._replace(step="reclaim")
            yield "write fails", self._moved(less, at, failed)
            yield "write fails, may land", self._moved(less._replace(late=state.late | {operation}), at, failed)

    def _sync(self, state: State, at: int, process: Process) -> Iterator[tuple[str, State]]:
        epoch = process.epoch
        file = state.files[epoch]
        synced = file if "nofsync" in self._mutants else file.synced()
        yield "sync", self._moved(state, at, process._replace(step="synced"), (epoch, synced))
        if state.faults:
            less = state._replace(faults=state.faults - 1)
            lying = File(file.records, file.durable, True)
            yield "sync fails", self._moved(less, at, process._replace(step="reclaim"), (epoch, lying))

    def _claim_again(self, state: State, at: int, process: Process) -> Iterator[tuple[str, State]]:
        own = process.epoch
        wanted = own + 1
        if "reclaim" in self._mutants:
            wanted = state.claims + 1
        if state.claims >= wanted:
            yield "fenced", self._moved(state, at, DEAD)
        elif wanted <= self._epochs:
            again = Process("resolve", wanted, wanted - 1, own=own, pending=process.pending, done=process.done)
            yield "claims again", self._moved(state._replace(claims=wanted), at, again)

    def _resolve(self, state: State, at: int, process: Process) -> Iterator[tuple[str, State]]:
        below = process.below
        if below == 0:
            yield "genesis", self._moved(state, at, process._replace(step="open"))
            return
        head = state.heads[below]
        deeper = process._replace(below=below - 1)
        if head is None and "novoid" in self._mutants:
            yield "passes over", self._moved(state, at, deeper)
        elif head is None:
            yield "void", self._moved(state._replace(heads=replaced(state.heads, below, VOID)), at, deeper)
        elif head.void:
            yield "is void", self._moved(state, at, deeper)
        else:
            yield "predecessor", self._moved(state, at, process._replace(step="tail", below=0, previous=below))

    def _read_tail(self, state: State, at: int, process: Process) -> Iterator[tuple[str, State]]:
        previous = process.previous
        file = state.files[previous]
        records = file.records
        # The last record's mark covers all records before it.
        end, embedded = max(len(records) - 1, 0), records[-1] if records else None
        if "noembed" in self._mutants:
            end, embedded = len(records), None
        if "selftrust" in self._mutants and process.own == previous:
            end, embedded = sum(record in state.acked for record in records), None
        synced = file if "nofsyncseal" in self._mutants else file.synced()
        read = process._replace(step="open", end=end, embedded=embedded)
        yield "reads and syncs the tail", self._moved(state, at, read, (previous, synced))

    def _open(self, state: State, at: int, process: Process) -> Iterator[tuple[str, State]]:
        epoch = process.epoch
        if state.heads[epoch] is not None:
            yield "overtaken", self._moved(state, at, DEAD)
            return
        head = Head(False, process.previous, process.end, process.embedded)
        opened = state._replace(heads=replaced(state.heads, epoch, head))
        idle = Process("idle", epoch, done=process.done)
        if process.pending is not None:
            # Its own former operation: in history, or not, and now that is known.
            happened = process.pending in (history(opened)[1] or ())
            if happened and "failtail" not in self._mutants:
                opened = opened._replace(acked=opened.acked | {process.pending})
            else:
                opened = opened._replace(refused=opened.refused | {process.pending})
            idle = idle._replace(done=process.done + 1)
        yield "OPEN", self._moved(opened, at, idle)

    def _follow(self, state: State, replica: Replica) -> Iterator[tuple[str, State]]:
        if not replica.epoch:
            top, found = history(state)
            if not top or found is None or len(found) <= len(replica.applied):
                return
            file = state.files[top]
            yield "replica reads", state._replace(replica=Replica(replica.applied, top, found))
            if len(file.records) > 1 and len(found) - 1 > len(replica.applied):
                # A later record's mark covers all but the last.
                yield "replica applies what is marked", state._replace(replica=Replica(found[:-1]))
            return
        file = state.files[replica.epoch]
        if file.lying and self._readers_hear and "rnofsync" not in self._mutants:
            yield "replica's sync fails", state._replace(replica=Replica(replica.applied))
            return
        files = state.files
        if "rnofsync" not in self._mutants:
            files = replaced(files, replica.epoch, file.synced())
        # Syncing and looking are two steps of the replica; nothing that happens between them matters to a file that grows.
        unclaimed = state.claims == replica.epoch or "rnocheck" in self._mutants
        applied = replica.read if unclaimed else replica.applied
        yield "replica looks", state._replace(files=files, replica=Replica(applied))
