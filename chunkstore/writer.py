"""``StorageWriter``: a buffered, asynchronous appender with back-pressure and exactly-once resumption.

Promises: ``append`` returns at once with a future of the durable offset; bytes are committed in order, in batches of about
``flush_bytes`` or after ``flush_s``; when ``buffer_bytes_max`` are waiting, ``append`` blocks. After an error the writer is broken:
every later future, in order, fails with the same error. With a ``writer_id`` every ``append`` is one event, numbered from
1 (or from what ``resume`` found), and a batch is recorded with its last event number, so that ``resume`` goes on exactly
behind the last committed event. In a forked child it is closed: futures of before are the parent's, and never set here.
Leaves out: framing of events (the bytes are the caller's).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, Self

from chunkstore import processes, runtime
from chunkstore.checksum import BytesLike, check_data
from chunkstore.config import Settings
from chunkstore.errors import ChunkstoreError, Closed, DeadlineExceeded, InvalidArgument
from chunkstore.handles import SegmentHandle
from chunkstore.runtime import Future

__all__ = ["AppendTarget", "StorageWriter", "check_buffering"]

_JOIN_S: Final = 60.0
_TIMEOUT_S_MAX: Final = 366 * 86_400


class _Waiting(NamedTuple):
    data: bytes
    future: Future[int]
    event_number: int


def check_buffering(flush_bytes: object, flush_s: object, buffer_bytes_max: object) -> None:
    """Check a writer's arguments. Raises ``InvalidArgument``."""
    for value, argument in ((flush_bytes, "flush_bytes"), (buffer_bytes_max, "buffer_bytes_max")):
        if type(value) is not int or value < 1:
            raise InvalidArgument(f"{argument} must be a whole number from 1 on, not {value!r}", argument=argument)
    if not isinstance(flush_s, (int, float)) or not 0 <= flush_s <= 3600:
        raise InvalidArgument(f"flush_s must be from 0 to 3600, not {flush_s!r}", argument="flush_s")


class AppendTarget(Protocol):
    """What a writer needs of the store it appends to."""

    @property
    def settings(self) -> Settings: ...
    def append(
        self,
        segment: SegmentHandle,
        data: BytesLike,
        *,
        writer_id: bytes | None,
        event_number: int | None,
    ) -> int: ...
    def append_many(self, segment: SegmentHandle, buffers: Sequence[BytesLike]) -> int: ...
    def wrap_unexpected(self, error: BaseException) -> ChunkstoreError: ...
    def writer(
        self,
        segment: str,
        *,
        flush_bytes: int,
        flush_s: float,
        buffer_bytes_max: int,
        writer_id: bytes | None,
    ) -> StorageWriter: ...


class StorageWriter:
    """One writer of one segment; thread-safe; a context manager whose end flushes. See the module."""

    def __init__(
        self,
        store: AppendTarget,
        handle: SegmentHandle,
        *,
        flush_bytes: int,
        flush_s: float,
        buffer_bytes_max: int,
        writer_id: bytes | None,
        last_event_number: int = 0,
    ) -> None:
        self._store = store
        self._handle = handle
        self._flush_bytes = flush_bytes
        self._flush_s = float(flush_s)
        self._buffer_bytes_max = max(buffer_bytes_max, flush_bytes)
        self.writer_id = writer_id
        self.event_number = last_event_number
        self._condition = runtime.condition()
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._oldest_s = 0.0
        # Numbers of the last event that is to be committed at once, and of the last one that was.
        self._flush_to = last_event_number
        self._committed_to = last_event_number
        self._closed = False
        self._error: ChunkstoreError | None = None
        self._task: runtime.Task | None = runtime.spawn(self._run, "chunkstore-writer")
        processes.tell_in_child(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def append(self, data: BytesLike, *, timeout_s: float | None = None) -> Future[int]:
        """Queue ``data`` (copied) and return a future of its offset, set when it is durable.

        Blocks while ``buffer_bytes_max`` are waiting. Raises ``InvalidArgument``, ``Closed``, ``DeadlineExceeded`` (still full
        after ``timeout_s``, default the store's ``op_deadline_s``; nothing was queued). A broken writer returns a failed
        future with an error of the store's ``append``. Retry: behind ``resume`` only.
        """
        payload = bytes(check_data(data))
        limit_s = self._limit_s(timeout_s)
        deadline_s = runtime.monotonic_s() + limit_s
        future: Future[int] = runtime.future()
        # Queued is as good as running: it cannot be cancelled any more.
        future.set_running_or_notify_cancel()
        with self._condition:
            while self._waiting_bytes and self._waiting_bytes + len(payload) > self._buffer_bytes_max:
                if self._closed or self._error is not None:
                    break
                left_s = deadline_s - runtime.monotonic_s()
                if left_s <= 0:
                    raise DeadlineExceeded("append: the writer's buffer stayed full", deadline_s=limit_s)
                self._condition.wait(left_s)
            if self._closed:
                raise Closed("this writer")
            if self._error is not None:
                future.set_exception(self._error.copy())
                return future
            if not self._waiting:
                self._oldest_s = runtime.monotonic_s()
            self.event_number += 1
            self._waiting.append(_Waiting(payload, future, self.event_number))
            self._waiting_bytes += len(payload)
            self._condition.notify_all()
        return future

    def _limit_s(self, timeout_s: float | None) -> float:
        if timeout_s is None:
            return self._store.settings.op_deadline_s
        if not isinstance(timeout_s, (int, float)) or not 0 <= timeout_s <= _TIMEOUT_S_MAX:
            raise InvalidArgument(
                f"timeout_s must be a number of seconds from 0 on, not {timeout_s!r}", argument="timeout_s"
            )
        return timeout_s

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything appended so far is durable; another call goes on waiting.

        Raises ``InvalidArgument``, ``DeadlineExceeded``, ``Closed`` (in a forked child), and what broke the writer: an error of
        ``append`` of the store. Nothing behind the failure was written; go on with ``resume``.
        """
        limit_s = self._limit_s(timeout_s)
        deadline_s = runtime.monotonic_s() + limit_s
        with self._condition:
            if self._task is None:
                raise Closed("this writer, opened before this process was forked,")
            target = self.event_number
            self._flush_to = max(self._flush_to, target)
            self._condition.notify_all()
            while self._committed_to < target and self._error is None:
                left_s = deadline_s - runtime.monotonic_s()
                if left_s <= 0:
                    raise DeadlineExceeded("flush", deadline_s=limit_s)
                self._condition.wait(left_s)
            if self._error is not None:
                raise self._error.copy()

    def close(self) -> None:
        """Flush and end. Raises as ``flush``; the writer is closed all the same. Safe to repeat."""
        with self._condition:
            already = self._closed
        try:
            if not already:
                self.flush()
        finally:
            with self._condition:
                self._closed = True
                self._condition.notify_all()
            if self._task is not None:
                self._task.join(timeout=_JOIN_S)

    def resume(self, store: AppendTarget) -> StorageWriter:
        """A new writer on ``store`` (perhaps a new owner) that goes on from the last committed event number.

        ``new.event_number`` says which: append again every event above. Raises ``InvalidArgument`` without a ``writer_id``, and
        as ``ChunkedSegmentStorage.writer``. Retry: safe.
        """
        if self.writer_id is None:
            raise InvalidArgument("resume needs a writer with a writer_id", argument="writer_id")
        return store.writer(
            self._handle.name,
            flush_bytes=self._flush_bytes,
            flush_s=self._flush_s,
            buffer_bytes_max=self._buffer_bytes_max,
            writer_id=self.writer_id,
        )

    def _run(self) -> None:
        try:
            while True:
                with self._condition:
                    batch = self._next_batch()
                    if batch is None:
                        return
                self._commit(batch)
        except BaseException as error:
            # What calls back when a future is resolved may raise anything; no future may wait for a thread that has gone.
            if self._error is None:
                self._break(self._store.wrap_unexpected(error), [])
            raise

    def _next_batch(self) -> list[_Waiting] | None:
        """With the condition held: wait until a batch is due, and take it. None when the writer has ended."""
        while True:
            if self._error is not None:
                return None
            if self._waiting:
                age_s = runtime.monotonic_s() - self._oldest_s
                due = (
                    self._waiting[0].event_number <= self._flush_to
                    or self._closed
                    or self._waiting_bytes >= self._flush_bytes
                    or age_s >= self._flush_s
                )
                if due:
                    break
                self._condition.wait(max(0.0, self._flush_s - age_s))
            elif self._closed:
                return None
            else:
                self._condition.wait(1.0)
        batch: list[_Waiting] = []
        size_bytes = 0
        while self._waiting and (not batch or size_bytes + len(self._waiting[0].data) <= self._flush_bytes):
            item = self._waiting.popleft()
            batch.append(item)
            size_bytes += len(item.data)
        self._waiting_bytes -= size_bytes
        self._oldest_s = runtime.monotonic_s()
        return batch

    def _commit(self, batch: list[_Waiting]) -> None:
        try:
            if self.writer_id is None:
                offset = self._store.append_many(self._handle, [item.data for item in batch])
            else:
                offset = self._store.append(
                    self._handle,
                    b"".join(item.data for item in batch),
                    writer_id=self.writer_id,
                    event_number=batch[-1].event_number,
                )
        except ChunkstoreError as error:
            self._break(error, batch)
            return
        except BaseException as error:
            self._break(self._store.wrap_unexpected(error), batch)
            raise
        with self._condition:
            self._committed_to = batch[-1].event_number
            self._condition.notify_all()
        raised: list[BaseException] = []
        for item in batch:
            try:
                item.future.set_result(offset)
            except BaseException as error:  # noqa: BLE001  (of a callback; the other futures are resolved all the same)
                raised.append(error)
            offset += len(item.data)
        if raised:
            raise raised[0]

    def _break(self, error: ChunkstoreError, batch: list[_Waiting]) -> None:
        with self._condition:
            self._error = error
            failed = [*batch, *self._waiting]
            self._waiting.clear()
            self._waiting_bytes = 0
            self._condition.notify_all()
        for item in failed:
            item.future.set_exception(error.copy())

    def _leave_to_parent(self) -> None:
        """In a forked child: the thread that commits, and perhaps holds the lock, is not here."""
        self._condition = runtime.condition()
        self._closed = True
        self._task = None
