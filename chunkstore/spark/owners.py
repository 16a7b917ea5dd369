"""The owner that a sink asks, and the holders of its sessions.

A stream never claims a container. A batch write claims it for its one commit where no owner answers."""

from __future__ import annotations

import logging
from contextlib import suppress
from hashlib import blake2b
from typing import Final, Self

from chunkstore import runtime
from chunkstore.assembly import describe_owner, open_asker, open_store
from chunkstore.changes.asks import Ask, AskCommit, AskSession, Result, Stage
from chunkstore.engine.reading import ReadableContainer
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, ContainerBusy, NotOwner, OutcomeUnknown, StorageUnavailable
from chunkstore.operations.attach import find_session
from chunkstore.records.logs import without_credentials
from chunkstore.spark.write_options import WriteOptions

__all__ = ["START_S", "OwnerClient", "batch_holder", "foreach_holder", "is_shared", "stream_holder"]

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


class OwnerClient:
    """An ``Owner``: asks, again and again. A context manager that closes. ``claims``: where no owner runs, one commit, with what it has
    staged before, claims the container. ``wait_s``: in all, for each call."""

    def __init__(self, options: WriteOptions, *, claims: bool, wait_s: float = _IN_ALL_S) -> None:
        self._asker = open_asker(options.path, container=options.container)
        self._wait_s = wait_s
        self._options = options
        self._claims = claims
        self._claimed: ChunkedSegmentStorage | None = None
        self.container = options.container
        self.uuid: bytes = self._asker.replica.uuid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release everything. Raises nothing."""
        self._release()
        self._asker.close()

    def state(self) -> ReadableContainer:
        return self._asker.state()

    def is_certain(self, version: int) -> bool:
        return self._asker.is_certain(version)

    def require_owner(self) -> None:
        """Raise ``StorageUnavailable`` where the last owner has closed the container and none opens it within seconds."""
        end_s = runtime.monotonic_s() + _RESTART_S
        while self._is_released():
            if runtime.monotonic_s() >= end_s:
                raise self._no_owner()
            runtime.sleep_s(_POLL_S)

    def run(self, ask: Ask, *, wait_s: float = _IN_ALL_S) -> Result:
        """Ask again and again, the same, which is exactly once; where no owner runs, claim and do it here.

        A session that is shown needs no asking: should its record not be durable, the commit is refused, as of any that has ended."""
        if isinstance(ask, AskSession):
            shown = find_session(self.state().sessions(), ask.holder)
            if shown is not None:
                return shown
        local = self._asker.replica.storage.capabilities.append
        patience_s = _LOCAL_S if local else _REMOTE_S
        soon_s = _SOON_LOCAL_S if local else _SOON_REMOTE_S
        limit_s = min(wait_s, self._wait_s)
        began_s = runtime.monotonic_s()
        while True:
            spent_s = runtime.monotonic_s() - began_s
            if self._claimed is not None or (self._claims and (spent_s >= patience_s or self._is_released())):
                with suppress(ContainerBusy, NotOwner):  # another process owns it
                    return self._run_here(ask)
            try:
                return self._asker.run(ask, wait_s=max(0.1, min(soon_s, limit_s - spent_s)))
            except OutcomeUnknown as error:
                if runtime.monotonic_s() >= began_s + limit_s:
                    if not self._claims and isinstance(ask, AskSession):
                        raise self._no_owner() from error
                    hint = "takeOver=true deposes an owner that does not answer."
                    error.add_note(hint if self._claims else str(self._no_owner()))
                    raise
            soon_s = max(patience_s, min(_PATIENCE_S_MAX, soon_s * 2))  # it may be at work on many chunks

    def _run_here(self, ask: Ask) -> Result:
        """Own the container for one commit. Raises ``ContainerBusy``, ``NotOwner`` (another process owns it), and as ``open_store``."""
        stages = False
        try:
            store = self._claimed = self._claimed or self._claim()
            result = store.run(ask)
            stages = isinstance(ask, AskCommit) and isinstance(ask.once, Stage)
            return result
        finally:
            if not stages:
                self._release()

    def _claim(self) -> ChunkedSegmentStorage:
        options = self._options
        if options.take_over and not self._is_released():
            owner = describe_owner(options.path, options.container)
            text = "option takeOver: deposing the owner of container %r, pid %s on %s"
            _LOG.warning(text, options.container, owner["pid"], owner["host"])
        store = open_store(options.path, container=options.container, create=False, take_over=options.take_over)
        text = "no owner of container %r of %s answers: claimed it for one commit, epoch %d"
        _LOG.info(text, options.container, without_credentials(options.path), store.epoch)
        return store

    def _release(self) -> None:
        if self._claimed is not None:
            self._claimed.close()
            self._claimed = None

    def _is_released(self) -> bool:
        """Whether the last owner has said that it ends. If not, asking tells."""
        with suppress(ChunkstoreError):
            lease = describe_owner(self._options.path, self._options.container)["lease"]
            return isinstance(lease, dict) and bool(lease["released"])
        return False

    def _no_owner(self) -> StorageUnavailable:
        container, root = self._options.container, without_credentials(self._options.path)
        text = (
            f"no owner of container {container!r} answers, and a stream needs one; run 'chunkstore serve {root} --container {container}', "
            "or write with foreach_batch(store, ...), whose driver is the owner"
        )
        return StorageUnavailable(text, object=container)


_NAME_BYTES: Final = 100


def batch_holder(options: WriteOptions) -> str:
    """Of one batch write: its application, its machine, and a random part."""
    name = f"spark batch {_short(options.application or 'write')}"
    return f"{name}, {_short(runtime.identity().host)} {runtime.token(8).hex()}"


def is_shared(options: WriteOptions) -> bool:
    """Whether nothing tells a query from others of its machine before it runs: no sink id, and the checkpoint is the session's."""
    return not (options.sink_id or options.checkpoint)


def stream_holder(options: WriteOptions) -> str:
    """The same for every micro-batch of a query, and for no one else, by its sink id or its checkpoint; else for all such of a machine."""
    if is_shared(options):
        return f"spark streams, {_short(runtime.identity().host)}"
    key = f"{options.sink_id or ''}\0{options.checkpoint}"
    return _known("stream", options.sink_id or options.checkpoint, key)


def foreach_holder(sink: str) -> str:
    """The same for every micro-batch of a query in a driver that owns the container, and for no one else. ``sink``: the key of its row."""
    return _known("foreach", sink, sink)


def _known(kind: str, name: str, key: str) -> str:
    return f"spark {kind} {_short(name)} {blake2b(key.encode(), digest_size=16).hexdigest()}"


def _short(name: str) -> str:
    return name.encode()[:_NAME_BYTES].decode("utf-8", "ignore")
