"""Rows of reserved table namespaces: block borders, retention policies, the quota, where scrubbing is, progress of sinks (FORMAT.md).

Promises
* Readers of borders believe no grid: borders are where the rows say, and what is between two neighbours is a block.
* A segment's own retention policy goes before those of prefixes, and a longer prefix before a shorter one.
* A scrubbing position is a place in a segment's bytes, so it means the same after chunks were merged, truncated or deleted.
* A sink's row is put by the very commit that it speaks of, so reading it tells whether that has happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain
from struct import Struct, unpack_from
from typing import Any, Final, NamedTuple

from chunkstore.config import LIMITS, RetentionPolicy
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import (
    QUOTA_KEY,
    RETENTION_NAMESPACE,
    SCRUB_KEY,
    SEGMENT,
    VISIBLE_SEGMENTS,
    block_key,
    block_range,
    table_key,
    table_prefix,
)
from chunkstore.metadata.port import MetadataView
from chunkstore.records.blocks import Borders, in_rows, is_one_block, stretch_at
from chunkstore.records.names import check_segment_name, utf8_bytes
from chunkstore.records.reports import ScrubMark, ScrubPosition
from chunkstore.records.segments import ChunkRecord, TableRecord

__all__ = [
    "BEGINNING",
    "JOB",
    "STREAM",
    "Policies",
    "ScrubMark",
    "ScrubPosition",
    "SinkRow",
    "add_borders",
    "border_rows",
    "decode_mark",
    "decode_policy",
    "decode_sink",
    "encode_mark",
    "encode_policy",
    "encode_quota",
    "encode_sink",
    "find_borders",
    "find_mark",
    "find_quota",
    "keys_of",
    "last_row_key",
    "pattern_key",
    "scan_policies",
    "sink_key",
    "unnamed_key",
]

_VERSION = 1
_NUMBER_MAX = (1 << 63) - 1


def _fields(layout: Struct, version: int, value: bytes) -> tuple[Any, ...] | None:
    """What follows the version, and the bytes after that; None: another version, or too short."""
    if len(value) < layout.size or value[0] != version:
        return None
    return (*layout.unpack_from(value)[1:], value[layout.size :])


def _name_in(rest: bytes) -> str | None:
    """The name that a row ends with; None: it is none."""
    name = rest.decode("utf-8", "replace")
    return name if len(rest) <= LIMITS.segment_name_bytes_max and name.encode() == rest else None


def _damaged(what: str, key: bytes, remedy: str = "") -> Damaged:
    return Damaged(f"not {what} of a known version{remedy}", object=f"metadata row {key!r}")


# Block borders

_BLOCKS = Struct(">BQQ")
_CRC = Struct(">I")


def add_borders(identity: bytes, row: bytes, passed: Iterable[tuple[int, int]]) -> dict[bytes, TableRecord]:
    """The rows with the borders ``passed`` (and their CRCs, ascending) added. ``row``: the value of the chunk's last row, or nothing."""
    rows: dict[bytes, TableRecord] = {}
    for border, crc in passed:
        stretch = stretch_at(border)
        if border == stretch.start or not row:
            row = _BLOCKS.pack(_VERSION, border, stretch.step)
        row += _CRC.pack(crc)
        rows[block_key(identity, stretch.stop)] = TableRecord(0, row)
    return rows


def border_rows(identity: bytes, borders: Borders) -> dict[bytes, TableRecord]:
    """The rows of a chunk that has all its bytes, and these borders from its first byte to its end, on whatever grids."""
    if len(borders.at) == 2:
        return {}  # one block: most chunks of an import are
    rows = [
        _BLOCKS.pack(_VERSION, start, step) + b"".join(map(_CRC.pack, crcs)) for start, step, crcs in in_rows(borders)
    ]
    stops = [*(start for start, _, _ in in_rows(borders)), borders.at[-1]][1:]
    return {block_key(identity, stop): TableRecord(0, row) for stop, row in zip(stops, rows, strict=True)}


def last_row_key(identity: bytes, length: int) -> bytes:
    """Key of the row of the last border of a new chunk of ``length`` bytes, if it has one."""
    return block_key(identity, stretch_at(max(0, length - 1)).stop)


def find_borders(view: MetadataView, identity: bytes, chunk: ChunkRecord, low: int, high: int) -> Borders | None:
    """The borders of the blocks of ``chunk`` that hold ``[low, high)``, which is not empty.

    None where nothing verifies these bytes alone: the chunk has no borders, and they are not all of it. Raises ``Damaged`` (a row).
    """
    at, crcs = [0], [0]
    for key, raw in view.scan(*block_range(identity, low)):
        start, step, count, value = _decode_block(key, raw)
        # From the last border that is not above ``low``, or from the row's first, to the first that is not below ``high``.
        first = max(0, min((low - start) // step, count - 1))
        stop = min(count, max(first + 1, (high - start - 1) // step + 2))
        if start <= low:
            at, crcs = [], []
        elif start + first * step <= at[-1]:
            raise _disorder(identity)
        at += range(start + first * step, start + stop * step, step)
        crcs += unpack_from(f">{stop - first}I", value, _BLOCKS.size + first * _CRC.size)
        if at[-1] >= high:
            break
    else:
        is_part = at == [0] and high - low < chunk.length and not is_one_block(chunk.length)
        if chunk.crc32c is None or is_part:
            return None
        if at[-1] >= chunk.length:
            raise _disorder(identity)
        at.append(chunk.length)
        crcs.append(chunk.crc32c)
    if at[-1] > chunk.length:
        raise _disorder(identity)
    return Borders(at, crcs)


def _disorder(identity: bytes) -> Damaged:
    return Damaged("its borders do not ascend, or are outside the chunk", object=f"block row of chunk {identity.hex()}")


def _decode_block(key: bytes, raw: bytes) -> tuple[int, int, int, bytes]:
    """Start, step and number of borders of a row, and its value. Raises ``Damaged``."""
    value = decode_table(key, raw).value
    count, rest = divmod(len(value) - _BLOCKS.size, _CRC.size)
    if count < 1 or rest or value[0] != _VERSION:
        raise _damaged("a block row", key)
    _, start, step = _BLOCKS.unpack_from(value)
    if not 0 < step < 1 << 62 or not 0 < start < 1 << 62:
        raise Damaged("a block row's start or step cannot be", object=f"metadata row {key!r}")
    return start, step, count, value


# Retention policies, and the quota

_POLICY = Struct(">BQQ")
_QUOTA = Struct(">BQ")
_NONE = 0
_SIZE_MAX = 1 << 62
_AGE_MS_MAX = 10**13
_OF_PREFIX, _OF_NAME = b"*", b"="
_PREFIX_BYTES_MAX = 255
_TABLE = table_prefix(RETENTION_NAMESPACE)


def encode_policy(policy: RetentionPolicy) -> bytes:
    """The value of a policy's row."""
    return _POLICY.pack(_VERSION, policy.size_bytes_max or _NONE, policy.age_ms_max or _NONE)


def decode_policy(key: bytes, raw: bytes) -> RetentionPolicy:
    """The policy in a row. Raises ``Damaged``: what cannot be read gives nothing up."""
    size, age_ms, rest = _fields(_POLICY, _VERSION, decode_table(key, raw).value) or (0, 0, b"")
    if rest or not (size or age_ms) or size > _SIZE_MAX or age_ms > _AGE_MS_MAX:
        raise _damaged("a retention policy", key, "; set it again")
    return RetentionPolicy(size_bytes_max=size or None, age_s_max=age_ms / 1000 if age_ms else None)


def encode_quota(quota_bytes: int) -> bytes:
    """The value of the quota's row. Raises ``InvalidArgument``."""
    if isinstance(quota_bytes, bool) or not isinstance(quota_bytes, int) or not 0 < quota_bytes <= _SIZE_MAX:
        raise InvalidArgument(f"quota_bytes is 1 to {_SIZE_MAX}, not {quota_bytes!r}", argument="quota_bytes")
    return _QUOTA.pack(_VERSION, quota_bytes)


def find_quota(view: MetadataView) -> int | None:
    """The stored quota in bytes, or None. Raises ``Damaged``."""
    raw = view.get(QUOTA_KEY)
    if raw is None:
        return None
    quota_bytes, rest = _fields(_QUOTA, _VERSION, decode_table(QUOTA_KEY, raw).value) or (0, b"")
    if rest or not 0 < quota_bytes <= _SIZE_MAX:
        raise _damaged("a quota", QUOTA_KEY, "; set it again")
    return int(quota_bytes)


def pattern_key(pattern: str) -> bytes:
    """The key, within the namespace, of a segment's policy, or of a prefix's: a name that ends with ``*``. Raises ``InvalidArgument``."""
    if not isinstance(pattern, str) or not pattern.endswith("*"):
        check_segment_name(pattern, "name_or_prefix")
        return _OF_NAME + pattern.encode()
    prefix = pattern[:-1]
    if not 0 <= utf8_bytes(prefix) <= _PREFIX_BYTES_MAX or "\0" in prefix:
        text = (
            f"a prefix has at most {_PREFIX_BYTES_MAX} bytes of UTF-8 in front of its '*', and no NUL: not {pattern!r}"
        )
        raise InvalidArgument(text, argument="name_or_prefix")
    return _OF_PREFIX + prefix.encode()


def keys_of(name: str) -> Iterator[bytes]:
    """The keys of all rows that may hold the policy of a segment, or come to."""
    encoded = name.encode()
    yield table_key(RETENTION_NAMESPACE, _OF_NAME + encoded)
    for length in range(min(len(encoded), _PREFIX_BYTES_MAX) + 1):
        yield table_key(RETENTION_NAMESPACE, _OF_PREFIX + encoded[:length])


def scan_policies(view: MetadataView) -> Iterator[tuple[str, RetentionPolicy]]:
    """All policies with the names or prefixes that they are of: prefixes first, then names, each in order. Raises ``Damaged``."""
    for key, raw in view.scan(_TABLE, _TABLE + b"\xff"):
        kind, text = key[len(_TABLE) : len(_TABLE) + 1], key[len(_TABLE) + 1 :].decode("utf-8", "replace")
        if kind not in (_OF_PREFIX, _OF_NAME):
            raise Damaged("not the key of a retention policy", object=f"metadata row {key!r}")
        yield text + ("*" if kind == _OF_PREFIX else ""), decode_policy(key, raw)


class Policies:
    """The policies that a view shows. Reads those of prefixes, which are few, at once. Raises ``Damaged``."""

    def __init__(self, view: MetadataView) -> None:
        self._view = view
        start = _TABLE + _OF_PREFIX
        rows = view.scan(start, start + b"\xff")
        self._prefixes = {key[len(start) :]: decode_policy(key, raw) for key, raw in rows}
        self._lengths = sorted({len(prefix) for prefix in self._prefixes}, reverse=True)

    def of(self, name: bytes) -> RetentionPolicy:
        """The policy of the segment of this name, which is one of ``names``. Raises ``Damaged``."""
        found = self.find(name)
        assert found is not None
        return found

    def find(self, name: bytes) -> RetentionPolicy | None:
        """The policy of any segment, or None. Raises ``Damaged``."""
        key = table_key(RETENTION_NAMESPACE, _OF_NAME + name)
        raw = self._view.get(key)
        if raw is not None:
            return decode_policy(key, raw)
        return next((found for length in self._lengths if (found := self._prefixes.get(name[:length]))), None)

    def names(self, after: bytes | None) -> Iterator[bytes]:
        """In order, each once, the names above ``after`` of segments with a policy; those of policies whose segment is not there, too."""
        below = chain.from_iterable(self._below(prefix, after) for prefix in self._outermost())
        before: bytes | None = None
        for name in merge(self._own(after), below):
            if name != before:
                yield name
            before = name

    def _own(self, after: bytes | None) -> Iterator[bytes]:
        base = _TABLE + _OF_NAME
        for key, _ in self._view.scan(base if after is None else base + after + b"\0", base + b"\xff"):
            yield key[len(base) :]

    def _below(self, prefix: bytes, after: bytes | None) -> Iterator[bytes]:
        base = SEGMENT + prefix
        start = max(base, VISIBLE_SEGMENTS, b"" if after is None else SEGMENT + after + b"\0")
        for key, _ in self._view.scan(start, base + b"\xff"):
            yield key[len(SEGMENT) :]

    def _outermost(self) -> Iterator[bytes]:
        outer: bytes | None = None
        for prefix in sorted(self._prefixes):
            if outer is None or not prefix.startswith(outer):
                outer = prefix
                yield prefix


# Where scrubbing is

_SCRUB = Struct(">BQQ")
BEGINNING: Final = ScrubPosition("", 0)


def encode_mark(mark: ScrubMark) -> bytes:
    """The value of the row."""
    return _SCRUB.pack(_VERSION, mark.began_ms, mark.position.offset) + mark.position.segment.encode()


def decode_mark(raw: bytes) -> ScrubMark:
    """What the row says. Raises ``Damaged``."""
    fields = _fields(_SCRUB, _VERSION, decode_table(SCRUB_KEY, raw).value)
    if fields is not None:
        began_ms, offset, rest = fields
        name = _name_in(rest)
        if name is not None and "\0" not in name and (name or not offset) and max(offset, began_ms) <= _NUMBER_MAX:
            return ScrubMark(ScrubPosition(name, offset), began_ms)
    raise _damaged("a scrubbing position", SCRUB_KEY)


def find_mark(view: MetadataView) -> ScrubMark | None:
    """Where a pass is, or that it has ended. None: there is no row, or it cannot be read, and scrubbing begins anew."""
    raw = view.get(SCRUB_KEY)
    try:
        return None if raw is None else decode_mark(raw)
    except Damaged:
        return None


# Progress of writers outside the owner

_SINK = Struct(">BBQ16s16s16s16s")
_SINK_VERSION = 2
STREAM: Final = b"s"
"""What the key of a stream's row begins with; its sink id follows."""
JOB: Final = b"j"
"""... of the row of batch writes; their application's id follows."""
_UNNAMED: Final = b"u"
"""... of the rows that batch writes without such an id share; one byte follows."""


class SinkRow(NamedTuple):
    """What was committed last: ``number`` is the micro-batch's, or the version that the application gave; ``container`` the uuid of that
    which it was written to; ``query`` the streaming query's id; ``run`` a digest of the query's run, or of what an offload has written so
    far; ``token`` random; ``content`` what the rows of commit ``number`` were: their count and the sum of their CRC32Cs (u64be each)."""

    number: int
    container: bytes
    run: bytes
    token: bytes
    query: str = ""
    content: bytes = bytes(16)


def sink_key(kind: bytes, name: bytes) -> bytes:
    """The key of a row: ``name`` is at most 255 bytes."""
    return kind + name


def unnamed_key(session_id: int) -> bytes:
    """The key of the row of a session that belongs to no application and no stream."""
    return sink_key(_UNNAMED, bytes((session_id & 0xFF,)))


def encode_sink(row: SinkRow) -> bytes:
    """The value of a row."""
    return _SINK.pack(_SINK_VERSION, 0, row.number, row.container, row.run, row.token, row.content) + row.query.encode()


def decode_sink(key: bytes, value: bytes) -> SinkRow:
    """What a row says. Raises ``Damaged``, also for one of a version that is not known."""
    fields = _fields(_SINK, _SINK_VERSION, value)
    if fields is not None:
        flags, number, container, run, token, content, rest = fields
        query = _name_in(rest)
        if not flags and number <= _NUMBER_MAX and query is not None:
            return SinkRow(number, container, run, token, query, content)
    raise Damaged("not a sink's row of a known version", object=f"metadata row !sinks {key!r}")
