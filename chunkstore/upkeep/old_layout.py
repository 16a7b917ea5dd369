"""What an owner asks of whoever deals with header files of PDP-34's old layout at its root (``Settings.layout``).

Leaves out: dealing with them (``chunkstore.backup.header_keeper``).
"""

from __future__ import annotations

from typing import Protocol

from chunkstore.upkeep.jobs import Job

__all__ = ["OldLayout"]


class OldLayout(Protocol):
    """Thread-safe. Never called with a lock of a segment held."""

    def mark(self, name: str) -> int:
        """What the header of this segment is marked with, where headers follow the journal; 0: they do not."""
        ...

    def jobs(self, *, imports: bool) -> list[tuple[Job, float]]:
        """What the optimiser does, and every how many seconds. ``imports``: also what imports every segment."""
        ...

    def fetch(self, name: str) -> bool:
        """Import a segment that is not there, if its header is; whether it is there now. Raises ``Damaged`` (header, or files), and
        ``DeadlineExceeded``: the import goes on, or headers are looked at for the first time."""
        ...

    def flush(self) -> None:
        """Let headers follow everything that is committed: before chunks are deleted."""
        ...

    def finish(self) -> None:
        """The same, before the container is closed; ends within ``op_deadline_s``, about."""
        ...
