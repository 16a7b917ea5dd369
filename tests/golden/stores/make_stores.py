"""Makes the golden stores: whole containers as a version of chunkstore left them, which every later version must open.

``python -m tests.golden.stores.make_stores FOLDER``, run with the sources of the version whose bytes are to be kept, writes
``<mode>-<end>.tar.gz`` and ``expected.json``. Those kept here were written by chunkstore 0.1.0, at revision df5175c. A store of another
version gets a folder of its own; what is here never changes.

Each store lives through four epochs: one that uses every kind of row and record and closes; one that writes ledgers and is killed; one
that was claimed and never opened; and one that ends as its name says:

* ``closed``: in peace, and the journal's beginning was collected before;
* ``killed``: by ``os._exit``, without CLOSE, with half a record (APPEND) or half an upload (SLOT) behind the last one.

What is expected is what a replica of the very version read. The digest at the end is the sum over all rows, so it stands for each of them.
Metadata caches are not kept: they are disposable.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import chunkstore
from chunkstore.assembly import journal_records, open_replica
from chunkstore.changes import Append, Attach, Create, EndSession, Seal
from chunkstore.config import RollingPolicy, Settings
from chunkstore.names import ContainerNames
from chunkstore.pulsar import OffloadWriter
from chunkstore.registry import open_storage
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_journal.claim import claim_next
from tests.golden.stores.reading import TOPIC, contents, payload

MODES = ("append", "slot")
ENDS = ("closed", "killed")
SMALL = RollingPolicy(chunk_size_bytes_max=16)


def settings(mode: str, folder: Path) -> Settings:
    return Settings(
        journal_mode=mode,  # type: ignore[arg-type]
        cache_dir=str(folder / "cache"),
        gc_grace_s=0,
        snapshots_kept=1,
        lmdb_map_bytes=1 << 26,
    )


def every_kind(store: chunkstore.ChunkedSegmentStorage, root: str) -> dict[str, Any]:
    """Each kind of operation and record once; what is left of it goes into ``expected.json``."""
    store.create("plain", rolling=SMALL, attributes={"text": "Stück", "number": 7, "raw": b"\x00\xff"})
    for number in range(5):
        store.append("plain", b"%d plain bytes, " % number)
    for name, data in (("sealed", b"sealed for ever"), ("target", b"target, "), ("source", b"and source")):
        store.create(name, rolling=SMALL)
        store.append(name, data)
    for name in ("sealed", "source"):
        store.seal(name)
    store.concat("target", len("target, "), "source")
    store.create("front cut", rolling=SMALL)
    store.append("front cut", bytes(range(60)))
    store.truncate("front cut", 25)
    store.create("gone", rolling=SMALL)
    store.append("gone", b"nobody reads this again")
    store.delete("gone")
    store.create("writers")
    store.append("writers", b"one", writer_id=b"w1", event_number=4)
    store.append("writers", b"two", writer_id="w2", event_number=1)
    store.table("colours").put(b"red", b"#f00")
    store.table("colours").put(b"red", b"#e00")
    store.table("colours").put(b"gone", b"")
    store.table("colours").delete(b"gone")
    store.table("numbers").put(b"\x00", bytes(range(256)))
    store.collect()
    store.create("attached", rolling=SMALL)
    outside = open_storage(root, Settings())
    ended = store.session("a session that ended")
    chunk = ended.writer().write_chunk(outside, 0, b"by a session")
    store.commit([Attach("attached", ended.id, (chunk,), 0), EndSession(ended.id), Append("attached", b" + owner")])
    ended.mark_ended()
    going_on = store.session("a session that goes on")
    left = going_on.writer(7 << 32).write_chunk(outside, 1, b"not attached yet")
    outside.close()
    if store.journal_mode == "append":
        time.sleep(2.2)  # an idle owner's HEARTBEAT
    store.snapshot()
    store.append("plain", b"behind the snapshot")
    return {"session": going_on.id, "chunk": [left.id.hex(), left.length, left.crc32c]}


def live(mode: str, end: str, folder: Path) -> None:
    """One store's life; ends the process. Prints what only it knows."""
    root = f"file://{folder}/root"
    chosen = settings(mode, folder)
    known = {}
    if end == "ledgers":
        with chunkstore.open(root, settings=chosen) as store:
            known = every_kind(store, root)
        store = chunkstore.open(root, settings=chosen)
        with OffloadWriter(store, TOPIC, block_bytes=4096) as writer:
            for entry in range(40):
                writer.append(11, entry, payload(entry))
        writer = OffloadWriter(store, TOPIC, block_bytes=4096)
        for entry in range(40, 60):
            writer.append(11, entry, payload(entry))
        writer.append(4, 0, b"")
        writer.flush()
        print(json.dumps(known), flush=True)
        os._exit(9)
    storage = FilesystemChunkStorage(str(folder / "root"))
    claim_next(storage, ContainerNames("default"), 2, deadline_s=10)
    store = chunkstore.open(root, settings=chosen)
    store.commit([Create("empty"), Create("three in one"), Append("three in one", b"123"), Seal("three in one")])
    store.unseal("sealed")
    store.append("sealed", b"?")
    store.update_attributes("plain", {"number": 8, "raw": None})
    store.append("plain", b", a later epoch")
    if end == "closed":
        store.snapshot()
        store.collect()
    store.truncate("plain", 20)  # garbage that stays
    store.append("writers", b"three", writer_id=b"w1", event_number=5)
    if end == "closed":
        store.close()
    os._exit(9)


def tear(folder: Path, mode: str) -> None:
    """What a process leaves that dies in the middle of a record."""
    home = folder / "root" / "default"
    if mode == "append":
        logs = sorted(home.glob("j/*/*/log.a"))
        with logs[-1].open("r+b") as log:
            half = log.read()[:200]
            log.seek(0, os.SEEK_END)
            log.write(half[:150])
    else:
        (home / "tmp").mkdir(exist_ok=True)
        (home / "tmp" / ("5" * 32)).write_bytes(b"half an upload")


def make(mode: str, end: str, target: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        known: dict[str, Any] = {}
        for part in ("ledgers", end):
            command = [sys.executable, "-m", "tests.golden.stores.make_stores", "--live", mode, part, str(folder)]
            done = subprocess.run(command, check=False, stdout=subprocess.PIPE)
            assert done.returncode == 9
            if part == "ledgers":
                known = json.loads(done.stdout)
        if end == "killed":
            tear(folder, mode)
        with tarfile.open(target / f"{mode}-{end}.tar.gz", "w:gz") as packed:
            packed.add(folder / "root", ".")
        root = f"file://{folder}/root"
        with open_replica(root, settings=settings(mode, folder / "replica")) as replica:
            replica.refresh()
            last = list(journal_records(root))[-1]
            digest, identity = last["digest"], last["hash"]
            assert isinstance(digest, int) and isinstance(identity, bytes) and last["lsn"] == replica.lsn
            return {
                **known,
                **contents(replica),
                "head": {"lsn": replica.lsn, "hash": identity.hex(), "digest": f"{digest:064x}"},
            }


def main() -> None:
    if sys.argv[1] == "--live":
        live(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
    target = Path(sys.argv[1])
    expected = {f"{mode}-{end}": make(mode, end, target) for mode in MODES for end in ENDS}
    (target / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
