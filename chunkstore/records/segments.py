"""The records of metadata: what a segment, a chunk, a range of garbage, a table row, a session and a pin are.

Promises: records are immutable; "no chunk" is ``NO_CHUNK`` (empty bytes); all ranges are half-open; lengths and offsets
are bytes. They are named tuples because the commit path makes two of them per append. ``extra`` carries fields that a
newer minor version added after ours, so that a rewrite by this version keeps them. Leaves out: their bytes
(``metadata.codec``) and their meaning for the chunk list (``invariants``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

__all__ = [
    "ACTIVE",
    "CLOSED",
    "FLAG_SEALED",
    "KIND_INLINE",
    "KIND_OBJECT",
    "AttributeValue",
    "ChunkRecord",
    "Extra",
    "GarbageRecord",
    "LayoutChunk",
    "OpenSession",
    "Pin",
    "PinRecord",
    "SegmentInfo",
    "SegmentRecord",
    "SessionRecord",
    "TableRecord",
    "Usage",
]

AttributeValue: TypeAlias = int | str | bytes
Extra: TypeAlias = tuple[object, ...]
"""Fields of a newer minor version; an alias because ``ChunkRecord`` has a field named ``object``."""

_new = tuple.__new__  # what a NamedTuple's constructor does after its argument handling

FLAG_SEALED: Final = 1
ACTIVE: Final = 1
CLOSED: Final = 2
"""Growing without a record for each append: the chunk's record holds a lower bound of what is acknowledged (protocol 3.10)."""
KIND_OBJECT: Final = 1
KIND_INLINE: Final = 2
"""An *extent*: bytes inside a record of our own journal, which alone deletes them; closed, and one block at most."""


class SegmentRecord(NamedTuple):
    """One segment.

    ``last_chunk_offset``: segment offset where the last chunk's first byte is. ``first_chunk_skip``: bytes of the
    first chunk that are below ``start_offset``. ``length`` is the end offset (it never shrinks); the readable bytes are
    ``[start_offset, length)``. ``owner_epoch``: the epoch of the last append.
    """

    name: str
    id: int
    flags: int
    start_offset: int
    length: int
    first_chunk: bytes
    last_chunk: bytes
    last_chunk_offset: int
    first_chunk_skip: int
    chunk_size_bytes_max: int
    owner_epoch: int
    chunk_count: int
    attributes: Mapping[str, AttributeValue]
    created_ms: int
    modified_ms: int
    extra: tuple[object, ...] = ()

    @property
    def sealed(self) -> bool:
        return bool(self.flags & FLAG_SEALED)

    def lengthened(self, length: int, owner_epoch: int, modified_ms: int, chunk: bytes) -> SegmentRecord:
        """The record after an append that made a chunk for its bytes. Spelt out as ``grown``."""
        (
            name, id_, flags, start_offset, offset, first, _, _, skip, size_max, _, count, attributes, created_ms, _, extra,
        ) = self  # fmt: skip
        return _new(
            SegmentRecord,
            (
                name, id_, flags, start_offset, length, first or chunk, chunk, offset, skip, size_max, owner_epoch, count + 1,
                attributes, created_ms, modified_ms, extra,
            ),
        )  # fmt: skip

    def grown(self, length: int, owner_epoch: int, modified_ms: int) -> SegmentRecord:
        """The record after an append into its tail chunk. Spelt out, because ``_replace`` costs four times as much per append."""
        (
            name, id_, flags, start_offset, _, first, last, last_offset, skip, size_max, _, count, attributes, created_ms, _, extra,
        ) = self  # fmt: skip
        return _new(
            SegmentRecord,
            (
                name, id_, flags, start_offset, length, first, last, last_offset, skip, size_max, owner_epoch, count,
                attributes, created_ms, modified_ms, extra,
            ),
        )  # fmt: skip


class ChunkRecord(NamedTuple):
    """One chunk of the list. Neither its offset nor its present segment is in it, so that splices stay O(1).

    ``object`` and ``object_offset``: empty and 0, for the name follows from the id; of kind *inline* the journal's object in short
    (``names.journal_place``) and the byte there; empty only until its record is built (``names.confined``). ``crc32c`` covers
    ``length`` bytes; None is unknown. ``state`` ACTIVE means "may grow" only while ``epoch`` is the container's current epoch; else
    it is closed in effect.
    """

    object: str
    object_offset: int
    length: int
    crc32c: int | None
    previous: bytes
    next: bytes
    segment_id: int
    epoch: int
    state: int
    kind: int
    created_ms: int
    extra: Extra = ()

    def grown(self, length: int, crc32c: int) -> ChunkRecord:
        """The record after bytes were appended to the chunk. Spelt out for the same reason as ``SegmentRecord.grown``."""
        name, offset, _, _, previous, following, segment_id, epoch, state, kind, created_ms, extra = self
        return _new(
            ChunkRecord,
            (name, offset, length, crc32c, previous, following, segment_id, epoch, state, kind, created_ms, extra),
        )

    def placed(self, place: str, offset: int) -> ChunkRecord:
        """The record of an extent whose place is known. Spelt out for the same reason as ``SegmentRecord.grown``."""
        _, _, length, crc32c, previous, following, segment_id, epoch, state, kind, created_ms, extra = self
        return _new(
            ChunkRecord,
            (place, offset, length, crc32c, previous, following, segment_id, epoch, state, kind, created_ms, extra),
        )

    def followed(self, following: bytes, state: int) -> ChunkRecord:
        """The record once a chunk was put after it. Spelt out for the same reason as ``SegmentRecord.grown``."""
        name, offset, length, crc32c, previous, _, segment_id, epoch, _, kind, created_ms, extra = self
        return _new(
            ChunkRecord,
            (name, offset, length, crc32c, previous, following, segment_id, epoch, state, kind, created_ms, extra),
        )


class GarbageRecord(NamedTuple):
    """A range of the chunk list that was removed by the commit ``lsn``: from ``first`` by next pointers, ``count`` chunks.

    Chunk rows stay until the collector has deleted the objects; it then drops rows from the front and moves ``first``.
    ``ended_segment_id`` is the segment that ceased to exist with this range (0: none), whose writer rows go too.
    """

    first: bytes
    last: bytes
    count: int  # type: ignore[assignment]  # shadows tuple.count, which is not used on records
    size_bytes: int
    lsn: int
    time_ms: int
    ended_segment_id: int
    extra: tuple[object, ...] = ()


class TableRecord(NamedTuple):
    """One row of ``store.table(namespace)``: ``version`` is the lsn of its last change (0 is never used)."""

    version: int
    value: bytes
    extra: tuple[object, ...] = ()


class SessionRecord(NamedTuple):
    """A writer outside the owner (protocol.md A9). ``expires_ms`` is a label."""

    holder: str
    opened_ms: int
    expires_ms: int
    extra: tuple[object, ...] = ()


class PinRecord(NamedTuple):
    """A position of history that stays restorable (protocol 3.14.7): ``lsn`` is that of the pin's own record, ``time_ms`` its label.

    ``lasts_ms``: it ends so long after that at the earliest; 0: only when it is removed.
    """

    lsn: int
    time_ms: int
    lasts_ms: int
    holder: str
    note: str
    extra: Extra = ()


class Pin(NamedTuple):
    """What ``pin`` and ``pins`` answer. Times are milliseconds since 1970; ``expires_at`` None: it stays until ``unpin``.

    What the metadata said at ``lsn`` stays restorable while the pin is there. ``holder``: host and process that asked for it.
    """

    name: str
    lsn: int
    holder: str
    note: str
    created_at: int
    expires_at: int | None


class OpenSession(NamedTuple):
    """What ``sessions`` answers of an open session. Times are milliseconds since 1970, and labels: a session ends by a commit."""

    id: int
    holder: str
    opened_at: int
    expires_at: int


class SegmentInfo(NamedTuple):
    """What ``info`` and ``segments`` answer. Times are milliseconds since 1970."""

    name: str
    id: int
    start_offset: int
    length: int
    sealed: bool
    chunk_count: int
    owner_epoch: int
    attributes: Mapping[str, AttributeValue]
    created_at: int
    modified_at: int


class Usage(NamedTuple):
    """What ``usage`` answers, in bytes of chunks, journal and snapshots. None: not known, or not of one segment."""

    live_bytes: int
    """Readable: from the start offsets to the lengths."""
    garbage_bytes: int | None
    """Of chunks that left their segment and wait for a collection. Of a segment None: garbage belongs to none."""
    dead_head_bytes: int
    """Of first chunks, below the start offset: they go with their chunk."""
    orphan_bytes: int | None
    """Of chunks that nothing refers to, as of ``orphans_ms``; None until this object has looked (``check("exists")``)."""
    journal_bytes: int | None
    """Of records: those of this owner are counted as they are written, others were listed at ``listed_ms``."""
    snapshot_bytes: int | None
    """As ``journal_bytes``."""
    chunks: int
    """In segments."""
    segments: int
    listed_ms: int | None = None
    """When the journal and the snapshots were listed, in milliseconds since 1970."""
    orphans_ms: int | None = None
    """When the chunks were listed."""
    quota_bytes: int | None = None
    """What live bytes, garbage and dead heads together may take: stored, or of an owner's settings; None: no quota, or not known here."""
    free_bytes: int | None = None
    """Left on a local storage's disk."""
    safe_mode: bool | None = None
    """Whether what adds bytes is refused; None: another process knows, or a container does, not a segment."""
    inline_bytes: int | None = None
    """Of extents, in segments and in garbage: counted above, too; they are in the journal's records until they are spilled or collected."""
    inline_extents: int | None = None
    """How many those are."""
    held_epoch: int | None = None
    """The journal is kept from a record of this epoch on, because it holds extents, or did a moment ago; None: no record does."""
    held_index: int | None = None
    """... of this index; 0 in a log, which is kept or deleted as a whole."""
    open_bytes: int | None = None
    """Of the first records of streams, with the last ones of others that they took over: in the journal's bytes, too, and never deleted. As
    of ``listed_ms``."""


class LayoutChunk(NamedTuple):
    """One chunk as ``layout`` shows it: ``offset`` is the segment offset of the chunk's first byte, which is byte ``object_offset`` of the
    object ``name``: above 0 for bytes in a record of the journal."""

    name: str
    offset: int
    length: int
    crc32c: int | None
    epoch: int
    state: str
    kind: str
    object_offset: int = 0
