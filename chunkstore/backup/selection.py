"""Which rows an export holds, and which come along with a part: segments, their chunks, and the tables that speak of them.

Rows come from one view, in key order. A part is whole in itself: with a segment come its chunks, the borders of their blocks, the last
events of its writers, its own retention policy, and the offload contexts of which it is the data. Garbage, sessions, pins and the scrub
position stay. Memory: about 100 bytes for each chunk of a part; of everything, for each chunk in garbage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from chunkstore.errors import Damaged, InvalidArgument, SegmentNotFound
from chunkstore.metadata.codec import decode_chunk, decode_garbage, decode_segment, decode_table
from chunkstore.metadata.index import walk
from chunkstore.metadata.keys import (
    BLOCKS_NAMESPACE,
    CHUNK,
    GARBAGE,
    QUOTA_NAMESPACE,
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
from chunkstore.records.names import CHUNK_ID_BYTES, NO_CHUNK, check_segment_name
from chunkstore.records.segments import SegmentRecord

__all__ = ["CHOSEN_MAX", "Choice", "NameFilter", "Selection", "after_all"]

Pair = tuple[bytes, bytes]
CHOSEN_MAX: Final = 10_000
"""Names in one choice: they are in the export's header."""
_OFFLOAD: Final = "offload"
_BLOCKS: Final = table_prefix(BLOCKS_NAMESPACE)
_WRITERS: Final = table_prefix(WRITERS_NAMESPACE)


class Choice(NamedTuple):
    """Segments by name, or by a prefix with ``*`` after it, and those of a topic's ledgers. Neither: everything."""

    names: tuple[str, ...] = ()
    topic: str = ""


class NameFilter:
    """What a ``Choice`` takes; see there. Never changed. Raises ``InvalidArgument``."""

    __slots__ = ("_exact", "_prefixes", "choice")

    def __init__(self, names: Sequence[str] = (), topic: str | None = None) -> None:
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise InvalidArgument("segments must be a sequence of names", argument="segments")
        if len(names) > CHOSEN_MAX:
            text = f"at most {CHOSEN_MAX} names are chosen at once; use prefixes ('orders-*')"
            raise InvalidArgument(text, argument="segments")
        for name in names:
            check_segment_name(name, "segments")
        if topic is not None:
            # Here and below: contexts load protobuf, which no one else should wait for.
            from chunkstore.pulsar.contexts import check_topic

            check_topic(topic)
        self.choice: Choice = Choice(tuple(sorted(set(names))), topic or "")
        self._exact = frozenset(name for name in names if not name.endswith("*"))
        self._prefixes = tuple(name[:-1] for name in names if name.endswith("*"))

    @property
    def is_everything(self) -> bool:
        """Whether all segments are chosen."""
        return self.choice == Choice()

    def digest(self) -> bytes:
        """16 bytes that tell filters apart; none for the one that takes everything."""
        if self.is_everything:
            return b""
        return blake2b(b"".join(name.encode() + b"\0" for name in self.choice.names), digest_size=16).digest()

    def with_topic(self, view: MetadataView) -> NameFilter:
        """This filter, with the segments of its topic by their names. Raises ``LedgerNotFound``, ``Damaged``."""
        if not self.choice.topic:
            return self
        from chunkstore.pulsar.contexts import LedgerNotFound

        start = table_key(_OFFLOAD, self.choice.topic.encode() + b"\0")
        found, prefix = set[str](), table_prefix(_OFFLOAD)
        for key, raw in view.scan(start, start + b"\xff" * 9):
            found |= _named_by(key[len(prefix) :], decode_table(key, raw).value)
        if not found:
            raise LedgerNotFound(self.choice.topic)
        made = NameFilter(self.choice.names)
        made.choice = self.choice
        made._exact |= {name for name in found if view.get(segment_key(name)) is not None}
        return made

    def takes(self, name: str) -> bool:
        """Whether a segment is chosen."""
        return self.is_everything or name in self._exact or name.startswith(self._prefixes)

    def check(self, names: Iterable[str]) -> None:
        """Raise ``SegmentNotFound`` for a choice that chooses none of ``names``, which are all of a state."""
        exact, prefixes = set(self._exact), set(self._prefixes)
        for name in names:
            exact.discard(name)
            prefixes -= {item for item in prefixes if name.startswith(item)}
        if exact or prefixes:
            raise SegmentNotFound(min(exact or {item + "*" for item in prefixes}))

    def takes_table(self, namespace: str) -> bool:
        """Whether rows of a table may come along. Of the reserved ones: what they say is true in the other container, too."""
        if namespace.startswith("!"):
            return namespace == RETENTION_NAMESPACE or (namespace == QUOTA_NAMESPACE and self.is_everything)
        return self.is_everything or namespace == _OFFLOAD

    def takes_row(self, namespace: str, key: bytes, value: bytes, view: MetadataView) -> bool:
        """Whether a row of such a table does: of a part, what speaks only of segments that come. Raises ``Damaged``."""
        if self.is_everything:
            return True
        if namespace == RETENTION_NAMESPACE:
            if key[:1] == b"*":
                return False
            names = {key[1:].decode("utf-8", "replace")}
        else:
            names = _named_by(key, value)
        return all(self.takes(name) and view.get(segment_key(name)) is not None for name in names)


def _named_by(key: bytes, value: bytes) -> set[str]:
    """The segments that the row of a ledger speaks of. Raises ``Damaged``."""
    from chunkstore.pulsar.contexts import decode_context

    context = decode_context(key, value)
    return {context.data, context.index_segment} if context.complete else {context.data}


class Selection:
    """The rows of one choice in one view; iterate once. What it counts is complete at the end of the iteration."""

    def __init__(self, view: MetadataView, chosen: NameFilter) -> None:
        self._view = view
        self._chosen = chosen
        self.segments: int = 0
        self.chunks: int = 0
        self.chunk_bytes: int = 0
        self._expected = 0

    def __iter__(self) -> Iterator[Pair]:
        """Raises ``SegmentNotFound`` and ``LedgerNotFound`` (nothing is as chosen), ``Damaged`` (rows that do not add up)."""
        yield from self._everything() if self._chosen.is_everything else self._part()
        if self.chunks != self._expected:
            raise Damaged(
                f"{self.chunks} chunks were found, but the segments have {self._expected}; run check, and export only a sound container",
                object="chunk rows",
            )

    def _count(self, segment: SegmentRecord) -> None:
        self.segments += 1
        self._expected += segment.chunk_count
        self.chunk_bytes += segment.length - segment.start_offset + segment.first_chunk_skip

    def _everything(self) -> Iterator[Pair]:
        view = self._view
        dead, ended = _garbage(view)
        chunks = 0  # a million rows pass here: nothing is asked of each that need not be
        rows = view.scan(CHUNK, after_all(CHUNK))
        for pair in (row for row in rows if row[0][1:] not in dead) if dead else rows:
            chunks += 1
            yield pair
        self.chunks = chunks
        for pair in view.scan(SEGMENT, after_all(SEGMENT)):
            self._count(decode_segment(pair[0][1:].decode("utf-8", "replace"), pair[1]))
            yield pair
        for pair in view.scan(TABLE, after_all(TABLE)):
            if not _is_dead(pair[0], dead, ended):
                yield pair

    def _part(self) -> Iterator[Pair]:
        view = self._view
        chosen = self._chosen.with_topic(view)
        every = view.scan(VISIBLE_SEGMENTS, after_all(SEGMENT))
        rows = [(key, raw) for key, raw in every if chosen.takes(key[1:].decode("utf-8", "replace"))]
        segments = [decode_segment(key[1:].decode("utf-8", "replace"), raw) for key, raw in rows]
        chosen.check(key[1:].decode("utf-8", "replace") for key, _ in rows)
        ids = sorted(identity for segment in segments for _, identity, _ in walk(view.get, segment))
        for identity in ids:
            self.chunks += 1
            yield chunk_key(identity), _found(view, chunk_key(identity))
        for segment in segments:
            self._count(segment)
        yield from rows
        # Namespaces in the order of their keys, the shorter ones first.
        tables = [
            (BLOCKS_NAMESPACE, (pair for identity in ids for pair in view.scan(*block_range(identity)))),
            (_OFFLOAD, _rows_of(view, _OFFLOAD, chosen)),
            (WRITERS_NAMESPACE, (pair for known in sorted(s.id for s in segments) for pair in view.scan(*writer_range(known)))),
            (RETENTION_NAMESPACE, _rows_of(view, RETENTION_NAMESPACE, chosen)),
        ]  # fmt: skip
        for _, pairs in sorted(tables, key=lambda item: table_prefix(item[0])):
            yield from pairs


def _rows_of(view: MetadataView, namespace: str, chosen: NameFilter) -> Iterator[Pair]:
    prefix = table_prefix(namespace)
    for key, raw in view.scan(prefix, after_all(prefix)):
        if chosen.takes_row(namespace, key[len(prefix) :], decode_table(key, raw).value, view):
            yield key, raw


def after_all(prefix: bytes) -> bytes:
    """What is above all keys that begin so: no prefix here ends with the last of all bytes."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def _found(view: MetadataView, key: bytes) -> bytes:
    raw = view.get(key)
    if raw is None:
        raise Damaged("a row has disappeared; delete the cache and open again", object=f"metadata row {key!r}")
    return raw


def _garbage(view: MetadataView) -> tuple[set[bytes], set[bytes]]:
    """The chunks in garbage ranges, and the ids of segments that ended with them, as in keys. Raises ``Damaged``."""
    dead, ended = set[bytes](), set[bytes]()
    for key, raw in view.scan(GARBAGE, after_all(GARBAGE)):
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
