"""Looks at the committed rows: a consistent view, and another store's where this one is not what was written (protocol 3.8).

Promises: a caller sees no error of a damaged cache that can be made anew. Rows that contradict one another are first taken for damage of
the cache, which an audit decides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from chunkstore.errors import CacheDamaged, Damaged, SegmentNotFound
from chunkstore.metadata.port import MetadataStore, MetadataView

__all__ = ["RowSource"]

T = TypeVar("T")
_REBUILDS_MAX: Final = 3


class RowSource(ABC):
    """Has a store of committed rows: an owned container, and what readers use of an owner or a replica."""

    @abstractmethod
    def store(self) -> MetadataStore:
        """The present store."""

    @abstractmethod
    def rebuild(self, damage: CacheDamaged) -> None:
        """The store is not what was written: make another one. Raises when that does not work."""

    def fetch(self, name: str) -> bool:
        """Bring a segment that is not there from elsewhere; whether it is there now."""
        return False

    def look(self, call: Callable[[MetadataView], T]) -> T:
        """What ``call`` makes of a view of the present rows. Raises what it raises, and as ``rebuild``."""
        audits = True
        try:
            with self.store().view() as view:
                return call(view)
        except SegmentNotFound as missing:
            if not self.fetch(missing.segment):
                raise
            audits = False
        except (CacheDamaged, Damaged):
            pass
        for rebuilds_left in range(_REBUILDS_MAX, -1, -1):
            try:
                with self.store().view() as view:
                    if audits:
                        view.audit()
                    return call(view)
            except CacheDamaged as damage:
                audits = True
                self.rebuild(damage)
                if not rebuilds_left:
                    raise
        raise AssertionError("the last look returns or raises")

    def iterate_view(self, call: Callable[[MetadataView], Iterator[T]]) -> Iterator[T]:
        """As ``look``, item by item from one view. Raises ``CacheDamaged`` once something was given out: the rest is of another view."""
        given = False
        for rebuilds_left in range(_REBUILDS_MAX, -1, -1):
            try:
                with self.store().view() as view:
                    try:
                        for item in call(view):
                            given = True
                            yield item
                    except Damaged:
                        view.audit()
                        raise
                return
            except CacheDamaged as damage:
                self.rebuild(damage)
                if given or not rebuilds_left:
                    raise
