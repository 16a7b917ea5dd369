"""The proxy that benchmarks put a distance between client and server with."""

from __future__ import annotations

import random
import socket
import threading
import time

from benchmarks.delay import delayed


def test_bytes_come_back_whole_and_no_sooner_than_a_round_trip() -> None:
    data = random.Random(1).randbytes(1 << 20)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def echo() -> None:
            served, _ = listener.accept()
            with served:
                while piece := served.recv(1 << 16):
                    served.sendall(piece)

        echoing = threading.Thread(target=echo, daemon=True)
        echoing.start()
        with delayed(listener.getsockname()[1], 0.05) as port, socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(60)
            for sent in (data[:1], data[1:]):  # the same connection, twice
                began_s = time.monotonic()
                client.sendall(sent)
                got = b""
                while len(got) < len(sent):
                    got += client.recv(1 << 20)
                assert got == sent
                assert time.monotonic() - began_s >= 0.05
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""  # the end comes through, too
        echoing.join(60)
