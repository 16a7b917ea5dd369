"""What is kept of a container, or shows its past, beside what its history was at that very record.

Promises: ``shown_state`` reads all that users can see; ``differences`` compares it, by segment and row, with the state that the history of
calls led to, and attributes with the rows that the storage held. Leaves out: who keeps what, and when (``tests.simulator.keepers``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import TABLE, writer_key
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.exactly_once import decode_writer_row
from chunkstore.replica import Replica
from tests.judges.past_states import StateAt
from tests.judges.segment_model import RETENTION, Key, Segment
from tests.judges.stored_records import SEGMENT_FIELDS, decode_row

__all__ = ["Projected", "Shown", "ShownSegment", "differences", "shown_state"]

_ALL = 1 << 24
_UNSHOWN = ("!writers", "!blocks", "!repair", "!scrub")
"""Tables of the product's own, which no call of a client changes by name."""


class ShownSegment(NamedTuple):
    """What readers learn of a segment; ``data`` None: its bytes are gone, as they may be; ``events``: the last one of each writer."""

    start: int
    length: int
    sealed: bool
    data: bytes | None
    events: Mapping[str, tuple[int, int]]
    attributes: Mapping[str, Any]


class Shown(NamedTuple):
    """What something showed of the state at ``lsn``. ``rows``: by namespace and key, values and versions."""

    what: str
    lsn: int
    hash: bytes
    segments: dict[str, ShownSegment]
    rows: dict[tuple[str, bytes], tuple[bytes, int]]


def shown_state(
    shown: ChunkedSegmentStorage | Replica,
    what: str,
    writers: tuple[str, ...],
    *,
    data: bool = True,
    point: tuple[int, bytes] | None = None,
) -> Shown:
    """Read it. ``point``: of which record it is to be the state, if that is not its own. Raises what reading raises."""
    segments: dict[str, ShownSegment] = {}
    for info in [*shown.segments()]:
        content = shown.read(info.name, info.start_offset, _ALL) if data else None
        events = shown.look(lambda view, known=info.id: dict(_events(view, known, writers)))  # type: ignore[misc]
        segments[info.name] = ShownSegment(
            info.start_offset, info.length, info.sealed, content, events, dict(info.attributes)
        )
    rows, head = shown.look(lambda view: (dict(_rows(view)), view.head))
    return Shown(what, *(point or head.position[:2]), segments, rows)


def _events(view: MetadataView, segment_id: int, writers: tuple[str, ...]) -> Iterator[tuple[str, tuple[int, int]]]:
    for writer in writers:
        raw = view.get(writer_key(segment_id, writer.encode()))
        if raw is not None:
            yield writer, decode_writer_row(writer, raw)


def _rows(view: MetadataView) -> Iterator[tuple[tuple[str, bytes], tuple[bytes, int]]]:
    for key, raw in view.scan(TABLE, bytes((TABLE[0] + 1,))):
        namespace = key[2 : 2 + key[1]].decode()
        if namespace not in _UNSHOWN:
            record = decode_table(key, raw)
            yield (namespace, key[2 + key[1] :]), (record.value, record.version)


class Projected:
    """Some segments of a state, as a new container has them: ``chosen`` by name, or by a prefix with ``*`` after it."""

    def __init__(self, state: StateAt, chosen: tuple[str, ...]) -> None:
        self._names = [name for name in state.names() if name[:1] != "\0" and _takes(chosen, name)]
        self._values: dict[Key, Any] = {name: state.get(name) for name in self._names}
        policies = {(RETENTION, b"=" + name.encode()) for name in self._names}
        self._values |= {key: state.get(key) for key in state.changed() if key in policies}

    def get(self, key: Key) -> Any:
        """As ``StateAt``."""
        return self._values.get(key)

    def changed(self) -> Iterator[Key]:
        """As ``StateAt``."""
        return iter(self._values)

    def names(self) -> Iterator[str]:
        """As ``StateAt``."""
        return iter(self._names)


def _takes(chosen: tuple[str, ...], name: str) -> bool:
    return any(name.startswith(item[:-1]) if item.endswith("*") else name == item for item in chosen)


def differences(shown: Shown, state: StateAt | Projected, rows: Mapping[bytes, bytes], *, versions: bool) -> list[str]:
    """What is shown otherwise than it was. ``rows``: of the metadata at that record; ``versions``: whether those of rows are the same."""
    found = []
    expected = {name: state.get(name) for name in state.names() if name[:1] != "\0"}
    if expected.keys() != shown.segments.keys():
        found.append(f"the segments are {sorted(shown.segments)}, they were {sorted(expected)}")
    for name in expected.keys() & shown.segments.keys():
        was, item = _was(expected[name], rows[b"S" + name.encode()]), shown.segments[name]
        if item.data is None:
            was = was._replace(data=None)
        if was != item:
            found.append(f"segment {name!r} is {item}, it was {was}")
    keys = {key for key in state.changed() if isinstance(key, tuple)}
    before = {key: row for key in keys if (row := state.get(key)) is not None}
    after: Mapping[Any, Any] = shown.rows
    if not versions:
        before, after = ({key: row[0] for key, row in rows.items()} for rows in (before, after))
    if before != after:
        found.append(f"the rows are {after}, they were {before}")
    return found


def _was(segment: Segment, raw: bytes) -> ShownSegment:
    """The fields of a segment's row are as in the metadata's FORMAT.md, without its versions."""
    flat = decode_row(raw, SEGMENT_FIELDS)[12]
    length = segment.content.length
    return ShownSegment(
        segment.start,
        length,
        segment.sealed,
        segment.content.slice(segment.start, length),
        {writer: (number, offset) for writer, number, offset in segment.writers},
        dict(zip(flat[::2], flat[1::2], strict=True)),
    )
