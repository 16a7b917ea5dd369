"""What is looked at before anything is merged into a container that works, and what becomes of a merge that nobody goes on with.

Promises: a clash of names, or of rows that say different things, is told with all the names before anything is changed. A merge is known
by its id, which the state and the plan make: the same call goes on with it. A dropped one leaves garbage behind, that collections take.
Leaves out: the steps (``importing``).
"""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Final, NamedTuple

from chunkstore.backup.survey import Source, rows_behind, segments_behind
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import Conflict, InvalidArgument
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.importing import ImportPhase, Origin, find_merge, hidden_name, scan_forgotten, scan_merges
from chunkstore.metadata.keys import RETENTION_NAMESPACE, segment_key, table_key
from chunkstore.metadata.port import MetadataView
from chunkstore.replica import Replica

__all__ = ["PendingImport", "merge_id", "pending_imports", "require_room"]

_SHOWN: Final = 10


class PendingImport(NamedTuple):
    """An import into a container that works, which has not ended: it goes on with the call that began it, or is dropped by its ``id``.
    ``lsn`` of container ``container`` (16 bytes): what it takes in. ``phase``: segments, names, tables or dropped; "forgotten" of what a
    repair has left without saying what it is of."""

    id: str
    container: bytes
    lsn: int
    phase: str


def pending_imports(store: ChunkedSegmentStorage | Replica) -> list[PendingImport]:
    """The imports into a container that have not ended. Raises ``Damaged``, and as ``info``. Retry: safe."""

    def look(view: MetadataView) -> list[PendingImport]:
        found = [
            PendingImport(key.hex(), mark.origin.container, mark.origin.lsn, mark.phase.name.lower())
            for key, mark in scan_merges(view)
        ]
        return found + [PendingImport(key.hex(), b"", 0, "forgotten") for key in scan_forgotten(view)]

    return store.look(look)


def merge_id(origin: Origin) -> bytes:
    """The id of the import of a state by a plan, both of which its origin tells apart."""
    return blake2b(origin.container + origin.lsn.to_bytes(8, "big") + origin.hash, digest_size=16).digest()


def require_room(store: ChunkedSegmentStorage | Replica, source: Source, identity: bytes) -> None:
    """Look whether everything has room in a container that works. An import that was begun has what it has taken in already.

    Raises ``InvalidArgument`` (names that are taken), ``Conflict`` (the import is being dropped; a row of a table says something else).
    """
    found, fetch = store.look(partial(find_merge, identity=identity)), store.read_context.fetch
    phase = ImportPhase.SEGMENTS if found is None else found[0].phase
    if phase is ImportPhase.DROPPED:
        text = f"to go on; 'chunkstore import drop ROOT {identity.hex()}' ends that"
        raise Conflict("this import", expected=text, found="being dropped")
    after = ""
    while phase is not ImportPhase.TABLES:
        names = source.look(partial(_names_behind, source, after))
        if not names:
            break
        after = names[-1]
        if fetch is not None:
            for name in names:
                fetch(source.plan.target(name))  # its header file may be at the root
        taken = store.look(partial(_taken, source, names, identity, begun=phase is ImportPhase.NAMES))
        if taken:
            first = ", ".join(repr(name) for name in taken[:_SHOWN])
            text = f"the container has segments of these names already: {first}{', ...' if len(taken) > _SHOWN else ''}. Nothing was done; "
            raise InvalidArgument(text + "give them others (--rename OLD=NEW, --prefix P)", argument="rename")
    key = b""
    while rows := source.look(partial(rows_behind, source, key)):
        key = rows[-1].position
        for row in rows:
            there = store.look(lambda view, row=row: view.get(table_key(row.namespace, row.key)))  # type: ignore[misc]
            if there is not None and row.namespace != RETENTION_NAMESPACE:
                value = decode_table(f"table {row.namespace}", there).value
                if value != row.value:
                    what = f"table {row.namespace!r}, key {row.key!r}"
                    raise Conflict(
                        what,
                        expected="no row, or the same (import single segments to leave tables out)",
                        found="another one",
                    )


_PAGE: Final = 1_000


def _names_behind(source: Source, after: str, view: MetadataView) -> list[str]:
    return [segment.name for segment in islice(segments_behind(view, after, source.plan), _PAGE)]


def _taken(source: Source, names: list[str], identity: bytes, view: MetadataView, *, begun: bool) -> list[str]:
    """Which of the names are taken; where names are ``begun`` to be given, by others than this import."""
    found = []
    for name in names:
        hidden = not begun or view.get(segment_key(hidden_name(identity, name))) is not None
        if hidden and view.get(segment_key(source.plan.target(name))) is not None:
            found.append(source.plan.target(name))
    return found
