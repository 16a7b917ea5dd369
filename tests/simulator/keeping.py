"""What is kept of a run's container: exports in files, backups under a folder of the storage, containers that are being restored.

Promises: everything that was shown or made is remembered for the end, when it is compared with history; the backup root is judged at
every step. Leaves out: who keeps it, and when (``keepers``, ``upkeep_verbs``), and the end (``kept``).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from random import Random
from typing import Any, Final, NamedTuple

from chunkstore.backup.exporting import ExportReport, Pins, export
from chunkstore.backup.restore import restore
from chunkstore.backup.rounds import backup
from chunkstore.config import Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import Conflict
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.replica import Replica
from chunkstore.storage import ChunkStorage
from tests.judges.backup_root import BackupRoot
from tests.judges.kept_states import Shown as ShownState
from tests.simulator.wire import Call
from tests.simulator.world import Process, World
from tests.support.backups import drop_old

__all__ = ["BACKUPS", "Keeping", "Observation", "Target", "fast_folder", "fresh_cache"]

BACKUPS: Final = "b/"
"""The folder of the storage that is the backup root."""
_DELETING: Final = frozenset(("DELETE", "unlink", "remove"))


class Observation(NamedTuple):
    """What something showed; ``versions``: whether rows have those of the original. ``chosen``: the segments it was made of; none: all."""

    shown: ShownState
    versions: bool
    chosen: tuple[str, ...] = ()


class Target:
    """A container that is made of a moment, or of some segments of it, under ``folder``. ``whole``: it was seen to be."""

    def __init__(self, folder: str, lsn: int, *, of_backup: bool, chosen: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.lsn = lsn
        self.of_backup = of_backup
        self.chosen = chosen
        self.whole = False
        self.expected: dict[str, bytes] = {}
        """At the end: what it holds."""

    def make(self, process: Process, settings: Settings) -> None:
        """Begin it, or go on with it. Raises as ``restore``."""
        container = process.world.container
        old, new = process.at(BACKUPS) if self.of_backup else process.storage, process.at(self.folder)
        caches = lambda role: fresh_cache(new if role == "owner" else old, role)  # noqa: E731
        restore(old, new, self.chosen, lsn=self.lsn, container=container, settings=settings, caches=caches)


class Keeping:
    """See the module. Of one run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.shown: list[Observation] = []
        self.exports: list[ExportReport] = []
        self.targets: list[Target] = []
        self.readers: set[Process] = set()
        """Who may change nothing of the container."""
        self._stale = bool(world.faults.weather.stale_list)
        self._local = tempfile.mkdtemp(prefix="chunkstore-kept-", dir=fast_folder())
        # Exports of backups go through real files, which the product syncs.
        self._tempdir, tempfile.tempdir = tempfile.tempdir, self._local
        content = world.backend.content
        self.root = BackupRoot(world.container, lambda name: content(BACKUPS + name), content, self._wrong)
        self._cut = world.backend.power_cut
        setattr(world.backend, "power_cut", self._power_cut)  # noqa: B010  (of this one backend)
        world.observers.append(self._observe)

    def close(self) -> None:
        """Delete the files."""
        tempfile.tempdir = self._tempdir
        shutil.rmtree(self._local, ignore_errors=True)

    def _wrong(self, message: str) -> None:
        self.world.fail(f"history broken-backup: {message}")

    def _power_cut(self) -> None:
        self._cut()
        self.root.look_again(
            [name.removeprefix(BACKUPS) for name in self.world.backend.names() if name.startswith(BACKUPS)]
        )

    def _observe(self, call: Call, result: Any, late: bool) -> None:
        if isinstance(result, BaseException) or not call.changes or call.step.startswith("fsync"):
            return
        if call.name.startswith(BACKUPS):
            name = call.name.removeprefix(BACKUPS)
            (self.root.deleted if call.step in _DELETING else self.root.put)(name)
            return
        folder, _, rest = call.name.partition("/")
        own = folder == self.world.container and not rest.startswith(("ask", ".chunkstore-tmp"))
        if own and call.process in self.readers:
            self.world.fail(f"history changed-source: {call!r} of somebody who only keeps what is there")

    # What anybody does

    def backup(
        self, store: ChunkedSegmentStorage | Replica, random: Random, *, pin: bool = True, pins: Pins | None = None
    ) -> None:
        """One more backup; then old ones are dropped, perhaps. Raises as ``backup`` and ``remove``."""
        target, keep = self.world.present().at(BACKUPS), random.choice((None, 1, 1, 2))
        backup(store, target, pin=pin, pins=pins)
        # What is dropped rests on LISTs that show what there is.
        if keep is not None and not self._stale:
            with suppress(Conflict):  # a run under way relies on it
                drop_old(target, keep=keep, container=store.container)

    def export(self, store: ChunkedSegmentStorage, random: Random, segment: str) -> None:
        """One more export, of everything or of some, under a pin. Raises as ``export``."""
        path = os.path.join(self._local, f"e{len(self.exports)}-{random.randrange(1 << 30)}")
        chosen = random.choice(((), (), ("s*",), (segment,)))
        self.exports.append(export(store, path, chosen))


def fresh_cache(storage: ChunkStorage, role: str) -> MemoryMetadataCache:
    """A cache that nobody else has."""
    return MemoryMetadataCache(bytes(16), storage.address, role, shelf=MemoryShelf())


def fast_folder() -> str | None:
    """Where files cost no disk, if there is such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
