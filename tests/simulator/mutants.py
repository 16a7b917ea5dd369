"""Fifteen planted bugs: the yardstick of the simulator (protocol 6.1). A bug that no run notices means that it is too weak.

A bug replaces functions or methods of the product while it is planted. It breaks one rule of the protocol and raises no error
of its own: what notices it is an invariant or the history checker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import reduce
from importlib import import_module
from typing import Any, Final, NamedTuple, cast

import pytest

from chunkstore import runtime
from chunkstore.metadata.port import Position
from chunkstore.records.names import NO_CHUNK
from chunkstore_journal.claim import ClosedStream
from tests.simulator.drawing import Plan, draw_plan

Function = Callable[..., Any]
APPEND: Final = ("posix-append",)
SLOT: Final = ("s3-slot", "posix-slot")
EVERYWHERE: Final = (*SLOT, *APPEND)


class Mutant(NamedTuple):
    """One planted bug.

    ``swaps``: where (``module:Class.name``), and what makes the replacement of the function that is there. ``kinds``: the worlds,
    storage and journal mode, that it can show in. ``needs``: fault classes without which it cannot, or "replicas".
    ``bound``: it is in the binding of files.
    """

    name: str
    what: str
    kinds: tuple[str, ...]
    swaps: dict[str, Callable[[Function], Function]]
    needs: tuple[str, ...] = ()
    bound: bool = False

    def plan(self, seed: int, claims: int) -> Plan:
        """The run of a seed in which the bug is hunted."""
        return draw_plan(seed, claims=claims, bound="posix" if self.bound else None)

    def suits(self, plan: Plan) -> bool:
        """Whether the bug can show in this run: hunting in others would be a waste."""
        if f"{plan.storage}-{plan.settings.journal_mode}" not in self.kinds:
            return False
        return all(plan.replicas > 0 if need == "replicas" else getattr(plan.weather, need) for need in self.needs)


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The product with this bug in it, and afterwards as it was. Raises ``AttributeError`` where there is nothing to replace."""
    with pytest.MonkeyPatch.context() as patch:
        for place, make in mutant.swaps.items():
            module, _, path = place.partition(":")
            *owners, name = path.split(".")
            owner = reduce(getattr, owners, import_module(module))
            patch.setattr(owner, name, make(getattr(owner, name)))
        yield


def _always(answer: object) -> Callable[[Function], Function]:
    return lambda _original: lambda *_args, **_named: answer


# Commits


def _answer_early(original: Function) -> Function:
    def wait(container: Any, owned: Any, op: Any, deadline: Any) -> None:
        def later() -> None:
            with suppress(Exception):
                original(container, owned, op, deadline)

        runtime.spawn(later, "early")

    return wait


def _let_two_lead(original: Function) -> Function:
    def enter_line(queue: Any, op: Any) -> Any:
        led = original(queue, op)
        queue._leading = False
        return led

    return enter_line


# The journal


def _look_first(_original: Function) -> Function:
    def write_durable(appender: Any, offset: int, data: bytes) -> None:
        passed = type(appender).look(appender)
        appender._storage.write(appender._handle, offset, data)
        appender._storage.sync((appender._handle.name,))
        appender.look = lambda: passed

    return write_durable


def _overwrite(_original: Function) -> Function:
    def put_decided(storage: Any, name: str, data: bytes, **_named: Any) -> Any:
        storage.put(name, data)
        return data

    return put_decided


def _call_it_refused(original: Function) -> Function:
    return lambda stream, error, *, happened: original(stream, error, happened=False)


def _forget_the_tail(original: Function) -> Function:
    def read_tail(*args: Any, **named: Any) -> ClosedStream:
        closed = original(*args, **named)
        return ClosedStream(closed.end, tail_cut=closed.tail_cut)

    return read_tail


def _replay_nothing(original: Function) -> Function:
    def bring(streams: Any, store: Any, *args: Any) -> None:
        if not store.head().position.lsn:
            original(streams, store, *args)

    return bring


def _show_what_is_written(_original: Function) -> Function:
    def end_of_log(streams: Any, opened: Any, start: Position, _beyond: Any) -> Position:
        reader = streams.log_reader(opened.epoch, start.end)
        end = start
        for record in reader:
            end = Position(record.header.lsn, record.hash, start.epoch, end.index + 1, reader.offset)
        return end

    return end_of_log


# Rows and chunks


def _lead_nowhere(original: Function) -> Function:
    def add(fold: Any, lines: Any) -> None:
        original(fold, lines)
        for grown in fold._segments.values():
            if grown.tail is not None:
                grown.tail[4] = NO_CHUNK

    return add


def _delete_at_once(original: Function) -> Function:
    def discard(changes: Any, first: bytes, *args: Any, **named: Any) -> None:
        if first:
            storage = changes.owned.writer.storage
            storage.delete(changes.owned.names.chunk(first))
        original(changes, first, *args, **named)

    return discard


def _spare_nothing(original: Function) -> Function:
    def standing(*args: Any) -> str:
        found = str(original(*args))
        return "orphan" if found == "under way" else found

    return standing


def _zero_the_last(original: Function) -> Function:
    def read(container: Any, run: Any) -> bytes:
        data = cast("bytes", original(container, run))
        kept = run.extents[-1][4] - run.start
        return data[:kept] + bytes(len(data) - kept)

    return read


_LOG: Final = "chunkstore.records.chunks:LogAppender"
_QUEUE: Final = "chunkstore.operations.commit_queue:CommitQueue"

_MUTANTS: Final = (
    Mutant(
        "early-answer",
        "a caller is answered when its operation has entered the queue",
        EVERYWHERE,
        {"chunkstore.operations.container:OwnedContainer.wait": _answer_early},
    ),
    Mutant(
        "two-leaders",
        "two threads lead, each with a record of its own that follows the same one",
        EVERYWHERE,
        {f"{_QUEUE}.enter_line": _let_two_lead},
    ),
    Mutant(
        "fence-ignored",
        "an owner does not look for a newer claim after it has written its record (C4)",
        APPEND,
        {f"{_LOG}.look": _always(True)},
    ),
    Mutant(
        "fence-before-sync",
        "an owner looks for a newer claim before it writes, and takes that answer for the one after",
        APPEND,
        {f"{_LOG}.write_durable": _look_first},
    ),
    Mutant(
        "nothing-synced",
        "bytes and records are acknowledged before the binding of files has synced them",
        APPEND,
        {"chunkstore_bindings.filesystem.posix:sync_data": _always(None)},
        needs=("power_cut",),
        bound=True,
    ),
    Mutant(
        "slot-overwritten",
        "a record and a SEAL replace what has their slot",
        SLOT,
        {"chunkstore_journal.slot_stream:put_decided": _overwrite},
    ),
    Mutant(
        "unknown-as-refused",
        "a record that may have happened is reported as not happened",
        EVERYWHERE,
        {"chunkstore_journal.stream:OwnedStream._broken": _call_it_refused},
    ),
    Mutant(
        "tail-forgotten",
        "a take-over drops the last record of the stream, which no other record covers (A15)",
        APPEND,
        {"chunkstore_journal.takeover:read_tail": _forget_the_tail},
    ),
    Mutant(
        "replay-skipped",
        "a snapshot or a local cache is taken for the end of history",
        EVERYWHERE,
        {"chunkstore_journal.recovery:replay_to": _replay_nothing},
    ),
    Mutant(
        "replica-uncommitted",
        "a replica shows what is written and not yet committed",
        APPEND,
        {"chunkstore_journal.walk:_end_of_log": _show_what_is_written},
        needs=("replicas", "stall_at_call"),
    ),
    Mutant(
        "derived-row-differs",
        "an extent's row does not lead back to the chunk before it",
        EVERYWHERE,
        {"chunkstore.metadata.lines:LineFold.add": _lead_nowhere},
    ),
    Mutant(
        "delete-before-commit",
        "a truncation deletes its chunks before the removal is committed",
        EVERYWHERE,
        {"chunkstore.operations.change_set:ChangeSet.discard": _delete_at_once},
    ),
    Mutant(
        "live-extent-collected",
        "the journal is collected, whatever extents it holds",
        EVERYWHERE,
        {"chunkstore_journal.service:oldest_inline_record": _always(None)},
    ),
    Mutant(
        "spill-drops-extent",
        "a spill writes zeros in the place of its last extent",
        EVERYWHERE,
        {"chunkstore.operations.spill:_read": _zero_the_last},
    ),
    Mutant(
        "own-epoch-swept",
        "a sweep takes what its own epoch writes for orphans",
        EVERYWHERE,
        {"chunkstore.operations.orphans:_standing": _spare_nothing},
    ),
)
MUTANTS: Final = {mutant.name: mutant for mutant in _MUTANTS}
"""Every planted bug, by name."""
