"""Several histories of one root: an older copy took its place, and others went on from it. Who has seen what is gone is told."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import pytest

import chunkstore
from chunkstore import RolledBack, Settings

Mode = Literal["append", "slot"]
MODES = pytest.mark.parametrize("mode", ["append", "slot"])


class Root:
    """A root in a folder, machines with a cache each, and copies of the folder."""

    def __init__(self, folder: Path, mode: Mode) -> None:
        self.folder, self.path, self.mode = folder, folder / "root", mode

    def settings(self, machine: str) -> Settings:
        return Settings(cache_dir=str(self.folder / machine), journal_mode=self.mode)

    def open(self, machine: str, *, accept_rollback: bool = False) -> chunkstore.ChunkedSegmentStorage:
        return chunkstore.open(
            self.path.as_uri(), settings=self.settings(machine), accept_rollback=accept_rollback, take_over=True
        )

    def append(self, machine: str, *data: bytes) -> None:
        with self.open(machine) as store:
            for item in data:
                store.append("x", item)

    def refuses(self, machine: str) -> bool:
        try:
            self.open(machine).close()
        except RolledBack:
            return True
        return False

    def keep(self, name: str) -> None:
        shutil.copytree(self.path, self.folder / name)

    def put_back(self, name: str) -> None:
        """Its folders stay: who has it open meets the older state."""
        kept = self.folder / name
        for path in [path for path in self.path.rglob("*") if path.is_file()]:
            path.unlink()
        shutil.copytree(kept, self.path, dirs_exist_ok=True)


@pytest.fixture
def root(tmp_path: Path, mode: Mode) -> Root:
    """With a copy ``early``, behind which ``a`` has gone on alone for long."""
    made = Root(tmp_path, mode)
    with made.open("a") as store:
        store.create("x")
        store.append("x", b"base;")
    made.keep("early")
    made.append("a", *(b"a%02d;" % number for number in range(40)))
    made.keep("late")
    made.put_back("early")
    return made


@MODES
def test_who_accepts_speaks_for_nobody_else(root: Root) -> None:
    """``a`` has seen more than ``b``, but nothing of what ``b`` has: a higher lsn is none of the same history."""
    root.append("b", *(b"b%d;" % number for number in range(10)))
    with chunkstore.open_replica(root.path.as_uri(), settings=root.settings("r")) as replica:
        replica.refresh()
        shown = replica.read("x", 0, 100)
        root.put_back("early")
        root.append("c", b"c;")
        assert root.refuses("a")
        root.open("a", accept_rollback=True).close()
        with pytest.raises(RolledBack):
            replica.refresh()
        assert shown.endswith(b"b9;")
    assert root.refuses("b")
    assert not root.refuses("c")
    root.open("b", accept_rollback=True).close()
    assert not any(map(root.refuses, "abc"))
    with root.open("d") as store:
        assert store.read("x", 0, 100) == b"base;c;"
