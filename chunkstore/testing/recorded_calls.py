"""Where an acknowledged call stands in history H: what ``step_invariants`` holds an acknowledgement against.

Promises: ``lsn_of`` names a record that the call needs; where several could be its own, the first of them, so that whoever asks
whether it was written in time, or is still there, never blames a call for somebody else's record. Records of later epochs than
the one that answered do not count. Leaves out: judging; where lengths are lazy, appends need no record.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from chunkstore.testing.history_model import appended_data
from chunkstore.testing.observed_history import ObservedHistory

__all__ = ["MISSING", "lsn_of"]

MISSING: Final = -1


def lsn_of(
    history: ObservedHistory, call: tuple[str, str, tuple[Any, ...]], result: Any, epoch: int
) -> int | None:  # fmt: skip
    """The lsn that an acknowledged call of an owner of ``epoch`` has in H; None where it need not have one, ``MISSING`` where it must."""
    kind, name, args = call
    ids = history.ids.get(name, {})
    data = appended_data(kind, args)
    if data is not None:
        if not data or result is None:
            return None
        return max(
            (lsn for lsn in _appends(history, ids, result, len(data)) if _epoch(history, lsn) <= epoch), default=MISSING
        )
    if kind == "create":
        return max(ids.values(), default=MISSING) if result is None else ids.get(result, MISSING)
    if kind in ("delete", "concat"):
        gone = history.ids.get(args[1] if kind == "concat" else name, {})
        return max((lsn for identity in gone if (lsn := history.ended.get(identity)) is not None), default=MISSING)
    if kind in ("seal", "unseal"):
        return _first(
            history, epoch, [lsn for identity in ids for lsn in history.seal_changes.get((identity, kind), ())]
        )
    if kind == "truncate":
        if not args[0]:
            return None
        cuts = [history.truncations.get(identity, ()) for identity in ids]
        return _first(history, epoch, [next((lsn for lsn, start in cut if start >= args[0]), 0) for cut in cuts])
    if kind == "table_put":
        key = (args[0], args[1])
        lsns = (history.puts.get((*key, args[2])), history.puts.get((*key, None)))
        return _first(history, epoch, [lsn or 0 for lsn in lsns])
    return None


def _appends(history: ObservedHistory, ids: Collection[int], offset: int, length: int) -> list[int]:
    """Appends at this offset, and those of several pieces, as writers make them, that it may be a piece of."""
    exact = [found[0] for identity in ids if (found := history.appends.get((identity, offset))) is not None]
    return exact + [
        lsn
        for (identity, start), (lsn, size) in history.appends.items()
        if identity in ids and start < offset and offset + length <= start + size
    ]


def _epoch(history: ObservedHistory, lsn: int) -> int:
    return history.entries[lsn - 1].epoch


def _first(history: ObservedHistory, epoch: int, lsns: list[int]) -> int:
    return min((lsn for lsn in lsns if lsn and _epoch(history, lsn) <= epoch), default=MISSING)
