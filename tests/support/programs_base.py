"""What random programs are made of: a store, the model that it is compared with, and commits of the model's changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from chunkstore.arguments import SegmentHandle
from chunkstore.changes import (
    Append,
    Attach,
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
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunkstoreError,
)
from chunkstore.metadata.memory import MemoryShelf
from chunkstore.metadata.totals import recount
from chunkstore.reading import ReadableContainer
from chunkstore.replica import Replica
from tests.support.data import problems
from tests.support.segment_model import (
    NAMES,
    TABLE,
    Failure,
    State,
    apply,
    apply_all,
    changes,
    refused_at_once,
)
from tests.support.worlds import World

__all__ = ["EVERYTHING", "WRITERS", "ZOMBIES_MAX", "Compared", "outcome"]

WRITERS = (b"v", b"w")
EVERYTHING = 9_999
ZOMBIES_MAX = 2


def outcome(call: Callable[[], object]) -> object:
    """What a call returns, or the kind of error it raises."""
    try:
        return call()
    except ChunkstoreError as error:
        return type(error)


class Compared(RuleBasedStateMachine):
    """Whatever is done to the store is done to the model."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.state = State()
        self.store: ChunkedSegmentStorage
        self.outside = world.storage()
        self.handles: dict[str, tuple[SegmentHandle, int]] = {}
        self.attached: list[Attach] = []
        self.zombies: list[ChunkedSegmentStorage] = []
        self.left: list[tuple[int, MemoryShelf]] = []
        self.replica: Replica | None = None
        self.seen: list[State] = []
        """What the replica may show."""
        self.grace = False
        self.litter = False
        """Whether objects may lie about that nothing refers to: what a zombie wrote, or nobody attached."""
        self.numbers = itertools.count()

    @initialize(
        rolling=st.sampled_from((1, 5, 5, 64)),
        grace=st.sampled_from((False, False, True)),
        restless=st.booleans(),
    )
    def begin(self, rolling: int, grace: bool, restless: bool) -> None:
        """``restless``: the journal rolls, and snapshots are due, as often as they can."""
        self.grace = grace
        self.world.defaults |= {"rolling": rolling, "gc_grace_s": 3600.0 if grace else 0.0, "snapshots_kept": 1}
        if restless:
            self.world.defaults |= {"log_roll_bytes": 1024, "slot_roll_records": 4, "roll_interval_s_min": 0.0}
        self.store = self.world.open()
        self.commit_all([Create(name) for name in NAMES[:3]])

    # Changes

    @rule(change=changes())
    def single(self, change: Change) -> None:
        lengths = {name: len(model.data) for name, model in self.state.segments.items()}
        expected = apply(self.state, change)
        self.must(expected, lambda: self.call(change, lengths))

    def must(self, expected: Failure, call: Callable[[], object]) -> None:
        """The call succeeds, or raises exactly the error that is expected."""
        try:
            call()
        except ChunkstoreError as error:
            assert type(error) is expected, repr(error)
        else:
            assert expected is None, f"{expected} was expected"

    def call(self, change: Change, lengths: dict[str, int]) -> None:
        store = self.store
        match change:
            case Create(name, rolling, attributes):
                handle = store.create(name, rolling=rolling, attributes=attributes)
                self.handles[name] = handle, self.state.segments[name].born
            case Append(name, data, None):
                assert store.append(name, data) == lengths[name]
            case Append(name, data, expected) if expected is not None:
                assert store.write(name, expected, data) == expected + len(data)
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

    @rule(program=st.lists(changes(), max_size=7))
    def commit(self, program: list[Change]) -> None:
        self.commit_all(program)

    def commit_all(self, program: list[Change]) -> None:
        planned, expected = apply_all(self.state, program)
        try:
            results = self.store.commit(program)
        except ChunkstoreError as error:
            assert type(error) is expected or refused_at_once(program), repr(error)
        else:
            assert expected is None, f"{expected} was expected"
            assert not refused_at_once(program)
            assert [result is not None for result in results] == [
                isinstance(item, (Append, Attach)) for item in program
            ]
            self.state = planned

    # What is always so

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        self.compare(self.store)

    def compare(self, store: ReadableContainer) -> None:
        found = {
            info.name: (info.start_offset, info.length, info.sealed, tuple(sorted(info.attributes.items())))
            for info in store.segments()
        }
        models = self.state.segments
        assert found == {
            name: (model.start, len(model.data), model.sealed, model.attributes) for name, model in models.items()
        }
        assert list(found) == sorted(found)
        for name, model in models.items():
            assert store.read(name, model.start, EVERYTHING) == model.data[model.start :]
        with store._context.store().view() as view:
            assert view.totals == recount(view)
        used = store.usage()
        assert (used.segments, used.live_bytes) == (
            len(models),
            sum(len(model.data) - model.start for model in models.values()),
        )
        rows = store.table(TABLE) if isinstance(store, (ChunkedSegmentStorage, Replica)) else None
        assert rows is not None
        assert {entry.key: entry.value for entry in rows.scan()} == self.state.rows

    def check_all(self) -> None:
        """What takes longer: after each change of owners, and at the end."""
        self.compare(self.store)
        for name, model in self.state.segments.items():
            for writer in WRITERS:
                known = model.event(writer)
                assert self.store.last_event_number(name, writer) == (known[0] if known else 0)
            layout = [*self.store.layout(name)]
            ends = [chunk.offset + chunk.length for chunk in layout]
            assert [chunk.offset for chunk in layout[1:]] == ends[:-1]
            if len(model.data) > model.start:
                assert layout[0].offset <= model.start < ends[0]
                assert ends[-1] == len(model.data)
        assert problems(self.store.check("deep")) == []
