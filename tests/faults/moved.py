"""Trees that are moved under their owner: ``python -m tests.faults.moved [--rounds N] [--seed S] [--place P ...] [--save]``.

A round: an owner at work; at a random storage call of a random change its root, or its container's folder, is renamed, removed,
replaced by a copy, unmounted or mounted over, and a successor opens what lies there now and writes. Judged: what the owner was told
is done, the successor has; nothing that it begins later is acknowledged or answered; and nothing is made anew where the tree was, or
in the successor's (protocol 3.6, P10). Places: ``disk`` (a folder in memory; mounting needs root), ``hdfs`` (the model of WebHDFS),
``hadoop`` (a real one).
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from chunkstore.assembly import open_store_on
from chunkstore.config import Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, DeadlineExceeded, NotOwner, OutcomeUnknown, StorageUnavailable
from chunkstore.metadata.memory import MemoryShelf
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from tests.faults.ground import fast_folder
from tests.hdfs.moving import WAYS as HDFS_WAYS
from tests.hdfs.moving import Tree
from tests.support.alone import alone
from tests.support.fake_webhdfs import FakeWebHdfs
from tests.support.forwarding import Hooked
from tests.support.report import Report
from tests.support.servers.hdfs import shared_cluster
from tests.support.worlds import Mode, ShelfCache

__all__ = ["CONTAINER", "WAYS", "Disk", "Moment", "Place", "Site", "Told", "can_mount", "files_of", "is_refused"]

CONTAINER: Final = "default"
PLACES: Final = ("disk", "hdfs", "hadoop")
_CALLS_MAX: Final = 12
_FEW_CALLS: Final = 2
"""A change whose bytes travel in its record makes no more in SLOT mode."""
PATIENT_S: Final = 60.0
_SLICE: Final = 10
_TRIES: Final = 20
Wrap = Callable[[ChunkStorage], ChunkStorage]


class Place:
    """A root, and another place beside it; what is done to them gives the root to open from then on."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.other = folder / "other"
        self.root.mkdir()

    def rename_root(self) -> Path:
        self.root.rename(self.other)
        return self.other

    def rename_folder(self) -> Path:
        self.other.mkdir()
        (self.root / CONTAINER).rename(self.other / CONTAINER)
        return self.other

    def copy_and_remove_root(self) -> Path:
        shutil.copytree(self.root, self.other)
        shutil.rmtree(self.root)
        return self.other

    def copy_and_remove_folder(self) -> Path:
        shutil.copytree(self.root / CONTAINER, self.other / CONTAINER)
        shutil.rmtree(self.root / CONTAINER)
        return self.other

    def replace_root(self) -> Path:
        self.root.rename(self.other)
        shutil.copytree(self.other, self.root)
        return self.root

    def replace_folder(self) -> Path:
        self.other.mkdir()
        (self.root / CONTAINER).rename(self.other / CONTAINER)
        shutil.copytree(self.other / CONTAINER, self.root / CONTAINER)
        return self.root

    def replace_removed_root(self) -> Path:
        shutil.copytree(self.root, self.other)
        shutil.rmtree(self.root)
        self.other.rename(self.root)
        return self.root

    def replace_removed_folder(self) -> Path:
        shutil.copytree(self.root / CONTAINER, self.other)
        shutil.rmtree(self.root / CONTAINER)
        self.other.rename(self.root / CONTAINER)
        return self.root


WAYS: Final = tuple(name for name in vars(Place) if not name.startswith("_"))
MOUNTS: Final = ("unmount", "mount_over_root", "mount_over_folder")


def files_of(root: Path) -> set[str]:
    """All that lies there, but for the folder of temporaries, whose contents are nobody's."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if ".chunkstore-tmp" not in path.parts}


def can_mount() -> bool:
    """Whether a folder can be mounted elsewhere."""
    with tempfile.TemporaryDirectory() as source, tempfile.TemporaryDirectory() as point:
        made = subprocess.run(["mount", "--bind", source, point], check=False, capture_output=True)
        _unmount(point)
        return made.returncode == 0


def _unmount(point: Path | str) -> None:
    subprocess.run(["umount", "-l", point], check=False, capture_output=True)


def is_refused(call: Callable[[], object]) -> bool:
    """Whether a change or a fenced read is; any other error says something else, and passes through."""
    try:
        call()
    except (NotOwner, OutcomeUnknown, StorageUnavailable, DeadlineExceeded):
        return True
    return False


class Site(ABC):
    """Where one round takes place. ``root``: to open first; ``ways``: what can be done to it."""

    root: str
    ways: tuple[str, ...]

    @abstractmethod
    def open(self, root: str, wrap: Wrap | None = None) -> ChunkedSegmentStorage:
        """An owner on a machine of its own; behind ``wrap`` it soon gives up what cannot succeed."""

    @abstractmethod
    def move(self, way: str) -> str:
        """Do it; the root to open from then on."""

    @abstractmethod
    def files(self, root: str) -> set[str] | None:
        """What lies under a root; None where there is none."""

    @abstractmethod
    def close(self) -> None:
        """Undo what would outlast the round."""


class Disk(Site):
    """Folders in ``folder``."""

    def __init__(self, folder: Path, mode: Mode, *, mounts: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.place = Place(folder)
        self.root = str(self.place.root)
        self.ways = WAYS + (MOUNTS if mounts else ())
        self._mode = mode
        self._mounted = ExitStack()

    def mount_first(self) -> None:
        """Let the first owner work in a mounted root."""
        point = self.place.root.with_name("point")
        point.mkdir()
        self._mount(self.place.root, point)
        self.root = str(point)

    def _mount(self, source: Path, point: Path) -> None:
        subprocess.run(["mount", "--bind", source, point], check=True, capture_output=True)
        self._mounted.callback(_unmount, point)

    def open(self, root: str, wrap: Wrap | None = None) -> ChunkedSegmentStorage:
        storage: ChunkStorage = FilesystemChunkStorage(root)
        return _open(storage if wrap is None else wrap(storage), PATIENT_S if wrap is None else 0.3, self._mode)

    def move(self, way: str) -> str:
        place = self.place
        if way == "unmount":
            subprocess.run(["umount", "-l", self.root], check=True, capture_output=True)
            return str(place.root)
        if way in MOUNTS:
            shutil.copytree(place.root, place.other)
            part = "" if way == "mount_over_root" else CONTAINER
            self._mount(place.other / part, place.root / part)
            return str(place.root if not part else place.other)
        return str(getattr(place, way)())

    def files(self, root: str) -> set[str] | None:
        return files_of(Path(root)) if Path(root).exists() else None

    def close(self) -> None:
        self._mounted.close()


class Hdfs(Site):
    """A folder of a cluster, or of the model of one."""

    def __init__(self, tree: Tree, home: str) -> None:
        self.tree = tree
        self.home = home
        self.root = f"{home}/old"
        self.ways = tuple(HDFS_WAYS)

    def open(self, root: str, wrap: Wrap | None = None) -> ChunkedSegmentStorage:
        deadline_s = PATIENT_S if wrap is None else 1.0
        storage = open_storage(self.tree.root(root), Settings(op_deadline_s=deadline_s, retry_s_max=0.2))
        return _open(storage if wrap is None else wrap(storage), deadline_s, "slot")

    def move(self, way: str) -> str:
        return HDFS_WAYS[way](self.tree, self.home)

    def files(self, root: str) -> set[str] | None:
        there = self.tree.is_there(f"{root}/{CONTAINER}")
        return {name.removeprefix(f"{root}/") for name in self.tree.files(root)} if there else None

    def close(self) -> None:
        self.tree.remove(self.home)


def _open(storage: ChunkStorage, deadline_s: float, mode: Mode) -> ChunkedSegmentStorage:
    settings = Settings(journal_mode=mode, op_deadline_s=deadline_s, resolve_s=0.0, lease_s=0.0)
    cache = ShelfCache(storage, CONTAINER, "owner", MemoryShelf())
    store = open_store_on(storage, container=CONTAINER, settings=settings, cache=cache, close_storage=True)
    alone(store)
    return store


class Verb(NamedTuple):
    """A change, and whether a store has it."""

    do: Callable[[ChunkedSegmentStorage], object]
    has: Callable[[ChunkedSegmentStorage], bool]


VERBS: Final[dict[str, Verb]] = {
    "append": Verb(lambda z: z.append("s", b"z"), lambda n: b"z" in n.read("s", 0, 99)),
    "append chunks": Verb(lambda z: z.append("small", b"z" * 40), lambda n: n.info("small").length == 40),
    "create": Verb(lambda z: z.create("made"), lambda n: n.exists("made")),
    "truncate": Verb(lambda z: z.truncate("long", 3), lambda n: n.info("long").start_offset == 3),
    "delete": Verb(lambda z: z.delete("long"), lambda n: not n.exists("long")),
    "concat": Verb(lambda z: z.concat("small", 0, "sealed"), lambda n: not n.exists("sealed")),
    "table": Verb(lambda z: z.table("t").put(b"k", b"v"), lambda n: n.table("t").get(b"k") is not None),
}


class Told(NamedTuple):
    """One round, for the report."""

    way: str
    verb: str
    acknowledged: bool
    moved_before_its_end: bool


class Moment:
    """One round: a change during which, before or after one of its storage calls, everything happens."""

    def __init__(self, site: Site, chance: random.Random) -> None:
        self.site = site
        self.way = chance.choice(site.ways)
        self.verb = chance.choice(list(VERBS))
        self.calls = chance.randrange(chance.choice((_FEW_CALLS, _CALLS_MAX)))
        self.early = chance.random() < 0.5
        self.root = ""
        self.left: set[str] | None = None
        self.stores: list[ChunkedSegmentStorage] = []
        self.successor: ChunkedSegmentStorage | None = None
        self._moving = threading.Lock()
        """Where the committer is a thread of its own, the owner's caller may have its answer while all is being moved."""
        if isinstance(site, Disk) and self.way == "unmount":
            site.mount_first()

    def run(self) -> Told:
        """Raises ``AssertionError`` with the words that say what was seen."""
        try:
            return self._run()
        except AssertionError as error:
            error.add_note(f"{self.way}, {self.verb}, {'before' if self.early else 'after'} a call, {self.calls} left")
            raise
        finally:
            for store in self.stores:
                with suppress(ChunkstoreError):
                    store.close()
            self.site.close()

    def _run(self) -> Told:
        made: list[Hooked] = []

        def wrap(inner: ChunkStorage) -> ChunkStorage:
            made.append(Hooked(inner))
            return made[-1]

        with self.site.open(self.site.root) as first:
            for name in ("s", "small", "sealed", "long"):
                first.create(name)
            first.append("s", b"a")
            first.append("long", b"long")
            first.append("sealed", b"sealed")
            first.seal("sealed")
        z = self._open_soon(wrap)
        if self.early:
            made[-1].before = self._count
        else:
            made[-1].after = self._count
        heard = not is_refused(lambda: VERBS[self.verb].do(z))
        made[-1].before = made[-1].after = lambda _operation, _names: None
        in_time = self.successor is not None
        n = self._move()
        has = VERBS[self.verb].has(n)
        assert has or not heard, "acknowledged, and the successor does not have it"
        self._check_zombie(z, n)
        return Told(self.way, self.verb, heard, in_time)

    def _open(self, root: str, wrap: Wrap | None = None) -> ChunkedSegmentStorage:
        store = self.site.open(root, wrap)
        self.stores.append(store)
        return store

    def _open_soon(self, wrap: Wrap) -> ChunkedSegmentStorage:
        """Its deadlines are short, and the machine may be slow: nothing is moved yet, so it may try again."""
        for _ in range(_TRIES):
            with suppress(StorageUnavailable, DeadlineExceeded):
                return self._open(self.site.root, wrap)
        raise AssertionError("this machine is too slow for the round")

    def _count(self, _operation: str, _names: tuple[str, ...]) -> None:
        self.calls -= 1
        if self.calls < 0:
            self._move()

    def _move(self) -> ChunkedSegmentStorage:
        with self._moving:
            if self.successor is None:
                self.root = self.site.move(self.way)
                self.left = self.site.files(self.site.root)
                self.successor = self._open(self.root)
                self.successor.append("s", b"b")
            return self.successor

    def _check_zombie(self, z: ChunkedSegmentStorage, n: ChunkedSegmentStorage) -> None:
        content = n.read("s", 0, 99)
        assert content in (b"ab", b"azb"), content
        before = self.site.files(self.root)
        assert before is not None
        for call in (
            lambda: z.append("s", b"Z"),
            lambda: z.read("s", 0, 99),
            lambda: z.create("another"),
        ):
            assert is_refused(call), "a zombie was answered"
        # In a tree that both share it may leave a chunk that nobody refers to.
        now = self.site.files(self.root) or set()
        assert {name for name in now - before if "/d/" not in name} == set(), (
            "it made something in the successor's tree"
        )
        n.append("s", b"c")
        assert n.read("s", 0, 99) == content + b"c"
        assert not [finding for finding in n.check("deep") if finding.severity == "damage"]
        with suppress(ChunkstoreError):
            z.close()
        if self.root != self.site.root and self.way != "mount_over_folder":
            assert self.site.files(self.site.root) == self.left, "the old place was made anew"


# --- the campaign ------------------------------------------------------------------------------------------------------


def campaign(place: str, seed: int, numbers: range) -> tuple[list[Told], list[str]]:
    """Rounds in one place; what was seen, and what was wrong in words."""
    told: list[Told] = []
    wrong: list[str] = []
    with ExitStack() as stack:
        mounts = place == "disk" and can_mount()
        tree: Tree | None = None
        if place == "hdfs":
            tree = Tree(stack.enter_context(FakeWebHdfs()))
        elif place == "hadoop":
            tree = Tree(shared_cluster())
        for number in numbers:
            chance = random.Random(f"{seed}/{place}/{number}")
            with fast_folder(Path(tempfile.gettempdir())) as folder:
                try:
                    told.append(Moment(_site(tree, number, folder, chance, mounts=mounts), chance).run())
                except (AssertionError, ChunkstoreError) as error:
                    words = "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
                    wrong.append(f"--place {place} --seed {seed} --round {number}: {words}")
    return told, wrong


def _site(tree: Tree | None, number: int, folder: Path, chance: random.Random, *, mounts: bool) -> Site:
    if tree is not None:
        return Hdfs(tree, f"/moved-{number}")
    modes: tuple[Mode, ...] = ("slot", "append")
    return Disk(folder, chance.choice(modes), mounts=mounts)


def _everywhere(options: argparse.Namespace, report: Report) -> int:
    """All places; how many rounds were wrong."""
    failures = 0
    first = range(options.rounds) if options.round is None else range(options.round, options.round + 1)
    context = multiprocessing.get_context("spawn")
    for place in options.place or ["disk", "hdfs"]:
        began = time.monotonic()
        told: list[Told] = []
        wrong: list[str] = []
        # One cluster is enough for all who ask it.
        processes = 1 if place == "hadoop" else options.processes
        slices = [first[at : at + _SLICE] for at in range(0, len(first), _SLICE)]
        with context.Pool(processes) as pool:
            for seen, bad in pool.imap_unordered(partial(campaign, place, options.seed), slices):
                told += seen
                wrong += bad
                for words in bad:
                    print(f"WRONG {words}", flush=True)
                print(f"  {place}: {len(told) + len(wrong)} of {len(first)}", flush=True)
        ways = Counter(item.way for item in told)
        seconds = time.monotonic() - began
        print(f"{place}: {len(told)} rounds in {seconds:,.0f} s, {dict(sorted(ways.items()))}; wrong: {len(wrong)}")
        detail = f"seed {options.seed}, {len(ways)} ways"
        report.add(f"{place}: trees moved", len(told), "rounds", at_least=len(first), detail=detail)
        report.add(f"{place}: of these during a change", sum(item.moved_before_its_end for item in told), "rounds")
        report.add(f"{place}: changes acknowledged, rightly", sum(item.acknowledged for item in told), "rounds")
        report.add(f"{place}: acknowledged zombies, trees made anew", len(wrong), "rounds", at_most=0)
        failures += len(wrong)
    return failures


def main() -> int:
    """See the module; 1 where something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.moved", description=__doc__)
    parser.add_argument("--rounds", type=int, default=500, help="in each place")
    parser.add_argument("--round", type=int, help="only this one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--place", action="append", default=[], choices=PLACES)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/moved.json")
    options = parser.parse_args()
    report = Report("moved")
    failures = _everywhere(options, report)
    if options.save:
        report.save()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
