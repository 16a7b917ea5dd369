"""Which rows an export holds: those of segments, of the chunks in their lists, and of the tables that speak of them.

Promises: rows come from one view, in key order. A part is whole in itself: with a segment come its chunks, the borders of their blocks,
the last events of its writers, its own retention policy, and the offload contexts of which it is the data. Nothing that belongs to
the container's history comes along: garbage and its chunks, sessions, pins, where scrubbing is. Segments and chunks are counted
against one another, so that rows which do not add up are no export. Memory: about 100 bytes for each chunk of a part; of
everything, for each chunk in garbage. Leaves out: bytes of the file (``files``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from chunkstore.errors import Damaged, InvalidArgument, SegmentNotFound
from chunkstore.metadata.codec import decode_chunk, decode_garbage, decode_segment
from chunkstore.metadata.index import walk
from chunkstore.metadata.keys import (
    BLOCKS_NAMESPACE,
    CHUNK,
    GARBAGE,
    RETENTION_NAMESPACE,
    SCRUB_KEY,
    SEGMENT,
    TABLE,
    VISIBLE_SEGMENTS,
    WRITERS_NAMESPACE,
    block_range,
    chunk_key,
    segment_key,
    table_key,
    table_prefix,
    writer_range,
)
from chunkstore.metadata.port import MetadataView
from chunkstore.metadata.reserved import pattern_key
from chunkstore.records.names import CHUNK_ID_BYTES, NO_CHUNK, check_segment_name
from chunkstore.records.segments import SegmentRecord

__all__ = ["CHOSEN_MAX", "EVERYTHING", "Choice", "NameFilter", "Selection", "check_choice"]

Pair = tuple[bytes, bytes]
CHOSEN_MAX: Final = 10_000
"""Names in one choice: they stand in the export's header."""
_BLOCKS: Final = table_prefix(BLOCKS_NAMESPACE)
_WRITERS: Final = table_prefix(WRITERS_NAMESPACE)


class Choice(NamedTuple):
    """What to export: segments by name, or by a prefix with ``*`` after it; a topic. Neither: everything."""

    names: tuple[str, ...] = ()
    topic: str = ""

    @property
    def is_everything(self) -> bool:
        return not self.names and not self.topic


def check_choice(segments: Sequence[str], topic: str | None) -> Choice:
    """A caller's choice. Raises ``InvalidArgument``."""
    if isinstance(segments, str) or not all(isinstance(name, str) for name in segments):
        raise InvalidArgument("segments must be a sequence of names", argument="segments")
    if len(segments) > CHOSEN_MAX:
        text = f"at most {CHOSEN_MAX} names are chosen at once; use prefixes ('orders-*')"
        raise InvalidArgument(text, argument="segments")
    for name in segments:
        check_segment_name(name, "segments")
    if topic is not None:
        # Here and below: with ledgers comes protobuf, which no one else should wait for.
        from chunkstore.backup.topics import check_topic

        check_topic(topic)
    return Choice(tuple(sorted(set(segments))), topic or "")


class NameFilter:
    """Segments by ``names``, or by prefixes with ``*`` after them; none: all. Never changed."""

    __slots__ = ("_exact", "_prefixes", "names")

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names: tuple[str, ...] = check_choice(names, None).names
        self._exact = frozenset(name for name in self.names if not name.endswith("*"))
        self._prefixes = tuple(name[:-1] for name in self.names if name.endswith("*"))

    @property
    def is_everything(self) -> bool:
        """Whether all segments are chosen."""
        return not self.names

    def takes(self, name: str) -> bool:
        """Whether a segment is chosen."""
        return not self.names or name in self._exact or name.startswith(self._prefixes)

    def digest(self) -> bytes:
        """16 bytes that tell filters apart; none for the one that takes everything."""
        if self.is_everything:
            return b""
        return blake2b(b"".join(name.encode() + b"\0" for name in self.names), digest_size=16).digest()

    def check(self, names: Iterable[str]) -> None:
        """Raise ``SegmentNotFound`` for a choice that chooses none of ``names``, which are all of a state."""
        exact, prefixes = set(self._exact), set(self._prefixes)
        for name in names:
            exact.discard(name)
            prefixes -= {item for item in prefixes if name.startswith(item)}
        if exact or prefixes:
            raise SegmentNotFound(min(exact or {item + "*" for item in prefixes}))


EVERYTHING: Final = NameFilter()


class Selection:
    """The rows of one choice in one view; iterate once. What it counts is complete at the end of the iteration."""

    def __init__(self, view: MetadataView, choice: Choice) -> None:
        self._view = view
        self._choice = choice
        self.segments: int = 0
        self.chunks: int = 0
        self.chunk_bytes: int = 0
        self._expected = 0

    def __iter__(self) -> Iterator[Pair]:
        """Raises ``SegmentNotFound`` and ``LedgerNotFound`` (nothing is as chosen), ``Damaged`` (rows that do not add up)."""
        yield from self._everything() if self._choice.is_everything else self._part()
        if self.chunks != self._expected:
            raise Damaged(
                f"{self.chunks} chunks were found, but the segments have {self._expected}; run check, and export only a sound container",
                object="chunk rows",
            )

    def _count(self, segment: SegmentRecord) -> None:
        self.segments += 1
        self._expected += segment.chunk_count
        self.chunk_bytes += segment.length - segment.start_offset + segment.first_chunk_skip

    # ---- everything

    def _everything(self) -> Iterator[Pair]:
        view = self._view
        dead, ended = _garbage(view)
        chunks = 0  # a million rows pass here: nothing is asked of each that need not be
        rows = view.scan(CHUNK, _behind(CHUNK))
        for pair in (row for row in rows if row[0][1:] not in dead) if dead else rows:
            chunks += 1
            yield pair
        self.chunks = chunks
        for pair in view.scan(SEGMENT, _behind(SEGMENT)):
            self._count(decode_segment(pair[0][1:].decode("utf-8", "replace"), pair[1]))
            yield pair
        for pair in view.scan(TABLE, _behind(TABLE)):
            if not _is_dead(pair[0], dead, ended):
                yield pair

    # ---- a part

    def _part(self) -> Iterator[Pair]:
        from chunkstore.backup.topics import NAMESPACE, context_rows, segments_of

        view = self._view
        names = set(self._choice.names)
        if self._choice.topic:
            names |= segments_of(view, self._choice.topic)
        segments = sorted(self._named(names), key=lambda segment: segment.name.encode())
        ids = sorted(_ids_of(view, segments))
        for identity in ids:
            self.chunks += 1
            yield chunk_key(identity), _found(view, chunk_key(identity))
        for segment in segments:
            self._count(segment)
            yield segment_key(segment.name), _found(view, segment_key(segment.name))
        # Namespaces in the order of their keys, the shorter ones first.
        tables = [
            (BLOCKS_NAMESPACE, (pair for identity in ids for pair in view.scan(*block_range(identity)))),
            (NAMESPACE, context_rows(view, {segment.name for segment in segments})),
            (WRITERS_NAMESPACE, (pair for known in sorted(s.id for s in segments) for pair in view.scan(*writer_range(known)))),
            (RETENTION_NAMESPACE, _policies(view, segments)),
        ]  # fmt: skip
        for _, pairs in sorted(tables, key=lambda item: table_prefix(item[0])):
            yield from pairs

    def _named(self, names: set[str]) -> list[SegmentRecord]:
        found = dict[str, SegmentRecord]()
        for name in names:
            prefix = segment_key(name.removesuffix("*"))
            stop = prefix + (b"\xff" if name.endswith("*") else b"\0")
            rows = list(self._view.scan(max(prefix, VISIBLE_SEGMENTS), stop))
            if not rows:
                raise SegmentNotFound(name)
            found |= {
                text: decode_segment(text, raw)
                for text, raw in ((k[1:].decode("utf-8", "replace"), v) for k, v in rows)
            }
        return list(found.values())


def _behind(kind: bytes) -> bytes:
    return bytes((kind[0] + 1,))


def _found(view: MetadataView, key: bytes) -> bytes:
    raw = view.get(key)
    if raw is None:
        raise Damaged("a row has disappeared; delete the cache and open again", object=f"metadata row {key!r}")
    return raw


def _garbage(view: MetadataView) -> tuple[set[bytes], set[bytes]]:
    """The chunks in garbage ranges, and of the segments that ended with them the ids, as they stand in keys. Raises ``Damaged``."""
    dead, ended = set[bytes](), set[bytes]()
    for key, raw in view.scan(GARBAGE, _behind(GARBAGE)):
        garbage = decode_garbage(repr(key), raw)
        if garbage.ended_segment_id:
            ended.add(garbage.ended_segment_id.to_bytes(8, "big"))
        identity = garbage.first
        while identity != NO_CHUNK and identity not in dead:
            dead.add(identity)
            if identity == garbage.last:
                break
            identity = decode_chunk(chunk_key(identity), _found(view, chunk_key(identity))).next
    return dead, ended


def _is_dead(key: bytes, dead: set[bytes], ended: set[bytes]) -> bool:
    """Whether a table's row is about what is garbage, or about the container alone."""
    if key.startswith(_BLOCKS):
        return key[len(_BLOCKS) : len(_BLOCKS) + CHUNK_ID_BYTES] in dead
    if key.startswith(_WRITERS):
        return key[len(_WRITERS) : len(_WRITERS) + 8] in ended
    return key == SCRUB_KEY


def _ids_of(view: MetadataView, segments: list[SegmentRecord]) -> Iterator[bytes]:
    for segment in segments:
        for _, identity, _ in walk(view.get, segment):
            yield identity


def _policies(view: MetadataView, segments: list[SegmentRecord]) -> Iterator[Pair]:
    for segment in segments:
        if not segment.name.endswith("*"):
            key = table_key(RETENTION_NAMESPACE, pattern_key(segment.name))
            yield from view.scan(key, key + b"\0")
