"""Stored names are confined: a row that leads out of its container, or to what is not its chunk, is refused where it is met, and
neither collecting nor checking stops there (protocol 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, TypeVar, get_args

import pytest

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Damaged
from chunkstore.metadata.codec import (
    decode_chunk,
    decode_segment,
    encode_row,
)
from chunkstore.metadata.keys import chunk_key, segment_key
from chunkstore.records.names import CHUNK_ID_BYTES, ContainerNames
from chunkstore.records.segments import KIND_INLINE, ChunkRecord
from chunkstore.storage import ChunkHandle, ChunkStorage, iter_listing
from tests.faults.ground import FULL_RUN
from tests.support.forwarding import Forwarding
from tests.support.planted import plant
from tests.support.worlds import World

T = TypeVar("T")
PIECE = b"8 bytes."
CHUNKS = 6
B = ContainerNames("b")
Way = Literal["journal", "snapshot"]


class Guarding(Forwarding):
    """Writes down every call that names something outside of container ``default``."""

    def __init__(self, inner: ChunkStorage) -> None:
        super().__init__(inner)
        self.strayed: list[tuple[str, tuple[str, ...]]] = []

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        if any(not name.startswith("default/") or ".." in name for name in names):
            self.strayed.append((operation, tuple(names)))
        return call()


class Ids(NamedTuple):
    """The chunks of the segment that is tampered with, and where the others are."""

    victim: list[bytes]
    alive: list[bytes]
    other: str


def tail_of(store: ChunkedSegmentStorage, name: str) -> list[bytes]:
    held = store._container.current.store
    raw = held.get(segment_key(name))
    assert raw is not None
    ids, identity = [], decode_segment(name, raw).first_chunk
    while identity:
        ids.append(identity)
        row = held.get(chunk_key(identity))
        assert row is not None
        identity = decode_chunk(name, row).next
    return ids


def build(world: World) -> Ids:
    """Container b with a segment, and container default with two."""
    with world.open("b", rolling=8) as other:
        other.create("theirs")
        other.append("theirs", PIECE)
        name = next(other.layout("theirs")).name
    with world.open(rolling=8) as store:
        for segment in ("victim", "alive"):
            store.create(segment)
            for _ in range(CHUNKS):
                store.append(segment, PIECE)
        return Ids(tail_of(store, "victim"), tail_of(store, "alive"), name)


def whole(world: World, *, below: str = "") -> dict[str, bytes]:
    storage = world.raw_storage()
    return {
        info.name: storage.read(ChunkHandle(info.name, False), 0, 1 << 20)
        for info in iter_listing(storage, below)
        if not info.name.endswith(("LATEST", "lease"))
    }


def row_of(world: World, key: bytes) -> bytes:
    with world.open() as store:
        raw = store._container.current.store.get(key)
        assert raw is not None
        return raw


def put_rows(world: World, rows: dict[bytes, bytes | None], way: Way = "journal") -> None:
    plant(world.raw_storage(), world.settings(metadata="memory"), rows)
    if way == "snapshot":
        with world.open() as store:
            store.snapshot()
        world.forget_cache()


@contextmanager
def opened(world: World) -> Iterator[tuple[ChunkedSegmentStorage, Guarding]]:
    guards: list[Guarding] = []

    def wrap(storage: ChunkStorage) -> ChunkStorage:
        guards.append(Guarding(storage))
        return guards[-1]

    with world.open(wrap=wrap, gc_grace_s=0.0, rolling=8) as store:
        yield store, guards[0]
    assert guards[0].strayed == []


def tampered(what: str, ids: Ids) -> Callable[[ChunkRecord], bytes]:
    """The row of a chunk, made hostile."""
    names = ContainerNames("default")
    objects = {
        "their chunk": ids.other,
        "their FORMAT": B.format,
        "their claim": B.epoch(1),
        "own FORMAT": names.format,
        "own claim": names.epoch(1),
        "own live chunk": names.chunk(ids.alive[0]),
        "upwards": "../b/FORMAT",
        "upwards from within": f"default/d/../../{B.format}",
        "absolute": "/etc/passwd",
        "control": "default/d/\x1b[2J\n",
        "nul": "\0",
    }
    if what == "rubbish":
        return lambda record: b"\xc1rubbish"
    if what == "later version":
        return lambda record: b"\x92\x02\x00"
    if what == "shifted":
        return lambda record: encode_row(record._replace(object_offset=4))
    if what == "inline":
        return lambda record: encode_row(record._replace(kind=KIND_INLINE))
    if what == "unknown kind":
        return lambda record: encode_row(record._replace(object=ids.other, kind=KIND_INLINE + 1))
    return lambda record: encode_row(record._replace(object=objects[what]))


HOSTILE = (
    "their chunk", "their FORMAT", "their claim", "own FORMAT", "own claim", "own live chunk", "upwards", "upwards from within",
    "absolute", "control", "nul", "shifted", "inline", "unknown kind", "rubbish", "later version",
)  # fmt: skip


# Every row by one of the two ways; they lead to one row, which is looked at where it is met.
CHOSEN = [
    pytest.param(what, way, id=f"{what}-{way}")
    for number, what in enumerate(HOSTILE)
    for way in (get_args(Way) if FULL_RUN else get_args(Way)[number % 2 :][:1])
]


@pytest.mark.parametrize(("what", "way"), CHOSEN)
def test_a_row_that_leads_elsewhere_is_refused(world: World, what: str, way: Way) -> None:
    ids = build(world)
    bad = ids.victim[2]
    key = chunk_key(bad)
    put_rows(world, {key: tampered(what, ids)(decode_chunk(key, row_of(world, key)))}, way)
    theirs, kept = whole(world, below="b/"), {ContainerNames("default").format, ContainerNames("default").epoch(1)}
    with opened(world) as (store, _):
        named = store._container.names.chunk(bad)
        # Reads of the rest work; what leads there is refused, with the row.
        assert store.read("alive", 0, 100) == PIECE * CHUNKS
        assert store.read("victim", 0, 16) == PIECE * 2
        assert store.read("victim", 24, 8) == PIECE
        for ask in (
            lambda: store.read("victim", 16, 8),
            lambda: store.read("victim", 0, 100),
            lambda: list(store.layout("victim")),
            lambda: store.truncate("victim", 20),
        ):
            with pytest.raises(Damaged) as caught:
                ask()
            assert caught.value.object in (named, f"metadata row {key!r}")
        for level in ("quick", "exists", "deep"):
            findings = [item for item in store.check(level) if item.severity == "damage"]
            assert {(item.segment, item.object) for item in findings} == {("victim", named)}
        # Everything but that row and its object is collected, however often.
        store.delete("victim")
        report = store.collect()
        assert (report.chunks, report.refused) == (CHUNKS - 1, 1)
        again = store.collect()
        assert (again.chunks, again.refused) == (0, 1)
        assert [item.object for item in store.check("deep") if item.severity == "damage"] == [named]
        assert store._container.current.store.get(key) is not None
        assert store.read("alive", 0, 100) == PIECE * CHUNKS
        assert [name for name in map(store._container.names.chunk, ids.victim) if name in world.chunks()] == [named]
    assert whole(world, below="b/") == theirs
    assert kept <= whole(world).keys()
    with world.open("b") as other:
        assert other.read("theirs", 0, 8) == PIECE
        assert other.check("deep") == []


def test_a_verb_that_meets_such_a_row_is_refused_and_others_work(world: World) -> None:
    """Deleting and truncating read no row of what they drop; it is refused where it is collected."""
    ids = build(world)
    rows: dict[bytes, bytes | None] = {}
    for bad in (ids.victim[0], ids.alive[-1]):
        key = chunk_key(bad)
        rows[key] = tampered("their chunk", ids)(decode_chunk(key, row_of(world, key)))
    put_rows(world, rows)
    with opened(world) as (store, _):
        store.seal("victim")
        store.create("target")
        store.append("target", PIECE)
        refused: tuple[Callable[[], object], ...] = (
            lambda: store.append("alive", b"more"),
            lambda: store.seal("alive"),
            lambda: store.concat("target", len(PIECE), "victim"),
        )
        for ask in refused:
            with pytest.raises(Damaged, match="names another object"):
                ask()
        store.truncate("victim", 20)
        report = store.collect()
        assert (report.chunks, report.refused) == (1, 1)
        assert store.read("victim", 20, 100) == (PIECE * CHUNKS)[20:]
        store.truncate("alive", len(PIECE) * CHUNKS)
        report = store.collect()
        assert (report.chunks, report.refused) == (CHUNKS - 1, 2)
        store.append("alive", PIECE)
        assert store.read("alive", len(PIECE) * CHUNKS, 100) == PIECE


@pytest.mark.parametrize("bad", [(0, 5), (2, 3), (0, 1, 2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("what", ["their chunk", "rubbish"])
def test_collecting_goes_on_beyond_every_such_row(world: World, what: str, bad: tuple[int, ...]) -> None:
    """A row that can be decoded still leads on; beyond one that cannot, a range is walked from its other end."""
    ids = build(world)
    rows: dict[bytes, bytes | None] = {}
    for at in bad:
        key = chunk_key(ids.victim[at])
        rows[key] = tampered(what, ids)(decode_chunk(key, row_of(world, key)))
    put_rows(world, rows)
    with opened(world) as (store, _):
        store.delete("victim")
        report = store.collect()
        between = max(bad) - min(bad) + 1 if what == "rubbish" else len(bad)
        assert report.chunks == CHUNKS - between
        assert 1 <= report.refused <= len(bad)
        assert {item.object for item in store.check("quick")} >= {store._container.names.chunk(ids.victim[bad[0]])}
        store.delete("alive")
        assert store.collect().chunks == CHUNKS
        assert len(world.chunks()) == between
    with opened(world) as (store, _):
        assert store.collect().chunks == 0


@pytest.mark.parametrize("length", [0, 1, CHUNK_ID_BYTES - 1, CHUNK_ID_BYTES + 1])
def test_a_chunk_row_whose_key_is_no_id_is_damage(world: World, length: int) -> None:
    ids = build(world)
    key = chunk_key(ids.victim[0])
    raw = row_of(world, key)
    put_rows(world, {chunk_key(b"x" * length): raw})
    with opened(world) as (store, _):
        for level in ("quick", "deep"):
            assert [item.severity for item in store.check(level)] == ["damage"]
        assert store.collect().chunks == 0
