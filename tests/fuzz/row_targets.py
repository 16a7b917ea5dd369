"""Rows of every kind under the whole engine: whatever they say, no call leaves the container's chunks.

``stored-name`` is what every name passes (a chunk row to its object, a link to its snapshot), at full speed. ``stored-rows`` plants some
rows in a container beside another one, by a journal record that is right in everything else, and runs the verbs over it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Final, TypeVar

import msgpack

from chunkstore import runtime
from chunkstore.checksum import DIGEST_MODULUS, crc32c, row_digest
from chunkstore.config import Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Damaged
from chunkstore.journal import Batch, OpCode, Ownership, RecordKind
from chunkstore.metadata import codec
from chunkstore.metadata.keys import (
    CHUNK,
    chunk_key,
    garbage_key,
    pin_key,
    segment_key,
    session_key,
    table_key,
    writer_key,
)
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.metadata.port import Commit, Op
from chunkstore.names import ContainerNames, chunk_id, session_chunk_id
from chunkstore.operations.owned_epoch import decode_found_chunk
from chunkstore.records import (
    ACTIVE,
    CLOSED,
    ChunkRecord,
    GarbageRecord,
    PinRecord,
    SegmentRecord,
    SessionRecord,
    TableRecord,
)
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory
from chunkstore_journal.container import create_container, read_format
from chunkstore_journal.history import Streams
from chunkstore_journal.objects import ContainerFormat
from chunkstore_journal.payloads import link_from_wire
from chunkstore_journal.service import ContainerJournal
from chunkstore_journal.wire import unpack
from tests.faults.tiny import InlineRuntime, objects_of
from tests.fuzz.chance import Chance, Tree, mangled, wire
from tests.fuzz.target import Gate, Target
from tests.support.forwarding import Forwarding

__all__ = ["ROW_TARGETS"]

T = TypeVar("T")
NAMES: Final = ContainerNames("default")
OTHER: Final = ContainerNames("other")
PIECE: Final = b"16 bytes of data"
_CRC: Final = crc32c(PIECE)
_NUMBERS = itertools.count(1)

# --- a container in which every kind of row occurs ---------------------------------------------------------------------

_LOG, _TAIL, _SEALED, _OLD, _GONE = (tuple(chunk_id(7 + at, 1, n, n) for n in range(6)) for at in range(5))
_SESSION: Final = tuple(session_chunk_id(40, n, n) for n in range(6))
_LISTS: Final = {"log": (7, _LOG), "tail": (8, _TAIL), "sealed": (9, _SEALED), "attached": (41, _SESSION)}


def _chain(ids: tuple[bytes, ...], segment: int, last_state: int = CLOSED) -> dict[bytes, bytes]:
    rows = {}
    for at, identity in enumerate(ids):
        before, after = ids[at - 1] if at else b"", ids[at + 1] if at + 1 < len(ids) else b""
        state = CLOSED if after else last_state
        record = ChunkRecord("", 0, len(PIECE), _CRC, before, after, segment, 1, state, 1, 5)
        rows[chunk_key(identity)] = codec.encode_chunk(record)
    return rows


def _base_rows() -> tuple[dict[bytes, bytes], list[Op]]:
    rows: dict[bytes, bytes] = {}
    ops: list[Op] = []
    for name, (segment, ids) in _LISTS.items():
        rows |= _chain(ids, segment, ACTIVE if name == "tail" else CLOSED)
        length, flags = len(PIECE) * len(ids), name == "sealed"
        rows[segment_key(name)] = codec.encode_segment(
            SegmentRecord(
                name,
                segment,
                int(flags),
                0,
                length,
                ids[0],
                ids[-1],
                length - len(PIECE),
                0,
                1 << 20,
                1,
                len(ids),
                {"k": 1},
                1,
                1,
            )
        )
        added = tuple((at * len(PIECE), identity) for at, identity in enumerate(ids))
        ops.append((int(OpCode.APPEND), segment, 0, length, added))
    rows |= _chain(_OLD, 10) | _chain(_GONE, 11)
    rows[garbage_key(1, 0)] = codec.encode_garbage(GarbageRecord(_OLD[0], _OLD[-1], 6, 96, 1, 5, 10))
    rows[garbage_key(1, 1)] = codec.encode_garbage(GarbageRecord(_GONE[0], _GONE[-1], 6, 96, 1, 5, 0))
    rows[session_key(40)] = codec.encode_session(SessionRecord("holder", 1, 2))
    rows[pin_key("pin")] = codec.encode_pin(PinRecord(1, 5, 1, "holder", "note"))
    rows[table_key("rows", b"key")] = codec.encode_table(TableRecord(1, b"value"))
    rows[writer_key(10, b"writer")] = codec.encode_table(TableRecord(1, b"\x01\x02"))
    return rows, ops


_ROWS, _OPS = _base_rows()
_KEYS: Final = sorted(_ROWS)
_TREES: Final[dict[bytes, Tree]] = {key: msgpack.unpackb(value, use_list=False) for key, value in _ROWS.items()}
_ALL_TREES: Final = tuple(_TREES.values())
_IDS: Final = (*_LOG, *_TAIL, *_SEALED, *_OLD, *_GONE, *_SESSION)
_CHUNK_TREE: Final = _TREES[chunk_key(_LOG[1])]
_TWINS: Final = tuple(identity[:8] + b"\0" * 7 + b"\x07" + identity[16:] for identity in _SESSION)
_NAMED: Final = (
    OTHER.chunk(_LOG[0]), OTHER.format, OTHER.epoch(1), NAMES.format, NAMES.epoch(1), NAMES.epoch(2), NAMES.latest, NAMES.lease,
    NAMES.log(1), NAMES.slot(1, 0), NAMES.chunk(_LOG[0]), NAMES.chunk(_LOG[1]), "../other/FORMAT", "/etc/passwd", "default/d/../FORMAT",
    "default/d", "default", ".", "..", "default/d/\x1b[2J", "default/d//", "\0", "x" * 4096,
)  # fmt: skip


def _some_value(chance: Chance, key: bytes) -> bytes:
    tree = _TREES.get(key, _CHUNK_TREE)
    what = chance.below(10)
    if what < 3 and key[:1] == CHUNK:
        # What a hostile hand would write: everything right but the name, the kind or a pointer.
        at = chance.one_of((2, 2, 2, 2, 3, 6, 7, 7, 10, 11))
        value: Tree = {2: chance.one_of(_NAMED), 6: chance.one_of(_IDS), 7: chance.one_of(_IDS)}.get(
            at, chance.number(2)
        )
        assert type(tree) is tuple
        return bytes(msgpack.packb((*tree[:at], value, *tree[at + 1 :])) if _fits(value) else b"\xc0")
    if what < 5 and key[:1] in b"GS":
        assert type(tree) is tuple
        pointers = [at for at, item in enumerate(tree) if type(item) is bytes and len(item) == 28]
        at = chance.one_of(pointers) if pointers else 2
        return bytes(msgpack.packb((*tree[:at], chance.one_of((*_IDS, *_TWINS, b"")), *tree[at + 1 :])))
    if what == 5:
        return _ROWS[chance.one_of(_KEYS)]
    return wire(chance, tree, chance.one_of(_ALL_TREES))


def _fits(value: Tree) -> bool:
    return type(value) is not int or -(1 << 63) <= value < 1 << 64


def _some_key(chance: Chance) -> bytes:
    what = chance.below(80)
    if what < 4:
        return chunk_key(chance.one_of((*_TWINS, b"", b"x", b"x" * 29, chance.randbytes(28))))
    if what < 8:
        key = chance.one_of(_KEYS)
        return key[:1] + mangled(chance, key[1:])[:500]
    return chance.one_of(_KEYS)


def _make_rows(chance: Chance) -> bytes:
    """Flat pairs as msgpack; nil deletes a row."""
    flat: list[bytes | None] = []
    for _ in range(ROWS_EACH):
        key = _some_key(chance)
        flat += (key, None if chance.below(30) == 0 else _some_value(chance, key)[:60_000])
    return bytes(msgpack.packb(flat))


ROWS_EACH: Final = 20

# --- the engine over it ------------------------------------------------------------------------------------------------

_SETTINGS = Settings(journal_mode="slot", lease_s=0.0, gc_grace_s=0.0, resolve_s=0.0, io_workers=2, op_deadline_s=60.0)


class _Unwatched(InlineRuntime):
    """Without background threads: nobody waits, and nobody's owner dies."""

    def spawn(self, call: Callable[[], None], name: str) -> runtime.Task:
        if name == "chunkstore-keeper":
            return _NoTask()
        call()
        return _NoTask()


class _NoTask(runtime.Task):
    def join(self, timeout: float | None = None) -> None:
        return

    def is_alive(self) -> bool:
        return False


_LOOKING = ("read", "read_into", "read_ranges", "stat", "exists")


class _Confining(Forwarding):
    """What the engine asks the storage for must be a chunk of this container, under the name that an id gives, or, to be read only, a
    record of its journal."""

    def __init__(self, inner: ChunkStorage) -> None:
        super().__init__(inner)
        self.strayed: list[str] = []

    def around(self, operation: str, names: tuple[str, ...], call: Callable[[], T]) -> T:
        for name in names:
            if operation == "list":
                right = name == NAMES.data_prefix()
            else:
                identity = NAMES.parse_chunk(name)
                right = identity is not None and NAMES.chunk(identity) == name
                if operation in _LOOKING and name.startswith(NAMES.journal_prefix()):
                    right = NAMES.parse_slot(name) is not None or NAMES.parse_log(name) is not None  # where extents lie
            if not right:
                self.strayed.append(f"{operation} {name!r}")
        return call()


@contextmanager
def _base() -> Iterator[MemoryChunkStorage]:
    """A storage with the container, the other one, and an object for every chunk of both."""
    url = f"memory://rows-{next(_NUMBERS)}"
    storage = MemoryChunkStorage(url)
    try:
        for name, data in _objects().items():
            storage.put(name, data)
        yield storage
    finally:
        storage.close()
        forget_memory(url)


@cache
def _objects() -> dict[str, bytes]:
    url = "memory://rows-base"
    storage = MemoryChunkStorage(url)
    for names in (NAMES, OTHER):
        create_container(storage, names, _SETTINGS)
        for identity in _IDS:
            storage.create(names.chunk(identity), PIECE)
    found = objects_of(storage)
    storage.close()
    forget_memory(url)
    return found


def _owned(storage: MemoryChunkStorage, planted: Mapping[bytes, bytes | None]) -> tuple[ContainerJournal, Ownership]:
    """The container, owned, with the base rows and then the planted ones: two records of its journal."""
    format_ = read_format(storage, NAMES)
    cache = MemoryMetadataCache(format_.uuid, "here", shelf=MemoryShelf())
    service = ContainerJournal(storage, NAMES, format_, cache, _SETTINGS)
    owned = service.take_over(own=None)
    for ops, rows in ((_OPS, _ROWS), ([(int(OpCode.SEAL), 9)], planted)):
        head = owned.store.head()
        digest = head.digest
        for key, value in rows.items():
            old = owned.store.get(key)
            digest += (0 if value is None else row_digest(key, value)) - (0 if old is None else row_digest(key, old))
        batch = Batch(RecordKind.OPS, ops, list(rows.items()), digest % DIGEST_MODULUS, 1)
        position = owned.journal.append(batch)
        commit = Commit(position, head.position.hash, batch.digest, batch.ops, batch.rows)
        assert owned.store.apply([commit], verify=True)
    return service, owned


def _decode_rows(data: bytes, gate: Gate) -> Callable[[], None] | None:
    flat = msgpack.unpackb(data)
    runtime.install(_Unwatched())
    try:
        with _base() as storage:
            try:
                service, owned = _owned(storage, dict(zip(flat[::2], flat[1::2], strict=True)))
            except ChunkstoreError:
                return None  # a key that cannot be: refused before it is written
            confining = _Confining(storage)
            engine = ChunkedSegmentStorage(
                storage=confining, names=NAMES, settings=_SETTINGS, service=service, ownership=owned
            )
            gate.past()
            with engine:
                for verb in _VERBS:
                    with _only_typed():
                        verb(engine)
                engine.collect()
                for finding in engine.check("quick"):
                    assert finding.severity in ("damage", "warning", "leak", "info")
            left = objects_of(storage)
    finally:
        runtime.install(None)
    return partial(_judge, confining.strayed, left)


def _judge(strayed: list[str], left: Mapping[str, bytes]) -> None:
    assert not strayed, strayed
    for name, data in _objects().items():
        if not name.startswith(NAMES.data_prefix()):
            assert left.get(name) == data, name


@contextmanager
def _only_typed() -> Iterator[None]:
    """Errors of ours may come, but none that stands for what nobody has foreseen."""
    try:
        yield
    except ChunkstoreError as error:
        assert not error.message.startswith("unexpected"), error


def _each(
    verb: Callable[[ChunkedSegmentStorage, str], object],
) -> tuple[Callable[[ChunkedSegmentStorage], object], ...]:
    return tuple(partial(_on, verb, name) for name in _LISTS)


def _on(verb: Callable[[ChunkedSegmentStorage, str], object], name: str, store: ChunkedSegmentStorage) -> object:
    return verb(store, name)


_VERBS: Final[tuple[Callable[[ChunkedSegmentStorage], object], ...]] = (
    lambda store: list(store.segments()),
    *_each(lambda store, name: list(store.layout(name))),
    *_each(lambda store, name: store.read(name, 0, 1 << 10)),
    *_each(lambda store, name: store.read_into(name, 40, bytearray(4))),
    lambda store: store.offset_at("log", time_ms=5),
    lambda store: [bytes(piece) for piece in store.reader("attached")],
    lambda store: store.check("deep"),
    lambda store: store.scrub(),
    lambda store: store.collect(),
    *_each(lambda store, name: store.append(name, PIECE)),
    lambda store: store.concat("log", store.info("log").length, "sealed"),
    *_each(lambda store, name: store.truncate(name, 20)),
    lambda store: store.read("log", 20, 1 << 10),
    *_each(lambda store, name: store.delete(name)),
    lambda store: store.collect(dry_run=True),
    lambda store: store.pins(),
    lambda store: store.pin("another"),
    lambda store: store.unpin("pin"),
)


# --- what every name passes --------------------------------------------------------------------------------------------


def _make_name(chance: Chance) -> bytes:
    """A key and the value of its row, or a link to a snapshot."""
    if chance.below(4) == 0:
        return b"L" + wire(chance, _LINK, _CHUNK_TREE)
    identity = chance.one_of((*_IDS, *_TWINS)) if chance.below(8) else mangled(chance, chance.one_of(_IDS))[:200]
    return bytes((len(identity),)) + identity + _some_value(chance, chunk_key(_LOG[1]))


_LINK: Final[Tree] = (NAMES.snapshot(41, 1, "0123456789abcdef"), 41, bytes(16), bytes(32), 1, 2, 3)


def _decode_name(data: bytes, gate: Gate) -> None:
    if data[:1] == b"L":
        link = link_from_wire(unpack(data[1:], "link", 0), "link", 0)
        gate.past()
        name = _STREAMS.snapshot(link)
        assert re.fullmatch(r"default/snap/[0-9a-f]{16}-[0-9a-f]{16}-[0-9a-f]+\.sn", name), name
        return
    identity = data[1 : 1 + data[0]]
    record = decode_found_chunk(NAMES, identity, data[1 + data[0] :])
    gate.past()
    name = NAMES.chunk(identity)
    assert NAMES.parse_chunk(name) == identity, name
    assert record.object in ("", name)


_STREAMS: Final = Streams(
    MemoryChunkStorage("memory://links"), NAMES, ContainerFormat(bytes(16), 1, "slot", "memory", {}, 0, "default")
)

ROW_TARGETS: tuple[Target, ...] = (
    Target("stored-name", "a row or a link of our version", _make_name, _decode_name, (Damaged,)),
    Target(
        "stored-rows",
        "keys that can be",
        _make_rows,
        _decode_rows,
        (ChunkstoreError,),
        each=ROWS_EACH,
        memory_bytes=2 << 20,
    ),
)
