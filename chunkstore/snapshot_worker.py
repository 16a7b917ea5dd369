"""Writing a large snapshot in a process of its own, so that commits keep the interpreter to themselves (protocol A8).

Promises: the worker opens the storage by its URL and the owner's present store as one more reader, writes the snapshot of the point of
history it finds there, reads it back, and prints its report; the owner then commits the note. A worker that fails or is
killed leaves at most an unused object without a note. It never claims and never changes the cache.
Leaves out: storages without a URL and caches in memory: there the owner writes its snapshots itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Any, Final

from chunkstore.config import RollingPolicy, Settings
from chunkstore.errors import ChunkstoreError, StorageUnavailable
from chunkstore.journal import SnapshotReport
from chunkstore.metadata.lmdb import LmdbMetadataStore, open_reader
from chunkstore.metadata.port import MetadataStore, Position
from chunkstore.names import ContainerNames
from chunkstore.registry import open_storage

__all__ = ["SnapshotWorker", "main"]

_TIMEOUT_S: Final = 3600.0


class SnapshotWorker:
    """Starts workers for one container; called by the owner's upkeep. ``settings``: the owner's."""

    def __init__(self, root: str, container: str, settings: Settings) -> None:
        self._request = {"root": root, "container": container, "settings": asdict(settings)}

    def write(self, store: MetadataStore, epoch: int) -> SnapshotReport:
        """Write, validate and return a snapshot of ``store``. Raises ``StorageUnavailable`` when the worker fails. Retry: safe."""
        assert isinstance(store, LmdbMetadataStore)
        store.settle()
        request = json.dumps({**self._request, "epoch": epoch, "store": store.path})
        # The worker finds the same modules, also when they run from a checkout.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "chunkstore.snapshot_worker"],
                input=request,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
                env=environment,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StorageUnavailable(f"the snapshot worker could not run: {error}") from error
        if done.returncode != 0:
            raise StorageUnavailable(f"the snapshot worker failed: {done.stderr.strip()[-500:]}")
        try:
            answer = json.loads(done.stdout)
            lsn, identity, stream, index, end = answer["position"]
            position = Position(lsn, bytes.fromhex(identity), stream, index, end)
            return SnapshotReport(
                answer["name"], position, int(answer["digest"], 16), answer["rows"], answer["size_bytes"]
            )
        except (ValueError, KeyError, TypeError) as error:
            raise StorageUnavailable("the snapshot worker gave no report") from error


def main() -> int:
    """The worker: request as JSON on standard input, report as JSON on standard output, failure on standard error."""
    request = json.load(sys.stdin)
    try:
        settings = _settings(request["settings"])
        report = _write(request["root"], request["container"], settings, request["epoch"], request["store"])
    except ChunkstoreError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    lsn, identity, stream, index, end = report.position
    answer = {
        "name": report.name,
        "position": [lsn, identity.hex(), stream, index, end],
        "digest": f"{report.digest:064x}",
        "rows": report.rows,
        "size_bytes": report.size_bytes,
    }
    json.dump(answer, sys.stdout)
    return 0


def _write(root: str, container: str, settings: Settings, epoch: int, path: str) -> SnapshotReport:
    """Write and validate a snapshot of what the owner's store at ``path`` holds now; the owner of ``epoch`` commits its note."""
    from chunkstore_journal.container import read_format
    from chunkstore_journal.snapshot import write_snapshot

    names = ContainerNames(container)
    storage = open_storage(root, settings)
    try:
        format_ = read_format(storage, names)
        store = open_reader(path, format_.uuid, settings=settings)
        if store is None:
            raise StorageUnavailable("the owner's metadata cache cannot be read", object=path)
        try:
            with store.view() as view:
                return write_snapshot(storage, names, container=format_.uuid, view=view, epoch=epoch)
        finally:
            store.close(clean=False)
    finally:
        storage.close()


def _settings(found: dict[str, Any]) -> Settings:
    built = {
        "default_rolling": RollingPolicy(**found["default_rolling"]),
        "foreign_roots": tuple(found["foreign_roots"]),
    }
    return Settings(**{**found, **built})


if __name__ == "__main__":
    raise SystemExit(main())
