"""Copies of the genuine bucket and log directory that tests may damage, and a log directory made of batches."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chunkstore.cli.app import main
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.kafka.bucket import KafkaBucket
from chunkstore.kafka.container import ContainerSource
from chunkstore.kafka.sources import Finding
from tests.kafka.support_logdir import FIXTURES, LOG_DIR, partitions, row_of

__all__ = [
    "METADATA_LOG",
    "PEM",
    "TIERS",
    "changed",
    "copied_tier",
    "expected_rows",
    "findings_of",
    "opened",
    "records_of",
    "segment_at",
]

_LOCK = (
    "import fcntl, sys; file = open(sys.argv[1], 'wb'); fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB);"
    "print('held', flush=True); sys.stdin.read()"
)
TIERS = ("plain", "zstd", "encrypted")
METADATA_LOG = str(FIXTURES / "remote-log-metadata")
PEM = (FIXTURES / "aiven-keys" / "key1-private.pem").read_bytes()


class Killed(BaseException):
    """The process ends here."""


def lock_command(log_dir: Path) -> list[str]:
    """A command that holds the lock of a log directory, as a broker does, until its input ends; it fails if another holds it."""
    return [sys.executable, "-c", _LOCK, str(log_dir / ".lock")]


@contextmanager
def locked(log_dir: Path) -> Iterator[None]:
    """Another process holds the directory's lock."""
    with subprocess.Popen(lock_command(log_dir), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield
        holder.communicate(timeout=60)


def opened(folder: Path, *, keys: list[bytes] | None = None, **options: Any) -> KafkaBucket:
    """A tier in a folder; the right key by default."""
    return KafkaBucket(folder.as_uri(), keys=[PEM] if keys is None else keys, **options)


def copied_tier(tmp_path: Path, name: str = "plain") -> Path:
    """A copy of one of the genuine tiers."""
    shutil.copytree(FIXTURES / "aiven-bucket" / name, tmp_path / name, copy_function=shutil.copyfile)
    return tmp_path / name


def copied_logs(tmp_path: Path) -> Path:
    """A copy of the genuine log directory."""
    shutil.copytree(LOG_DIR, tmp_path / "logs", copy_function=shutil.copyfile)
    return tmp_path / "logs"


def files_below(folder: Path) -> dict[str, bytes]:
    """What is in each file, by its path below the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def segment_at(folder: Path, start: int, suffix: str) -> Path:
    """The only object, or file, of the segment that begins at ``start``."""
    [found] = folder.rglob(f"{start:020d}*.{suffix}")
    return found


def changed(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Write the file anew."""
    path.write_bytes(change(path.read_bytes()))


def expected_rows(name: str) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """What consumers got, by partition."""
    return {each[:2]: each.rows for each in partitions(name)}


def records_of(tier: KafkaBucket, topic: str | None = None) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """All records as ``expected_rows`` has them, by partition."""
    committed = {each[:3] for each in tier.read(topic, isolation="read_committed")}
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for record in tier.read(topic):
        rows = found.setdefault((record.topic, record.partition), [])
        rows.append(row_of(record, committed=record[:3] in committed))
    return found


def findings_of(tier: KafkaBucket, topic: str | None = None) -> list[Finding]:
    """What verify finds; the tier is closed."""
    with tier:
        return list(tier.verify(topic))


def lines(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """What a verb of ``chunkstore kafka`` prints, line by line."""
    assert main(["kafka", *arguments, "--json"]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def spans(store: ChunkedSegmentStorage) -> list[tuple[int, int]]:
    """First and last offsets of the segments in a container."""
    return [each[3:5] for each in ContainerSource(store, "here").listing().segments]
