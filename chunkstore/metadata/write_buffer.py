"""Appends that are part of the state and in no write transaction yet: one transaction takes many of them (decision 0003).

Only appends of an owner's own wait here, and they are seen: a look at one row finds it here, and before a view is opened they are
written. A process that dies with some loses nothing but the time to replay them: its store lacks them, as after any kill.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from chunkstore.metadata.port import NO_TOTALS, Commit, Head, Position, Totals
from chunkstore.metadata.rows import Tally
from chunkstore.metadata.totals import grown

__all__ = ["StoredHead", "WriteBuffer"]

_COMMITS_MAX: Final = 128
_ROWS_MAX: Final = 1024


class StoredHead(NamedTuple):
    """The head's row, as bytes and decoded."""

    raw: bytes
    head: Head
    tallied: Tally


class WriteBuffer:
    """Commits after the head that is stored, in order, their rows, and the totals after them (None: to be counted). ``rows`` may be read
    without a lock, unless there are ``lines``: their rows are derived when they are written."""

    __slots__ = ("commits", "full", "lines", "position", "rows", "totals")

    def __init__(self, position: Position | None = None, totals: Totals = NO_TOTALS) -> None:
        """``position``: where the store is, None: that is not known, and nothing waits; ``totals``: there."""
        self.commits: list[Commit] = []
        self.rows: dict[bytes, bytes | None] = {}
        self.position = position
        self.totals: Totals | None = totals
        self.lines = 0
        """How many."""
        self.full: bool = False
        """Whether they are to be written before another one comes."""

    @property
    def head(self) -> Head | None:
        """Where the state is with them; there is one at least. None: the last one does not state its digest."""
        last = self.commits[-1]
        return None if last.digest is None else Head(last.position, last.digest)

    def add(self, commit: Commit) -> bool:
        """One more, if it follows, and is of appends only."""
        last = self.position
        if last is None or commit.previous_hash != last.hash or commit.position.lsn != last.lsn + 1:
            return False
        if commit.lines is not None:
            self.totals = None
            self.lines += len(commit.lines.lines)
        else:
            totals = grown(self.totals or NO_TOTALS, commit.ops)
            if totals is None:
                return False
            self.rows.update(commit.rows)
            self.totals = totals if self.totals is not None else None
        self.position = commit.position
        self.commits.append(commit)
        self.full = len(self.commits) >= _COMMITS_MAX or len(self.rows) + self.lines >= _ROWS_MAX
        return True
