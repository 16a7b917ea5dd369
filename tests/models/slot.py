"""The fence of SLOT mode (protocol 3.4 T0 to T9, 3.5, P2, P3, P4, 3.13 for replicas).

Every record is one put-if-absent object in the stream of its epoch; a successor claims, makes undecided streams below it
void, occupies its predecessor's first free slot with SEAL, and writes OPEN into slot 0 of its own stream. Puts may be
delayed by the network until after their sender is dead, replies get lost, processes crash, garbage collection removes
records of streams that are sealed. A replica follows: what exists in a stream of history is committed.

Left out: claims are atomic; nothing is torn (objects are atomic); power cuts (slots are synced before they are visible);
snapshots are taken to be right, because they certify themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from tests.models.explorer import replaced

MUTANTS = ("novoid", "noseal", "gcseal", "gcown", "rebatch", "nextslot", "followseal", "followhole", "followpast")
"""novoid: undecided streams are passed over. noseal: the predecessor's free slot stays free. gcseal: SEALs are collected.
gcown: an owner collects its own stream. rebatch: other bytes for a slot that is undecided, and any object of mine is mine.
nextslot: "not found" is believed, and the operation goes into the next slot. followseal: a replica takes any SEAL for the
end of its stream. followhole: a replica passes over slots that are gone. followpast: it moves on to the next OPEN without
having read up to the end."""

EPOCHS = 3
SLOTS = 4

Key: TypeAlias = tuple[int, int]
"""(epoch, slot)."""
Object: TypeAlias = tuple[str, object, object]
"""("R", attempt, operation), ("S", by epoch, 0) or ("O", previous epoch, its end)."""
Store: TypeAlias = frozenset[tuple[Key, Object]]


class Process(NamedTuple):
    """``step`` is where its program stands. ``below`` counts down in T2; ``done`` counts operations that are finished."""

    step: str
    epoch: int = 0
    below: int = 0
    previous: int = 0
    slot: int = 0
    done: int = 0


class Replica(NamedTuple):
    """It has applied everything up to slot ``slot`` (exclusive) of stream ``epoch``: ``records`` in all."""

    epoch: int
    slot: int
    records: int


class State(NamedTuple):
    """``claims``: the top claim. ``network``: puts on their way. ``acked``: (epoch, slot, operation). ``collected``: keys."""

    claims: int
    store: Store
    network: Store
    processes: tuple[Process, ...]
    acked: frozenset[tuple[int, int, object]]
    collected: frozenset[Key]
    replica: Replica | None


NEW, DEAD = Process("new"), Process("dead")


def history(store: Store) -> dict[int, int]:
    """Streams of history and the slot where each ends; the top one ends behind everything."""
    opened = {key[0]: item for key, item in store if item[0] == "O"}
    if not opened:
        return {}
    epoch = max(opened)
    ends = {epoch: 99}
    while opened[epoch][1]:
        end = opened[epoch][2]
        epoch = opened[epoch][1]  # type: ignore[assignment]
        ends[epoch] = end  # type: ignore[assignment]
        if epoch not in opened:
            break
    return ends


class SlotModel:
    """See the module. ``operations`` is how many records each owner wants to commit."""

    def __init__(
        self, *, processes: int = 3, operations: int = 1, replica: bool = True, mutants: frozenset[str] = frozenset()
    ) -> None:
        self._processes = processes
        self._operations = operations
        self._replica = replica
        self._mutants = mutants

    def initial(self) -> State:
        nothing: Store = frozenset()
        replica = Replica(0, 0, 0) if self._replica else None
        return State(0, nothing, nothing, (NEW,) * self._processes, frozenset(), frozenset(), replica)

    def violation(self, state: State) -> str | None:
        store = dict(state.store)
        ends = history(state.store)
        for epoch, slot, operation in state.acked:
            if slot >= ends.get(epoch, 0):
                return "an acknowledged record lies outside of history"
            item = store.get((epoch, slot))
            # A slot that was collected may hold the SEAL of a claimant that was overtaken while it looked for the tail.
            changed = item is not None and (item[0] != "R" or item[2] != operation)
            if changed and (epoch, slot) not in state.collected:
                return "a slot holds something else than what was acknowledged"
        done = [item[2] for (epoch, slot), item in state.store if item[0] == "R" and slot < ends.get(epoch, 0)]
        if len(done) != len(set(done)):
            return "an operation was applied twice"
        replica = state.replica
        if replica is not None and replica.epoch:
            if replica.slot > ends.get(replica.epoch, 0):
                return "a replica applied what is not history"
            if (
                replica.records
                != sum(end - 1 for epoch, end in ends.items() if epoch < replica.epoch) + replica.slot - 1
            ):
                return "a replica left out a part of history"
        return None

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        store = dict(state.store)
        for put in state.network:
            landed = state.store if put[0] in store else state.store | {put}
            yield "a late put lands", state._replace(store=landed, network=state.network - {put})
        for at, process in enumerate(state.processes):
            # Processes are alike: which of two that stand at the same place moves makes no difference.
            if process.step != "dead" and process not in state.processes[:at]:
                yield from self._of_process(state, at, process, store)
        yield from self._collect(state)
        if state.replica is not None:
            yield from self._follow(state, state.replica, store)

    @staticmethod
    def _moved(state: State, at: int, process: Process, put: tuple[Key, Object] | None = None) -> State:
        store = state.store if put is None else state.store | {put}
        return State(
            state.claims, store, state.network, tuple(sorted(replaced(state.processes, at, process))), state.acked,
            state.collected, state.replica,
        )  # fmt: skip

    def _of_process(
        self, state: State, at: int, process: Process, store: dict[Key, Object]
    ) -> Iterator[tuple[str, State]]:
        step, epoch, _, previous, slot, done = process
        if step == "new":
            yield "looks for the top claim", self._moved(state, at, Process("claim", slot=state.claims + 1))
            return
        yield "crash", self._moved(state, at, DEAD)
        if step == "claim":
            if slot <= EPOCHS and state.claims >= slot:
                yield "claim taken", self._moved(state, at, NEW)
            elif slot <= EPOCHS:
                yield "claim", self._moved(state._replace(claims=slot), at, Process("resolve", slot, slot - 1))
        elif step == "resolve":
            yield from self._resolve(state, at, process, store)
        elif step == "seal":
            yield from self._seal(state, at, process, store)
        elif step == "open":
            put: tuple[Key, Object] = ((epoch, 0), ("O", previous, slot))
            if (epoch, 0) in store:
                yield "overtaken", self._moved(state, at, DEAD)
            else:
                yield "OPEN", self._moved(state, at, Process("idle", epoch, slot=1), put)
            yield from self._dies_with(state, at, put, "OPEN")
        elif step == "idle" and done < self._operations and slot < SLOTS:
            yield from self._commit(state, at, process, store)
        elif step == "undecided":
            yield from self._ask_again(state, at, process, store)

    def _dies_with(self, state: State, at: int, put: tuple[Key, Object], name: str) -> Iterator[tuple[str, State]]:
        """The sender dies with its put on the way."""
        if len(state.network) < 2:
            yield f"{name} delayed", self._moved(state, at, DEAD)._replace(network=state.network | {put})

    def _resolve(
        self, state: State, at: int, process: Process, store: dict[Key, Object]
    ) -> Iterator[tuple[str, State]]:
        _, epoch, below, *_ = process
        if below == 0:
            yield "genesis", self._moved(state, at, Process("open", epoch))
            return
        found = store.get((below, 0))
        deeper = Process("resolve", epoch, below - 1)
        if found is None:
            put: tuple[Key, Object] = ((below, 0), ("S", epoch, 0))
            if "novoid" in self._mutants:
                yield "passes over", self._moved(state, at, deeper)
            else:
                yield "void", self._moved(state, at, deeper, put)
            yield from self._dies_with(state, at, put, "void")
        elif found[0] == "S":
            yield "is void", self._moved(state, at, deeper)
        else:
            yield "predecessor", self._moved(state, at, Process("seal", epoch, 0, below, 1))

    def _seal(self, state: State, at: int, process: Process, store: dict[Key, Object]) -> Iterator[tuple[str, State]]:
        _, epoch, _, previous, slot, _ = process
        found = store.get((previous, slot))
        sealed = Process("open", epoch, 0, previous, slot)
        if found is None:
            # Slots are asked one by one: a claimant that was overtaken may take a slot that was collected for the tail.
            put: tuple[Key, Object] = ((previous, slot), ("S", epoch, 0))
            if "noseal" in self._mutants:
                yield "takes the tail", self._moved(state, at, sealed)
            else:
                yield "SEAL", self._moved(state, at, sealed, put)
            yield from self._dies_with(state, at, put, "SEAL")
        elif found[0] == "S":
            yield "sealed by another", self._moved(state, at, sealed)
        else:
            yield "next slot", self._moved(state, at, Process("seal", epoch, 0, previous, slot + 1))

    def _acknowledged(
        self, state: State, at: int, process: Process, done: int, operation: Key, put: tuple[Key, Object] | None
    ) -> State:
        moved = self._moved(state, at, Process("idle", process.epoch, slot=process.slot + 1, done=done), put)
        return moved._replace(acked=state.acked | {(process.epoch, process.slot, operation)})

    def _commit(self, state: State, at: int, process: Process, store: dict[Key, Object]) -> Iterator[tuple[str, State]]:
        _, epoch, _, _, slot, done = process
        key, operation = (epoch, slot), (epoch, done)
        put: tuple[Key, Object] = (key, ("R", (epoch, 0, done), operation))
        waiting = process._replace(step="undecided")
        if key in store:
            yield "fenced", self._moved(state, at, DEAD)
        else:
            yield "record, acknowledged", self._acknowledged(state, at, process, done + 1, operation, put)
            yield "record, reply lost", self._moved(state, at, waiting, put)
        yield "record delayed", self._moved(state, at, waiting)._replace(network=state.network | {put})

    def _ask_again(
        self, state: State, at: int, process: Process, store: dict[Key, Object]
    ) -> Iterator[tuple[str, State]]:
        _, epoch, _, _, slot, done = process
        key, operation = (epoch, slot), (epoch, done)
        mine: Object = ("R", (epoch, 0, done), operation)
        found = store.get(key)
        if found is not None and found[0] != "R":
            yield "fenced", self._moved(state, at, DEAD)
        elif "rebatch" in self._mutants:
            other = (epoch, done + 1)
            put: tuple[Key, Object] = (key, ("R", (epoch, 1, done), other))
            yield "other bytes", self._acknowledged(state, at, process, done + 2, other, put if found is None else None)
        elif found is None and "nextslot" in self._mutants:
            later = Process("idle", epoch, slot=min(slot + 1, SLOTS), done=done)
            yield "not found, believed", self._moved(state, at, later)
        elif found is None:
            yield "record again", self._acknowledged(state, at, process, done + 1, operation, (key, mine))
        elif found == mine:
            yield "mine", self._acknowledged(state, at, process, done + 1, operation, None)
        else:
            yield "fenced", self._moved(state, at, DEAD)

    def _collect(self, state: State) -> Iterator[tuple[str, State]]:
        ends = history(state.store)
        if not ends:
            return
        top = max(ends)
        for put in state.store:
            (epoch, slot), item = put
            own = "gcown" in self._mutants and epoch == top and item[0] == "R"
            if not (epoch < top or own):
                continue
            if (item[0] == "R" and slot < ends.get(epoch, 0)) or ("gcseal" in self._mutants and item[0] == "S"):
                yield (
                    f"collects {item[0]}",
                    state._replace(store=state.store - {put}, collected=state.collected | {(epoch, slot)}),
                )

    def _follow(self, state: State, replica: Replica, store: dict[Key, Object]) -> Iterator[tuple[str, State]]:
        ends = history(state.store)
        if not ends:
            return
        # From the newest snapshot: everything before the top stream. At the beginning, and where records were collected.
        top = max(ends)
        afresh = Replica(top, 1, sum(end - 1 for epoch, end in ends.items() if epoch < top))
        if not replica.epoch:
            yield "replica begins", state._replace(replica=afresh)
            return
        epoch, slot, records = replica
        found = store.get((epoch, slot))
        successor = next((key[0] for key, item in state.store if item[0] == "O" and item[1] == epoch), 0)
        end = store[(successor, 0)][2] if successor else None
        moves_on = Replica(successor, 1, records)
        if found is not None and found[0] == "R":
            yield "replica applies", state._replace(replica=Replica(epoch, slot + 1, records + 1))
        elif successor and end == slot:
            yield "replica moves on", state._replace(replica=moves_on)
        elif successor and "followseal" in self._mutants and found is not None:
            yield "replica believes a SEAL", state._replace(replica=moves_on)
        elif successor and "followhole" in self._mutants and found is None:
            yield "replica passes over", state._replace(replica=Replica(epoch, slot + 1, records))
        elif successor:
            # A SEAL that no OPEN names, or a hole below the end: it was collected.
            yield "replica begins afresh", state._replace(replica=afresh)
        if successor and "followpast" in self._mutants:
            yield "replica leaps", state._replace(replica=moves_on)
