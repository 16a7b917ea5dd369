"""One look at the rows: a consistent view, and another store's where this one does not hold what was written (protocol 3.8).

Promises: what a caller gets comes from rows that are what was written; a damaged cache is made anew meanwhile, and the caller sees
no error where that works. Rows that contradict one another are first taken for damage of the cache, which an audit decides.
Next to it: what a look at chunks has found (``ExistenceCheck``). Leaves out: making it anew (``recovery``, the follower).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from chunkstore.errors import CacheDamaged, Damaged
from chunkstore.metadata.port import MetadataStore, MetadataView

__all__ = ["ExistenceCheck", "audit", "iterate_view", "look"]

T = TypeVar("T")
_REBUILDS_MAX: Final = 3


class ExistenceCheck:
    """Which lengths chunks have in the storage, by their ids, for a commit that is not planned yet; None: not there, or not looked at."""

    def __init__(self, lengths: dict[bytes, int | None]) -> None:
        self.lengths = lengths
        self.collected: set[bytes] = set()
        """Those that a collection has begun to delete since."""


def audit(store: MetadataStore) -> None:
    """Read the whole store. Raises ``CacheDamaged``."""
    with store.view() as view:
        view.audit()


def look(
    store: Callable[[], MetadataStore], rebuild: Callable[[CacheDamaged], None], call: Callable[[MetadataView], T]
) -> T:
    """What ``call`` makes of a view of ``store()``; again after each ``rebuild``, which raises when it cannot."""
    try:
        with store().view() as view:
            return call(view)
    except (CacheDamaged, Damaged):
        return _look_again(store, rebuild, call)


def _look_again(
    store: Callable[[], MetadataStore], rebuild: Callable[[CacheDamaged], None], call: Callable[[MetadataView], T]
) -> T:
    for rebuilds_left in range(_REBUILDS_MAX, -1, -1):
        try:
            with store().view() as view:
                view.audit()
                return call(view)
        except CacheDamaged as damage:
            rebuild(damage)
            if not rebuilds_left:
                raise
    raise AssertionError("the last look returns or raises")


def iterate_view(
    store: Callable[[], MetadataStore],
    rebuild: Callable[[CacheDamaged], None],
    call: Callable[[MetadataView], Iterator[T]],
) -> Iterator[T]:
    """As ``look``, item by item from one view. Raises ``CacheDamaged`` once something was given out: the rest is of another view."""
    given = False
    for rebuilds_left in range(_REBUILDS_MAX, -1, -1):
        try:
            with store().view() as view:
                try:
                    for item in call(view):
                        given = True
                        yield item
                except Damaged:
                    view.audit()
                    raise
            return
        except CacheDamaged as damage:
            rebuild(damage)
            if given or not rebuilds_left:
                raise
