"""``chunkstore.aio``: the same stores, from asyncio.

    async with chunkstore.aio.open(root) as store:
        offset = await store.append("orders", b"first;")
        async for info in store.segments(): ...

Promises: every method of a store, and of what it gives (readers, writers, tables, sessions, replicas), is here under its own name, as a
coroutine that runs it in one of ``threads`` threads of this store, with the caller's context variables; attributes stay attributes. What
can be iterated is iterated with ``async for``, what is a context manager is entered with ``async with``; the future that a writer's
``append`` returns is one of the loop's. Arguments, results, errors and retries are those of the method, which is the one place that says
so. A call that is cancelled before a thread has begun it did not happen; one that has begun still runs to completion in its thread, and its
result is discarded: it may have happened, as after ``OutcomeUnknown``, and what it has opened is closed. What waits for appends or for room
(``wait``, a follower, a full writer) holds no thread. Closing and cancelling need no thread that calls may occupy.
Leaves out: all work. This is the only module next to ``runtime`` that knows threads: the loop's, which no simulator runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor  # noqa: TID251  (the loop's threads: see above)
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast
from weakref import WeakKeyDictionary

from chunkstore import assembly, following
from chunkstore.checksum import BytesLike
from chunkstore.engine.owner import Asker
from chunkstore.engine.reader import StorageReader
from chunkstore.engine.reading import Awaited, ReadableContainer, check_wait
from chunkstore.engine.replica import Replica
from chunkstore.engine.segment import SegmentView
from chunkstore.engine.segment_file import RecordReader, SegmentFile
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.engine.writer import StorageWriter
from chunkstore.errors import ChunkstoreError, Closed, DeadlineExceeded, InvalidArgument
from chunkstore.operations.tables import Session, TableReader
from chunkstore.records.arguments import SegmentRef, check_timeout, resolve
from chunkstore.records.segments import SegmentInfo
from chunkstore.registry import Root
from chunkstore.upkeep.optimiser import StorageOptimiser

__all__ = ["Call", "Face", "open", "open_asker", "open_replica"]

T = TypeVar("T")
_THREAD: Final = "chunkstore-aio"
_BATCH: Final = 256
"""Items of an iterator that are fetched at a time, where they are ready at once."""
_READING: Final = ("read", "read1", "readall", "readinto", "readline", "readlines")
_FACED: Final = (
    Asker,
    ChunkedSegmentStorage,
    Iterator,
    Replica,
    SegmentView,
    Session,
    StorageOptimiser,
    StorageReader,
    StorageWriter,
    TableReader,
)


class Call(Coroutine[Any, Any, Any]):
    """A call that was not made yet, and is made once: ``await`` it (or make a task of it) for what it gives, iterate over that with
    ``async for``, or enter it with ``async with``."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._entered: Face | None = None

    def __await__(self) -> Generator[Any, None, Any]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    async def __aiter__(self) -> AsyncGenerator[Any, None]:
        found = await self
        try:
            async for item in found:
                yield item
        finally:
            await found.close()

    async def __aenter__(self) -> Face:
        self._entered = await self
        return self._entered

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered is not None:
            await self._entered.__aexit__(kind, error, trace)


class Face:
    """What a call gave, with a ``Call`` in the place of each of its methods. ``wrapped``: itself, for what does not block."""

    def __init__(self, wrapped: Any, host: _Host) -> None:
        self.wrapped = wrapped
        self._host = host
        self._ready: list[Any] = []
        self._fetching: Future[Any] | None = None
        self._fetched: tuple[Any, ...] = ()
        self._position = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self.wrapped).__name__!r} has no public attribute {name!r}")
        found = getattr(self.wrapped, name)
        if not callable(found):
            return _faced(found, self._host)
        call: Callable[..., Coroutine[Any, Any, Any]] = partial(_call_in_thread, self._host, found)
        if name == "wait" and isinstance(self.wrapped, ReadableContainer):
            call = self._wait
        elif name == "append" and isinstance(self.wrapped, StorageWriter):
            call = self._append
        elif name == "reader" and isinstance(self.wrapped, ReadableContainer):
            call = self._reader
        elif name in _READING and isinstance(self.wrapped, StorageReader):
            call = partial(self._read, found)
        return lambda *arguments, **named: Call(call(*arguments, **named))

    def __getitem__(self, name: SegmentRef) -> Call:
        return Call(_call_in_thread(self._host, self.wrapped.__getitem__, name))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._free(partial(self.wrapped.__exit__, kind, error, trace))

    def __aiter__(self) -> AsyncIterator[Any]:
        return self if isinstance(self.wrapped, Iterator) else Face(iter(self.wrapped), self._host)

    async def __anext__(self) -> Any:
        if isinstance(self.wrapped, StorageReader):
            while (piece := await self._fetch(self.wrapped.poll)) == b"":
                await self._news(self.wrapped)
            if piece is None:
                raise StopAsyncIteration
            return piece
        if not self._ready and isinstance(self.wrapped, RecordReader):
            while (records := await self._fetch(self.wrapped.poll)) == []:
                await self._news(self.wrapped.reader)
            self._ready = (records or [])[::-1]
        elif not self._ready:
            self._ready = await self._fetch(lambda: list(islice(self.wrapped, _BATCH))[::-1])
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.pop()

    async def close(self) -> None:
        """As of what is wrapped."""
        await self._free(getattr(self.wrapped, "close", lambda: None))

    async def _news(self, reader: SegmentFile) -> None:
        """Wait for an append to what this reads, or for its end."""
        pauses = self._host.pauses
        pauses[reader] = pause = self._host.waits().add(reader.segment, reader.fetched_to)
        if reader.closed:
            _settle(pause, Closed("this reader"))
        await pause

    async def _read(self, method: Callable[..., Any], *arguments: Any) -> Any:
        def attempt() -> Any:
            self.wrapped.never_wait()
            with suppress(BlockingIOError):
                return method(*arguments)
            return None

        while (found := await self._fetch(attempt, (method.__name__, *arguments))) is None:
            await self._news(self.wrapped)
        return found

    async def _reader(self, segment: SegmentRef, *, wait_for_segment_s: float = 0, **named: Any) -> Any:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + check_timeout(wait_for_segment_s, "wait_for_segment_s")
        while (left_s := end_s - loop.time()) > 0:
            info, pause_s = await _call_in_thread(self._host, self.wrapped._poll_segment, segment)
            if info is not None:
                break
            await asyncio.sleep(min(pause_s, left_s))
        return await _call_in_thread(self._host, self.wrapped.reader, segment, **named)

    async def _fetch(self, call: Callable[[], Any], what: tuple[Any, ...] = ()) -> Any:
        if self._fetching is not None and what != self._fetched:
            await asyncio.wait([asyncio.wrap_future(self._fetching)])
            self._fetching = None
            self.wrapped.seek(self._position)
        if self._fetching is None:
            self._position = getattr(self.wrapped, "position", 0)
            self._fetching, self._fetched = self._host.submit(call), what
        # A caller that gives up waiting loses nothing: what comes then is the next caller's.
        fetched = asyncio.wrap_future(self._fetching)
        await asyncio.shield(asyncio.wait([fetched]))
        self._fetching = None
        if fetched.cancelled():
            raise Closed("this iterator")
        return fetched.result()

    async def _wait(self, segment: SegmentRef, offset: int, timeout_s: float) -> SegmentInfo:
        check_wait(offset, timeout_s)
        resolve(segment)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                return await self._host.waits().add(segment, offset, refresh=True)
        return cast(SegmentInfo, await _call_in_thread(self._host, self.wrapped.wait, segment, offset, 0))

    async def _append(self, data: BytesLike, *, timeout_s: float | None = None) -> asyncio.Future[int]:
        loop, limit_s = asyncio.get_running_loop(), self.wrapped.limit_s(timeout_s)
        end_s = loop.time() + limit_s
        while True:
            room = asyncio.Event()
            queued = await _call_in_thread(self._host, self.wrapped.offer, data, partial(_post, loop, room.set))
            if queued is not None:
                return cast(asyncio.Future[int], queued)
            try:
                async with asyncio.timeout_at(end_s):
                    await room.wait()
            except TimeoutError as error:
                raise DeadlineExceeded("append: the writer's buffer stayed full", deadline_s=limit_s) from error

    async def _free(self, close: Callable[[], object]) -> None:
        """Close it, without a thread that calls may occupy."""
        try:
            is_reader = isinstance(self.wrapped, StorageReader)
            if self._fetching is not None and not self._fetching.cancel() and not is_reader:
                # Python refuses to close a generator that a thread is in.
                await asyncio.wait([asyncio.wrap_future(self._fetching)])
            if is_reader:
                self.wrapped.close(wait_s=0)
                if (pause := self._host.pauses.get(self.wrapped)) is not None:
                    _post(pause.get_loop(), partial(_settle, pause, Closed("this reader")))
            else:
                await asyncio.shield(asyncio.wrap_future(_start(copy_context().run, close)))
        finally:
            if self.wrapped is self._host.owner:
                self._host.close()


class _Host:
    """What the faces of one store share: its threads, and in each event loop its waits. ``owner``: the store."""

    def __init__(self, count: int) -> None:
        self.owner: Any = None
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=_THREAD)
        self._waits: dict[asyncio.AbstractEventLoop, _Waits] = {}
        self.pauses: WeakKeyDictionary[SegmentFile, asyncio.Future[SegmentInfo]] = WeakKeyDictionary()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run it in a thread. Raises ``Closed`` where the threads are gone with the store."""
        try:
            return self._threads.submit(copy_context().run, call)
        except RuntimeError as error:
            raise Closed("this store") from error

    def waits(self) -> _Waits:
        """Those of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._waits:
            self._waits = {other: waits for other, waits in self._waits.items() if not other.is_closed()}
            self._waits[loop] = _Waits(self)
        return self._waits[loop]

    def close(self) -> None:
        """No thread begins another call, and every wait ends with ``Closed``."""
        self._threads.shutdown(wait=False)
        for loop, waits in self._waits.items():
            _post(loop, waits.end)


class _Waits:
    """The waits of one store in one event loop. One task looks after all of them, in one of the store's threads now and then: after its
    commits, and as often as a waiting thread would look."""

    def __init__(self, host: _Host) -> None:
        self._host = host
        self._awaited: dict[asyncio.Future[SegmentInfo], Awaited] = {}
        self._news = asyncio.Event()
        self._refresh, self._due_s = False, 0.0
        self._task: asyncio.Task[None] | None = None

    def add(self, segment: SegmentRef, offset: int, *, refresh: bool = False) -> asyncio.Future[SegmentInfo]:
        """What ``wait`` of the store returns, without a limit."""
        future: asyncio.Future[SegmentInfo] = asyncio.get_running_loop().create_future()
        self._awaited[future] = segment, offset
        future.add_done_callback(self._drop)
        self._refresh = self._refresh or refresh
        self._news.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), context=Context())
        return future

    def _drop(self, future: asyncio.Future[SegmentInfo]) -> None:
        del self._awaited[future]
        if not self._awaited:
            self._news.set()  # the task ends

    def end(self, error: BaseException | None = None) -> None:
        """End them all, with ``Closed`` or another error."""
        for future in self._awaited:
            _settle(future, Closed("this store") if error is None else error)
        if error is None and self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        loop, store = asyncio.get_running_loop(), self._host.owner

        def wake() -> None:
            if not self._news.is_set():
                _post(loop, self._news.set)

        unwatch = store._watch(wake)
        try:
            while self._awaited:
                self._news.clear()
                # Kept from task to task: a caller that gives up early, again and again, sees news all the same.
                refresh, self._refresh = self._refresh or loop.time() >= self._due_s, False
                look = partial(store._poll_waits, set(self._awaited.values()), refresh=refresh)
                over, pause_s = await asyncio.wrap_future(self._host.submit(look))
                for future, awaited in self._awaited.items():
                    if awaited in over:
                        _settle(future, over[awaited])
                if refresh:
                    self._due_s = loop.time() + pause_s
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(self._due_s):
                        await self._news.wait()
        except Exception as error:  # noqa: BLE001  (raised by every wait)
            self.end(error)
        finally:
            unwatch()


def _settle(future: asyncio.Future[SegmentInfo], result: SegmentInfo | BaseException) -> None:
    if future.done():
        return
    if isinstance(result, SegmentInfo):
        future.set_result(result)
    else:
        future.set_exception(result.copy() if isinstance(result, ChunkstoreError) else result)


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Call it in the loop, from any thread; a loop that is closed waits for nothing."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


def _start(call: Callable[..., T], *arguments: Any) -> Future[T]:
    """Run it in a thread of its own."""
    thread = ThreadPoolExecutor(1, thread_name_prefix=_THREAD)
    try:
        return thread.submit(call, *arguments)
    finally:
        thread.shutdown(wait=False)


def open(root: Root, *, threads: int = 32, **arguments: Any) -> Call:  # noqa: A001  (as chunkstore.open)
    """As ``chunkstore.open``, with its arguments. ``threads`` (1 to 1024): so many calls are performed at a time, others wait;
    those that wait for appends or for room in a writer do not count."""
    return Call(_open(_checked(threads), partial(assembly.open_store, root, **arguments)))


def open_replica(root: Root, *, threads: int = 32, **arguments: Any) -> Call:
    """As ``chunkstore.open_replica``; ``threads`` as of ``open``."""
    return Call(_open(_checked(threads), partial(following.open_replica, root, **arguments)))


def open_asker(root: Root, *, threads: int = 32, **arguments: Any) -> Call:
    """As ``chunkstore.open_asker``; ``threads`` as of ``open``."""
    return Call(_open(_checked(threads), partial(assembly.open_asker, root, **arguments)))


def _checked(threads: int) -> int:
    if type(threads) is not int or not 1 <= threads <= 1024:
        raise InvalidArgument(f"threads must be a whole number from 1 to 1024, not {threads!r}", argument="threads")
    return threads


async def _open(count: int, do: Callable[[], Any]) -> Face:
    host = _Host(count)
    try:
        opened = await _call_in_thread(host, do)
    except BaseException:
        host.close()
        raise
    host.owner = opened.wrapped
    return Face(opened.wrapped, host)


async def _call_in_thread(host: _Host, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Run it in a thread. Raises what it raises, and as ``_Host.submit``."""
    under_way = host.submit(partial(method, *arguments, **named))
    try:
        return _faced(await asyncio.wrap_future(under_way), host)
    except asyncio.CancelledError:
        under_way.add_done_callback(_give_up)
        raise


def _faced(found: Any, host: _Host) -> Any:
    if isinstance(found, Future):
        return asyncio.wrap_future(found)
    return Face(found, host) if isinstance(found, _FACED) else found


def _give_up(under_way: Future[Any]) -> None:
    """What a call has opened whose caller has gone."""
    if under_way.cancelled() or under_way.exception() is not None:
        return
    found = under_way.result()
    if isinstance(found, _FACED) and hasattr(found, "close"):
        _start(found.close)  # not here: this may be the loop's own thread
