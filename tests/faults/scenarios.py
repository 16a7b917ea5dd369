"""What is interrupted: one scenario for each kind of operation, each with what was there before it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from chunkstore import changes
from chunkstore.changes.sessions import SessionChunk
from chunkstore.engine.store import ChunkedSegmentStorage
from tests.faults.ground import WRITER, Ground
from tests.support.faulty import Dead, Outcome, When
from tests.support.merging import merge


@dataclass(frozen=True)
class Operation:
    """``prepare`` is acknowledged; then ``act`` is interrupted. ``prepare`` may return what to do instead of ``act``."""

    name: str
    act: Callable[[ChunkedSegmentStorage, Any], object]
    prepare: Callable[[ChunkedSegmentStorage], object] = lambda store: None
    settings: dict[str, object] = field(default_factory=dict)
    repeatable: bool = True
    """Whether doing it again after "it did not happen" is the same operation."""
    first: tuple[When, Outcome] | None = None
    """A fault that belongs to the scenario: what is interrupted is what follows it."""


def _fill(store: ChunkedSegmentStorage) -> None:
    store.create("other")
    store.append("other", b"here before")
    store.create("log")
    store.append("log", b"0123456789")


def _chunks(store: ChunkedSegmentStorage) -> None:
    _fill(store)
    for part in (b"a" * 40, b"b" * 40, b"c" * 7):
        store.append("log", part)


def _sealed(store: ChunkedSegmentStorage) -> None:
    _chunks(store)
    store.seal("log")


def _concat(store: ChunkedSegmentStorage) -> None:
    _chunks(store)
    store.create("source")
    store.append("source", b"s" * 70)
    store.seal("source")


def _garbage(store: ChunkedSegmentStorage) -> None:
    _concat(store)
    store.append("log", b"e", writer_id=WRITER, event_number=3)
    store.truncate("log", 60)
    store.delete("source")
    store.snapshot()
    store.append("log", b"behind the snapshot")


def _due_garbage(store: ChunkedSegmentStorage) -> None:
    _garbage(store)
    time.sleep(0.005)  # times of removal are whole milliseconds: none of it may still be in its grace period


def _session(store: ChunkedSegmentStorage) -> tuple[int, tuple[SessionChunk, ...]]:
    _fill(store)
    session = store.session("a writer elsewhere")
    writer = session.writer()
    storage = store._container.storage
    return session.id, tuple(writer.write_chunk(storage, number, b"part %d;" % number) for number in range(3))


def _attach(store: ChunkedSegmentStorage, prepared: tuple[int, tuple[SessionChunk, ...]]) -> None:
    session_id, chunks = prepared
    store.commit([changes.Attach("log", session_id, chunks, expected_offset=10), changes.EndSession(session_id)])


def _merge(store: ChunkedSegmentStorage, prepared: object) -> None:
    store.commit([merge(store, "log", 0, 3, leave_head=True), changes.Append("log", b"and more")])


def _merged(store: ChunkedSegmentStorage) -> None:
    _sealed(store)
    store.unseal("log")
    store.truncate("log", 9)


def _mixed(store: ChunkedSegmentStorage, prepared: object) -> None:
    store.commit(
        [
            changes.Create("made", attributes={"colour": "red"}),
            changes.Append("made", b"M" * 50),
            changes.Append("log", b"one more", expected_offset=97),
            changes.TablePut("rows", b"key", b"value", expected_version=0),
            changes.Concat("log", "source"),
            changes.Truncate("log", 50),
            changes.UpdateAttributes("log", {"shape": 7}),
            changes.Delete("other"),
            changes.Seal("made"),
        ]
    )


def _extents(store: ChunkedSegmentStorage) -> None:
    """Records in which the bytes of two segments lie, behind chunks of both."""
    _fill(store)
    for number in range(4):
        store.append("log", b"extent %d;" % number)
        store.append("other", b"<%d>" % number)


def _spill(store: ChunkedSegmentStorage, prepared: object) -> None:
    store._spiller.spill_all("log")


def _spilled(store: ChunkedSegmentStorage) -> None:
    """A chunk that a spill has made, cut in front, and extents behind it: it grows, where storages append."""
    _extents(store)
    _spill(store, None)
    store.truncate("log", 5)
    store.append("log", b"one more;")
    store.append("log", b"and the last one;")


def _spilled_garbage(store: ChunkedSegmentStorage) -> None:
    """Records of earlier epochs, whose extents a spill has taken, and others, whose extents live on in the segment beside."""
    _extents(store)
    _spill(store, None)
    store.delete("other")
    store.append("log", b"lives on;")
    store.snapshot()
    store.append("log", b"behind the snapshot;")
    time.sleep(0.005)  # as in _due_garbage


def _tables(store: ChunkedSegmentStorage) -> None:
    _fill(store)
    store.table("rows").put(b"key", b"old")
    store.table("rows").put(b"stays", b"as it is")


def _replace_row(store: ChunkedSegmentStorage, prepared: object) -> None:
    table = store.table("rows")
    entry = table.get(b"key")
    assert entry is not None
    table.put(b"key", b"new", expected_version=entry.version)


def _append_for_writer(store: ChunkedSegmentStorage, prepared: object) -> None:
    store.append("log", b"event", writer_id=WRITER, event_number=5)


SLOT_0 = "/0000000000000000.s"


def is_record(operation: str, name: str) -> bool:
    """Whether a call writes a record of an owned stream."""
    return "/j/" in name and (operation == "write" or (operation == "create_if_absent" and not name.endswith(SLOT_0)))


def is_opening(operation: str, name: str) -> bool:
    """Whether a call decides slot 0 of a stream."""
    return operation == "create_if_absent" and "/j/" in name and name.endswith(SLOT_0)


SMALL: dict[str, object] = {"rolling": 32}
LAST_WORDS = b"the last words"
INLINE: dict[str, object] = {"inline_bytes_max": 64, "spill_bytes": 1 << 20, "spill_s": 3600.0}
"""Small appends travel in records, and stay there until somebody spills them: what is counted is the operation's."""
ROLL: dict[str, object] = {"log_roll_bytes": 1024, "slot_roll_records": 2, "roll_interval_s_min": 0.0}

OPERATIONS: tuple[Operation, ...] = (
    Operation("create", lambda store, _: store.create("made", attributes={"a": 1}), _fill),
    Operation("append", lambda store, _: store.append("log", b"more bytes"), _fill),
    Operation("append-rolls-over", lambda store, _: store.append("log", b"r" * 100), _fill, SMALL),
    Operation("append-once", _append_for_writer, _fill),
    Operation("truncate", lambda store, _: store.truncate("log", 45), _chunks, SMALL),
    Operation("seal", lambda store, _: store.seal("log"), _chunks, SMALL),
    Operation("concat", lambda store, _: store.concat("log", 97, "source"), _concat, SMALL),
    Operation("delete", lambda store, _: store.delete("log"), _chunks, SMALL),
    Operation("table-put", _replace_row, _tables),
    Operation("commit", _mixed, _concat, SMALL),
    Operation("session-attach", _attach, _session),
    Operation("replace", _merge, _merged, SMALL),
    Operation("snapshot", lambda store, _: store.snapshot(), _garbage, SMALL),
    Operation("collect", lambda store, _: store.collect(), _due_garbage, {**SMALL, "snapshots_kept": 1}),
    Operation("roll", lambda store, _: store.append("log", b"this makes the journal roll"), _chunks, {**SMALL, **ROLL}),
    Operation(
        "self-take-over-lost-reply",
        lambda store, _: store.append("log", b"while a reply is lost"),
        _chunks,
        SMALL,
        first=(is_record, Outcome.ERROR_AFTER),
    ),
    Operation("inline-append", lambda store, _: store.append("log", b"more bytes"), _extents, INLINE),
    Operation("truncate-extents", lambda store, _: store.truncate("log", 33), _extents, INLINE),
    Operation("spill", _spill, _extents, INLINE),
    Operation("spill-grows", _spill, _spilled, INLINE),
    Operation(
        "collect-behind-spill",
        lambda store, _: store.collect(),
        _spilled_garbage,
        {**INLINE, **ROLL, "snapshots_kept": 1},
    ),
    Operation("roll-with-extents", lambda store, _: store.append("log", b"rolls"), _extents, {**INLINE, **ROLL}),
    Operation(
        "self-take-over-with-extents",
        lambda store, _: store.append("log", b"while a reply is lost"),
        _extents,
        INLINE,
        first=(is_record, Outcome.ERROR_AFTER),
    ),
    Operation("close", lambda store, _: store.close(), _chunks, SMALL, repeatable=False),
)


@dataclass(frozen=True)
class Opening:
    """A take-over is interrupted. ``leave`` is how the former owner went; None when there was none."""

    name: str
    leave: Callable[[Ground, ChunkedSegmentStorage], None] | None
    prepare: Callable[[ChunkedSegmentStorage], object] = _garbage
    settings: dict[str, object] = field(default_factory=lambda: dict(SMALL))
    undecided: bool = False
    """Whether it left ``LAST_WORDS`` in a record that nobody has decided yet."""


def _close(ground: Ground, store: ChunkedSegmentStorage) -> None:
    store.close()


def _kill(ground: Ground, store: ChunkedSegmentStorage) -> None:
    ground.wire.kill()
    ground.abandon(store)


def _kill_when(outcome: Outcome) -> Callable[[Ground, ChunkedSegmentStorage], None]:
    """The process dies while its record reaches the journal; nobody has said yet whether the record counts."""

    def leave(ground: Ground, store: ChunkedSegmentStorage) -> None:
        torn = outcome is Outcome.TORN and ground.world.mode == "append"
        ground.wire.inject(is_record, Outcome.TORN if torn else Outcome.CRASH_AFTER)
        with pytest.raises(Dead):
            store.append("log", LAST_WORDS)
        ground.abandon(store)

    return leave


def _other_machine(ground: Ground, store: ChunkedSegmentStorage) -> None:
    store.close()
    ground.world.forget_cache()


def _old_cache(ground: Ground, store: ChunkedSegmentStorage) -> None:
    """The machine that opens next has seen an earlier epoch only."""
    store.close()
    here = ground.world._machine, ground.world._shelf
    ground.world.forget_cache()
    with ground.open() as elsewhere:
        elsewhere.append("log", b" and one from another machine")
    ground.world._machine, ground.world._shelf = here


def _claimants_that_died(ground: Ground, store: ChunkedSegmentStorage) -> None:
    """Two epochs were claimed and never opened; the second claimant has made the first one's void."""
    _kill(ground, store)
    for outcome in (Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER):
        wire = ground.new_wire()
        wire.inject(is_opening, outcome)
        with pytest.raises(Dead):
            ground.open(wire)


OPENINGS: tuple[Opening, ...] = (
    Opening("first", None),
    Opening("after-close", _close),
    Opening("after-kill", _kill),
    Opening("after-kill-behind-record", _kill_when(Outcome.CRASH_AFTER), undecided=True),
    Opening("after-kill-in-record", _kill_when(Outcome.TORN), undecided=True),
    Opening("elsewhere", _other_machine),
    Opening("old-cache", _old_cache),
    Opening("dead-claimants", _claimants_that_died),
    Opening("extents-after-kill", _kill, _extents, INLINE),
    Opening("extents-behind-record", _kill_when(Outcome.CRASH_AFTER), _spilled, INLINE, undecided=True),
    Opening("extents-in-record", _kill_when(Outcome.TORN), _extents, INLINE, undecided=True),
)
