"""What all segments and garbage ranges take up: running totals beside the rows.

Promises: totals are a function of the rows alone (``recount``), kept up from the old and the new value of each row that changes, so
that nobody has to scan. A row that cannot be read counts as nothing, when it comes and when it goes. Leaves out: where totals are
kept (the stores).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from chunkstore.journal import OpCode
from chunkstore.metadata.codec import NUMBER_MAX, ROW_ELEMENTS_MAX, unpack_row
from chunkstore.metadata.keys import GARBAGE, SEGMENT
from chunkstore.metadata.port import NO_TOTALS, MetadataView, Op, Totals

__all__ = ["COUNTED", "RowPair", "changed", "grown", "recount"]

RowPair: TypeAlias = tuple[int, bytes | None, bytes | None]
"""The kind of a counted row, and its value before and behind a change; None: no such row."""

_new = tuple.__new__  # what a NamedTuple's constructor does behind its argument handling
_U64 = (1 << 64) - 1
_SEGMENT = SEGMENT[0]
_APPEND = int(OpCode.APPEND)
COUNTED = frozenset((_SEGMENT, GARBAGE[0]))
"""The kinds of rows that totals are made of."""


def changed(totals: Totals, pairs: Iterable[RowPair]) -> Totals:
    """The totals behind these changes."""
    segments, chunks, live, dead, garbage = totals
    for kind, old, new in pairs:
        for sign, value in ((-1, old), (1, new)):
            if value is None:
                continue
            try:
                row = unpack_row(value, ROW_ELEMENTS_MAX)
                if kind != _SEGMENT:
                    if 0 <= row[5] | 0 <= NUMBER_MAX:
                        garbage += sign * row[5]
                    continue
                start, length, skip, count = row[5], row[6], row[10], row[13]
                if 0 <= start | length | skip | count <= NUMBER_MAX and start <= length:
                    segments += sign
                    chunks += sign * count
                    live += sign * (length - start)
                    dead += sign * skip
            except (TypeError, ValueError, LookupError):
                pass  # what reads it says what is wrong with it
    # Only rows that cannot be have sums so large; wrapped, they are the same in every count.
    return _new(Totals, (segments, chunks & _U64, live & _U64, dead & _U64, garbage & _U64))


def grown(totals: Totals, ops: Sequence[Op]) -> Totals | None:
    """The totals behind appends, by the headers of an owner's own commit, which come from where its rows come from; None where anything
    else happens. Nearly every commit is one of these, and decoding its rows would show in an append's cost."""
    segments, chunks, live, dead, garbage = totals
    try:
        for op in ops:
            if op[0] != _APPEND:
                return None
            live += op[3]  # type: ignore[operator]
            if op[4]:
                chunks += len(op[4])  # type: ignore[arg-type]
    except (TypeError, LookupError):
        return None  # what applies it says what is wrong with it
    return _new(Totals, (segments, chunks, live, dead, garbage)) if ops else None


def recount(view: MetadataView) -> Totals:
    """The totals of a view's rows, the slow way. O(segments and garbage ranges)."""
    totals = NO_TOTALS
    for kind in COUNTED:
        rows = view.scan(bytes((kind,)), bytes((kind + 1,)))
        totals = changed(totals, ((kind, None, value) for _, value in rows))
    return totals
