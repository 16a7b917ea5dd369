"""``store.session(...)``: an open session for writers outside the owner, as the owner holds it (protocol A9).

Leaves out: writing chunks (``chunkstore.sessions``), attaching them (``chunkstore.changes.Attach``).
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from chunkstore.operations.attach import plan_end_session
from chunkstore.operations.commit_changes import commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.sessions import SessionWriter, check_chunk_number

__all__ = ["Session"]


class Session:
    """An open session for writers outside the owner (protocol A9). A context manager that ends it if it is open."""

    def __init__(self, container: OwnedContainer, session_id: int, holder: str, store: object) -> None:
        self._container = container
        self._store = store  # it goes on while this is used
        self.id = session_id
        self.holder = holder
        self._ended = False

    def writer(self, first_number: int = 0) -> SessionWriter:
        """Plain data for an executor: what it needs to write chunks of this session. Raises ``InvalidArgument``."""
        check_chunk_number(first_number, "first_number")
        return SessionWriter(self._container.names.container, self.id, first_number)

    def mark_ended(self) -> None:
        """Say that a commit of yours contained ``EndSession`` for it. Raises nothing."""
        self._ended = True

    def end(self) -> None:
        """End it without attaching anything more. Atomic, durable.

        Raises ``Conflict`` (it has been ended), ``Closed``, ``NotOwner``, ``OutcomeUnknown``, ``StorageFull``,
        ``StorageUnavailable``, ``DeadlineExceeded``, ``Damaged``. Retry: safe (``Conflict`` if it had happened).
        """
        commit_changes(self._container, (), lambda changes: plan_end_session(changes, self.id), tables=True)
        self._ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            self.end()
