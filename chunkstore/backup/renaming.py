"""Which segments of a state are taken in, and what they are called then. Pure planning: reads names, and nothing else.

Promises: every name that comes out is one that a segment may have, and no two segments get the same, whatever is in the state: both are
known before anything is taken in, in memory that does not grow with it. The same plan has the same digest, so an import that
was interrupted is known again. Leaves out: which names are taken at the target (``merging``), what rows say of names (``survey``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final

from chunkstore.backup.selection import CHOSEN_MAX, check_choice
from chunkstore.config import LIMITS
from chunkstore.errors import InvalidArgument, SegmentNotFound
from chunkstore.names import check_segment_name, utf8_bytes

__all__ = ["AS_IT_IS", "NamePlan", "plan_names"]


class NamePlan:
    """``names``: the chosen segments, or prefixes with ``*`` behind them; none: all. ``renames``: old and new names; ``prefix``: in front
    of all others. Never changed."""

    __slots__ = ("_exact", "_prefixes", "names", "prefix", "renames")

    def __init__(self, names: tuple[str, ...] = (), renames: Mapping[str, str] | None = None, prefix: str = "") -> None:
        self.names = names
        self.renames = dict(renames or {})
        self.prefix = prefix
        self._exact = frozenset(name for name in names if not name.endswith("*"))
        self._prefixes = tuple(name[:-1] for name in names if name.endswith("*"))

    @property
    def is_everything(self) -> bool:
        """Whether all segments are chosen."""
        return not self.names

    @property
    def keeps_names(self) -> bool:
        """Whether every segment keeps its name."""
        return not self.renames and not self.prefix

    def takes(self, name: str) -> bool:
        """Whether a segment is chosen."""
        return not self.names or name in self._exact or name.startswith(self._prefixes)

    def target(self, name: str) -> str:
        """What a chosen segment is called then."""
        found = self.renames.get(name)
        return self.prefix + name if found is None else found

    def digest(self) -> bytes:
        """16 bytes that tell plans apart; none for the one that takes everything as it is."""
        if self.is_everything and self.keeps_names:
            return b""
        parts = (*self.names, "", *(text for pair in sorted(self.renames.items()) for text in pair), "", self.prefix)
        digest = blake2b(digest_size=16)
        for part in parts:
            digest.update(part.encode() + b"\0")  # which no name has
        return digest.digest()

    def check(self, names: Iterable[str], is_there: Callable[[str], bool]) -> None:
        """Look at the names of a state: all of ``names``, those that are not chosen, too; ``is_there`` says whether it has one.

        Raises ``SegmentNotFound`` (a choice that chooses nothing), ``InvalidArgument`` (a renamed one that is not there or not chosen; a
        name that would be too long, or that two would have).
        """
        exact, prefixes = set(self._exact), set(self._prefixes)
        for name in names:
            if self.takes(name):
                exact.discard(name)
                prefixes -= {item for item in prefixes if name.startswith(item)}
                check_segment_name(self.target(name), "prefix")
        if exact or prefixes:
            raise SegmentNotFound(min(exact or {item + "*" for item in prefixes}))
        for old, new in self.renames.items():
            if not (is_there(old) and self.takes(old)):
                raise InvalidArgument(f"no segment {old!r} is among those that are taken in", argument="rename")
            other = new.removeprefix(self.prefix)
            if new.startswith(self.prefix) and other not in self.renames and is_there(other) and self.takes(other):
                raise _twice(other, old, new)


AS_IT_IS: Final = NamePlan()


def plan_names(segments: Sequence[str] = (), rename: Mapping[str, str] | None = None, prefix: str = "") -> NamePlan:
    """A caller's plan. Raises ``InvalidArgument``."""
    names = check_choice(segments, None).names
    if not isinstance(prefix, str) or "\0" in prefix or not 0 <= utf8_bytes(prefix) < LIMITS.segment_name_bytes_max:
        raise InvalidArgument(f"prefix must be text for the beginning of names, not {prefix!r}", argument="prefix")
    renames = dict(rename or {})
    if len(renames) > CHOSEN_MAX:
        raise InvalidArgument(f"at most {CHOSEN_MAX} segments are renamed at once; use a prefix", argument="rename")
    owners = dict[str, str]()
    for old, new in renames.items():
        check_segment_name(old, "rename")
        check_segment_name(new, "rename")
        if owners.setdefault(new, old) != old:
            raise _twice(owners[new], old, new)
    return NamePlan(names, renames, prefix)


def _twice(one: str, other: str, name: str) -> InvalidArgument:
    return InvalidArgument(
        f"segments {one!r} and {other!r} would both be called {name!r}: rename one of them otherwise", argument="rename"
    )
