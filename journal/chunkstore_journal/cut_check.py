"""Whether the extents of a state lie in front of the cuts that the OPENs of its history have made (invariant 37).

Promises: reads only; an OPEN that cannot be read is another finding's. What a record says of the streams before its own is believed until
somebody compares it, as here. Leaves out: whether the bytes are there (``chunkstore.operations.check``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from chunkstore.errors import Damaged
from chunkstore.metadata.codec import decode_extent
from chunkstore.metadata.inline_index import all_extents
from chunkstore.metadata.keys import chunk_key
from chunkstore.metadata.port import MetadataView, Position
from chunkstore.records.invariants import CUTS
from chunkstore.records.names import parse_place
from chunkstore_journal.history import Streams
from chunkstore_journal.inspect import Finding

__all__ = ["check_places"]


def check_places(streams: Streams, view: MetadataView) -> Iterator[Finding]:
    """Findings of invariant 37 about the extents of ``view``. Raises ``StorageUnavailable``."""
    cuts: _Cuts | None = None
    for identity in all_extents(view):
        row = decode_extent(view.get(chunk_key(identity)) or b"")
        place = None if row is None else parse_place(row[0])
        if row is None or place is None:
            continue
        cuts = cuts or _read_cuts(streams, view.head.position)
        (epoch, index), (name, offset, length, *_) = place, row
        if epoch not in cuts.epochs or index == 0:
            continue  # slot 0 is in front of every cut
        end_index, end_byte = cuts.ends.get(epoch, (0, 0))
        if index >= end_index if index is not None else offset + length > end_byte:
            what = f"an extent of {length} bytes, which is at or after the cut of its stream"
            yield Finding(CUTS, "error", streams.names.place(name), offset, what)


class _Cuts(NamedTuple):
    epochs: range
    """What the streams of these epochs hold is judged: others have no cut yet, or it cannot be read."""
    ends: dict[int, tuple[int, int]]
    """The first index and byte that is not in history; a stream that is not here is no part of it."""


def _read_cuts(streams: Streams, at: Position) -> _Cuts:
    """What the OPENs say that are part of history up to ``at``."""
    ends: dict[int, tuple[int, int]] = {}
    epoch = newest = at.epoch
    with suppress(Damaged):
        while epoch:
            payload = streams.opened(epoch).payload
            if epoch == at.epoch and not at.index:
                newest = payload.previous_epoch  # the record that it embeds is, and itself is not
            else:
                ends[payload.previous_epoch] = payload.end_index, payload.end_byte
            epoch = payload.previous_epoch
    return _Cuts(range(epoch, newest), ends)
