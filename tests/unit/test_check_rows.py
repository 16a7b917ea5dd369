"""A check walks lists and index by scans and keeps little: it finds what one finds that looks everything up and keeps all ids."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from chunkstore.errors import Damaged
from chunkstore.invariants import Finding
from chunkstore.metadata.codec import decode_chunk, decode_segment, encode_chunk, encode_garbage, encode_segment
from chunkstore.metadata.keys import CHUNK, EXTENT, RUN, SEGMENT, chunk_key, garbage_key, segment_key
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.metadata.port import Head, MetadataView, Position
from chunkstore.names import ContainerNames, chunk_id
from chunkstore.operations import check as module
from chunkstore.records import ChunkRecord, GarbageRecord
from tests.support.metadata_basics import EVERYTHING, run_script

NAMES = ContainerNames("default")
CONTEXT: Any = SimpleNamespace(names=NAMES)
Pairs = dict[bytes, bytes]


class PlainRows:
    """Every row is looked up, every id remembered."""

    def __init__(self, names: ContainerNames, view: MetadataView, _progress: object) -> None:
        self._view = view
        self.met: frozenset[int] = frozenset()
        self.latest_ms = 0
        self._named: set[bytes] = set()

    def find(self, identity: bytes) -> ChunkRecord | None:
        raw = self._view.get(chunk_key(identity))
        return None if raw is None else decode_chunk(NAMES.chunk(identity), raw)

    def take(self, identity: bytes) -> bool:
        new = identity not in self._named
        self._named.add(identity)
        return new

    def never_named(self) -> Iterator[tuple[bytes, bytes]]:
        for key, raw in self._view.scan(CHUNK, b"D"):
            if key[1:] not in self._named:
                yield key[1:], raw


class NoIndexBeside:
    """Leaves it all to ``check_index``."""

    def __init__(self, view: MetadataView, segment: object) -> None: ...
    def meet(self, identity: bytes, length: int) -> None: ...
    def agrees(self) -> bool:
        return False


def stored(pairs: Pairs, call: Callable[[MetadataView], Any]) -> Any:
    store = MemoryMetadataCache(bytes(16), "here", shelf=MemoryShelf()).create()
    try:
        store.load(sorted(pairs.items()))
        store.finish_load(Head(Position(9, bytes(16), 1, 1, 0), 0))
        with store.view() as view:
            return call(view)
    finally:
        store.close(clean=False)


def findings(view: MetadataView) -> list[Finding] | str:
    try:
        return list(module.check(CONTEXT, view, "quick", epoch=1, orphans=lambda _: None, progress=lambda _: None))
    except Damaged as error:
        return repr(error)


def random_pairs(chance: random.Random) -> Pairs:
    """Rows and index of some segments, with what was spliced, truncated and replaced in them."""
    store = MemoryMetadataCache(bytes(16), "here", shelf=MemoryShelf()).create()
    script = [
        (chance.randrange(12), chance.randrange(99), chance.randrange(99), chance.randint(1, 50)) for _ in range(30)
    ]
    run_script(store, script, batch=30, verify=False)
    with store.view() as view:
        pairs = dict(view.scan(*EVERYTHING))
    store.close(clean=False)
    return pairs


def spoil(chance: random.Random, pairs: Pairs) -> None:
    """Something that no operation leaves behind."""
    kind = chance.choice((CHUNK, CHUNK, SEGMENT, RUN, EXTENT, EXTENT))
    keys = [key for key in pairs if key[:1] == kind]
    chunks = [key[1:] for key in pairs if key[:1] == CHUNK]
    if not keys or not chunks:
        return
    key, other = chance.choice(keys), chance.choice((b"", chunk_id(77, 1, 1, 1), *chunks))
    way = chance.randrange(4)
    if way == 0:
        del pairs[key]
    elif kind == CHUNK:
        record = decode_chunk(key, pairs[key])
        spoilt = chance.choice(
            (
                record._replace(next=other),
                record._replace(previous=other),
                record._replace(length=chance.randrange(60)),
                record._replace(epoch=7),
            )
        )
        pairs[key] = encode_chunk(spoilt)
        if way == 1:
            pairs[key] = pairs[key][:9]
        elif way == 2:
            pairs[garbage_key(3, 0)] = encode_garbage(GarbageRecord(key[1:], other, chance.randrange(4), 9, 3, 1, 0))
    elif kind == SEGMENT:
        segment = decode_segment("", pairs[key])
        if way == 1:
            pairs[segment_key("again")] = encode_segment(segment._replace(name="again", id=999))
        else:
            count = max(0, segment.chunk_count + chance.choice((-1, 1)))
            changed = segment._replace(first_chunk=other) if way == 2 else segment._replace(chunk_count=count)
            pairs[key] = encode_segment(changed)
    elif way == 1:
        pairs[key] = chance.choice([value for found, value in pairs.items() if found[:1] == kind])
    else:
        further = chance.randint(1, 9)
        at = key[:9] + (int.from_bytes(key[9:17], "big") + further).to_bytes(8, "big")
        if kind == RUN and way == 2:
            # The same mapping, but look-ups for the rest of a chunk that this cuts in two find nothing.
            run, base = pairs[key][:8], int.from_bytes(pairs[key][8:], "big")
            pairs[at] = run + (base + further).to_bytes(8, "big")
        else:
            pairs[at] = pairs.pop(key)


def test_it_finds_what_looking_everything_up_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    sound, said = 0, ""
    for seed in range(300):
        chance = random.Random(seed)
        pairs = random_pairs(chance)
        for _ in range(chance.choice((0, 1, 1, 2))):
            spoil(chance, pairs)
        ours = stored(pairs, findings)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_Rows", PlainRows)
            patch.setattr(module, "IndexBeside", NoIndexBeside)
            assert ours == stored(pairs, findings), seed
        sound += ours == []
        said += str(ours)
    assert sound > 5
    for words in (
        "a chunk record that neither",
        "a garbage range ends after",
        "also live",
        "belongs to two places",
        "cannot be read",
        "has no record",
        "list ends",
        "the index has nothing for offset",
        "the index has chunk",
        "the previous pointer",
    ):
        assert words in said, words
