"""What ``check`` finds in the journal: the invariants of streams, records and snapshots, of pins and extents, and of a whole replay.

Promises: reads only; what is found counts if a second look finds it again, for a collector or a take-over may be at work meanwhile.
Leaves out: the invariants themselves (``inspect``, ``pin_check``, ``cut_check``, ``replay_check``).
"""

from __future__ import annotations

from collections.abc import Callable

from chunkstore.metadata.port import Head, MetadataCache, MetadataView
from chunkstore.records.invariants import Finding
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkStorage
from chunkstore_journal.cut_check import check_places
from chunkstore_journal.history import open_streams
from chunkstore_journal.inspect import check_journal
from chunkstore_journal.pin_check import check_pinned
from chunkstore_journal.replay_check import check_replay

__all__ = ["journal_findings"]

_SEVERITY = {"error": "damage", "warning": "warning"}


def journal_findings(
    storage: ChunkStorage,
    names: ContainerNames,
    scratch: Callable[[], MetadataCache],
    level: str,
    view: MetadataView,
    pinned_lsn: int | None,
    memory: Head | None = None,
) -> list[Finding]:
    """The journal's own invariants (1 to 6, 11, 12, 25, 28, 30, 37, 39; ``deep``: 10 and all of 11), for ``check``.

    ``view``: of the rows in use; ``scratch`` makes a cache for a replay; ``memory``: where the cache of an owner on this machine is.
    """

    def stored() -> list[Finding]:
        streams = open_streams(storage, names)
        pinned = check_pinned(streams, pinned_lsn) if pinned_lsn else ()
        return [
            _finding(*item)
            for item in (*check_journal(streams, view.head, memory), *pinned, *check_places(streams, view))
        ]

    def replayed() -> list[Finding]:
        room = scratch()
        try:
            return [_finding(*item) for item in check_replay(open_streams(storage, names), room)]
        finally:
            room.close()

    found = _found_twice(stored)
    if level == "deep":
        known = {(item.invariant, item.object) for item in found}
        found += [item for item in _found_twice(replayed) if (item.invariant, item.object) not in known]
    return found


def _finding(invariant: int, severity: str, object: str, position: int, message: str) -> Finding:
    return Finding(invariant, _SEVERITY[severity], "", "", object, position, message)


def _found_twice(look: Callable[[], list[Finding]]) -> list[Finding]:
    found = look()
    if found:
        again = {(item.invariant, item.object) for item in look()}
        found = [item for item in found if (item.invariant, item.object) in again]
    return found
