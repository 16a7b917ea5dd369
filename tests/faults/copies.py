"""A root and copies of it on one machine, with one cache directory: ``python -m tests.faults.copies [--rounds N] [--s3] [--seed S]``.

A round makes a container and lets chance decide, some dozen times, which of its roots does what: append, create, read, take a snapshot,
collect, follow, restart, take over while the former owner is alive (and speaks later), lose all caches, or be copied. Each root has a
model; whatever is read has to be what its model says. In the end every root opens again, with the caches that are there and without any.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chunkstore
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, NotOwner
from chunkstore.following import open_replica
from chunkstore.reading import ReadableContainer
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkHandle, iter_listing
from tests.support.data import problems

__all__ = ["Wrong", "copy_files", "copy_objects", "run_round"]

Copier = Callable[[str, str], None]


class Wrong(Exception):
    """A root answered what is not so, or did not open."""


class Root:
    """One root, what it must hold, and who owns it or has owned it."""

    def __init__(self, url: str, model: dict[str, bytes]) -> None:
        self.url = url
        self.model = model
        self.store: ChunkedSegmentStorage | None = None
        self.zombies: list[tuple[ChunkedSegmentStorage, list[str]]] = []
        """Former owners, and the segments that they know."""


class Round:
    """One round; see the module. ``new_url``: where the next root may lie."""

    def __init__(self, seed: int, folder: Path, new_url: Callable[[], str], copy: Copier, steps_max: int) -> None:
        self.chance = random.Random(seed)
        self._steps = self.chance.randint(steps_max // 2, steps_max)
        self.cache = folder / "cache"
        self._folder = folder
        self._new_url = new_url
        self._copy = copy
        self._numbers = itertools.count(1)
        more: dict[str, Any] = {"default_rolling": chunkstore.RollingPolicy(chunk_size_bytes_max=40)}
        mode = self.chance.choice(("slot", "append", "auto"))
        self._settings: dict[str, Any] = {"lease_s": 0, "gc_grace_s": 0, "journal_mode": mode, **more}
        self.roots = [Root(new_url(), {})]
        if not self.roots[0].url.startswith("file:"):
            self._settings["journal_mode"] = "auto"

    def run(self) -> None:
        """Raises ``Wrong``."""
        actions: list[tuple[Callable[[Root], None], int]] = [
            (self.append, 8), (self.create, 2), (self.read, 4), (self.snapshot, 1), (self.collect, 1), (self.truncate, 2),
            (self.follow, 1), (self.restart, 3), (self.take_over, 3), (self.zombie_speaks, 3), (self.lose_caches, 1),
            (self.copy, 3),
        ]  # fmt: skip
        calls, weights = zip(*actions, strict=True)
        try:
            self.create(self.roots[0])
            for _ in range(self._steps):
                root = self.chance.choice(self.roots)
                action = self.chance.choices(calls, weights)[0]
                try:
                    action(root)
                except ChunkstoreError as error:
                    raise Wrong(f"{action.__name__} on {root.url}: {type(error).__name__}: {error}") from error
            self.judge()
        finally:
            for root in self.roots:
                self._let_go(root)

    def _open(self, root: Root, cache: Path) -> ChunkedSegmentStorage:
        return chunkstore.open(root.url, settings=chunkstore.Settings(cache_dir=str(cache), **self._settings))

    def _owner(self, root: Root) -> ChunkedSegmentStorage:
        if root.store is None:
            root.store = self._open(root, self.cache)
        return root.store

    # What a root may do

    def append(self, root: Root) -> None:
        name, data = self.chance.choice([*root.model]), self.chance.randbytes(self.chance.randint(1, 60))
        if self._owner(root).append(name, data) != len(root.model[name]):
            raise Wrong(f"an append to {name!r} of {root.url} went elsewhere")
        root.model[name] += data

    def create(self, root: Root) -> None:
        name = f"s{next(self._numbers)}"
        self._owner(root).create(name)
        root.model[name] = b""

    def truncate(self, root: Root) -> None:
        # The model keeps what was cut off, for offsets; what is read begins where the segment begins.
        name = self.chance.choice([*root.model])
        start = self._owner(root).info(name).start_offset
        self._owner(root).truncate(name, self.chance.randint(start, len(root.model[name])))

    def read(self, root: Root) -> None:
        self._compare(root, self._owner(root))

    def snapshot(self, root: Root) -> None:
        self._owner(root).snapshot()

    def collect(self, root: Root) -> None:
        self._owner(root).collect()

    def follow(self, root: Root) -> None:
        self._owner(root)
        settings = chunkstore.Settings(cache_dir=str(self.cache), **self._settings)
        with open_replica(root.url, settings=settings) as replica:
            replica.refresh()
            self._compare(root, replica)

    def restart(self, root: Root) -> None:
        store, root.store = root.store, None
        if store is not None:
            store.close()
        self._owner(root)

    def take_over(self, root: Root) -> None:
        if root.store is not None:
            root.zombies.append((root.store, [*root.model]))
            root.store = None
        self._owner(root)

    def zombie_speaks(self, root: Root) -> None:
        for zombie, names in root.zombies:
            try:
                zombie.append(self.chance.choice(names), b"from the grave")
            except NotOwner:
                continue
            raise Wrong(f"a deposed owner of {root.url} was acknowledged")
        while root.zombies and self.chance.random() < 0.5:
            root.zombies.pop()[0].close()

    def lose_caches(self, root: Root) -> None:
        shutil.rmtree(self.cache, ignore_errors=True)

    def copy(self, root: Root) -> None:
        if len(self.roots) < 4:
            self.roots.append(Root(self._new_url(), dict(root.model)))
            self._copy(root.url, self.roots[-1].url)

    # Judging

    def _compare(self, root: Root, view: ReadableContainer) -> None:
        found = {info.name: info for info in view.segments()}
        if found.keys() != root.model.keys():
            raise Wrong(f"{root.url} shows the segments {sorted(found)}, not {sorted(root.model)}")
        for name, info in found.items():
            wanted = root.model[name]
            if (
                info.length != len(wanted)
                or view.read(name, info.start_offset, info.length) != wanted[info.start_offset :]
            ):
                raise Wrong(f"{root.url} shows other bytes of {name!r}")

    def _let_go(self, root: Root) -> None:
        for store in (*(zombie for zombie, _ in root.zombies), root.store):
            if store is not None:
                store.close()
        root.zombies, root.store = [], None

    def judge(self) -> None:
        """Every root opens with the caches and without, and shows what it must."""
        for root in self.roots:
            self._let_go(root)
        for cache in (self.cache, self._folder / "none"):
            for root in self.roots:
                try:
                    with self._open(root, cache) as store:
                        self._compare(root, store)
                        found = problems(store.check("deep"))
                except ChunkstoreError as error:
                    raise Wrong(f"{root.url} does not open: {type(error).__name__}: {error}") from error
                if found:
                    raise Wrong(f"{root.url}: {found}")


def copy_files(source: str, target: str) -> None:
    """``cp -r``."""
    shutil.copytree(source.removeprefix("file://"), target.removeprefix("file://"))


def copy_objects(source: str, target: str) -> None:
    """Every object of a prefix to another one."""
    storages = [open_storage(url, chunkstore.Settings()) for url in (source, target)]
    try:
        for item in iter_listing(storages[0]):
            storages[1].put(item.name, storages[0].read(ChunkHandle(item.name, False), 0, item.length))
    finally:
        for storage in storages:
            storage.close()


def run_round(seed: int, folder: Path, new_url: Callable[[], str] | None = None, *, steps_max: int = 50) -> None:
    """One round in the empty ``folder``; on disk, or where ``new_url`` says. Raises ``Wrong``."""
    numbers = itertools.count(1)
    copier = copy_files if new_url is None else copy_objects
    Round(seed, folder, new_url or (lambda: f"file://{folder}/root-{next(numbers)}"), copier, steps_max).run()


def main() -> int:
    """See the module's text. The number of rounds that went wrong is the answer."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.copies")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 40))
    parser.add_argument("--s3", choices=("moto", "rgw"), help="on this server instead of on disk")
    options = parser.parse_args()
    server: Any = None
    if options.s3:
        from importlib import import_module

        from tests.support.servers.s3server import CREDENTIALS

        os.environ.update(CREDENTIALS)
        server = getattr(import_module(f"tests.support.servers.{options.s3}"), options.s3.capitalize())()
    wrong, began = 0, time.monotonic()
    try:
        for seed in range(options.seed, options.seed + options.rounds):
            new_url = None
            if server is not None:
                bucket, numbers = server.make_bucket(), itertools.count(1)
                new_url = lambda bucket=bucket, numbers=numbers: server.root(bucket, f"root-{next(numbers)}")  # noqa: E731
            with tempfile.TemporaryDirectory(prefix="chunkstore-copies-") as folder:
                try:
                    run_round(seed, Path(folder), new_url)
                except Wrong as error:
                    wrong += 1
                    print(f"--rounds 1 --seed {seed}: {error}", flush=True)
    finally:
        if server is not None:
            server.stop()
    print(f"{options.rounds} rounds from seed {options.seed}: {wrong} wrong, {time.monotonic() - began:.0f} s")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
