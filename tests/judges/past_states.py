"""All states that a history went through, kept as what changed when.

Promises: the state after any record is looked up, never computed again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.judges.segment_model import Key


class Past:
    """All states: for each key, its values by the lsn at which they began."""

    def __init__(self) -> None:
        self.changes: dict[Key, tuple[list[int], list[Any]]] = defaultdict(lambda: ([], []))

    def put(self, lsn: int, changes: Mapping[Key, Any]) -> None:
        """A record changes these."""
        for key, value in changes.items():
            lsns, values = self.changes[key]
            lsns.append(lsn)
            values.append(value)

    def at(self, lsn: int) -> StateAt:
        """The state after a record."""
        return StateAt(self, lsn)

    def moments(self, keys: Iterable[Key], low: int, high: int) -> list[int]:
        """``low`` and every lsn up to ``high`` at which one of the keys changed."""
        found = {low}
        for key in keys:
            lsns = self.changes[key][0] if key in self.changes else []
            found.update(lsns[bisect_right(lsns, low) : bisect_right(lsns, high)])
        return sorted(found)


class StateAt:
    """The state after one record, and after some ``changes`` more."""

    def __init__(self, past: Past, lsn: int, changes: Mapping[Key, Any] | None = None) -> None:
        self._past = past
        self._lsn = lsn
        self.changes = changes or {}

    def get(self, key: Key) -> Any:
        """The value of a key, or None."""
        if key in self.changes:
            return self.changes[key]
        if key not in self._past.changes:
            return None
        lsns, values = self._past.changes[key]
        place = bisect_right(lsns, self._lsn)
        return values[place - 1] if place else None

    def changed(self) -> Iterable[Key]:
        """Every key that ever had a value."""
        return self._past.changes.keys()

    def names(self) -> Iterator[str]:
        """The names of all segments."""
        return (key for key in self._past.changes if isinstance(key, str) and self.get(key) is not None)
