"""Opening is polite: a live owner stays, an absent one is followed, and nothing of it costs a request (protocol A15)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import chunkstore
from chunkstore import backup
from chunkstore.config import Settings
from chunkstore.errors import ContainerBusy, InvalidArgument, NotOwner

OFTEN = Settings(lease_s=0.2)
OWNER = """
import sys, chunkstore
store = chunkstore.open(sys.argv[1], settings=chunkstore.Settings(cache_dir=sys.argv[2]))
store.create("a")
print("owns", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def no_watching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where an owner is watched."""
    monkeypatch.delattr("chunkstore_journal.lease.paced_s")


def test_a_live_owner_is_deposed_only_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chunkstore_journal.lease._LEASES_WATCHED", 1000)  # its keeper may be held up
    root = "memory://polite-live"
    with chunkstore.open(root, settings=OFTEN) as first:
        first.create("a")
        with pytest.raises(ContainerBusy, match=rf"this process.*pid {os.getpid()} on .*open_asker.*take_over=True"):
            chunkstore.open(root, settings=OFTEN)
        first.append("a", b"undisturbed")
        with chunkstore.open(root, settings=OFTEN, take_over=True) as second:
            assert second.read("a", 0, 20) == b"undisturbed"
            with pytest.raises(NotOwner):
                first.append("a", b"late")


@pytest.mark.parametrize(
    "call",
    [
        lambda root: chunkstore.open(root, wait_s=1, take_over=True),
        lambda root: chunkstore.open(root, take_over="yes"),  # type: ignore[arg-type]
        lambda root: backup.restore(root, root, wait_s=1, take_over=True),
        lambda root: backup.backup(root, root, wait_s=1, take_over=True),
    ],
    ids=["open", "flag", "restore", "backup"],
)
def test_taking_over_does_not_wait(call: Callable[[str], object]) -> None:
    root = "memory://polite-arguments"
    chunkstore.open(root).close()
    with pytest.raises(InvalidArgument, match="take_over"):
        call(root)


@pytest.mark.proof
@pytest.mark.usefixtures("no_watching")
def test_an_owner_that_was_killed_is_followed_at_once(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    command = [sys.executable, "-c", OWNER, root, str(tmp_path / "cache")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"owns\n"
        owner.send_signal(signal.SIGKILL)
        owner.wait(60)
        with chunkstore.open(root, settings=Settings(cache_dir=str(tmp_path / "cache"))) as store:
            assert store.exists("a")
