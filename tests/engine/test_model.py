"""Random programs against a plain dictionary: whatever happens in between, the store says what the dictionary says."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from chunkstore.changes import (
    Append,
    Change,
    Concat,
    Create,
    Delete,
    Seal,
    TableDelete,
    TablePut,
    Truncate,
    Unseal,
    UpdateAttributes,
)
from chunkstore.config import RollingPolicy
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    BadOffset,
    ChunkstoreError,
    Conflict,
    InvalidArgument,
    SegmentExists,
    SegmentNotFound,
    SegmentNotSealed,
    SegmentSealed,
    SegmentTruncated,
)
from chunkstore.records import AttributeValue
from tests.support.data import problems
from tests.support.worlds import World

NAMES = ("a", "b", "c", "d", "e")
KEYS = (b"k", b"l", b"m")
names = st.sampled_from(NAMES)
pieces = st.binary(max_size=12)


class Model(NamedTuple):
    """One segment: all its bytes from 0 on, those truncated away included."""

    data: bytes
    start: int = 0
    sealed: bool = False
    attributes: tuple[tuple[str, AttributeValue], ...] = ()


State = tuple[dict[str, Model], dict[bytes, bytes]]


def apply(state: State, change: Change) -> type[ChunkstoreError] | None:
    """What the change does to the model; or the error it must raise, and then nothing is done."""
    segments, rows = state
    match change:
        case Create(name, _, attributes):
            if name in segments:
                return SegmentExists
            segments[name] = Model(b"", attributes=tuple(sorted(attributes.items())))
        case TablePut(_, key, value, expected):
            if expected == 0 and key in rows:
                return Conflict
            rows[key] = value
        case TableDelete(_, key):
            rows.pop(key, None)
        case Concat(target, source, offset):
            return _concat(segments, target, source, offset)
        case _:
            return _change_one(segments, change)
    return None


def _change_one(segments: dict[str, Model], change: Change) -> type[ChunkstoreError] | None:
    assert not isinstance(change, (Create, TablePut, TableDelete, Concat))
    name = getattr(change, "name")  # noqa: B009  (not every kind of change has one)
    model = segments.get(name)
    if model is None:
        return SegmentNotFound
    match change:
        case Append(_, data, expected):
            if model.sealed:
                return SegmentSealed
            if expected is not None and expected != len(model.data):
                return BadOffset
            segments[name] = model._replace(data=model.data + bytes(data))
        case Seal():
            segments[name] = model._replace(sealed=True)
        case Unseal():
            if not model.sealed:
                return SegmentNotSealed
            segments[name] = model._replace(sealed=False)
        case Truncate(_, offset):
            if offset > len(model.data):
                return BadOffset
            segments[name] = model._replace(start=max(model.start, offset))
        case Delete():
            del segments[name]
        case UpdateAttributes(_, changes, expected):
            have = dict(model.attributes)
            if any(have.get(key) != value for key, value in expected.items()):
                return Conflict
            have.update({key: value for key, value in changes.items() if value is not None})
            for key, value in changes.items():
                if value is None:
                    have.pop(key, None)
            segments[name] = model._replace(attributes=tuple(sorted(have.items())))
    return None


def _concat(
    segments: dict[str, Model], target_name: str, source_name: str, offset: int | None
) -> type[ChunkstoreError] | None:
    if target_name == source_name:
        return InvalidArgument
    target = segments.get(target_name)
    if target is None:
        return SegmentNotFound
    if target.sealed:
        return SegmentSealed
    source = segments.get(source_name)
    if source is None:
        return SegmentNotFound
    if not source.sealed:
        return SegmentNotSealed
    if source.start:
        return SegmentTruncated
    if offset is not None and offset != len(target.data):
        return BadOffset
    segments[target_name] = target._replace(data=target.data + source.data)
    del segments[source_name]
    return None


def changes() -> st.SearchStrategy[Change]:
    offsets = st.none() | st.integers(0, 40)
    rolling = st.sampled_from((None, *(RollingPolicy(chunk_size_bytes_max=size) for size in (1, 3, 7))))
    attributes = st.dictionaries(st.sampled_from(("x", "y")), st.integers(0, 3) | st.text(max_size=3), max_size=2)
    return st.one_of(
        st.builds(Create, names, rolling, attributes),
        st.builds(Append, names, pieces),
        st.builds(Append, names, pieces),
        st.builds(Append, names, pieces, offsets),
        st.builds(Seal, names),
        st.builds(Unseal, names),
        st.builds(Truncate, names, st.integers(0, 40)),
        st.builds(Concat, names, names, offsets),
        st.builds(Concat, names, names),
        st.builds(Delete, names),
        st.builds(UpdateAttributes, names, attributes, st.sampled_from(({}, {"x": 1}))),
        st.builds(TablePut, st.just("t"), st.sampled_from(KEYS), pieces, st.sampled_from((None, None, 0))),
        st.builds(TableDelete, st.just("t"), st.sampled_from(KEYS)),
    )


class Program(RuleBasedStateMachine):
    """The steps. ``world`` is set by the test."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.state: State = ({}, {})
        self.events: dict[tuple[int, str], int] = {}
        self.event = itertools.count(1)
        self.store = self.open()

    def open(self) -> ChunkedSegmentStorage:
        return self.world.open(rolling=5, gc_grace_s=0, snapshots_kept=1)

    @rule(change=changes())
    def single(self, change: Change) -> None:
        lengths = {name: len(model.data) for name, model in self.state[0].items()}
        expected = apply(self.state, change)
        try:
            self._call(change, lengths)
        except ChunkstoreError as error:
            assert type(error) is expected, change
        else:
            assert expected is None, change

    def _call(self, change: Change, lengths: dict[str, int]) -> None:
        store = self.store
        match change:
            case Create(name, rolling, attributes):
                store.create(name, rolling=rolling, attributes=attributes)
            case Append(name, data, None):
                store.append(name, data)
            case Append(name, data, expected) if expected is not None:
                store.write(name, expected, data)
            case Seal(name):
                store.seal(name)
            case Unseal(name):
                store.unseal(name)
            case Truncate(name, offset):
                store.truncate(name, offset)
            case Concat(target, source, offset):
                store.concat(target, lengths.get(target, 0) if offset is None else offset, source)
            case Delete(name):
                store.delete(name)
            case UpdateAttributes(name, updates, wanted):
                store.update_attributes(name, updates, expected=wanted)
            case TablePut(namespace, key, value, version):
                store.table(namespace).put(key, value, expected_version=version)
            case TableDelete(namespace, key):
                store.table(namespace).delete(key)

    @rule(program=st.lists(changes(), min_size=2, max_size=7))
    def commit(self, program: list[Change]) -> None:
        keys: dict[bytes, list[int | None]] = {}
        for change in program:
            if isinstance(change, (TablePut, TableDelete)):
                keys.setdefault(change.key, []).append(change.expected_version)
        twice = any(len(versions) > 1 and versions != [None] * len(versions) for versions in keys.values())
        planned: State = (dict(self.state[0]), dict(self.state[1]))
        expected: type[ChunkstoreError] | None = None
        if any(isinstance(change, Concat) and change.target == change.source for change in program):
            expected = InvalidArgument
        else:
            for change in program:
                expected = expected or apply(planned, change)
        try:
            results = self.store.commit(program)
        except ChunkstoreError as error:
            assert type(error) is expected or (twice and type(error) is InvalidArgument), program
        else:
            assert expected is None and not twice and len(results) == len(program), program
            self.state = planned

    @rule(name=names, data=pieces)
    def exactly_once(self, name: str, data: bytes) -> None:
        model = self.state[0].get(name)
        if model is None or model.sealed:
            return
        number = next(self.event)
        for _ in range(2):
            assert self.store.append(name, data, writer_id=b"w", event_number=number) == len(model.data)
            if not data:
                break
        self.state[0][name] = model._replace(data=model.data + data)

    @rule(name=names, offset=st.integers(0, 60), length=st.integers(0, 60))
    def read(self, name: str, offset: int, length: int) -> None:
        model = self.state[0].get(name)
        try:
            data = self.store.read(name, offset, length)
        except SegmentNotFound:
            assert model is None
        except SegmentTruncated as error:
            assert model is not None and offset < model.start == error.start_offset
        except BadOffset:
            assert model is not None and offset > len(model.data)
        else:
            assert model is not None and model.start <= offset <= len(model.data)
            assert data == model.data[offset : offset + length]

    @rule(clean=st.booleans(), machine=st.sampled_from(("same", "same", "new")))
    def reopen(self, clean: bool, machine: str) -> None:
        if clean:
            self.store.close()
        else:
            self.world.crash(self.store)
        if machine == "new":
            self.world.forget_cache()
        self.store = self.open()
        self.compare(self.store)

    @rule()
    def collect(self) -> None:
        self.store.collect()
        live = {chunk.name for info in self.store.segments() for chunk in self.store.layout(info.name)}
        assert live <= set(self.world.chunks())

    @rule()
    def snapshot(self) -> None:
        self.store.snapshot()

    @precondition(lambda self: len(self.state[0]) > 1)
    @rule()
    def look_as_a_replica(self) -> None:
        with self.world.replica() as replica:
            assert {info.name for info in replica.segments()} == set(self.state[0])
            for name, model in self.state[0].items():
                assert replica.read(name, model.start, 999) == model.data[model.start :]

    @invariant()
    def names_are_right(self) -> None:
        assert {info.name for info in self.store.segments()} == set(self.state[0])

    def compare(self, store: ChunkedSegmentStorage) -> None:
        segments, rows = self.state
        for name, model in segments.items():
            info = store.info(name)
            assert (info.start_offset, info.length, info.sealed) == (model.start, len(model.data), model.sealed)
            assert tuple(sorted(info.attributes.items())) == model.attributes
            assert store.read(name, model.start, 9_999) == model.data[model.start :]
        assert {entry.key: entry.value for entry in store.table("t").scan()} == rows
        assert problems(store.check("deep")) == []

    def teardown(self) -> None:
        self.compare(self.store)
        self.store.collect()
        assert problems(self.store.check("deep")) == []
        self.world.crash(self.store)
        self.world.forget_cache()
        again = self.open()
        self.compare(again)
        for name in list(self.state[0]):
            again.delete(name)
        again.collect()
        assert problems(again.check("deep")) == []
        live = [chunk for chunk in self.world.chunks() if f"-{again.epoch:x}-" in chunk]
        assert live == [], "everything this owner wrote is collected"
        self.world.close()


def test_random_programs(world: World) -> None:
    numbers = itertools.count(1)

    def program() -> Program:
        return Program(World(world.kind, world.mode, world.tmp_path / f"program-{next(numbers)}"))

    run_state_machine_as_test(
        program,  # type: ignore[arg-type]  # it calls what it is given; a class is the common case
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
