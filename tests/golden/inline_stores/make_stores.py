"""Makes the golden stores with bytes in the journal's records (decision 0035): containers as this version of chunkstore left them.

``python -m tests.golden.inline_stores.make_stores FOLDER``, run with the sources of the version whose bytes are to be kept, writes
``inline-<mode>.tar.gz`` and ``expected.json``. What is here never changes; a store of another version gets a folder of its own.

Each store lives through two epochs that are killed behind an append in a record, so that in APPEND mode the second one's OPEN embeds
extents. It has segments whose extents are live, spilled, half spilled, cut and deleted, one of chunks and extents, and one whose
spilled chunk has grown; a snapshot, and records behind it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import chunkstore
from chunkstore.assembly import journal_records, open_replica
from chunkstore.config import Settings
from chunkstore.operations.spill import spill
from tests.golden.stores.reading import contents

MODES = ("append", "slot")


def settings(mode: str, cache: Path) -> Settings:
    return Settings(
        journal_mode=mode,  # type: ignore[arg-type]
        cache_dir=str(cache),
        lease_s=0,
        inline_bytes_max=100,
        spill_s=3600,
        free_bytes_min=0,  # no reserve, which is a megabyte of nothing
        lmdb_map_bytes=1 << 26,
    )


def first(store: chunkstore.ChunkedSegmentStorage) -> None:
    for name in ("live", "spilled", "half spilled", "grown", "cut", "gone", "mixed"):
        store.create(name)
        for number in range(4):
            store.append(name, f"{name} {number}, ".encode())
    store._spiller.spill_all("spilled")
    spill(store._container, "half spilled", bytes_max=35)
    store._spiller.spill_all("grown")
    store.append("grown", b"and more")
    store._spiller.spill_all("grown")
    store.truncate("cut", 11)
    store.append("mixed", bytes(range(150)))
    store.delete("gone")
    store.table("rows").put(b"key", b"value")
    store.append("mixed", b"embedded", writer_id=b"w1", event_number=1)


def second(store: chunkstore.ChunkedSegmentStorage) -> None:
    store.append("live", b"of the second epoch")
    store.snapshot()
    store.append("live", b", behind the snapshot", writer_id=b"w1", event_number=7)


def make(mode: str, target: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        root = f"file://{folder}/root"
        for part in ("first", "second"):
            command = [
                sys.executable,
                "-m",
                "tests.golden.inline_stores.make_stores",
                "--live",
                mode,
                part,
                str(folder),
            ]
            assert subprocess.run(command, check=False).returncode == 9
        with tarfile.open(target / f"inline-{mode}.tar.gz", "w:gz") as packed:
            packed.add(folder / "root", ".")
        with open_replica(root, settings=settings(mode, folder / "replica")) as replica:
            replica.refresh()
            last = list(journal_records(root))[-1]
            digest, identity = last["digest"], last["hash"]
            assert isinstance(digest, int) and isinstance(identity, bytes) and last["lsn"] == replica.lsn
            kinds = {info.name: [chunk.kind for chunk in replica.layout(info.name)] for info in replica.segments()}
            head = {"lsn": replica.lsn, "hash": identity.hex(), "digest": f"{digest:064x}"}
            return {**contents(replica), "kinds": kinds, "head": head}


def main() -> None:
    if sys.argv[1] == "--live":
        store = chunkstore.open(
            f"file://{sys.argv[4]}/root", settings=settings(sys.argv[2], Path(sys.argv[4]) / "cache")
        )
        {"first": first, "second": second}[sys.argv[3]](store)
        os._exit(9)
    target = Path(sys.argv[1])
    expected = {f"inline-{mode}": make(mode, target) for mode in MODES}
    (target / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
