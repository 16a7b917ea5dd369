"""``StorageWriter``: a buffered, asynchronous appender with back-pressure and exactly-once resumption.

Promises: ``append`` returns at once with a future of the durable offset; bytes are committed in order, in batches of at least
``flush_bytes`` or after ``flush_s``; when ``buffer_bytes_max`` are waiting, ``append`` blocks. Where every append makes chunks of its
own (object stores), up to ``window`` batches are written at the same time (decision 0036). On remote storages batches grow with what
waits, up to 8 MiB, as far as a quarter of ``op_deadline_s`` is enough for all that is under way. After an error the writer is broken:
every later future, in order, fails with the same error. With a ``writer_id`` every ``append`` is one event, numbered from
1 (or from what ``resume`` found), and a batch is recorded with its last event number, so that ``resume`` goes on exactly
after the last committed event. With ``framing`` each payload becomes a record (``records.framing``). Not for use in a forked child.

Threads: one has the turn, in which it takes a batch and enters it; then it hands the turn to a new one, writes its batch, and waits for the
commit. At rest there is one. Futures are set in order, whichever batch is finished first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, Self
from weakref import WeakValueDictionary

from chunkstore import runtime
from chunkstore.checksum import BytesLike, check_data
from chunkstore.config import MIB, Settings
from chunkstore.engine.writer_batch import Batch, Pace, Waiting, superseded
from chunkstore.errors import CacheDamaged, ChunkstoreError, Closed, DeadlineExceeded, InvalidArgument
from chunkstore.operations.append import AppendWindow
from chunkstore.operations.container import unexpected
from chunkstore.records.arguments import SegmentHandle, check_timeout
from chunkstore.records.framing import framed
from chunkstore.runtime import Future

__all__ = ["AppendTarget", "StorageWriter", "Writers"]

_JOIN_S: Final = 60.0
_THREAD: Final = "chunkstore-writer"
_GROWN_BYTES_MAX: Final = 8 * MIB
_BUFFER_BYTES_MIN: Final = 16 * MIB


class AppendTarget(Protocol):
    """What a writer needs of the store it appends to."""

    @property
    def settings(self) -> Settings: ...
    def append(
        self,
        segment: SegmentHandle,
        data: BytesLike,
        *,
        expected_offset: int | None,
        writer_id: bytes | None,
        event_number: int | None,
    ) -> int: ...
    @property
    def writer(self) -> Callable[..., StorageWriter]: ...


class StorageWriter:
    """One writer of one segment; thread-safe; a context manager whose end flushes. See the module, and ``Store.writer`` for arguments."""

    def __init__(
        self,
        store: AppendTarget,
        handle: SegmentHandle,
        appends: AppendWindow,
        pace: Pace,
        *,
        writer_id: bytes | None,
        last_event_number: int = 0,
        expected_offset: int | None = None,
    ) -> None:
        self._store = store
        self._handle = handle
        self._appends = appends
        self._pace = pace
        self._width = pace.window if appends.wide else 1
        buffer_bytes_max = pace.buffer_bytes_max
        if buffer_bytes_max is None:
            buffer_bytes_max = max(_BUFFER_BYTES_MIN, _GROWN_BYTES_MAX * self._width if appends.remote else 0)
        self._buffer_bytes_max = max(buffer_bytes_max, pace.flush_bytes)
        self.writer_id = writer_id
        self.event_number: int = last_event_number
        self._expected_offset = expected_offset
        self._condition = runtime.condition()
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        self._oldest_s = 0.0
        # Numbers of the last event that is to be committed at once, and of the last one that was.
        self._flush_to = last_event_number
        self._committed_to = last_event_number
        self._closed = False
        self._error: ChunkstoreError | None = None
        self._underway: deque[Batch] = deque()  # in order; a batch leaves when its futures are set
        self._underway_bytes = 0
        self._done_bytes = 0
        self._wakes: list[Callable[[], None]] = []  # of those who wait for room in the buffer
        self._due_bytes = pace.flush_bytes  # when so much waits, the thread that has the turn is woken
        self._failing = False
        """A batch has failed: no other one is begun. The writer is broken when all before that one are decided."""
        self._gives_way = False  # a newer writer of the id has been opened
        self._resolving = runtime.lock()
        self._vacant = False  # no thread has the turn: the next that is done takes it
        self._threads = 1
        runtime.spawn(self._run, _THREAD)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._error is None else type(self._error).__name__
        return f"<StorageWriter {self._handle.name!r} event_number={self.event_number} {state} to {self._store!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def append(self, data: BytesLike, *, timeout_s: float | None = None) -> Future[int]:
        """Queue ``data`` (copied) and return a future of its offset, set when it is durable. Callbacks of futures run in the writer's own
        threads: one that waits there for this writer (``flush``, ``close``, ``resume``, another future) holds all of it up to a deadline.
        Blocks while ``buffer_bytes_max`` are waiting. Raises ``InvalidArgument``, ``Closed``, ``DeadlineExceeded`` (still full
        after ``timeout_s``, default the store's ``op_deadline_s``; nothing was queued). A broken writer returns a failed
        future with an error of the store's ``append``. Retry: after ``resume`` only.
        """
        payload = framed(bytes(check_data(data)), self._pace.framing)
        limit_s = self.limit_s(timeout_s)
        with self._condition:
            if not self._must_wait(len(payload)):
                return self._enter(payload)
        deadline_s = runtime.monotonic_s() + limit_s
        while True:
            full = runtime.event()
            if (future := self._offer(payload, full.set)) is not None:
                return future
            left_s = deadline_s - runtime.monotonic_s()
            if left_s <= 0:
                raise DeadlineExceeded("append: the writer's buffer stayed full", deadline_s=limit_s)
            full.wait(left_s)

    def offer(self, data: BytesLike, wake: Callable[[], None]) -> Future[int] | None:
        """As ``append``, but it never waits: None where the buffer is full. Then nothing was queued, and ``wake`` is called once when there
        may be room or the writer has ended: in another thread, with locks held, where it must neither raise nor wait.
        Raises ``InvalidArgument``, ``Closed``. Retry: as of ``append``."""
        return self._offer(framed(bytes(check_data(data)), self._pace.framing), wake)

    def _offer(self, payload: bytes, wake: Callable[[], None]) -> Future[int] | None:
        with self._condition:
            if not self._must_wait(len(payload)):
                return self._enter(payload)
            self._wakes.append(wake)
            self._condition.notify_all()
            return None

    def _must_wait(self, size_bytes: int) -> bool:
        if self._closed or self._error is not None or self._gives_way:
            return False
        return self._waiting_bytes > 0 and self._waiting_bytes + size_bytes > self._buffer_bytes_max

    def _enter(self, payload: bytes) -> Future[int]:
        """With the condition held."""
        if self._closed:
            raise Closed("this writer")
        future: Future[int] = runtime.future()
        # Queued is as good as running: it cannot be cancelled any more.
        future.set_running_or_notify_cancel()
        if self._error is not None or self._gives_way:
            future.set_exception(self._error.copy() if self._error is not None else superseded())
            return future
        is_first = not self._waiting
        if is_first:
            self._oldest_s = runtime.monotonic_s()
        self.event_number += 1
        self._waiting.append(Waiting(payload, future, self.event_number))
        before_bytes, self._waiting_bytes = self._waiting_bytes, self._waiting_bytes + len(payload)
        if is_first or before_bytes < self._due_bytes <= self._waiting_bytes:
            self._condition.notify_all()
        return future

    def _room(self) -> None:
        """With the condition held: there may be room, or the writer has ended."""
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()
        self._condition.notify_all()

    def limit_s(self, timeout_s: float | None) -> float:
        """The seconds that a call may wait; None: the store's ``op_deadline_s``. Raises ``InvalidArgument``."""
        return self._store.settings.op_deadline_s if timeout_s is None else check_timeout(timeout_s)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything appended so far is durable; another call goes on waiting.

        Raises ``InvalidArgument``, ``DeadlineExceeded`` (appended bytes are still being written), ``Closed`` (a newer writer of the id
        was opened), and what broke the writer: an error of ``append`` of the store. Nothing after the failure is
        acknowledged, and nothing of it happened, but where the failure is ``OutcomeUnknown``; go on with ``resume``.
        """
        limit_s = self.limit_s(timeout_s)
        deadline_s = runtime.monotonic_s() + limit_s
        with self._condition:
            target = self.event_number
            self._flush_to = max(self._flush_to, target)
            self._condition.notify_all()
            while self._committed_to < target and self._error is None:
                left_s = deadline_s - runtime.monotonic_s()
                if left_s <= 0:
                    raise DeadlineExceeded("flush", deadline_s=limit_s, became="appended bytes are still being written")
                self._condition.wait(left_s)
            if self._error is not None and self._committed_to < target:
                raise self._error.copy()

    def close(self) -> None:
        """Flush and end. Raises as ``flush``; the writer is closed all the same, and what is under way by then may still be committed:
        a newer writer of the id waits for that. Safe to repeat."""
        with self._condition:
            already = self._closed
        try:
            if not already:
                self.flush()
        finally:
            with self._condition:
                self._closed = True
                self._room()
                deadline_s = runtime.monotonic_s() + _JOIN_S
                while self._threads and (left_s := deadline_s - runtime.monotonic_s()) > 0:
                    self._condition.wait(left_s)

    def give_way(self) -> None:
        """To a newer writer of the same id: begin nothing more, and wait until what is under way has come to its end; then the rest fails
        with ``Closed``. Raises ``DeadlineExceeded`` (something is undecided still; no one may go on after it). Retry: safe."""
        limit_s = self.limit_s(None)
        deadline_s = runtime.monotonic_s() + limit_s
        with self._condition:
            self._gives_way = self._failing = True
            self._room()
            while self._underway and self._error is None:
                left_s = deadline_s - runtime.monotonic_s()
                if left_s <= 0:
                    what = "pending appends of a former writer with this id"
                    raise DeadlineExceeded(what, deadline_s=limit_s, became="it ends once that is decided; try again")
                self._condition.wait(left_s)
        self._end_for_newer()

    def _end_for_newer(self) -> None:
        """Once nothing is under way any more."""
        if not self._gives_way:
            return  # nearly always; a caller that says so later looks itself
        with self._condition:
            is_over = self._error is not None or (self._closed and not self._waiting)
            if is_over or self._underway:
                return
        self._break(superseded())

    def resume(self, store: AppendTarget) -> StorageWriter:
        """A new writer on ``store`` (perhaps a new owner) that goes on from the last committed event number.

        ``new.event_number`` says which: append again every event above. On the same store this one gives way first. Raises
        ``InvalidArgument`` without a ``writer_id``, and as ``Store.writer``. Retry: safe.
        """
        if self.writer_id is None:
            raise InvalidArgument("resume needs a writer with a writer_id", argument="writer_id")
        return store.writer(self._handle.name, writer_id=self.writer_id, **self._pace._asdict())

    def _run(self) -> None:
        """With the turn: take a batch and enter it, hand the turn on, finish the batch."""
        try:
            while (batch := self._next_batch()) is not None:
                self._begin(batch)
                with self._condition:
                    # Where only one is written at a time, this thread keeps the turn.
                    self._failing = self._failing or batch.error is not None
                    self._vacant = True
                self._hand_on()
                self._finish(batch)
                with self._condition:
                    if not self._vacant:
                        return
                    self._vacant = False
        except BaseException as error:
            # What calls back when a future is resolved may raise anything; no future may wait for a thread that has gone.
            self._fail_all(unexpected(error))
            raise
        finally:
            with self._condition:
                self._threads -= 1
                self._condition.notify_all()

    def _hand_on(self) -> None:
        """Give the turn to a new thread, if no one has it and another batch may be begun; else who is done next takes it."""
        with self._condition:
            hands_on = self._vacant and not self._failing and not self._is_full()
            if hands_on:
                self._vacant = False
                self._threads += 1
        if hands_on and runtime.spawn_if_possible(self._run, _THREAD) is None:
            with self._condition:
                self._threads -= 1
                self._vacant = True

    def _is_full(self) -> bool:
        """With the condition held: as many as may be are being written, or wait for their records."""
        unwritten = sum(not batch.written for batch in self._underway)
        return unwritten >= self._width or len(self._underway) >= 2 * self._width

    def _next_batch(self) -> Batch | None:
        """Wait until a batch is due and may be begun, and take it. None when the writer has ended."""
        with self._condition:
            while True:
                if self._failing:
                    return None
                if not self._waiting:
                    if self._closed:
                        return None
                    self._condition.wait(1.0)
                    continue
                room_bytes = self._appends.most_bytes(self._width, self._pace.flush_bytes) - self._underway_bytes
                if self._underway and (
                    self._is_full() or room_bytes < min(self._waiting_bytes, self._pace.flush_bytes)
                ):
                    self._condition.wait(1.0)
                    continue
                most_bytes = self._pace.flush_bytes
                if self._appends.remote:
                    share_bytes = room_bytes // max(1, self._width - len(self._underway))
                    most_bytes = max(most_bytes, min(_GROWN_BYTES_MAX, share_bytes))
                # After others it is late anyway: it rather grows.
                self._due_bytes = most_bytes if self._underway else self._pace.flush_bytes
                age_s = runtime.monotonic_s() - self._oldest_s
                if (
                    self._waiting[0].event_number <= self._flush_to
                    or self._closed
                    or self._wakes
                    or self._waiting_bytes >= self._due_bytes
                    or age_s >= self._pace.flush_s
                ):
                    return self._take_batch(most_bytes)
                self._condition.wait(max(0.0, self._pace.flush_s - age_s))

    def _take_batch(self, most_bytes: int) -> Batch:
        items: list[Waiting] = []
        size_bytes = 0
        while self._waiting and (not items or size_bytes + len(self._waiting[0].data) <= most_bytes):
            item = self._waiting.popleft()
            items.append(item)
            size_bytes += len(item.data)
        self._waiting_bytes -= size_bytes
        self._oldest_s = runtime.monotonic_s()
        batch = Batch(items, self._done_bytes, self._expected_offset)
        if self._expected_offset is not None:
            self._expected_offset += size_bytes
        self._underway.append(batch)
        self._underway_bytes += size_bytes
        self._room()
        return batch

    def _begin(self, batch: Batch) -> None:
        """Enter a batch after the one before; without ``underway`` it is appended when it is the oldest."""
        if self._width == 1:
            return
        with self._condition:
            before = self._underway[-2] if len(self._underway) > 1 else None
        if before is not None and before.underway is None:
            return
        try:
            batch.underway = self._appends.begin(
                batch.data,
                None if before is None else before.underway,
                expected_offset=batch.expected_offset,
                writer_id=self.writer_id,
                event_number=batch.event_number,
            )
        except ChunkstoreError as error:
            batch.error = error
        except BaseException as error:  # noqa: BLE001  (told when the batch is finished)
            batch.error = unexpected(error)

    def _finish(self, batch: Batch) -> None:
        """Write a batch, wait until it is committed, and answer what is in order by then."""
        try:
            if batch.error is None:
                batch.offset = self._append_batch(batch)
        except ChunkstoreError as error:
            batch.error = error
        except BaseException as error:
            batch.error = unexpected(error)
            raise
        finally:
            with self._condition:
                batch.done = True
                if batch.error is not None:
                    self._failing = True
                else:
                    self._done_bytes += len(batch.data)
                    meanwhile_bytes = self._done_bytes - batch.done_bytes_before
                    self._appends.measure(len(batch.data), meanwhile_bytes, runtime.monotonic_s() - batch.began_s)
                self._condition.notify_all()
            self._resolve()

    def _append_batch(self, batch: Batch) -> int:
        if batch.underway is not None:
            try:
                self._appends.write(batch.underway)
                self._written(batch)
                return self._appends.wait(batch.underway)
            except CacheDamaged:
                # It did not happen, nor did anything after it: all of it is done again, one by one.
                batch.underway = None
        with self._condition:
            while self._error is None and self._underway[0] is not batch:
                self._condition.wait(1.0)
            if self._error is not None:
                raise self._error.copy()
        return self._store.append(
            self._handle,
            batch.data,
            expected_offset=batch.expected_offset,
            writer_id=self.writer_id,
            event_number=None if self.writer_id is None else batch.event_number,
        )

    def _written(self, batch: Batch) -> None:
        """The bytes of a batch are there: while it waits for its record, the next one may be on its way."""
        with self._condition:
            batch.written = True
        self._hand_on()

    def _resolve(self) -> None:
        """Set the futures of all batches that are done, and of none after one that is not."""
        raised: list[BaseException] = []
        with self._resolving:
            while True:
                with self._condition:
                    batch = self._underway[0] if self._underway else None
                    if batch is None or not batch.done:
                        break
                    if batch.error is None:
                        self._underway.popleft()
                        self._underway_bytes -= len(batch.data)
                        self._committed_to = batch.event_number
                        self._condition.notify_all()
                if batch.error is not None:
                    self._break(batch.error)
                    break
                offset = batch.offset
                for future, length in batch.pieces:
                    try:
                        future.set_result(offset)
                    except BaseException as error:  # noqa: BLE001  (of a callback; the others are resolved all the same)
                        raised.append(error)
                    offset += length
        self._end_for_newer()
        if raised:
            raise raised[0]

    def _fail_all(self, error: ChunkstoreError) -> None:
        """What is under way comes to its end; nothing else does."""
        failed = Batch([], 0, None)
        failed.error, failed.done = error, True
        with self._condition:
            self._failing = True
            self._underway.append(failed)
        self._resolve()

    def _break(self, error: ChunkstoreError) -> None:
        # Before anybody hears of it, and may go on: what is being begun enters no more.
        self._appends.close()
        with self._condition:
            self._error = error
            futures = [future for batch in self._underway for future, _ in batch.pieces]
            futures += [item.future for item in self._waiting]
            self._underway.clear()
            self._waiting.clear()
            self._waiting_bytes = self._underway_bytes = 0
            self._room()
        for future in futures:
            future.set_exception(error.copy())


class Writers:
    """The writers of one store that have an id: the newest one of an id and segment goes on, and former ones give way to it.

    Else both would number events by themselves, and what one appends would pass for a repetition of the other's. Thread-safe."""

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self._newest: WeakValueDictionary[tuple[int, bytes], StorageWriter] = WeakValueDictionary()

    def replace(self, segment_id: int, writer_id: bytes, make: Callable[[], StorageWriter]) -> StorageWriter:
        """What ``make`` makes, once the writer before it has given way. Raises what either raises."""
        key = segment_id, writer_id
        while True:
            former = self._newest.get(key)
            if former is not None:
                former.give_way()
            made = make()
            with self._lock:
                if self._newest.get(key) is former:
                    self._newest[key] = made
                    return made
            made.give_way()  # another thread was faster: it gives way to us now
