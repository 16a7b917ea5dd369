"""Calls and the operations of records, side by side: which operation a call asks for, and which of several calls one is of."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, Final

from tests.judges.events import Event
from tests.judges.segment_model import APPEND, ATTACH, TABLE_DELETE, TABLE_PUT, Call, appended

_BY_KIND: Final = {
    "create": 1, "append": 2, "append_many": 2, "write": 2, "seal": 3, "unseal": 4, "delete": 5, "truncate": 6, "concat": 7,
    "table_put": 10, "table_delete": 11,
}  # fmt: skip


def call_of(event: Event) -> Call:
    return event.kind, event.segment, event.args


def answered_by(event: Event) -> float:
    """When a call was answered for certain."""
    return inf if event.returned is None or event.outcome == "unknown" else event.returned


def urgency_of(event: Event) -> tuple[float, float]:
    """Which of several calls takes a record first: whose answer came first, for each may need it."""
    repeatable = event.kind == "truncate"
    return (event.invoked if repeatable else answered_by(event)), event.invoked


def subject(call: Call) -> tuple[Any, ...]:
    kind, name, args = call
    if kind == "table_put":
        return TABLE_PUT, *args[:3]
    if kind == "table_delete":
        return TABLE_DELETE, *args[:2]
    data = appended(call)
    return (_BY_KIND[kind], name) if data is None else (ATTACH if kind == "attach" else APPEND, name, data)


def stored(op: Sequence[Any], data: bytes | None) -> tuple[Any, ...]:
    """An operation of a record as the model says it: what is not in its header is in what was stored with it."""
    if op[0] in (TABLE_PUT, APPEND, ATTACH):
        return (*op[: 3 if op[0] == TABLE_PUT else 4], data)
    return tuple(op)


def is_same(wanted: tuple[Any, ...], found: tuple[Any, ...]) -> bool:
    """Whether an operation of a record is the wanted one."""
    return wanted == found or (found[0] == TABLE_PUT and found[3] is None and wanted[:3] == found[:3])
