"""What there is to do, and how much room is left: the gauges of ``chunkstore.metrics``, read from one view.

Promises: no request to the storage, no scan: totals, the first row of garbage, and the pins, which are few. A row that cannot be
read counts as nothing here; ``check`` names it. Leaves out: what was done (``observer.UpkeepRuns``).
"""

from __future__ import annotations

from contextlib import suppress

from chunkstore import runtime
from chunkstore.errors import Damaged
from chunkstore.metadata.codec import decode_garbage
from chunkstore.metadata.keys import GARBAGE
from chunkstore.metadata.port import MetadataView
from chunkstore.metadata.retained import scan_pins
from chunkstore.operations.container import OwnedContainer
from chunkstore.records.segments import PinRecord

__all__ = ["figures"]


def figures(container: OwnedContainer) -> dict[str, dict[str, float]]:
    """By gauge and part ("" where there is none). Raises as ``OwnedContainer.look``."""
    room = container.space.room(container.current.store)
    found = container.look(_of_rows)
    found["quota_bytes"] = {"": room.quota_bytes or 0}
    found["free_bytes"] = {} if room.free_bytes is None else {"": room.free_bytes}
    extents, found["backlog_bytes"]["spill"] = container.backlog.total()
    found["backlog_appends"] = {"": extents}
    hits, misses, held_bytes = container.tail.counts()
    found |= {"tail_hits": {"": hits}, "tail_misses": {"": misses}, "tail_bytes": {"": held_bytes}}
    found["safe_mode"] = {"": float(bool(room.safe_mode))}
    return found


def _of_rows(view: MetadataView) -> dict[str, dict[str, float]]:
    totals = view.totals
    made_ms = [record.time_ms for _, record in scan_pins(view) if isinstance(record, PinRecord)]
    garbage_ms: list[int] = []
    row = next(view.scan(GARBAGE, bytes((GARBAGE[0] + 1,))), None)  # in the order of removals
    if row is not None:
        with suppress(Damaged):
            garbage_ms.append(decode_garbage(repr(row[0]), row[1]).time_ms)
    return {
        "live_bytes": {"": totals.live_bytes},
        "dead_head_bytes": {"": totals.dead_head_bytes},
        "backlog_bytes": {"collect": totals.garbage_bytes},
        "oldest_garbage_seconds": {"": _age_s(garbage_ms)},
        "pins": {"": len(made_ms)},
        "oldest_pin_seconds": {"": _age_s(made_ms)},
    }


def _age_s(labels_ms: list[int]) -> float:
    return max(0.0, (runtime.now_ms() - min(labels_ms)) / 1000) if labels_ms else 0.0
