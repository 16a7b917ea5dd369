"""``chunkstore.aio``: stores from asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore import aio, assembly
from tests.support.data import pattern
from tests.support.hooked import wait_for

SETTINGS = chunkstore.Settings(lease_s=0, collect_s=0)


@pytest.fixture
def root(tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}"


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main(), 60)

    asyncio.run(bounded())
    wait_for(lambda: not [True for thread in threading.enumerate() if thread.name.startswith("chunkstore-aio")])


def test_everything_a_store_does(root: str) -> None:
    async def main() -> None:
        async with aio.open(root, settings=SETTINGS) as store:
            handle = await store.create("a", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=1000))
            offsets = await asyncio.gather(*(store.append(handle, b"x" * 10) for _ in range(50)))
            assert sorted(offsets) == list(range(0, 500, 10))
            assert await asyncio.create_task(store.read("a", 0, 15)) == b"x" * 15
            for number in range(300):
                await store.create(f"s{number:03}")
            assert [info.name async for info in store.segments("s")] == [f"s{number:03}" for number in range(300)]
            assert store.epoch == store.wrapped.epoch and store.settings is store.wrapped.settings
            table = await store.table("rows")
            await table.put(b"k", b"v")
            assert (await table.get(b"k")).value == b"v"
            assert [entry.key async for entry in table.scan()] == [b"k"]
            async with store.session("job") as session:
                assert await session.end() is None
            async with store.writer("s000", writer_id="w") as writer:
                futures = [await writer.append(pattern(number * 700, 700)) for number in range(100)]
                await writer.flush()
                assert [await future for future in futures] == list(range(0, 70_000, 700))
            async with store.reader("s000", piece_bytes=4096) as reader:
                assert b"".join([piece async for piece in reader]) == pattern(0, 70_000)
            async for piece in store.reader("s000", piece_bytes=4096):
                assert piece == pattern(0, 4096)
                break
            async with aio.open_replica(root, settings=SETTINGS) as replica:
                await replica.refresh()
                assert await replica.read("s000", 0, 7) == pattern(0, 7)
        with pytest.raises(chunkstore.Closed):
            await store.append("a", b"x")

    run(main)


def test_a_follower_hears_of_appends(root: str) -> None:
    async def main() -> None:
        store = await aio.open(root, settings=SETTINGS)
        await store.create("a")

        async def read() -> bytes:
            heard = b""
            async for piece in store.reader("a", follow=True):
                heard += piece
            return heard

        reading = asyncio.create_task(read())
        for number in range(20):
            await store.append("a", b"%02d" % number)
        await store.seal("a")
        assert await reading == b"".join(b"%02d" % number for number in range(20))
        await store.close()

    run(main)


def test_who_gives_up_waiting_for_a_follower_loses_nothing(root: str) -> None:
    async def main() -> None:
        async with aio.open(root, settings=SETTINGS) as store:
            await store.create("a")
            async with store.reader("a", follow=True) as reader:
                for number in range(3):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(anext(reader), 0.1)
                    await store.append("a", b"%d" % number)
                    await asyncio.sleep(0.1)  # somebody waits in a thread for it, unheard
                    assert await anext(reader) == b"%d" % number

    run(main)


def test_errors_are_those_of_the_method(root: str) -> None:
    async def main() -> None:
        with pytest.raises(chunkstore.ContainerNotFound):
            await aio.open_replica(root)
        with pytest.raises(chunkstore.InvalidArgument, match="threads"):
            aio.open(root, threads=0)
        async with aio.open(root, settings=SETTINGS) as store:
            await store.create("a")
            with pytest.raises(chunkstore.BadOffset) as caught:
                await store.append("a", b"x", expected_offset=7)
            assert (caught.value.expected, caught.value.given) == (0, 7)
            with pytest.raises(AttributeError, match="no_such_method"):
                store.no_such_method  # noqa: B018
            with pytest.raises(AttributeError, match="public"):
                store._container  # noqa: B018
            with pytest.raises(chunkstore.SegmentNotFound):
                async for _ in store.reader("nowhere"):
                    pass

    run(main)


def test_what_is_cancelled_comes_to_its_end_unheard(root: str) -> None:
    begun, going_on = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        going_on.wait(60)

    async def main() -> None:
        async with aio.open(root, settings=SETTINGS, threads=1) as store:
            await store.create("a")
            store.wrapped.slow = slow
            waiting = asyncio.create_task(store.slow())
            while not begun.is_set():
                await asyncio.sleep(0.001)
            queued = asyncio.create_task(store.append("a", b"never"))
            await asyncio.sleep(0)
            for task in (waiting, queued):
                task.cancel()
            for task in (queued, waiting):
                with pytest.raises(asyncio.CancelledError):
                    await task
            going_on.set()
            assert await store.append("a", b"abc") == 0, "what had not begun did not happen"

    run(main)


def test_what_a_cancelled_call_opens_is_closed(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    go_on = threading.Event()
    real = assembly.open_store

    def slow(*arguments: Any, **named: Any) -> Any:
        go_on.wait(60)
        opened.append(real(*arguments, **named))
        return opened[0]

    async def main() -> None:
        with monkeypatch.context() as context:
            context.setattr(assembly, "open_store", slow)
            opening = asyncio.create_task(aio.open(root, settings=SETTINGS))
            await asyncio.sleep(0.1)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        go_on.set()

    run(main)
    with pytest.raises(chunkstore.Closed):
        opened[0].create("a")
