"""A proxy in a process of its own that makes loopback a network: each direction takes half of a round trip.

Promises: bytes come in order and as fast as they were sent, later by half of the delay each way: bandwidth stays what it was, for
up to ``WINDOW_BYTES`` are on their way in each direction of a connection. Connections live as long as both ends keep them. The
process ends with the one that started it. Leaves out: what a handshake costs (a new connection is there at once; clients that
keep theirs do not notice), losses, jitter.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["WINDOW_BYTES", "delayed"]

WINDOW_BYTES = 64 << 20
_READ_BYTES = 1 << 18


@contextmanager
def delayed(port: int, round_trip_s: float) -> Iterator[int]:
    """A port of 127.0.0.1 behind which ``port`` lies, so much further away."""
    command = [sys.executable, "-m", __name__, str(port), repr(round_trip_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()  # it ends when nobody holds this any more
            process.kill()


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter, delay_s: float) -> None:
    """Everything that comes, in order, each piece ``delay_s`` after it came; then the end."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WINDOW_BYTES // _READ_BYTES)

    async def take() -> None:
        data = b"-"
        while data:
            try:
                data = await source.read(_READ_BYTES)
            except OSError:
                data = b""
            await pieces.put((loop.time() + delay_s, data))

    taking = asyncio.create_task(take())
    try:
        while True:
            due_s, data = await pieces.get()
            if due_s > loop.time():
                await asyncio.sleep(due_s - loop.time())
            if not data:
                break
            target.write(data)
            await target.drain()
    except OSError:
        pass  # whoever wanted it is gone
    finally:
        taking.cancel()
        with suppress(OSError):
            target.write_eof()


async def _serve(port: int, round_trip_s: float) -> None:
    async def connected(here: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        there, forth = await asyncio.open_connection("127.0.0.1", port, limit=_READ_BYTES)
        for writer in (back, forth):
            # Else a small answer waits for the acknowledgement of the piece before it.
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.gather(_carry(here, forth, round_trip_s / 2), _carry(there, back, round_trip_s / 2))
        finally:
            for writer in (back, forth):
                writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=_READ_BYTES)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
