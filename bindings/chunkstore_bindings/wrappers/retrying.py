"""A storage that asks again where that is safe, and finds out what happened where it is not.

Promises
* Only ``StorageUnavailable`` and ``DeadlineExceeded`` are asked again: everything else is an answer. Pauses are those of
  ``chunkstore.deadline.Backoff``.
* *Looking* (exists, stat, list, open, read) is repeated as it is. So are ``put``, ``delete`` and ``set_read_only``: doing them
  twice is doing them once. ``sync`` and ``harden`` are repeated only where ``Capabilities.sync_repeatable``.
* *Creating* sends the very same bytes again. "Exists" after an attempt whose reply was lost is not believed: what is there
  is read back and compared, whole. Equal: ours, made durable, done. "Not there" proves nothing (protocol 2.3).
* *Appending and cutting* are never sent twice, because the first may still arrive (protocol A2). The length is looked up
  instead: exactly right, with our bytes at its end, means that only the reply was lost; anything else is the error. Above
  a page cache (``append`` without ``sync_repeatable``) not even that: bytes that can be read there may never reach the disk.
* ``compose`` and ``concat`` are sent once: nothing cheap tells whether they happened. A caller that composes takes another name.
* It gives up when the budget of tries or seconds is used up, or when the operation under way (``chunkstore.deadline``) has no
  time left; the last error is raised, and means "may have happened" for changing calls.

Leaves out: interrupting a call that hangs (a binding has timeouts of its own); any other answer to a create becomes
``StorageUnavailable`` where an attempt before it may still land.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from logging import WARNING
from typing import Final, NamedTuple, TypeVar

from chunkstore.checksum import BytesLike
from chunkstore.config import MIB
from chunkstore.deadline import Backoff
from chunkstore.errors import (
    AccessDenied,
    ChunkExists,
    ChunkNotFound,
    ChunkstoreError,
    Damaged,
    DeadlineExceeded,
    StorageUnavailable,
)
from chunkstore.records.logs import log_event, without_credentials
from chunkstore.records.names import check_object_name
from chunkstore.storage import ChunkHandle, ChunkStorage
from chunkstore_bindings.wrappers.wrapping import WrappingChunkStorage, size_of

__all__ = ["RetryPolicy", "RetryingChunkStorage"]

T = TypeVar("T")
_TRANSIENT: Final = (StorageUnavailable, DeadlineExceeded)
_ONCE: Final = ("compose", "concat")
_COMPARE_BYTES: Final = 8 * MIB
"""What is read back at once when contents are compared."""


class RetryPolicy(NamedTuple):
    """How often and how long. ``tries_max``: calls in all; ``budget_s``: no try begins later than this after the first;
    pause number n is the smaller of ``pause_s_first * 2**n`` and ``pause_s_max``, half of it chance."""

    tries_max: int = 8
    budget_s: float = 20.0
    pause_s_first: float = 0.05
    pause_s_max: float = 5.0


class RetryingChunkStorage(WrappingChunkStorage):
    """See the module. Thread-safe."""

    def __init__(self, inner: ChunkStorage, policy: RetryPolicy | None = None) -> None:
        super().__init__(inner)
        self._policy = policy if policy is not None else RetryPolicy()

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        is_sync = operation in ("sync", "harden")
        if operation in _ONCE or (is_sync and not self.inner.capabilities.sync_repeatable):
            return call()
        return self._repeat(operation, lambda _: call())

    def _repeat(self, operation: str, attempt: Callable[[bool], T]) -> T:
        """Call ``attempt(whether one before it may still take effect)`` until it answers or its tries end."""
        backoff: Backoff | None = None
        tries = 1
        while True:
            try:
                return attempt(backoff is not None)
            except AccessDenied:
                raise  # waiting mends nothing
            except _TRANSIENT as error:
                if backoff is None:
                    tries_max, budget_s, pause_s_first, pause_s_max = self._policy
                    backoff = Backoff(
                        budget_s, tries_max=tries_max, pause_s_first=pause_s_first, pause_s_max=pause_s_max
                    )
                if not backoff.pause(retry_after_s=getattr(error, "retry_after_s", 0.0)):
                    name = getattr(error, "object", None) or ""
                    log_event(
                        "storage", WARNING, f"{operation} given up", root=without_credentials(self.inner.url),
                        container=name.partition("/")[0], tries=tries, object=name, message=error.message,
                    )  # fmt: skip
                    raise
                tries += 1

    def create_if_absent(self, name: str, data: BytesLike) -> bool:
        return self._create("create_if_absent", name, data, lambda: self.inner.create_if_absent(name, data))

    def create(self, name: str, data: BytesLike | None = None) -> ChunkHandle:
        if not self._can_be_verified():
            return self.inner.create(name, data)

        def create() -> bool:
            try:
                self.inner.create(name, data)
            except ChunkExists:
                return False
            return True

        if not self._create("create", name, b"" if data is None else data, create):
            # Another writer's, or where chunks grow a part of ours: in either case nothing may be written to it any more.
            raise ChunkExists(name)
        return ChunkHandle(name, True)

    def _create(self, operation: str, name: str, data: BytesLike, create: Callable[[], bool]) -> bool:
        """Whether ``name`` was made by ``create``, which says whether it did, now or by a try whose reply was lost."""
        # First, so that after an attempt in doubt every other refusal leaves it in doubt.
        check_object_name(name)
        taken = False

        def attempt(in_doubt: bool) -> bool:
            nonlocal taken
            try:
                if not taken:
                    if create():
                        return True
                    if not in_doubt:
                        return False
                    taken = True  # for ever, because names are not used again
                if not _ends_with(self.inner, name, 0, data):
                    return False
                # What is seen is durable where objects are whole; elsewhere a lost reply says nothing about the disk (P6).
                if self.inner.capabilities.append:
                    self.inner.harden(name)
                return True
            except (*_TRANSIENT, Damaged):
                raise
            except ChunkstoreError as answer:
                if not in_doubt:
                    raise
                # It says that nothing happened, which is true of this attempt only.
                text = f"{answer}; an attempt before that may still land"
                raise StorageUnavailable(text, object=name) from answer

        return self._repeat(operation, attempt)

    def delete(self, name: str) -> None:
        def attempt(in_doubt: bool) -> None:
            try:
                self.inner.delete(name)
            except ChunkNotFound:
                if not in_doubt:
                    raise

        self._repeat("delete", attempt)

    # Appending and cutting

    def write(self, handle: ChunkHandle, offset: int, data: BytesLike) -> int:
        try:
            return self.inner.write(handle, offset, data)
        except _TRANSIENT:
            if not self._is_so("read", lambda: _ends_with(self.inner, handle.name, offset, data)):
                raise
        return size_of(data)

    def truncate(self, handle: ChunkHandle, length: int) -> None:
        try:
            self.inner.truncate(handle, length)
        except _TRANSIENT:
            if not self._is_so("stat", lambda: self.inner.stat(handle.name).length == length):
                raise

    def _can_be_verified(self) -> bool:
        """Whether what is read back is what is stored: above a page cache the engine judges a failed write (protocol A2)."""
        offered = self.inner.capabilities
        return offered.sync_repeatable or not offered.append

    def _is_so(self, look: str, question: Callable[[], bool]) -> bool:
        """Whether a change whose reply was lost has happened; False, too, where that cannot be learned."""
        # Whatever the look meets says nothing about the change: that may have happened.
        with suppress(ChunkstoreError):
            return self._can_be_verified() and self._repeat(look, lambda _: question())
        return False


def _ends_with(storage: ChunkStorage, name: str, offset: int, data: BytesLike) -> bool:
    """Whether the chunk holds ``data`` at ``offset`` and nothing after it. One read, where ``data`` is not large."""
    handle = ChunkHandle(name, False)
    with memoryview(data) as given, given.cast("B") as whole:
        position = 0
        while True:
            with whole[position : position + _COMPARE_BYTES] as part:
                last = position + len(part) == len(whole)
                # One byte more than expected: where it comes, the chunk is longer.
                if storage.read(handle, offset + position, len(part) + last) != part:
                    return False
                position += len(part)
            if last:
                return True
