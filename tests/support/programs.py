"""Random programs against a plain model: whatever happens in between, the store says what the model says.

Between the changes owners close, crash, are deposed and speak all the same, machines lose their caches and come back with old
ones, replicas fall behind and catch up, the journal rolls, snapshots are made and garbage goes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    precondition,
    rule,
    run_state_machine_as_test,
)

from chunkstore.changes import (
    Append,
    Attach,
    Change,
    Delete,
    EndSession,
    TablePut,
)
from chunkstore.config import DefragPolicy
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    BadOffset,
    ChunkstoreError,
    Conflict,
    NotOwner,
    SegmentNotFound,
    SegmentTruncated,
)
from chunkstore.sessions import SessionWriter
from tests.support.data import problems
from tests.support.merging import merge
from tests.support.programs_base import EVERYTHING, WRITERS, ZOMBIES_MAX, Compared, outcome
from tests.support.segment_model import (
    KEYS,
    TABLE,
    State,
    append_event,
    apply,
    apply_all,
    changes,
    names,
    pieces,
    refused_at_once,
)
from tests.support.worlds import World

__all__ = ["Program", "run"]

machines = st.sampled_from(("same", "same", "new", "left before"))

SPEECHES: tuple[Callable[[ChunkedSegmentStorage], object], ...] = (
    lambda store: store.create("zombie"),
    lambda store: store.append("a", b"zombie"),
    lambda store: store.append("a", b"", writer_id=b"w", event_number=1),
    lambda store: store.commit([Append("a", b"zombie"), TablePut(TABLE, b"k", b"zombie")]),
    lambda store: store.table(TABLE).put(b"k", b"zombie"),
    lambda store: store.session("zombie"),
    lambda store: store.snapshot(),
)
"""What a deposed owner may be told to do: it may find its own reason not to, but never says that it has."""


def reading(state: State, name: str, offset: int, length: int) -> bytes | type[ChunkstoreError]:
    """The bytes, or the error, that a read must give."""
    model = state.segments.get(name)
    if model is None:
        return SegmentNotFound
    if offset < model.start:
        return SegmentTruncated
    return BadOffset if offset > len(model.data) else model.data[offset : offset + length]


class Program(Compared):
    """The steps."""

    @rule(name=names, buffers=st.lists(pieces, max_size=4), off=st.sampled_from((None, 0, 0, 1)))
    def append_many(self, name: str, buffers: list[bytes], off: int | None) -> None:
        length = len(self.state.segments[name].data) if name in self.state.segments else 0
        offset = None if off is None else length + off
        expected = apply(self.state, Append(name, b"".join(buffers), offset))
        self.must(expected, lambda: self.store.append_many(name, buffers, expected_offset=offset))

    @rule(key=st.sampled_from(KEYS), value=pieces, stale=st.booleans())
    def swap_row(self, key: bytes, value: bytes, stale: bool) -> None:
        table = self.store.table(TABLE)
        entry = table.get(key)
        version = (0 if entry is None else entry.version) + stale
        if stale:
            self.must(Conflict, lambda: table.put(key, value, expected_version=version))
            self.must(Conflict, lambda: table.delete(key, expected_version=version))
        else:
            table.put(key, value, expected_version=version)
            self.state.rows[key] = value

    @rule(name=names)
    def open_write(self, name: str) -> None:
        model = self.state.segments.get(name)
        if model is None:
            self.must(SegmentNotFound, lambda: self.store.open_write(name))
        else:
            self.handles[name] = self.store.open_write(name), model.born

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), piece=pieces)
    def append_by_handle(self, data: st.DataObject, piece: bytes) -> None:
        """A handle means the segment it was given for, whoever bears its name by now."""
        name = data.draw(st.sampled_from(sorted(self.handles)))
        handle, born = self.handles[name]
        model = self.state.segments.get(name)
        meant = model is not None and model.born == born
        expected = apply(self.state, Append(name, piece)) if meant else SegmentNotFound
        self.must(expected, lambda: self.store.append(handle, piece))

    # Exactly once

    @rule(
        name=names, writer=st.sampled_from(WRITERS), step=st.sampled_from((-1, 0, 1, 1, 3)), data=pieces,
        off=st.sampled_from((None, None, 0, 1)),
    )  # fmt: skip
    def event(self, name: str, writer: bytes, step: int, data: bytes, off: int | None) -> None:
        """A new event, or one that was answered before, perhaps by another owner."""
        model = self.state.segments.get(name)
        known = None if model is None else model.event(writer)
        number = max(1, (known[0] if known else 0) + step)
        if known == (number, None):
            return  # the bytes of the batch are not known here
        offset = None if off is None else (0 if model is None else len(model.data)) + off
        answer = append_event(self.state, name, writer, number, data, offset)
        expected = answer if isinstance(answer, type) else None

        def call() -> None:
            got = self.store.append(name, data, expected_offset=offset, writer_id=writer, event_number=number)
            assert answer in (got, None)

        self.must(expected, call)

    @rule(
        name=names,
        writer=st.sampled_from((None, *WRITERS)),
        events=st.lists(st.binary(min_size=1, max_size=9), max_size=5),
    )
    def through_a_writer(self, name: str, writer: bytes | None, events: list[bytes]) -> None:
        model = self.state.segments.get(name)
        if model is None or model.sealed:
            return
        known = None if writer is None else model.event(writer)
        before = known[0] if known else 0
        with self.store.writer(name, flush_bytes=10, writer_id=writer) as through:
            assert through.event_number == before
            futures = [through.append(event) for event in events]
        offset = len(model.data)
        for event, future in zip(events, futures, strict=True):
            assert future.result(0) == offset
            offset += len(event)
        changed = model._replace(data=model.data + b"".join(events))
        if writer is not None and events:
            others = tuple(item for item in model.events if item[0] != writer)
            changed = changed._replace(events=(*others, (writer, before + len(events), None, b"")))
        self.state.segments[name] = changed

    # Sessions of writers outside the owner

    @precondition(lambda self: len(self.state.sessions) < 3)
    @rule()
    def open_session(self) -> None:
        session = self.store.session("outsider")
        assert session.id not in self.state.sessions
        self.state.sessions[session.id] = {}

    @precondition(lambda self: self.state.sessions)
    @rule(data=st.data(), piece=st.binary(min_size=1, max_size=9))
    def write_outside(self, data: st.DataObject, piece: bytes) -> None:
        session = data.draw(st.sampled_from(sorted(self.state.sessions)))
        chunk = SessionWriter("default", session).write_chunk(self.outside, next(self.numbers), piece)
        self.state.sessions[session][chunk] = piece

    @precondition(lambda self: self.state.sessions)
    @rule(data=st.data(), name=names, off=st.sampled_from((None, 0, 0, 1)), others=st.lists(changes(), max_size=2))
    def attach(self, data: st.DataObject, name: str, off: int | None, others: list[Change]) -> None:
        session = data.draw(st.sampled_from(sorted(self.state.sessions)))
        loose = sorted(self.state.sessions[session])
        chosen = data.draw(st.lists(st.sampled_from(loose), unique=True)) if loose else []
        length = len(self.state.segments[name].data) if name in self.state.segments else 0
        change = Attach(name, session, tuple(chosen), None if off is None else length + off)
        self.attached.append(change)
        end = [EndSession(session)] if data.draw(st.booleans()) else []
        self.litter |= bool(end)
        self.commit_all([change, *end, *others])

    @precondition(lambda self: self.attached)
    @rule(data=st.data())
    def attach_again(self, data: st.DataObject) -> None:
        """Chunks that are attached, were attached and are gone, or belong to a session that has ended."""
        self.commit_all([data.draw(st.sampled_from(self.attached))])

    @precondition(lambda self: self.state.sessions)
    @rule(data=st.data())
    def end_session(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(self.state.sessions)))
        self.litter |= bool(self.state.sessions[session])
        self.commit_all([EndSession(session)])
        self.commit_all([EndSession(session)])

    # Merging chunks

    @rule(
        name=names,
        data=st.data(),
        parts=st.integers(1, 3),
        leave_head=st.booleans(),
        others=st.lists(changes(), max_size=2),
    )
    def merge_chunks(self, name: str, data: st.DataObject, parts: int, leave_head: bool, others: list[Change]) -> None:
        """Any run of a segment, unless its last chunk is still active; the journal may roll before it is committed."""
        chunks = [*self.store.layout(name)] if name in self.state.segments else []
        if not chunks:
            return
        first = data.draw(st.integers(0, len(chunks) - 1))
        run = chunks[first : first + data.draw(st.integers(1, 6))]
        epoch = self.store.epoch
        program: list[Change] = [merge(self.store, name, first, len(run), parts=parts, leave_head=leave_head), *others]
        planned, expected = apply_all(self.state, program)
        unfit = run[-1].state == "active"
        try:
            self.store.commit(program)
        except ChunkstoreError as error:
            self.litter = True
            unfit |= self.store.epoch != epoch
            assert type(error) is expected or refused_at_once(program) or (unfit and type(error) is Conflict), repr(
                error
            )
        else:
            assert expected is None and not unfit
            self.state = planned

    @rule(fanout=st.integers(2, 3), verify=st.booleans())
    def defrag(self, fanout: int, verify: bool) -> None:
        """Nothing that can be read changes, and no chunk is left behind."""
        policy = DefragPolicy(fanout=fanout, verify=verify)
        before = sum(info.chunk_count for info in self.store.segments())
        report = self.store.defrag(policy=policy)
        after = sum(info.chunk_count for info in self.store.segments())
        assert (report.chunks_before, report.chunks_after, report.refused) == (before, after, ())
        assert self.store.defrag(policy=policy, dry_run=True).actions == ()

    # Reading

    @rule(name=names, offset=st.integers(0, 60), length=st.integers(0, 60))
    def read(self, name: str, offset: int, length: int) -> None:
        expected = reading(self.state, name, offset, length)
        for _ in range(3):  # the second leaves its plan to the third, and to reads behind the next change
            assert outcome(lambda: self.store.read(name, offset, length)) == expected
        buffer = bytearray(length)
        count = outcome(lambda: self.store.read_into(name, offset, buffer))
        assert count == (len(expected) if isinstance(expected, bytes) else expected)
        if isinstance(expected, bytes):
            assert bytes(buffer) == expected.ljust(length, b"\0")

    @rule(name=names, ahead=st.integers(0, 9), length=st.integers(0, 30))
    def stream(self, name: str, ahead: int, length: int) -> None:
        model = self.state.segments.get(name)
        if model is None:
            return
        start = min(model.start + ahead, len(model.data))
        stop = min(start + length, len(model.data))
        with self.store.reader(name, start=start, stop=stop) as reader:
            assert b"".join(reader) == model.data[start:stop]

    @rule()
    def follow(self) -> None:
        """The replica catches up and shows all that the owner has acknowledged."""
        if self.replica is None:
            self.replica = self.world.replica()
        else:
            self.replica.refresh()
        self.seen = [self.state.copy()]
        self.compare(self.replica)

    @precondition(lambda self: self.replica is not None)
    @rule(name=names, offset=st.integers(0, 60))
    def look_behind(self, name: str, offset: int) -> None:
        """A replica that has not caught up shows what was, or, where that is gone, what is."""
        replica = self.replica
        assert replica is not None
        self.seen.append(self.state.copy())
        for _ in range(3):
            found = outcome(lambda: replica.read(name, offset, EVERYTHING))
            assert found in [reading(state, name, offset, EVERYTHING) for state in self.seen]

    @precondition(lambda self: self.replica is not None)
    @rule()
    def stop_following(self) -> None:
        assert self.replica is not None
        self.replica.close()
        self.replica = None

    # Owners and machines

    @rule(clean=st.booleans(), machine=machines)
    def reopen(self, clean: bool, machine: str) -> None:
        if clean:
            self.store.close()
        else:
            self.world.crash(self.store)
        self.go_to(machine)
        self.store = self.world.open()
        self.check_all()

    @rule(machine=machines)
    def take_over(self, machine: str) -> None:
        """The owner before lives on and does not know."""
        self.zombies.append(self.store)
        if len(self.zombies) > ZOMBIES_MAX:
            self.world.crash(self.zombies.pop(0))
        self.go_to(machine)
        self.store = self.world.open()
        self.check_all()

    def go_to(self, machine: str) -> None:
        here = self.world.machine
        if machine == "new":
            self.left.append(here)
            self.world.forget_cache()
        elif machine == "left before" and self.left:
            self.world.wake(self.left.pop(0))
            self.left.append(here)

    @precondition(lambda self: self.zombies)
    @rule(which=st.integers(0, ZOMBIES_MAX - 1), speech=st.sampled_from(SPEECHES))
    def zombie_speaks(self, which: int, speech: Callable[[ChunkedSegmentStorage], object]) -> None:
        self.litter = True
        zombie = self.zombies[which % len(self.zombies)]
        with pytest.raises(ChunkstoreError):
            speech(zombie)
            pytest.fail("a deposed owner was acknowledged")

    @precondition(lambda self: self.zombies)
    @rule(which=st.integers(0, ZOMBIES_MAX - 1), name=names, offset=st.integers(0, 40))
    def zombie_is_asked(self, which: int, name: str, offset: int) -> None:
        zombie = self.zombies[which % len(self.zombies)]
        self.must(NotOwner, lambda: zombie.read(name, offset, 9))
        self.must(NotOwner, lambda: [*zombie.segments()])

    @precondition(lambda self: self.zombies)
    @rule(which=st.integers(0, ZOMBIES_MAX - 1), leaves=st.booleans())
    def zombie_collects(self, which: int, leaves: bool) -> None:
        """What it may still do unfenced must hurt nobody."""
        zombie = self.zombies[which % len(self.zombies)]
        if leaves:
            self.zombies.remove(zombie)
            zombie.close()
        else:
            assert outcome(zombie.collect) is not None

    # Upkeep

    @rule()
    def collect(self) -> None:
        planned = self.store.collect(dry_run=True)
        done = self.store.collect()
        assert (done.chunks, done.chunk_bytes, done.waiting) == (planned.chunks, planned.chunk_bytes, planned.waiting)
        assert (done.chunks if self.grace else done.waiting) == 0
        live = {chunk.name for info in self.store.segments() for chunk in self.store.layout(info.name)}
        there = set(self.world.chunks())
        assert live <= there
        if not self.grace and not self.litter:
            loose = sum(len(chunks) for chunks in self.state.sessions.values())
            assert len(there) == len(live) + loose, "what is not referenced is gone"

    @rule()
    def snapshot(self) -> None:
        assert self.store.snapshot() is not None

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            self.world.close()

    def finish(self) -> None:
        self.follow()
        self.check_all()
        self.world.crash(self.store)
        self.world.forget_cache()
        self.grace = False
        self.store = self.world.open(gc_grace_s=0.0)
        self.check_all()
        self.commit_all([EndSession(session) for session in self.state.sessions])
        self.commit_all([Delete(name) for name in self.state.segments])
        self.store.collect()
        assert problems(self.store.check("deep")) == []
        left = [name.split("/")[-1] for name in self.world.chunks() if "/s" not in name]
        if self.litter:
            left = [name for name in left if int(name.split("-")[1], 16) == self.store.epoch]
        assert left == [], "what was written is collected, but for what zombies and sessions left"


def run(
    make: type[Program], world: World, *, programs: int, steps: int, phases: tuple[Phase, ...] = tuple(Phase)
) -> None:
    """Run random programs in worlds like ``world``. Raises ``AssertionError`` at the first difference, with its shortest program."""
    numbers = itertools.count(1)

    def program() -> Program:
        return make(World(world.kind, world.mode, world.tmp_path / f"program-{next(numbers)}"))

    run_state_machine_as_test(
        program,  # type: ignore[arg-type]  # it calls what it is given; a class is the common case
        settings=settings(
            max_examples=programs,
            stateful_step_count=steps,
            phases=phases,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
