"""Offloads of files without a JVM, by a runner in this process that pickles what would travel: what becomes of lines and files, whichever
driver dies, and of their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import chunkstore
from chunkstore.config import MIB
from chunkstore.errors import Conflict, InvalidArgument
from chunkstore.pulsar import LedgerReader
from chunkstore.spark.job_files import find_files
from chunkstore.spark.jobs import OffloadedPart, OffloadJob
from tests.support.spark_jobs import Here, Killed
from tests.support.spark_tasks import home, store

__all__ = ["home", "store"]


def lines_of(home: Path) -> list[list[bytes]]:
    """Files with lines of all kinds: empty ones, none at the end, one longer than what is read at one time, and no line at all."""
    (home / "in" / "deep").mkdir(parents=True)
    found = [
        [b"line %d" % number for number in range(3000)],
        [b"", b"x", b"", b""],
        [b"long" * (3 * MIB), b"y" * 100],
        [b"\r", b"last"],
    ]
    names = ["1.txt", "2.txt", "deep/3.txt", "deep/4.txt"]
    for name, lines in zip(names, found, strict=True):
        (home / "in" / name).write_bytes(b"\n".join(lines) + (b"" if name == "deep/4.txt" else b"\n"))
    (home / "in" / "deep" / "5.txt").touch()
    (home / "in" / "_SUCCESS").touch()
    return found


def job(home: Path, topic: str = "t", **more: Any) -> OffloadJob:
    return OffloadJob(str(home / "in"), f"file://{home}/root", topic, chunk_bytes=MIB, **more)


def offloaded(home: Path, run: Here | None = None, **more: Any) -> list[OffloadedPart]:
    return job(home, **more).run(run or Here())


def entries_of(store: chunkstore.ChunkedSegmentStorage, ledger: int) -> list[bytes]:
    return [entry.payload for entry in LedgerReader(store).read("t", ledger)]


def test_lines_of_files_become_ledgers_once(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    lines = lines_of(home)
    planned = job(home, part_bytes=1000).plan()
    assert [(part.state, part.files) for part in planned] == [("planned", 1)] * 5
    assert list(store.sessions()) == []
    with pytest.raises(Killed):
        offloaded(home, Here(dies_at=1), part_bytes=1000)
    assert list(store.sessions()) == []  # an interrupted driver gives up what nobody will commit
    assert [item.ledger for item in LedgerReader(store).ledgers("t")] == [0]
    found = offloaded(home, Here(twice=True), part_bytes=1000, ledger=0)
    assert [part.state for part in found] == ["before", "done", "done", "done", "done"]
    assert sum(part.entries or 0 for part in found) == sum(map(len, lines[1:]))
    [before] = offloaded(home, Here(dies_at=0), part_bytes=1000)
    assert (before.part, before.state, before.files) == (4, "before", 5)
    for ledger, wanted in enumerate(lines):
        assert entries_of(store, ledger) == wanted
    assert {item.ledger for item in LedgerReader(store).ledgers("t")} == {0, 1, 2, 3}
    assert list(store.sessions()) == []
    assert all(item.severity != "damage" for item in store.check("deep"))
    with pytest.raises(Conflict, match="ledger"):
        offloaded(home)  # in other parts it is another job, and its ledgers are there


def test_files_become_entries_of_one_ledger(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    (home / "in").mkdir()
    wanted = [bytes([number]) * (number * 10_000) for number in range(20)]
    for number, data in enumerate(wanted):
        (home / "in" / f"{number:03}").write_bytes(data)
    found = offloaded(home, run=Here(width=3), entries="files", ledger=7, part_bytes=600_000)
    assert len(found) > 2
    assert sum(part.entries or 0 for part in found) == 20
    assert entries_of(store, 7) == wanted
    for more, argument in (
        ({"entries": "words"}, "entries"),
        ({"ledger": -1}, "ledger"),
        ({"part_bytes": 0}, "part_bytes"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            offloaded(home, **more)
        assert caught.value.argument == argument


def test_files_that_change_or_are_not_there(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    (home / "in").mkdir()
    with pytest.raises(InvalidArgument):
        offloaded(home)
    with pytest.raises(InvalidArgument):
        find_files([str(home / "absent")])
    file = home / "in" / "1"
    file.write_bytes(b"one\ntwo\n")

    class Growing(Here):
        def __call__(self, call: Any, tasks: Any, sizes: Any) -> list[Any]:
            with open(file, "ab") as opened:
                opened.write(b"three\n")
            return super().__call__(call, tasks, sizes)

    for kind in ("lines", "files"):
        with pytest.raises(Conflict, match="length"):
            offloaded(home, Growing(), entries=kind)
    assert list(store.segments()) == []
    assert list(store.sessions()) == []


def test_a_name_of_the_users_own_is_done_once(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    (home / "in").mkdir()
    (home / "in" / "1").write_bytes(b"one\n")
    assert [part.state for part in offloaded(home, job="nightly")] == ["done"]
    assert [part.state for part in offloaded(home, Here(dies_at=0), job="nightly")] == ["before"]
    for wrong in ({"ledger": 1}, {"entries": "files"}, {"topic": "other"}):
        with pytest.raises(Conflict, match="nightly"):
            offloaded(home, job="nightly", **wrong)
    (home / "in" / "1").write_bytes(b"another\n")
    with pytest.raises(Conflict, match="new job name"):
        offloaded(home, job="nightly")
    (home / "in" / "1").unlink()
    (home / "in" / "2").write_bytes(b"two\n")
    with pytest.raises(Conflict, match="nightly"):
        offloaded(home, job="nightly")
    assert entries_of(store, 0) == [b"one"]
    assert list(store.sessions()) == []
