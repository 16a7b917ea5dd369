"""What is kept of a run's container: exports in files, backups under a folder of the storage, containers that are being restored.

Promises: everything that was shown or made is remembered for the end, when it is compared with history; the backup root is judged at
every step. Leaves out: who keeps it, and when (``keepers``, ``upkeep_verbs``), and the end (``kept``).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, Final, NamedTuple

from chunkstore.assembly import open_store_on
from chunkstore.backup.exporting import ExportReport, Pins, export
from chunkstore.backup.imports import import_file
from chunkstore.backup.restore import restore
from chunkstore.backup.rounds import backup
from chunkstore.config import RollingPolicy, Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import Conflict
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.replica import Replica
from chunkstore.storage import ChunkStorage
from tests.judges.backup_root import BackupRoot
from tests.judges.imports import AS_IT_IS, ImportAsk, Plan, Shown
from tests.judges.kept_states import Shown as ShownState
from tests.judges.segment_model import Content, Segment
from tests.judges.stored_history import StoredHistory
from tests.simulator.wire import Call
from tests.simulator.world import Process, World
from tests.support.backups import drop_old

__all__ = ["BACKUPS", "Keeping", "Merge", "Observation", "Target", "fast_folder", "fresh_cache"]

BACKUPS: Final = "b/"
"""The folder of the storage that is the backup root."""
_DELETING: Final = frozenset(("DELETE", "unlink", "remove"))


class Observation(NamedTuple):
    """What something showed; ``versions``: whether rows have those of the original. ``plan``: by which it was made of that; ``cut``:
    whether something may have been cut off and deleted since."""

    shown: ShownState
    versions: bool
    plan: Plan = AS_IT_IS
    cut: bool = False
    founded: Shown | None = None


class Target:
    """A container that is made of a moment, under ``folder``, by a plan. ``adopts``: the chunks stay where they are. ``whole``: somebody
    was told so, or has seen it. ``cut``: it is at work, and what it held is cut off and deleted; ``server``: who owns it now. ``founded``:
    what it held when it was new, of one that is made of nothing."""

    def __init__(self, folder: str, lsn: int, *, of_backup: bool, plan: Plan = AS_IT_IS, adopts: bool = False) -> None:
        self.folder = folder
        self.lsn = lsn
        self.of_backup = of_backup
        self.plan = plan
        self.adopts = adopts
        self.whole = False
        self.cut = False
        self.server: Process | None = None
        self.founded: Shown | None = None
        self.expected: dict[str, bytes] = {}
        """At the end: what it holds."""

    @property
    def is_served(self) -> bool:
        """Whether somebody answers there."""
        return self.server is not None and not self.server.dead and self.server.frozen is None

    def make(self, process: Process, settings: Settings) -> None:
        """Begin it, or go on with it. Raises as ``restore`` and ``import_file``."""
        world, source = process.world, BACKUPS if self.of_backup else ""
        container = world.container
        if self.plan == AS_IT_IS and not self.adopts:
            old, new = process.at(source) if source else process.storage, process.at(self.folder)
            caches = lambda role: fresh_cache(new if role == "owner" else old, role)  # noqa: E731
            restore(old, new, lsn=self.lsn, container=container, settings=settings, caches=caches)
            return
        import_file(
            f"{process.root_url}/{self.folder}",
            f"{process.root_url}/{source}",
            self.plan.names,
            rename=dict(self.plan.renames),
            prefix=self.plan.prefix,
            source_container=container,
            lsn=self.lsn,
            container=container,
            settings=settings,
            adopt=self.adopts,
        )


class Merge(NamedTuple):
    """An import into the container that was asked for, of what lies under ``folder``."""

    ask: ImportAsk
    folder: str


class Keeping:
    """See the module. Of one run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.shown: list[Observation] = []
        self.exports: list[ExportReport] = []
        self.targets: list[Target] = []
        self.merges: list[Merge] = []
        """Imports into the container that nobody was told of that they have ended."""
        self.merged: list[Merge] = []
        self.imported: list[str] = []
        """Segments that came by them."""
        self.stored: Callable[[], StoredHistory] | None = None
        """History, which knows what of others is adopted."""
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
        if call.step in _DELETING and call.op == "delete" and self.stored is not None:
            self._check_adopted(call.name, self.stored())
        folder, _, rest = call.name.partition("/")
        own = folder == self.world.container and not rest.startswith(("ask", ".chunkstore-tmp"))
        if own and call.process in self.readers:
            self.world.fail(f"history changed-source: {call!r} of somebody who only keeps what is there")

    def _check_adopted(self, name: str, stored: StoredHistory) -> None:
        """Nobody deletes what history adopts from another container, which was pinned for that."""
        if not any(name.startswith(target.folder) for target in self.targets):
            return
        for key, raw in stored.rows.items():
            found = stored.adopted(raw) if key[:1] == b"C" else None
            if found is not None and name == self.world.name_at(*found[:2]):
                self.world.fail(f"history lost-adopted: {name} was deleted, and lsn {stored.lsn} adopts it")

    def found_neighbour(self, writers: list[str], random: Random) -> None:
        """Another container, which is there from the beginning: segments of a few chunks each, cut off, sealed, with writers."""
        world, target = self.world, Target("n0/", 0, of_backup=False)
        process, segments = world.process("founder-of-n0"), dict[str, Segment]()

        def found() -> None:
            storage, settings = process.at(target.folder), world.settings_with({"op_deadline_s": 600.0})
            cache = fresh_cache(storage, "owner")
            with open_store_on(storage, container=world.container, settings=settings, cache=cache) as store:
                for number in range(4):
                    name, content, events = f"a{number}", Content(), dict[str, tuple[int, int]]()
                    store.create(name, rolling=RollingPolicy(chunk_size_bytes_max=random.choice((10, 40))))
                    for piece in range(random.randrange(1, 6)):
                        data, writer = (
                            b"<%s.%d%s>" % (name.encode(), piece, b"." * random.choice((0, 20))),
                            random.choice(writers),
                        )
                        events[writer] = (piece + 1, store.append(name, data, writer_id=writer, event_number=piece + 1))
                        content = content.append(data)
                    start = random.choice((0, random.randrange(content.length)))
                    store.truncate(name, start)
                    if sealed := random.random() < 0.3:
                        store.seal(name)
                    known = tuple((writer, *event) for writer, event in events.items())
                    segments[name] = Segment(0, content, start, sealed, known)

        process.run(found)
        process.crash()
        target.founded, target.whole, target.cut = Shown(segments, {}), True, True
        self.targets.append(target)

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
