"""``chunkstore.aio``: the same stores, from asyncio.

    async with chunkstore.aio.open(root) as store:
        offset = await store.append("orders", b"first;")
        async for info in store.segments(): ...

Promises: every method of a store, and of what it gives (readers, writers, tables, sessions, replicas), is here under its own name, as a
coroutine that runs it in one of ``threads`` threads of this store, with the caller's context variables; attributes stay attributes. What
can be iterated is iterated with ``async for``, what is a context manager is entered with ``async with``; the future that a writer's
``append`` returns is one of the loop's. Arguments, results, errors and retries are those of the method, which is the one place that says
so. A call that is cancelled before a thread has begun it did not happen; one that has begun comes to its end in its thread, unheard: it may
have happened, as behind ``OutcomeUnknown``, and what it has opened is closed.
Leaves out: all work. This is the only module beside ``runtime`` that knows threads: the loop's, which no simulator runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor  # noqa: TID251  (the loop's threads: see above)
from contextvars import copy_context
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from chunkstore import assembly, following
from chunkstore.asker import Asker
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import Closed, InvalidArgument
from chunkstore.open_session import Session
from chunkstore.reader import StorageReader
from chunkstore.replica import Replica
from chunkstore.tables import TableReader
from chunkstore.upkeep.optimiser import StorageOptimiser
from chunkstore.writer import StorageWriter

__all__ = ["Call", "Face", "open", "open_asker", "open_replica"]

T = TypeVar("T")
_BATCH: Final = 256
"""Items of an iterator that are fetched at a time, where they are ready at once."""
_FACED: Final = (
    Asker,
    ChunkedSegmentStorage,
    Iterator,
    Replica,
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

    def __init__(self, wrapped: Any, threads: ThreadPoolExecutor, *, owns_threads: bool = False) -> None:
        self.wrapped = wrapped
        self._threads = threads
        self._owns_threads = owns_threads
        self._ready: list[Any] = []
        self._fetching: Future[list[Any]] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self.wrapped).__name__!r} has no public attribute {name!r}")
        found = getattr(self.wrapped, name)
        if not callable(found):
            return _faced(found, self._threads)
        return lambda *arguments, **named: Call(_carry_out(self._threads, found, *arguments, **named))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await _carry_out(self._threads, self.wrapped.__exit__, kind, error, trace)
        finally:
            self._leave_threads()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if not self._ready:
            if self._fetching is None:
                # A reader waits for what comes next: it is not asked for more than is wanted.
                most = 1 if isinstance(self.wrapped, StorageReader) else _BATCH
                self._fetching = _submit(self._threads, lambda: list(islice(self.wrapped, most))[::-1])
            # Who gives up waiting loses nothing: what comes then is the next one's.
            fetched = asyncio.wrap_future(self._fetching)
            await asyncio.shield(asyncio.wait([fetched]))
            self._fetching = None
            self._ready = fetched.result()
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.pop()

    async def close(self) -> None:
        """As of what is wrapped."""
        try:
            if self._fetching is not None and not isinstance(self.wrapped, StorageReader):
                # Python refuses to close a generator that a thread is in; a reader ends who waits in it.
                await asyncio.wait([asyncio.wrap_future(self._fetching)])
            await _carry_out(self._threads, getattr(self.wrapped, "close", lambda: None))
        finally:
            self._leave_threads()

    def _leave_threads(self) -> None:
        if self._owns_threads:
            self._threads.shutdown(wait=False)


def open(root: str, *, threads: int = 32, **arguments: Any) -> Call:  # noqa: A001  (as chunkstore.open)
    """As ``chunkstore.open``, with its arguments. ``threads`` (1 to 1024): so many calls are carried out at a time, others wait."""
    return Call(_open(_checked(threads), partial(assembly.open_store, root, **arguments)))


def open_replica(root: str, *, threads: int = 32, **arguments: Any) -> Call:
    """As ``chunkstore.open_replica``; ``threads`` as of ``open``."""
    return Call(_open(_checked(threads), partial(following.open_replica, root, **arguments)))


def open_asker(root: str, *, threads: int = 32, **arguments: Any) -> Call:
    """As ``chunkstore.open_asker``; ``threads`` as of ``open``."""
    return Call(_open(_checked(threads), partial(assembly.open_asker, root, **arguments)))


def _checked(threads: int) -> int:
    if type(threads) is not int or not 1 <= threads <= 1024:
        raise InvalidArgument(f"threads must be a whole number from 1 to 1024, not {threads!r}", argument="threads")
    return threads


async def _open(count: int, do: Callable[[], Any]) -> Face:
    threads = ThreadPoolExecutor(count, thread_name_prefix="chunkstore-aio")
    try:
        opened = await _carry_out(threads, do)
    except BaseException:
        threads.shutdown(wait=False)
        raise
    return Face(opened.wrapped, threads, owns_threads=True)


async def _carry_out(threads: ThreadPoolExecutor, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Run it in a thread. Raises what it raises, and as ``_submit``."""
    under_way = _submit(threads, partial(method, *arguments, **named))
    try:
        return _faced(await asyncio.wrap_future(under_way), threads)
    except asyncio.CancelledError:
        under_way.add_done_callback(_give_up)
        raise


def _submit(threads: ThreadPoolExecutor, call: Callable[[], T]) -> Future[T]:
    """Raises ``Closed`` where the threads are gone with the store."""
    try:
        return threads.submit(copy_context().run, call)
    except RuntimeError as error:
        raise Closed("this store") from error


def _faced(found: Any, threads: ThreadPoolExecutor) -> Any:
    if isinstance(found, Future):
        return asyncio.wrap_future(found)
    return Face(found, threads) if isinstance(found, _FACED) else found


def _give_up(under_way: Future[Any]) -> None:
    """What a call has opened whose caller has gone."""
    if under_way.cancelled() or under_way.exception() is not None:
        return
    found = under_way.result()
    if isinstance(found, _FACED) and hasattr(found, "close"):
        # Not here: this may be the loop's own thread.
        closer = ThreadPoolExecutor(1, thread_name_prefix="chunkstore-aio")
        closer.submit(found.close)
        closer.shutdown(wait=False)
