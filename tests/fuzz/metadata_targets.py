"""The metadata's decoders: rows of every kind, the offset index of a hostile snapshot, names of objects, context rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct

import msgpack

from chunkstore.errors import Damaged
from chunkstore.metadata import codec, index
from chunkstore.metadata.keys import chunk_key, segment_key
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.metadata.port import Head, Position
from chunkstore.names import ContainerNames, chunk_id
from chunkstore.pulsar import contexts
from chunkstore.records import ChunkRecord, SegmentRecord
from tests.fuzz.chance import Chance, Tree, mangled, wire
from tests.fuzz.target import Gate, Spy, Target
from tests.golden.metadata_samples import DECODERS, ENCODERS, GOLDEN, kind_of

__all__ = ["METADATA_TARGETS"]

_TREES: dict[str, tuple[Tree, ...]] = {
    kind: tuple(
        msgpack.unpackb(bytes.fromhex(raw), use_list=False) for sample, raw in GOLDEN.items() if kind_of(sample) == kind
    )
    for kind in ENCODERS
}
_ALL_TREES = tuple(tree for trees in _TREES.values() for tree in trees)


def _make_row(name: str, chance: Chance) -> bytes:
    return wire(chance, chance.one_of(_TREES[name]), chance.one_of(_ALL_TREES))


def _decode_row(name: str, data: bytes, gate: Gate) -> Callable[[], None] | None:
    try:
        found = DECODERS[name](b"key", data)
    except Damaged as error:
        assert 0 <= error.position <= len(data), error.position
        return None
    return partial(_row_again, name, found)


def _row_again(name: str, found: object) -> None:
    raw = ENCODERS[name](found)
    # A float that is no number is not equal to itself; it may stand in the fields of a newer version.
    assert DECODERS[name](b"key", raw) == found or b"\xcb\x7f\xf8" in raw or b"\xca\x7f\xc0" in raw


def _is_row_of_our_version(row: object) -> bool:
    # A row has four elements at least; when it is looked at element by element, shorter arrays in it come by here, too.
    return type(row) is tuple and len(row) > 3 and type(row[0]) is int and row[0] == codec.MAJOR


# --- the offset index, as a snapshot may bring it along --------------------------------------------------------------

_RUN = Struct(">cQQ")
_TARGET = Struct(">QQ")
_IDS = [chunk_id(7, 1, number, 0) for number in range(3)]


def _index_pairs() -> list[tuple[bytes, bytes]]:
    chunks = [
        ChunkRecord("", 0, 100, None, _IDS[at - 1] if at else b"", _IDS[at + 1] if at < 2 else b"", 7, 1, 2, 1, 5)
        for at in range(3)
    ]
    pairs = [(chunk_key(_IDS[at]), codec.encode_chunk(chunk)) for at, chunk in enumerate(chunks)]
    segment = SegmentRecord("log", 7, 0, 0, 300, _IDS[0], _IDS[2], 200, 0, 1 << 20, 1, 3, {}, 1, 1)
    pairs.append((segment_key("log"), codec.encode_segment(segment)))
    pairs.append((_RUN.pack(b"r", 7, 0), _TARGET.pack(7, 0)))
    pairs += [(_RUN.pack(b"x", 7, 100 * at), identity) for at, identity in enumerate(_IDS)]
    return pairs


_PAIRS = sorted(_index_pairs())
_ROWS: dict[bytes, Tree] = {value: msgpack.unpackb(value, use_list=False) for key, value in _PAIRS if key[:1] in b"CS"}


def _make_index(chance: Chance) -> bytes:
    """Pairs as msgpack: flat, sorted, with a few of them changed."""
    pairs = list(_PAIRS)
    for _ in range(1 + chance.below(2)):
        at = chance.below(len(pairs))
        key, value = pairs[at]
        what = chance.below(8)
        if what == 0:
            del pairs[at]
            if not pairs:
                break
        elif what == 1:
            pairs.append((key[:1] + mangled(chance, key[1:]), value))
        elif what == 2:
            pairs[at] = (key[:1] + mangled(chance, key[1:]), value)
        elif key[:1] in b"rx" or chance.random() < 0.3:
            pairs[at] = (key, mangled(chance, value))
        else:
            pairs[at] = (key, wire(chance, _ROWS.get(value, value)))
    flat = [item for pair in sorted(set(pairs)) for item in pair]
    raw: bytes = msgpack.packb(flat)
    return raw


_SHELF_UUID = bytes(16)


def _decode_index(data: bytes, gate: Gate) -> None:
    flat = msgpack.unpackb(data)
    store = MemoryMetadataCache(_SHELF_UUID, "here", shelf=MemoryShelf()).create()
    pairs = list(zip(flat[::2], flat[1::2], strict=True))
    try:
        store.load(pairs)
        store.finish_load(Head(Position(1, bytes(16), 1, 1, 0), 0))
        with store.view() as view:
            gate.past()
            for offset in (0, 99, 100, 250, 299, 300):
                found = view.locate(7, offset)
                assert found is None or (len(found[0]) == 28 and found[1] >= 0)
            view.count_chunks(7, 0, 300)
            row = view.get(segment_key("log"))
            if row is not None:
                for _ in index.check_index(view, codec.decode_segment("log", row)):
                    pass
            for _ in index.rebuild_index(view):
                pass
    finally:
        store.close(clean=False)


# --- names -----------------------------------------------------------------------------------------------------------

_NAMES = ContainerNames("default")
_GOOD_NAMES = (
    _NAMES.chunk(_IDS[1]),
    _NAMES.chunk(chunk_id((1 << 63) | 5, 0, 2, 77)),
    _NAMES.snapshot(41, 4, "0123456789abcdef"),
    _NAMES.slot(5, 7),
    _NAMES.log(5),
    _NAMES.epoch(4097),
)


def _make_name(chance: Chance) -> bytes:
    raw = chance.one_of(_GOOD_NAMES).encode()
    return mangled(chance, raw, chance.one_of(_GOOD_NAMES).encode()) if chance.random() < 0.95 else raw


def _decode_name(data: bytes, gate: Gate) -> None:
    name = data.decode("utf-8", "replace")
    if name.startswith("default/"):
        gate.past()
    identity = _NAMES.parse_chunk(name)
    assert identity is None or _NAMES.chunk(identity) == name
    slot = _NAMES.parse_slot(name)
    assert slot is None or len(_NAMES.slot(*slot)) == len(name)
    for parse in (_NAMES.parse_snapshot, _NAMES.parse_log, _NAMES.parse_epoch):
        parse(name)


# --- rows of the table of offload contexts ---------------------------------------------------------------------------

_CONTEXT = contexts.Context(
    "topic", 3, bytes(range(16)), True, 5000, 77, (contexts.EntryRange(1, 0, 9, 7), contexts.EntryRange(2, 5, 5))
)
_CONTEXT_TREE: Tree = msgpack.unpackb(contexts.encode_context(_CONTEXT), use_list=False)


def _make_context(chance: Chance) -> bytes:
    key = contexts.key_of("topic", 3)
    if chance.random() < 0.1:
        key = mangled(chance, key)[:250]
    return bytes((len(key),)) + key + wire(chance, _CONTEXT_TREE, _ALL_TREES[0])


def _decode_context(data: bytes, gate: Gate) -> Callable[[], None]:
    key, value = data[1 : 1 + data[0]], data[1 + data[0] :]
    return partial(_context_again, key, contexts.decode_context(key, value, 5))


def _context_again(key: bytes, found: contexts.Context) -> None:
    assert contexts.decode_context(key, contexts.encode_context(found), 5) == found


METADATA_TARGETS: tuple[Target, ...] = (
    *(
        Target(
            f"row-{name}", "one msgpack array of our major version", partial(_make_row, name), partial(_decode_row, name), (),
            (Spy(codec, "_unpack", _is_row_of_our_version),),
        )
        for name in ENCODERS
    ),
    Target("offset-index", "rows in order", _make_index, _decode_index, (Damaged,)),
    Target("names", "the container's own prefix", _make_name, _decode_name, ()),
    Target(
        "offload-context", "version, topic, uuid and state", _make_context, _decode_context, (Damaged,),
        (Spy(contexts, "_check_numbers"),),
    ),
)  # fmt: skip
