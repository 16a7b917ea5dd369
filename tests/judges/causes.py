"""What stands behind an error: a bug that is dressed as weather is still a bug.

Promises: pure.
"""

from __future__ import annotations

from chunkstore.errors import ChunkstoreError
from chunkstore.journal import JournalBroken


def hidden_cause(
    error: ChunkstoreError, *, weather: tuple[type[BaseException], ...] = (), modules: tuple[str, ...] = ()
) -> BaseException | None:
    """The first of the error's causes that is neither chunkstore's own nor weather; one that is its own cause counts, too."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        own = isinstance(cause, (ChunkstoreError, JournalBroken, *weather)) or type(cause).__name__ == "Undecided"
        own = own or type(cause).__module__ in modules
        if not own or any(cause is one for one in seen):
            return cause
        seen.append(cause)
        cause = cause.__cause__
    return None
