"""Makes the golden wrecks: containers that chunkstore 0.1.0 spoilt because it believed its metadata cache, and that no replay accepts.

``python -m tests.golden.wrecks.make_wrecks FOLDER``, run with the sources of revision df5175c, writes ``<mode>-<wreck>.tar.gz`` and
``expected.json``: the last good record, what the container held there, and every append that was acknowledged, with its offset. Later
versions do not make such wrecks; they have to repair these (``tests/engine/test_wrecks.py``).

* ``copied-append``: a copy of the root (``cp -r``) shared the live original's cache and appended to a segment; the original, which had not
  loaded it, appended behind the copy's bytes.
* ``copied-table``: the copy deleted a segment and put a table row; the original committed a new segment, an append and that row.
* ``flipped-attribute``: a bit of an attribute flipped in the closed cache; two epochs went on, the second was killed.
* ``flipped-name``: a bit of a segment's key flipped: the segment was gone, and was created anew.
* ``flipped-crc``: a bit of a chunk's CRC32C flipped; the next append rewrote its row.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chunkstore
from chunkstore.assembly import journal_records
from chunkstore.changes import Append, Change, Create, TablePut
from chunkstore.config import RollingPolicy, Settings
from chunkstore.errors import Damaged

MODES = ("append", "slot")


class Spoiling:
    """One container on its way to become a wreck, and what is known of it."""

    def __init__(self, mode: str, folder: Path) -> None:
        self.mode, self.folder = mode, folder
        self.acknowledged: list[tuple[str, int, str]] = []
        self.good: dict[str, Any] = {}

    def open(self, tree: str = "root", cache: str = "cache") -> chunkstore.ChunkedSegmentStorage:
        chosen = Settings(
            journal_mode=self.mode,  # type: ignore[arg-type]
            cache_dir=str(self.folder / cache),
            lmdb_map_bytes=1 << 26,
            default_rolling=RollingPolicy(chunk_size_bytes_max=64),
        )
        return chunkstore.open(f"file://{self.folder}/{tree}", settings=chosen)

    def append(self, store: chunkstore.ChunkedSegmentStorage, segment: str, data: bytes) -> None:
        self.acknowledged.append((segment, store.append(segment, data), data.hex()))

    def begin(self) -> chunkstore.ChunkedSegmentStorage:
        """A container with some history that is in order, opened in its second epoch."""
        with self.open() as store:
            for name in ("lost", "plain", "rest"):
                store.create(name, attributes={"mark": "flip me"} if name == "plain" else {})
                self.append(store, name, b"first of %s;" % name.encode())
            store.table("colours").put(b"red", b"#f00")
            store.snapshot()
            self.append(store, "rest", b"behind the snapshot;")
        return self.open()

    def settle(self, store: chunkstore.ChunkedSegmentStorage) -> None:
        """Say that what comes next spoils the journal."""
        self.good["held"] = {
            info.name: store.read(info.name, info.start_offset, info.length - info.start_offset).hex()
            for info in store.segments()
        }
        self.good["lsn"] = self.last_lsn()

    def last_lsn(self) -> object:
        return list(journal_records(f"file://{self.folder}/root"))[-1]["lsn"]

    def flip(self, store: chunkstore.ChunkedSegmentStorage, needle: bytes, at: int) -> chunkstore.ChunkedSegmentStorage:
        """Close, flip the lowest bit of byte ``at`` of ``needle`` wherever the cache's pages hold it, and open again."""
        self.settle(store)
        store.close()
        (path,) = self.folder.glob("cache/*/owner/*/data.mdb")
        with path.open("r+b") as file:
            data = file.read()
            found = data.find(needle)
            assert found >= 0
            while found >= 0:
                file.seek(found + at)
                file.write(bytes((data[found + at] ^ 1,)))
                found = data.find(needle, found + 1)
        store = self.open()
        self.good["lsn"] = self.last_lsn()
        return store


def copied_append(wreck: Spoiling) -> None:
    original = wreck.begin()
    wreck.settle(original)
    shutil.copytree(wreck.folder / "root", wreck.folder / "copy")
    copy = wreck.open("copy")
    copy.append("plain", b"of the copy;")
    wreck.append(original, "plain", b"of the original;")
    copy.close()


def copied_table(wreck: Spoiling) -> None:
    original = wreck.begin()
    wreck.append(original, "rest", b"second epoch;")
    wreck.settle(original)
    shutil.copytree(wreck.folder / "root", wreck.folder / "copy")
    copy = wreck.open("copy")
    copy.delete("lost")
    copy.table("colours").put(b"red", b"of the copy")
    changes: list[Change] = [Create("made"), Append("made", b"new;"), TablePut("colours", b"red", b"of the original")]
    assert original.commit(changes) == [None, 0, None]
    wreck.acknowledged.append(("made", 0, b"new;".hex()))
    copy.close()


def flipped_attribute(wreck: Spoiling) -> None:
    store = wreck.begin()
    wreck.append(store, "rest", b"second epoch;")
    store = wreck.flip(store, b"flip me", 2)
    wreck.append(store, "plain", b"spoilt;")
    wreck.append(store, "rest", b"after it;")
    wreck.append(store, "plain", b"spoilt again;")
    store.close()
    store = wreck.open()
    store.create("later")
    wreck.append(store, "later", b"fourth epoch;")
    wreck.append(store, "plain", b"spoilt for good;")


def flipped_name(wreck: Spoiling) -> None:
    store = wreck.flip(wreck.begin(), b"Slost", 1)
    store.create("lost")
    wreck.append(store, "lost", b"anew;")
    wreck.append(store, "rest", b"beside it;")
    wreck.append(store, "lost", b"and more;")
    store.close()


def flipped_crc(wreck: Spoiling) -> None:
    store = wreck.begin()
    (chunk,) = store.layout("plain")
    assert chunk.crc32c is not None
    store = wreck.flip(store, chunk.crc32c.to_bytes(4, "big"), 3)
    for number in range(4):
        wreck.append(store, "plain", b"%d behind the chunk that is spoilt;" % number)
    wreck.append(store, "rest", b"beside it;")
    store.close()


WRECKS: dict[str, Callable[[Spoiling], None]] = {
    "copied-append": copied_append,
    "copied-table": copied_table,
    "flipped-attribute": flipped_attribute,
    "flipped-name": flipped_name,
    "flipped-crc": flipped_crc,
}


def main() -> None:
    if sys.argv[1] == "--spoil":
        wreck = Spoiling(sys.argv[2], Path(sys.argv[4]))
        WRECKS[sys.argv[3]](wreck)
        print(json.dumps({"acknowledged": wreck.acknowledged, **wreck.good}), flush=True)
        os._exit(9)
    target = Path(sys.argv[1])
    expected = {}
    for mode in MODES:
        for name in WRECKS:
            with tempfile.TemporaryDirectory() as made:
                command = [sys.executable, "-m", "tests.golden.wrecks.make_wrecks", "--spoil", mode, name, made]
                done = subprocess.run(command, check=False, stdout=subprocess.PIPE)
                assert done.returncode == 9, (mode, name)
                expected[f"{mode}-{name}"] = json.loads(done.stdout)
                with tarfile.open(target / f"{mode}-{name}.tar.gz", "w:gz") as packed:
                    packed.add(Path(made) / "root", ".")
                try:
                    Spoiling(mode, Path(made)).open(cache="another").close()
                except Damaged as damage:
                    print(f"{mode}-{name}: {damage}")
                else:
                    raise AssertionError(f"{mode}-{name} opens")
    (target / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
