"""The owner that a sink asks. Where none runs, a batch write claims the container for its one commit.

Promises: a stream never claims: where no owner answers at its start it fails, and says what to run. A batch write asks, too; it claims
politely (a live owner is never deposed) unless ``takeOver`` says otherwise, and closes the container behind the commit. Whoever carries it
out, it is done once. Leaves out: what is asked (``committing``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Self, TypeVar

from chunkstore import runtime
from chunkstore.asker import Asker
from chunkstore.asks import AskedChange
from chunkstore.assembly import describe_owner, open_asker, open_store
from chunkstore.attaching import AskedDoor, Written, attach_written, find_session
from chunkstore.changes import TablePut
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, ContainerBusy, NotOwner, OutcomeUnknown, StorageUnavailable
from chunkstore.logs import without_credentials
from chunkstore.operations.attach import find_session as shown_session
from chunkstore.operations.tables import TableEntry
from chunkstore.pulsar.contexts import Context, iter_contexts
from chunkstore.spark.write_options import WriteOptions

__all__ = ["START_S", "AskerDoor"]

T = TypeVar("T")
_Call = Callable[[Asker | ChunkedSegmentStorage, float], T]
"""What is asked of an owner, or done at it, within so many seconds."""

_LOG: Final = logging.getLogger("chunkstore.spark")
START_S: Final = 60.0
"""How long a stream that begins waits for an owner to answer."""
_RESTART_S: Final = 20.0
"""How long an owner that has ended may take to come back."""
_SOON_LOCAL_S: Final = 1.0
_SOON_REMOTE_S: Final = 4.0
"""An owner that is at work has answered by then; else it is looked whether there is one at all."""
_LOCAL_S: Final = 3.0
_REMOTE_S: Final = 25.0
"""How long an owner may take that lives: an idle one looks each twenty seconds."""
_PATIENCE_S_MAX: Final = 60.0
_IN_ALL_S: Final = 300.0
_POLL_S: Final = 0.5


class AskerDoor(AskedDoor):
    """A ``committing.Door``. A context manager that closes. ``claims``: where no owner runs, one call claims the container. ``wait_s``: in
    all, for each call."""

    def __init__(self, options: WriteOptions, *, claims: bool, wait_s: float = _IN_ALL_S) -> None:
        super().__init__(open_asker(options.path, container=options.container), wait_s)
        self._options = options
        self._claims = claims

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release everything. Raises nothing."""
        self._asker.close()

    def is_certain(self, entry: TableEntry) -> bool:
        able = self._asker.replica.storage.capabilities
        return able.sync_repeatable or not able.append or entry.version < self._asker.replica.lsn

    def exists(self, segment: str) -> bool:
        return self._asker.replica.exists(segment)

    def require_owner(self) -> None:
        """Raise ``StorageUnavailable`` where the last owner has closed the container and none opens it within seconds."""
        end_s = runtime.monotonic_s() + _RESTART_S
        while self._is_released():
            if runtime.monotonic_s() >= end_s:
                raise self._nobody()
            runtime.sleep_s(_POLL_S)

    def find_session(self, holder: str, ttl_s: float) -> int:
        """One that is shown needs no asking: should its record not be durable, the commit is refused, as of any that has ended.

        Raises ``StorageUnavailable`` where no owner answers, and this does not claim."""
        self._asker.replica.refresh()
        shown = shown_session(self._asker.replica.sessions(), holder)
        if shown is not None:
            return shown
        try:
            return self._asked(
                lambda target, wait_s: find_session(target, holder, ttl_s=ttl_s, wait_s=wait_s).session_id
            )
        except OutcomeUnknown as error:
            if self._claims:
                raise
            raise self._nobody() from error

    def contexts(self, topic: str) -> list[Context]:
        return iter_contexts(self._asker.replica, topic)

    def attach(
        self,
        session_id: int,
        written: Sequence[Written],
        once: TablePut,
        *,
        also: Sequence[AskedChange] = (),
        end_session: bool,
    ) -> None:
        self._asked(
            lambda target, wait_s: attach_written(
                target, session_id, written, once, also=also, end_session=end_session, wait_s=wait_s
            )
        )

    def _asked(self, call: _Call[T]) -> T:
        """Ask again and again, the same, which is exactly once; where no owner runs, claim and do it here."""
        local = self._asker.replica.storage.capabilities.append
        patience_s = _LOCAL_S if local else _REMOTE_S
        wait_s = _SOON_LOCAL_S if local else _SOON_REMOTE_S
        began_s = runtime.monotonic_s()
        while True:
            spent_s = runtime.monotonic_s() - began_s
            if self._claims and (spent_s >= patience_s or self._is_released()):
                with suppress(ContainerBusy, NotOwner):  # somebody else owns it
                    return self._claimed(call)
            try:
                return call(self._asker, max(0.1, min(wait_s, self._wait_s - spent_s)))
            except OutcomeUnknown as error:
                if runtime.monotonic_s() >= began_s + self._wait_s:
                    hint = (
                        "takeOver=true deposes an owner that does not answer." if self._claims else str(self._nobody())
                    )
                    error.add_note(hint)
                    raise
            wait_s = max(patience_s, min(_PATIENCE_S_MAX, wait_s * 2))  # it may be at work on many chunks

    def _claimed(self, call: _Call[T]) -> T:
        """Own the container for this call. Raises ``ContainerBusy``, ``NotOwner`` (somebody else owns it), and as ``open_store``."""
        options = self._options
        if options.take_over and not self._is_released():
            owner = describe_owner(options.path, options.container)
            text = "option takeOver: deposing the owner of container %r, pid %s on %s"
            _LOG.warning(text, options.container, owner["pid"], owner["host"])
        with open_store(options.path, container=options.container, create=False, take_over=options.take_over) as store:
            text = "no owner of container %r of %s answers: claimed it for one commit, epoch %d"
            _LOG.info(text, options.container, without_credentials(options.path), store.epoch)
            return call(store, self._wait_s)

    def _is_released(self) -> bool:
        """Whether the last owner has said that it ends. If not, asking tells."""
        with suppress(ChunkstoreError):
            lease = describe_owner(self._options.path, self._options.container)["lease"]
            return isinstance(lease, dict) and bool(lease["released"])
        return False

    def _nobody(self) -> StorageUnavailable:
        container, root = self._options.container, without_credentials(self._options.path)
        text = (
            f"no owner of container {container!r} answers, and a stream needs one; run 'chunkstore serve {root} --container {container}', "
            "or write with foreach_batch(store, ...), whose driver is the owner"
        )
        return StorageUnavailable(text, object=container)
