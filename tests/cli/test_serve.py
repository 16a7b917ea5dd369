"""``serve`` as a process: it says what it does, shows its metrics, and ends well, however it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import chunkstore
from chunkstore.config import RetentionPolicy, RollingPolicy
from tests.cli.conftest import Call

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def filled(root: str) -> str:
    with chunkstore.open(root) as store:
        store.create("a", rolling=RollingPolicy(chunk_size_bytes_max=10))
        store.append("a", bytes(100))
    return root


def told(process: subprocess.Popen[bytes]) -> Any:
    """The next document."""
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def ended(process: subprocess.Popen[bytes], code: int = 0) -> tuple[list[Any], bytes]:
    """Its last documents and what it says on stderr, once it has ended with this code."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    return [json.loads(line) for line in out.splitlines()], err


def test_it_serves_shows_metrics_and_ends_cleanly(start: Start, call: Call, filled: str) -> None:
    serving = start("serve", filled, "--metrics-port", "0", "--json")
    said = told(serving)
    port = said.pop("metrics_port")
    assert said == {"event": "serving", "container": "default", "epoch": 2}
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert 'chunkstore_storage_requests_total{operation="create_if_absent",storage="default"}' in text
    with pytest.raises(HTTPError, match="404"):
        urlopen(f"http://127.0.0.1:{port}/other", timeout=30)
    with socket.create_connection(("127.0.0.1", port)) as nonsense:
        nonsense.sendall(b"\0\r\n\r\n")
    serving.send_signal(signal.SIGTERM)
    assert ended(serving) == ([{"event": "ended", "container": "default", "reason": "signal"}], b"")
    assert call("owner", filled, "--json").document["lease"]["released"]


def test_it_does_what_policies_ask_for_and_ends_when_idle(start: Start, filled: str) -> None:
    with chunkstore.open(filled) as store:
        store.set_retention("a", RetentionPolicy(size_bytes_max=30))
    serving = start("serve", filled, "--idle-s", "1.5")
    out, err = serving.communicate(timeout=60)
    assert (serving.returncode, out) == (0, b"")
    lines = err.decode().splitlines()
    assert [line.split(": ")[2].split()[0] for line in lines] == ["serving", "retention", "ended"]
    assert lines[-1].endswith("ended: idle")
    with chunkstore.open(filled) as store:
        assert store.info("a").start_offset == 70


def test_somebody_takes_over(start: Start, filled: str) -> None:
    serving = start("serve", filled, "--json")
    assert told(serving)["event"] == "serving"
    with chunkstore.open(filled) as store:
        [said], err = ended(serving, 1)
        assert (said["event"], said["epoch"]) == ("taken over", 2)
        assert json.loads(err)["error"] == "NotOwner"
        assert store.append("a", b"undisturbed") == 100


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_who_stands_by_claims_when_the_owner_is_gone(start: Start, filled: str, end: int) -> None:
    first = start("serve", filled, "--json")
    assert told(first)["epoch"] == 2
    second = start("serve", filled, "--stand-by", "--json")
    assert told(second)["event"] == "standing by"
    first.send_signal(end)
    said = told(second)
    assert (said["event"], said["epoch"]) == ("serving", 3)
    second.send_signal(signal.SIGINT)
    assert ended(second)[0][-1]["reason"] == "signal"


def test_standing_by_it_ends_at_once_and_stands_by_again(start: Start, filled: str) -> None:
    with chunkstore.open(filled):
        waiting = start("serve", filled, "--stand-by", "--take-over", "--json")
        assert told(waiting)["event"] == "serving"
        with chunkstore.open(filled):
            assert told(waiting)["event"] == "taken over"
            waiting.send_signal(signal.SIGTERM)
            assert ended(waiting)[0][-1]["reason"] == "signal"


def test_a_live_owner_is_respected_and_nothing_is_made(start: Start, call: Call, filled: str, root: str) -> None:
    with chunkstore.open(filled):
        assert b"ContainerBusy" in ended(start("serve", filled, "--json"), 1)[1]
    assert call("serve", f"{root}-other", "--json", code=1).error["error"] == "ContainerNotFound"


def test_misuse(call: Call, filled: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert call("serve", filled, "--metrics-port", port, "--json", code=2).error["fields"] == {
            "argument": "--metrics-port"
        }
    call("serve", filled, "--metrics-port", "70000", code=2)
    call("serve", filled, "--idle-s", "0", code=2)
