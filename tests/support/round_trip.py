"""Backups and restores from storage to storage on real servers, killed at moments drawn by chance, and gone on with.

A container on a disk is backed up into a bucket of RADOS gateway; from there it is restored into HDFS, backed up into another folder of
that, and from there restored onto the disk. Each step is a process of its own, which kills itself (SIGKILL) in the middle of, or behind,
one of its changes. At the end everything is there as it was: ``python -m tests.support.round_trip [--kills 20] [--seed N]``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import chunkstore
from chunkstore import backup
from chunkstore.invariants import ORPHANED, Finding
from chunkstore.pulsar import LedgerReader, OffloadWriter
from chunkstore.pulsar.contexts import iter_contexts
from tests.support.paths import SOURCES

__all__ = ["Outcome", "round_trip"]

_CHANGES = ("do_create", "do_create_if_absent", "do_put", "do_write", "do_delete", "do_compose", "do_sync")
_TOPIC = "persistent://public/default/orders"
_DEADLINE_S = 240


class Outcome(NamedTuple):
    """How often each step was killed."""

    kills: dict[str, int]
    chunks: int


def _settings(folder: Path) -> chunkstore.Settings:
    return chunkstore.Settings(cache_dir=str(folder / "cache"), lease_s=0, collect_s=0)


def _fill(root: str, folder: Path, chance: random.Random) -> None:
    with chunkstore.open(root, settings=_settings(folder)) as store:
        for number in range(6):
            name = f"s{number}"
            store.create(name, rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=8_000))
            store.append(name, chance.randbytes(40_000 + number), writer_id="till", event_number=number + 7)
        store.truncate("s1", 12_345)
        store.seal("s2")
        with OffloadWriter(store, _TOPIC) as writer:
            for entry in range(20):
                writer.append(3, entry, b"entry %d" % entry)
        store.table("mine").put(b"key", b"value")


def _facts(store: Any) -> dict[str, Any]:
    """What has to be the same everywhere."""
    segments = {
        info.name: (
            info.start_offset,
            info.length,
            info.sealed,
            hashlib.sha256(store.read(info.name, info.start_offset, info.length)).hexdigest(),
        )
        for info in store.segments()
    }
    entries = [bytes(entry.payload) for entry in LedgerReader(store).read(_TOPIC, 3)]
    contexts = [context._replace(version=0) for context in iter_contexts(store, _TOPIC)]
    return {
        "segments": segments,
        "entries": entries,
        "contexts": contexts,
        "row": store.table("mine").get(b"key").value,
    }


def _check(root: str, folder: Path, expected: dict[str, Any], *, owned: bool, killed: bool) -> None:
    with chunkstore.open_replica(root, settings=_settings(folder)) as replica:
        findings = replica.check("deep")
        # What a killed restore had copied, and no record took in, are orphans.
        orphans = {item.object for item in findings if owned and killed and _is_orphan(item)}
        assert [item for item in findings if item.object not in orphans] == [], findings
        assert _facts(replica) == expected
    if owned:
        with chunkstore.open(root, settings=_settings(folder)) as store:
            for name in ("s0", "s5"):
                length = store.info(name).length
                assert store.last_event_number(name, "till") == int(name[1:]) + 7
                store.append(name, b"again", writer_id="till", event_number=int(name[1:]) + 7)
                assert store.info(name).length == length, "an event that is there is not appended again"
            swept = store.sweep(delete=True, age_s_min=0)
            assert swept.deleted >= len(orphans), swept
            findings = store.check("deep")
            assert not orphans & {item.object for item in findings}, findings
            # A request of the killed process may still have been on its way.
            assert all(killed and _is_orphan(item) for item in findings), findings
            assert _facts(store) == expected


def _is_orphan(finding: Finding) -> bool:
    return (finding.invariant, finding.severity) == (ORPHANED, "info")


# ---- a step, in a process of its own


def _mortal(dies_at: int, delay_s: float) -> None:
    """This process ends at its change number ``dies_at``, so long after it was begun."""
    from chunkstore_bindings.filesystem import FilesystemChunkStorage
    from chunkstore_bindings.hdfs import HdfsChunkStorage
    from chunkstore_bindings.s3.storage import S3ChunkStorage

    count, lock = 0, threading.Lock()

    def die() -> None:
        time.sleep(delay_s)
        os.kill(os.getpid(), signal.SIGKILL)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            nonlocal count
            with lock:
                count += 1
                if count == dies_at:
                    threading.Thread(target=die, daemon=True).start()
            return real(*arguments, **more)

        return call

    for kind in (FilesystemChunkStorage, HdfsChunkStorage, S3ChunkStorage):
        for name in _CHANGES:
            if hasattr(kind, name):
                setattr(kind, name, counted(getattr(kind, name)))


def _step(verb: str, source: str, target: str, folder: Path) -> None:
    settings = _settings(folder)
    if verb == "backup":
        with chunkstore.open(source, settings=settings) as store:
            backup.backup(store, target)
    else:
        try:
            backup.restore(source, target, settings=settings)
        except chunkstore.errors.InvalidArgument as error:
            if "(whole" not in str(error):
                raise  # one that was killed behind its last step has left nothing to do


def _run(verb: str, source: str, target: str, folder: Path, dies_at: int, delay_s: float) -> bool:
    """Whether it came to its end; False: it was killed."""
    step = ("--step", verb, source, target, str(folder), str(dies_at), str(delay_s))
    command = [sys.executable, "-m", "tests.support.round_trip", *step]
    # What a process that is killed leaves in its temporary folder goes with ours.
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": SOURCES, "TMPDIR": str(folder)},
        capture_output=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()[-3000:]
    return done.returncode == 0


def round_trip(folder: Path, bucket_root: str, hdfs_root: str, *, kills: int, seed: int) -> Outcome:
    """All steps, each killed ``kills`` times, or as often as it lasts. Raises ``AssertionError``."""
    chance = random.Random(seed)
    first, last = (folder / "first").as_uri(), (folder / "last").as_uri()
    _fill(first, folder, chance)
    with chunkstore.open_replica(first, settings=_settings(folder)) as replica:
        expected, chunks = _facts(replica), replica.usage().chunks
    killed: dict[str, int] = {}
    steps = (
        ("backup", first, bucket_root),
        ("restore", bucket_root, f"{hdfs_root}/root"),
        ("backup", f"{hdfs_root}/root", f"{hdfs_root}/backups"),
        ("restore", f"{hdfs_root}/backups", last),
    )
    for number, (verb, source, target) in enumerate(steps):
        name = f"{number + 1} {verb}"
        killed[name] = 0
        for _ in range(kills):
            # What an earlier try has done is not done again: so each may go on some way.
            dies_at = chance.randrange(1, max(3, 2 * chunks // kills))
            if _run(verb, source, target, folder, dies_at, chance.choice((0, chance.uniform(0, 0.02)))):
                break
            killed[name] += 1
        else:
            assert _run(verb, source, target, folder, 0, 0), "without a kill it comes to its end"
        if verb == "backup":
            assert backup.verify_copies(target, settings=_settings(folder)).findings == ()
        _check(target, folder, expected, owned=verb == "restore", killed=killed[name] > 0)
    return Outcome(killed, chunks)


def main() -> None:
    """See the module."""
    if sys.argv[1:2] == ["--step"]:
        verb, source, target, folder, dies_at, delay_s = sys.argv[2:]
        if int(dies_at):
            _mortal(int(dies_at), float(delay_s))
        _step(verb, source, target, Path(folder))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="of each step (default %(default)s)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    from tests.support.servers.hdfs import shared_cluster
    from tests.support.servers.rgw import Rgw
    from tests.support.servers.s3server import CREDENTIALS

    os.environ |= CREDENTIALS
    print(f"seed {options.seed}", flush=True)
    began, server = time.monotonic(), Rgw()
    try:
        with tempfile.TemporaryDirectory(prefix="chunkstore-round-trip-") as folder:
            target = server.root(server.make_bucket(), "backups")
            found = round_trip(Path(folder), target, shared_cluster().root(), kills=options.kills, seed=options.seed)
    finally:
        server.stop()
    print(json.dumps({**found._asdict(), "seconds": round(time.monotonic() - began)}))


if __name__ == "__main__":
    main()
