"""Filters of Spark that decide which rows are planned at all. Plain Python, without Spark: filters are known by their classes' names.

Promises: a filter that is not given back is applied to every row, exactly as Spark would (a comparison with null is never true, not even
under ``Not``). What is not understood, by its kind, its column or the type of its value, is given back untouched. Leaves out: which bytes
follow from that (``plan``, ``runs``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

__all__ = ["EVERY", "Condition", "Intervals", "Wanted", "intersected", "take_filters", "within"]

Intervals: TypeAlias = tuple[tuple[int, int], ...]
"""Whole numbers from the first to the second of each, both included; ascending, and never next to each other."""
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1
EVERY: Final[Intervals] = ((_LEAST, _MOST),)
_COMPARES: Final = {
    "EqualTo": lambda cell, value: cell == value,
    "GreaterThan": lambda cell, value: cell > value,
    "GreaterThanOrEqual": lambda cell, value: cell >= value,
    "LessThan": lambda cell, value: cell < value,
    "LessThanOrEqual": lambda cell, value: cell <= value,
}
_TEXT_ONLY: Final = {
    "StringStartsWith": str.startswith,
    "StringEndsWith": str.endswith,
    "StringContains": str.__contains__,
}


class Condition(NamedTuple):
    """A filter on one column, which is never null."""

    column: str
    kind: str
    value: Any
    negated: bool

    def holds(self, cell: Any) -> bool:
        """Whether it is true of this cell; unknown is not."""
        found = self._of(cell)
        return found is not None and found != self.negated

    def _of(self, cell: Any) -> bool | None:
        if self.kind in ("IsNull", "IsNotNull"):
            return self.kind == "IsNotNull"
        if self.kind == "EqualNullSafe":
            return bool(cell == self.value)
        if self.kind == "In":
            if cell in self.value:
                return True
            return None if None in self.value else False
        if self.value is None:
            return None
        return bool({**_COMPARES, **_TEXT_ONLY}[self.kind](cell, self.value))

    def intervals(self) -> Intervals:
        """The whole numbers of which it is true."""
        values = self.value if self.kind == "In" else (self.value,)
        # Between two neighbours of this list nothing changes.
        edges = sorted({_LEAST, *(at for value in values if value is not None for at in (value, value + 1))})
        edges = [at for at in edges if _LEAST <= at <= _MOST]
        found: list[tuple[int, int]] = []
        for low, behind in zip(edges, [*edges[1:], _MOST + 1], strict=True):
            if self.holds(low):
                if found and found[-1][1] + 1 == low:
                    low = found.pop()[0]
                found.append((low, behind - 1))
        return tuple(found)


class Wanted(NamedTuple):
    """What rows must satisfy, all of it."""

    conditions: tuple[Condition, ...] = ()

    def has(self, column: str, cell: str | int) -> bool:
        """Whether rows with this cell may be wanted."""
        return all(condition.holds(cell) for condition in self.conditions if condition.column == column)

    def intervals(self, column: str) -> Intervals:
        """The numbers of a column that are wanted."""
        found = EVERY
        for condition in self.conditions:
            if condition.column == column:
                found = intersected(found, condition.intervals())
        return found

    def hull(self, column: str) -> tuple[int, int]:
        """From the first to the last number that is wanted; of none an empty range."""
        found = self.intervals(column)
        return (found[0][0], found[-1][1]) if found else (0, -1)


def take_filters(
    filters: Iterable[Any], columns: Mapping[str, type], bounded: Collection[str] = ()
) -> tuple[Wanted, list[Any]]:
    """What the filters ask of ``columns`` (names and types, ``str`` or ``int``), and those that are left to Spark.

    Of ``bounded`` columns only the range from the first to the last wanted number is applied to every row: a filter with holes in
    that is used, and left to Spark all the same.
    """
    filters = list(filters)
    conditions = [_condition(item, columns) for item in filters]
    wanted = Wanted(tuple(item for item in conditions if item is not None))
    left = [
        item
        for item, condition in zip(filters, conditions, strict=True)
        if condition is None or (condition.column in bounded and not _covers(condition, wanted))
    ]
    return wanted, left


def _covers(condition: Condition, wanted: Wanted) -> bool:
    low, high = wanted.hull(condition.column)
    return low > high or any(first <= low and high <= last for first, last in condition.intervals())


def _condition(item: Any, columns: Mapping[str, type]) -> Condition | None:
    negated = type(item).__name__ == "Not"
    plain = getattr(item, "child", None) if negated else item
    kind, path, value = type(plain).__name__, getattr(plain, "attribute", None), getattr(plain, "value", None)
    if not isinstance(path, tuple) or len(path) != 1 or path[0] not in columns:
        return None
    text = columns[path[0]] is str
    if kind == "In" and isinstance(value, (list, tuple)):
        value = frozenset(value)
    elif kind not in ("IsNull", "IsNotNull", "EqualNullSafe", *_COMPARES, *(_TEXT_ONLY if text else ())):
        return None
    for one in value if isinstance(value, frozenset) else (value,):
        # A bool is an int to Python, and no number to Spark.
        if one is not None and type(one) is not columns[path[0]]:
            return None
    return Condition(path[0], kind, value, negated)


def intersected(one: Intervals, other: Intervals) -> Intervals:
    """What is in both."""
    return tuple(part for low, high in other for part in within(one, low, high))


def within(intervals: Intervals, low: int, high: int) -> Iterator[tuple[int, int]]:
    """The parts of the intervals from ``low`` to ``high``, both included."""
    for at in range(bisect_left(intervals, low, key=lambda item: item[1]), len(intervals)):
        first, last = intervals[at]
        if first > high or low > high:
            return
        yield max(first, low), min(last, high)
