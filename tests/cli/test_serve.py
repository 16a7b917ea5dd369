"""``serve`` as a process: it says what it does, shows its metrics, and ends well, however it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import chunkstore
from chunkstore.cli.serve import _Serving
from chunkstore.config import OptimiserPolicy, RetentionPolicy, RollingPolicy, Settings
from chunkstore.errors import ContainerBusy
from tests.cli.conftest import Call
from tests.support.hooked import in_thread, wait_for
from tests.support.paths import SOURCES

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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_it_serves_shows_metrics_and_ends_cleanly(
    start: Start, call: Call, filled: str, number: signal.Signals
) -> None:
    serving = start("serve", filled, "--metrics-port", "0", "--json")
    said = told(serving)
    port = said.pop("metrics_port")
    assert said == {"event": "serving", "container": "default", "epoch": 2}
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
        text = answer.read().decode()
    assert 'chunkstore_storage_requests_total{operation="create_if_absent",storage="default"}' in text
    with pytest.raises(HTTPError, match="404"):
        urlopen(f"http://127.0.0.1:{port}/other", timeout=120)
    with socket.create_connection(("127.0.0.1", port)) as nonsense:
        nonsense.sendall(b"\0\r\n\r\n")
    serving.send_signal(number)
    assert ended(serving) == ([{"event": "ended", "container": "default", "reason": "signal"}], b"")
    assert call("owner", filled, "--json").document["lease"]["released"]


def test_it_does_what_policies_ask_for_and_ends_when_idle(start: Start, filled: str) -> None:
    with chunkstore.open(filled) as store:
        store.set_retention("a", RetentionPolicy(size_bytes_max=30))
    serving = start("serve", filled, "--idle-s", "1")
    out, err = serving.communicate(timeout=120)
    assert (serving.returncode, out) == (0, b"")
    lines = err.decode().splitlines()
    assert [line.split(": ")[2].split()[0] for line in lines] == ["serving", "retention", "ended"]
    assert lines[-1].endswith("ended: idle")
    with chunkstore.open(filled) as store:
        assert store.info("a").start_offset == 70


OWNER = """
import sys, time, chunkstore
store = chunkstore.open(sys.argv[1], settings=chunkstore.Settings(lease_s=0.3, cache_dir=sys.argv[2]))
print("open", flush=True)
time.sleep(600)
"""


class Hasty(_Serving):
    """In this process, with a lease that nobody has to watch for long: of ``serve`` itself it is eleven seconds."""

    def __init__(self, root: str, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
        settings = Settings(cache_dir=str(cache), lease_s=0.3)
        super().__init__(root, "default", settings, OptimiserPolicy(), None, accept_rollback=False, quiet=True)
        self._capsys = capsys
        self.said: list[Any] = []

    def has_said(self, *events: str) -> bool:
        self.said += [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]
        return [item["event"] for item in self.said] == [*events]


def test_who_stands_by_claims_when_the_owner_was_killed(
    filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-c", OWNER, filled, str(tmp_path / "cache-1")]
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"open\n"
        serving = Hasty(filled, tmp_path / "cache-2", capsys)
        with pytest.raises(ContainerBusy):
            serving.claim_and_serve(stand_by=False, take_over=False)
        thread, result = in_thread(lambda: serving.claim_and_serve(stand_by=True, take_over=False))
        wait_for(lambda: serving.has_said("standing by"))
        owner.kill()
    wait_for(lambda: serving.has_said("standing by", "serving"))
    assert serving.said[-1]["epoch"] == 3
    serving.stop_requested = True
    thread.join(120)
    assert result == ["signal"]


def test_misuse(call: Call, filled: str) -> None:
    assert call("serve", f"{filled}-other", "--json", code=1).error["error"] == "ContainerNotFound", "it makes nothing"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert call("serve", filled, "--metrics-port", port, "--json", code=2).error["fields"] == {
            "argument": "--metrics-port"
        }
    call("serve", filled, "--metrics-port", "70000", code=2)
    call("serve", filled, "--idle-s", "0", code=2)
