"""``KafkaServer`` and ``kafka serve``: what a broker's plug-in can rely on, and what hostile or dying peers cannot do."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import pack, unpack, unpack_from
from typing import Any

import pytest

import chunkstore
from chunkstore import errors
from chunkstore.cli import main
from chunkstore.kafka import server as module
from chunkstore.kafka.storage import RemoteStorageManager
from chunkstore.kafka.wire import Operation, Status, encode_segment
from tests.kafka.support_metadata import PARTITION, Store, segment
from tests.kafka.support_wire import WAIT_S, Client, Serving, place, serving_at, update_of
from tests.support.paths import SOURCES

TOKEN = b"a token of 24 characters"
LOG = os.urandom(1 << 16) * 40
INDEXES = [b"offsets" * 99, b"times", b"", b"0\n0\n", None]
ITEM = segment(1, 0, 99, {0: 0})
LED = pack(">i", 1) + place(PARTITION) + pack(">i", 0)
ALL = place(PARTITION) + pack(">iq", -1, 0)


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:  # a short one: the path of a socket has at most 107 bytes
        yield f"{folder}/s"


@pytest.fixture
def server(store: Store, path: str) -> Iterator[Serving]:
    with serving_at(store, path) as made:
        yield made


def listed(result: bytes) -> tuple[int, int, int]:
    """Version, same, count."""
    version, same, count = unpack_from(">qbi", result)
    return version, same, count


@pytest.mark.parametrize("token", [None, TOKEN], ids=["unix", "tcp"])
def test_the_life_of_a_segment(store: Store, path: str, token: bytes | None) -> None:
    where: Any = {"socket": path} if token is None else {"listen": "127.0.0.1:0", "token": token}
    with serving_at(store, **where) as server, Client(server.address, token) as client:
        assert unpack(">q", client.ok(Operation.PING)) == (store.epoch,)
        assert client.ask(Operation.LIST, ALL)[0] == Status.NOT_FOUND
        client.ok(Operation.LEADERSHIP, LED)
        client.ok(Operation.ADD, encode_segment(ITEM))
        status, [custom] = client.copy(ITEM, LOG, INDEXES, piece=99_999)
        assert status == Status.OK and unpack_from(">i", custom) == (len(custom) - 4,)
        at = place(PARTITION) + pack(">iq", 0, 50)
        assert client.ok(Operation.LOOKUP, at) == client.ok(Operation.HIGHEST, at[:-8]) == b"\0"
        client.ok(Operation.UPDATE, update_of(ITEM, 1, custom[4:]))
        found = client.ok(Operation.LOOKUP, at)
        assert found[0] == 1 and custom[4:] in found
        assert client.ok(Operation.NEXT_TXN, at) == found
        assert client.ok(Operation.HIGHEST, at[:-8]) == b"\1" + pack(">q", 99)
        assert client.ok(Operation.SIZE, at[:-8]) == pack(">q", ITEM.segment_size_in_bytes)
        assert client.fetch(ITEM, 7, 99_999) == (Status.OK, [LOG[7:100_006]])
        assert client.fetch(ITEM, len(LOG) - 3, 99) == (Status.OK, [LOG[-3:]])
        assert client.fetch(ITEM, len(LOG) + 1, 99)[0] == client.fetch(ITEM, 0, -1)[0] == Status.INVALID
        for kind, index in enumerate(INDEXES[:4]):
            assert client.ok(Operation.FETCH_INDEX, encode_segment(ITEM) + bytes((kind,))) == index
        assert client.ask(Operation.FETCH_INDEX, encode_segment(ITEM) + b"\4")[0] == Status.NOT_FOUND
        result = client.ok(Operation.LIST, ALL)
        version, same, count = listed(result)
        assert (same, count, result[13:]) == (0, 1, found[1:])
        assert listed(client.ok(Operation.LIST, ALL[:-8] + pack(">q", version))) == (version, 1, 0)
        client.ok(Operation.UPDATE, update_of(ITEM, 2))
        assert listed(client.ok(Operation.LIST, ALL[:-8] + pack(">q", version)))[1:] == (0, 1)
        for _ in range(2):
            client.ok(Operation.DELETE, encode_segment(ITEM))
        client.ok(Operation.UPDATE, update_of(ITEM, 3))
        for state in range(3):
            client.ok(Operation.PARTITION_DELETE, place(PARTITION) + pack(">bqi", state, 9, 1))
        client.ok(Operation.STOP, pack(">i", 1) + place(PARTITION))
        assert client.ask(Operation.LIST, ALL)[0] == Status.NOT_FOUND
        assert not [*store.segments()]


def test_a_new_server_deletes_copies_that_died_with_the_last_owner(root: str, path: str) -> None:
    with chunkstore.open(root) as store:
        RemoteStorageManager(store)._begin(ITEM)
    with chunkstore.open(root) as store:
        assert RemoteStorageManager(store).copies_under_way()
        with serving_at(store, path):
            assert not [*store.segments()]


def test_a_copy_that_fails_takes_all_data_and_the_connection_goes_on(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(server.address) as client:
        late = encode_segment(ITEM) + pack(">6q", len(LOG), -1, -1, -1, -1, -1)
        assert client.ask(Operation.COPY, late, data=[LOG], wait_ms=0)[0] == Status.RETRY
        assert not [*server.server._store.segments()]
        wrong = late[:18] + b"\0" + late[19:]  # no name of a topic
        assert client.ask(Operation.COPY, wrong, data=[LOG])[0] == Status.INVALID
        assert client.fetch(ITEM, 0, 9)[0] == Status.NOT_FOUND
        for error, status in (
            (errors.StorageFull("full"), Status.RETRY),
            (errors.Conflict("a", expected=1, found=2), Status.RETRY),
            (errors.OutcomeUnknown("?"), Status.RETRY),
            (errors.Damaged("no", object="o"), Status.FAILED),
            (RuntimeError("an inside"), Status.FAILED),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(server.server._storage, "_begin", lambda item, error=error: (_ for _ in ()).throw(error))
                answered, [text] = client.copy(ITEM, LOG, INDEXES)
            assert answered == status and b"an inside" not in text
        assert client.copy(ITEM, LOG, INDEXES)[0] == Status.OK


GARBAGE = [
    b"\xff" * 8, pack(">II", 0, 0), pack(">II", 1, 1) + b"x", pack(">II", 1 << 31, 0),
    b"GET / HTTP/1.1\r\nHost: chunkstore\r\n\r\n",
]  # fmt: skip


def test_peers_that_stall_or_send_garbage_disturb_no_one(server: Serving) -> None:
    with Client(server.address) as stalled, Client(server.address) as client:
        stalled.socket.sendall(b"\0\0\0")
        for data in GARBAGE:
            with Client(server.address) as bad:
                bad.socket.sendall(data)
                assert bad.receive() == b""
        copying = pack(">BQIB", 1, 1, 60_000, Operation.COPY) + encode_segment(ITEM)
        for bodies in (
            [b"\1"], [b"\2" + bytes(20)], [copying + pack(">6q", -1, 0, 0, 0, 0, 0)],
            [copying + pack(">6q", 9, 0, 0, 0, 0, 0), b"more than 9"],
        ):  # fmt: skip
            with Client(server.address) as bad:
                for body in bodies:
                    bad.send(body)
                assert bad.receive() == b""
        for operation, arguments in ((99, b""), (Operation.STOP, b"\x7f" * 9), (Operation.PING, b"x")):
            status, [text] = client.ask(operation, arguments)
            assert status == Status.INVALID and b"at byte" in text
        assert client.ok(Operation.PING)


def test_peers_that_do_not_prove_themselves_are_closed(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AUTHENTICATION_S", 0.1)
    with _silent(server) as silent, suppress(ConnectionError):
        while silent.recv(99):
            pass


def _silent(server: Serving) -> socket.socket:
    """A connection that has got its greeting, and does not answer."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(WAIT_S)
    made.connect(server.address.removeprefix("unix:"))
    assert made.recv(99)
    return made


def test_only_clients_with_the_token_are_served(store: Store) -> None:
    with serving_at(store, listen="127.0.0.1:0", token=TOKEN) as server:
        for token in (None, TOKEN + b"!"):
            with Client(server.address, token) as client:
                assert client.receive()[9] == Status.DENIED
                assert client.receive() == b""
    for wrong in (
        {"listen": "0.0.0.0:0"}, {"listen": "127.0.0.1:0", "token": b"short"}, {}, {"listen": "nowhere"}, {"listen": "127.0.0.1:99999"},
        {"listen": "127.0.0.1:0", "socket": "/tmp/s"},
    ):  # fmt: skip
        with pytest.raises(errors.InvalidArgument), serving_at(store, **wrong):
            pass


def test_the_socket_is_private_removed_and_replaced_only_if_dead(store: Store, path: str) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with serving_at(store, path) as server:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        with pytest.raises(errors.InvalidArgument, match="another process"), serving_at(store, path):
            pass
        with Client(server.address) as client:
            assert client.ok(Operation.PING)
    assert not os.path.exists(path)
    Path(path).write_text("a file")
    with pytest.raises(errors.InvalidArgument), serving_at(store, path):
        pass
    assert Path(path).read_text() == "a file"


def test_once_deposed_it_answers_retry_and_says_so(root: str, path: str) -> None:
    with chunkstore.open(root) as store, serving_at(store, path) as server, Client(server.address) as client:
        client.ok(Operation.LEADERSHIP, LED)
        server.server.wait(0)
        with chunkstore.open(root, take_over=True):
            assert client.ask(Operation.ADD, encode_segment(ITEM))[0] == Status.RETRY
            assert client.copy(ITEM, LOG, INDEXES)[0] == Status.RETRY
            with pytest.raises(errors.NotOwner):
                server.server.wait(WAIT_S)


@pytest.fixture
def serving(tmp_path: Path, path: str) -> Iterator[subprocess.Popen[bytes]]:
    """``kafka serve`` of a container that is not there, as a process that listens."""
    environment = {**os.environ, "PYTHONPATH": SOURCES, "XDG_CACHE_HOME": str(tmp_path)}
    verb = ["kafka", "serve", (tmp_path / "root").as_uri(), "--socket", path, "--create", "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-m", "chunkstore", *verb], stdout=pipe, stderr=pipe, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["address"] == f"unix:{path}"
            assert json.loads(process.stdout.readline())["event"] == "serving"
            yield process
        finally:
            process.kill()


def test_the_verb_serves_and_ends_cleanly(serving: subprocess.Popen[bytes], path: str) -> None:
    with Client(f"unix:{path}") as client:
        client.ok(Operation.LEADERSHIP, LED)
        assert client.copy(ITEM, LOG, INDEXES)[0] == Status.OK
        serving.send_signal(signal.SIGTERM)
        out, err = serving.communicate(timeout=WAIT_S)
    assert (serving.returncode, err) == (0, b"")
    assert json.loads(out) == {"event": "ended", "container": "default", "reason": "signal"}
    assert not os.path.exists(path)


def test_the_verb_ends_when_deposed(serving: subprocess.Popen[bytes], tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    with Client(f"unix:{path}") as client, chunkstore.open(root, take_over=True):
        assert client.ask(Operation.LEADERSHIP, LED)[0] == Status.RETRY
        out, err = serving.communicate(timeout=WAIT_S)
    assert serving.returncode == 1
    assert json.loads(out)["event"] == "taken over"
    assert json.loads(err)["error"] == "NotOwner"


def test_the_verb_refuses_an_open_address_before_it_claims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = (tmp_path / "root").as_uri()
    (tmp_path / "token").write_bytes(b"short\n")
    for more in (["0.0.0.0:0"], ["127.0.0.1:0", "--token-file", str(tmp_path / "token")]):
        assert main(["kafka", "serve", root, "--listen", *more]) == 2
    assert "token" in capsys.readouterr().err
    assert not (tmp_path / "root").exists()
