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
* ``concat`` is not repeated: nothing cheap tells whether it happened. Nor is ``compose``: after a lost reply "exists" may mean
  our own chunk or somebody else's, and only reading all of it would tell. A caller that composes takes another name instead.
* It gives up when the budget of tries or seconds is used up, or when the operation under way (``chunkstore.deadline``) has no
  time left; the last error is raised, and means "may have happened" for changing calls.

Leaves out: interrupting a call that hangs (a binding has timeouts of its own); ``StorageFull``, and any other answer to a
conditional create, becomes ``StorageUnavailable`` where an attempt before it may still land.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from logging import WARNING
from typing import Final, NamedTuple, TypeVar

from chunkstore import runtime
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
    InvalidArgument,
    StorageFull,
    StorageUnavailable,
)
from chunkstore.records.logs import log_event, without_credentials
from chunkstore.records.names import check_object_name
from chunkstore.storage import ChunkHandle, ChunkRange, ChunkStorage, Composed, ConcatArgument
from chunkstore_bindings.wrappers.wrapping import WrappingChunkStorage, size_of

__all__ = ["RetryCounts", "RetryPolicy", "RetryingChunkStorage"]

T = TypeVar("T")
_TRANSIENT: Final = (StorageUnavailable, DeadlineExceeded)
_COMPARE_BYTES: Final = 8 * MIB
"""What is read back at once when contents are compared."""


class RetryPolicy(NamedTuple):
    """How often and how long. ``tries_max``: calls in all; ``budget_s``: no try begins later than this after the first;
    pause number n is the smaller of ``pause_s_first * 2**n`` and ``pause_s_max``, half of it chance."""

    tries_max: int = 8
    budget_s: float = 20.0
    pause_s_first: float = 0.05
    pause_s_max: float = 5.0


class RetryCounts(NamedTuple):
    """What happened since the storage was made: by operation, how many calls were sent again (``retries``), how many of the
    failed ones came to a good end (``recovered``), how many did not (``given_up``), and how often a lost reply was recognised
    by what is stored (``recognised``)."""

    retries: dict[str, int]
    recovered: dict[str, int]
    given_up: dict[str, int]
    recognised: dict[str, int]


class RetryingChunkStorage(WrappingChunkStorage):
    """See the module. Thread-safe.

    Raises ``InvalidArgument`` for a policy with fewer than one try or a negative time.
    """

    def __init__(self, inner: ChunkStorage, policy: RetryPolicy | None = None) -> None:
        super().__init__(inner)
        self._policy = policy if policy is not None else RetryPolicy()
        if self._policy.tries_max < 1 or min(self._policy[1:]) < 0:
            raise InvalidArgument(f"{self._policy} has no try, or a negative time", argument="policy")
        self._lock = runtime.lock()
        self._retries: Counter[str] = Counter()
        self._recovered: Counter[str] = Counter()
        self._given_up: Counter[str] = Counter()
        self._recognised: Counter[str] = Counter()

    def counts(self) -> RetryCounts:
        """What it had to do so far."""
        with self._lock:
            return RetryCounts(dict(self._retries), dict(self._recovered), dict(self._given_up), dict(self._recognised))

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        if operation in ("sync", "harden") and not self.inner.capabilities.sync_repeatable:
            return call()
        return self._repeat(operation, lambda _: call())

    def _repeat(self, operation: str, attempt: Callable[[bool], T]) -> T:
        """Call ``attempt(whether one before it may still take effect)`` until it answers or its tries end."""
        backoff: Backoff | None = None
        tries = 1
        while True:
            try:
                answer = attempt(backoff is not None)
            except AccessDenied:
                raise  # waiting mends nothing
            except _TRANSIENT as error:
                if backoff is None:
                    policy = self._policy
                    backoff = Backoff(
                        policy.budget_s,
                        tries_max=policy.tries_max,
                        pause_s_first=policy.pause_s_first,
                        pause_s_max=policy.pause_s_max,
                    )
                if not backoff.pause(retry_after_s=getattr(error, "retry_after_s", 0.0)):
                    self._count(self._given_up, operation)
                    name = getattr(error, "object", None) or ""
                    log_event(
                        "storage", WARNING, f"{operation} given up", root=without_credentials(self.inner.url),
                        container=name.partition("/")[0], tries=tries, object=name, message=error.message,
                    )  # fmt: skip
                    raise
                tries += 1
                self._count(self._retries, operation)
            else:
                if backoff is not None:
                    self._count(self._recovered, operation)
                return answer

    def _count(self, counter: Counter[str], operation: str) -> None:
        with self._lock:
            counter[operation] += 1

    # Creating

    def create_if_absent(self, name: str, data: BytesLike) -> bool:
        # First, so that after an attempt in doubt every other refusal leaves it in doubt.
        check_object_name(name)
        creation = _Creation(self.inner, name, data)

        def attempt(in_doubt: bool) -> bool:
            if not creation.taken:
                if self.inner.create_if_absent(name, data):
                    return True
                if not in_doubt:
                    return False
                creation.taken = True
            if not creation.is_ours():
                return False
            # What is seen is durable where objects are whole; elsewhere a lost reply says nothing about the disk (P6).
            if self.inner.capabilities.append:
                self.inner.harden(name)
            self._count(self._recognised, "create_if_absent")
            return True

        def judged(in_doubt: bool) -> bool:
            try:
                return attempt(in_doubt)
            except (StorageUnavailable, Damaged):
                raise
            except ChunkstoreError as answer:
                raise _unknown_if(in_doubt, answer, name) from answer

        return self._repeat("create_if_absent", judged)

    def create(self, name: str, data: BytesLike | None = None) -> ChunkHandle:
        if not self._can_be_verified():
            return self.inner.create(name, data)
        creation = _Creation(self.inner, name, b"" if data is None else data)

        def attempt(in_doubt: bool) -> ChunkHandle:
            if not creation.taken:
                try:
                    return self.inner.create(name, data)
                except StorageFull as full:
                    raise _unknown_if(in_doubt, full, name) from full
                except ChunkExists:
                    if not in_doubt:
                        raise
                    creation.taken = True
            if creation.is_ours():
                self._count(self._recognised, "create")
                return ChunkHandle(name, True)
            # Another writer's, or where chunks grow a part of ours: in either case nothing may be written to it any more.
            raise ChunkExists(name)

        return self._repeat("create", attempt)

    def _can_be_verified(self) -> bool:
        """Whether what is read back is what is stored: above a page cache it may never reach the disk, and a failed write
        there is for the engine to judge (protocol A2)."""
        offered = self.inner.capabilities
        return offered.sync_repeatable or not offered.append

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
            name = handle.name
            if not self._can_be_verified() or not self._is_so(
                "write", "read", lambda: _ends_with(self.inner, name, offset, data)
            ):
                raise
        return size_of(data)

    def truncate(self, handle: ChunkHandle, length: int) -> None:
        try:
            self.inner.truncate(handle, length)
        except _TRANSIENT:
            if not self._is_so("truncate", "stat", lambda: self.inner.stat(handle.name).length == length):
                raise

    def compose(self, name: str, ranges: Sequence[ChunkRange]) -> Composed:
        return self.inner.compose(name, ranges)

    def concat(self, arguments: Sequence[ConcatArgument]) -> int:
        return self.inner.concat(arguments)

    def _is_so(self, operation: str, look: str, question: Callable[[], bool]) -> bool:
        """Whether a change whose reply was lost has happened; False, too, where that cannot be learned."""
        try:
            if self._repeat(look, lambda _: question()):
                self._count(self._recognised, operation)
                return True
        except ChunkstoreError:
            # Whatever the look met, it says nothing about the change: that may have happened.
            pass
        self._count(self._given_up, operation)
        return False


class _Creation:
    """A creation whose first attempt may have landed. What is known is not asked again."""

    __slots__ = ("_data", "_inner", "_name", "_ours", "taken")

    def __init__(self, inner: ChunkStorage, name: str, data: BytesLike) -> None:
        self._inner = inner
        self._name = name
        self._data = data
        self._ours = False
        self.taken = False
        """Whether the name is known to exist: for ever, because names are not used again."""

    def is_ours(self) -> bool:
        """Whether the name holds exactly our bytes. Raises ``StorageUnavailable`` while that cannot be learned."""
        if not self._ours:
            try:
                self._ours = _ends_with(self._inner, self._name, 0, self._data)
            except ChunkNotFound as missing:
                raise StorageUnavailable(
                    f"{self._name} was taken and then not readable", object=self._name
                ) from missing
        return self._ours


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


def _unknown_if(in_doubt: bool, answer: ChunkstoreError, name: str) -> ChunkstoreError:
    """An answer says that nothing happened, which is true of this attempt only."""
    if not in_doubt:
        return answer
    return StorageUnavailable(f"{answer}; an attempt before that may still land", object=name)
