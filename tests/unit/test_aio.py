"""``chunkstore.aio``: stores from asyncio. What waits holds no thread; closing and cancelling need none of those that calls occupy."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore import aio
from chunkstore.config import Tuning
from tests.support.data import pattern
from tests.support.hooked import wait_for

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = chunkstore.Settings(lease_s=0, tuning=Tuning(collect_s=0))
FOLLOWERS = 1_000


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


async def first_piece(store: Any, name: str) -> bytes:
    async for piece in store.reader(name, follow=True):
        return bytes(piece)
    return b""


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def all_follow(store: Any, count: int) -> list[asyncio.Task[bytes]]:
    """So many tasks that wait for the first piece of "a"."""
    tasks = [asyncio.create_task(first_piece(store, "a")) for _ in range(count)]
    await all_wait(store, count)
    return tasks


async def all_wait(store: Any, count: int) -> None:
    await until(lambda: len(store._host.waits()._awaited) == count)


class Held:
    """A call that holds a thread until ``go_on``."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *_: object, **__: object) -> bool:
        self.begun.set()
        return not self.go_on.wait(60)

    def fail(self, *_: object, **__: object) -> int:
        self()
        raise chunkstore.StorageUnavailable("it is gone")


def test_appends_go_on_next_to_a_thousand_followers(root: str) -> None:
    async def main() -> None:
        async with aio.open(root, settings=SETTINGS, threads=2) as store:
            await store.create("a")
            following = await all_follow(store, FOLLOWERS)
            readers = [thread for thread in threading.enumerate() if thread.name == "chunkstore-reader"]
            assert not readers, "no thread of a reader waits either"
            following.pop().cancel()
            assert await store.append("a", b"x") == 0
            assert await asyncio.gather(*following) == [b"x"] * (FOLLOWERS - 1)

    run(main)


def test_full_writers_hold_no_thread_and_lose_nothing(root: str) -> None:
    held = Held()

    async def main() -> None:
        async with aio.open(root, settings=SETTINGS, threads=1) as store:
            await store.create("a")
            real = store.wrapped.append
            store.wrapped.append = lambda *arguments, **named: held() or real(*arguments, **named)
            writer = await store.writer("a", flush_bytes=1, buffer_bytes_max=1, window=1, writer_id="w")
            futures = [await writer.append(b"0")]
            await until(held.begun.is_set)
            futures.append(await writer.append(b"1"))
            with pytest.raises(chunkstore.DeadlineExceeded):
                await writer.append(b"never", timeout_s=0.01)
            waiting = [asyncio.create_task(writer.append(b"%d" % number)) for number in range(2, 10)]
            given_up = asyncio.create_task(writer.append(b"never"))
            await until(lambda: len(writer.wrapped._wakes) == len(waiting) + 2)
            given_up.cancel()
            await asyncio.wait([given_up])
            assert (await store.info("a")).length == 0 and not any(task.done() for task in waiting)
            held.go_on.set()
            futures += await asyncio.gather(*waiting)
            assert sorted(await asyncio.gather(*futures)) == list(range(10))
            await writer.close()
            assert sorted(await store.read("a", 0, 100)) == sorted(b"0123456789")

    run(main)


PROGRAM = """
import asyncio, chunkstore.aio
async def follow(store):
    async for _ in store.reader("a", follow=True): pass
async def main():
    async with chunkstore.aio.open("memory://x", threads=2) as store:
        await store.create("a")
        tasks = [asyncio.create_task(follow(store)) for _ in range(40)]
        while len(store._host.waits()._awaited) < 40: await asyncio.sleep(0.01)
        print("follows", flush=True)
        await asyncio.gather(*tasks)
asyncio.run(main())
"""


@pytest.mark.proof
def test_ctrl_c_ends_a_program_of_followers() -> None:
    path = os.pathsep.join((str(ROOT), str(ROOT / "bindings"), str(ROOT / "journal")))
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as program:
        try:
            assert program.stdout is not None and program.stdout.readline() == b"follows\n"
            program.send_signal(signal.SIGINT)
            _, errors = program.communicate(timeout=60)
        finally:
            program.kill()
    assert program.returncode == -signal.SIGINT and b"KeyboardInterrupt" in errors
    assert b"never retrieved" not in errors and b"was destroyed" not in errors


def test_followers_wait_for_their_segment_without_a_thread(root: str) -> None:
    async def main() -> None:
        async with aio.open(root, settings=SETTINGS, threads=1) as store, aio.open_replica(root, threads=1) as replica:
            with pytest.raises(chunkstore.SegmentNotFound):
                await store.reader("a", wait_for_segment_s=0.01)
            opening = [
                asyncio.create_task(each.reader("a", follow=True, wait_for_segment_s=60))
                for each in (store, store, replica)
            ]
            await asyncio.sleep(0)
            await store.create("a")
            await store.append("a", b"x")
            assert [await (await task).read(1) for task in opening] == [b"x"] * 3

    run(main)
