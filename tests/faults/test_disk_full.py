"""Disk full, on real file systems of 24 MiB: for the data disk and the cache disk.

Required: ``StorageFull`` and nothing else, within the deadline; nothing acknowledged is lost; reads go on; the store works
again once there is space, without being opened anew; and it can be opened anew after a kill. With a reserve (``free_bytes_min``)
truncate, delete and collect make that space themselves.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chunkstore.assembly import open_store_on
from chunkstore.config import KIB, MIB, RollingPolicy
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, OutcomeUnknown, StorageFull
from chunkstore.operations.spill import Spiller
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from tests.faults.disks import FileSystem, SmallDisk, small_disk
from tests.support.alone import abandon
from tests.support.data import problems
from tests.support.forwarding import Hooked, nothing
from tests.support.hooked import wait_for
from tests.support.settings import tuned
from tests.support.worlds import Mode

DEADLINE_S = 60.0
UNDECIDED_S = 3.0
SEGMENTS = ("a", "b", "c")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    kind: FileSystem = "tmpfs" if request.param == "tmpfs" else "ext4"
    with small_disk(kind, tmp_path / "small") as found:
        yield found


class Shop:
    """A container whose parts lie where the test wants them, and everything that was acknowledged in it."""

    def __init__(self, mode: Mode, make: Callable[[], ChunkStorage], cache_dir: Path, **settings: Any) -> None:
        self._make = make
        self._settings = tuned(
            journal_mode=mode,
            cache_dir=str(cache_dir),
            **{
                "op_deadline_s": DEADLINE_S,
                "undecided_s_max": UNDECIDED_S,
                "lmdb_map_bytes": 1 << 28,
                "lease_s": 0.0,  # a beat that is under way holds blocks of the full disk, and gives them back later
                "io_workers": 4,
                "free_bytes_min": 0,
                "default_rolling": RollingPolicy(chunk_size_bytes_max=1 * MIB),
                **settings,
            },
        )
        self._storages: list[ChunkStorage] = []
        self.content: dict[str, bytes] = {}
        self.may_follow: dict[str, bytes] = {}
        self.store = self.open()
        for name in SEGMENTS:
            self.store.create(name)
            self.content[name] = b""
            self.append(name, f"{name} begins; ".encode())

    def open(self) -> ChunkedSegmentStorage:
        storage = self._make()
        self._storages.append(storage)
        return open_store_on(storage, settings=self._settings)

    def append(self, name: str, data: bytes) -> None:
        began_s = time.monotonic()
        self.may_follow.pop(name, None)
        try:
            offset = self.store.append(name, data)
        except OutcomeUnknown:
            self.may_follow[name] = data
            raise
        finally:
            assert time.monotonic() - began_s < 2 * DEADLINE_S
        assert offset == len(self.content[name])
        self.content[name] += data

    def append_until_full(self, size_bytes: int) -> ChunkstoreError:
        """Append to all segments, each in a thread of its own, until each has heard that the disk is full."""
        errors: dict[str, ChunkstoreError] = {}
        foreign: list[BaseException] = []

        def fill(name: str) -> None:
            try:
                for number in range(100_000):
                    self.append(name, f"[{name} {number}]".encode().ljust(size_bytes, b"."))
            except StorageFull as error:
                errors[name] = error
            except BaseException as error:  # noqa: BLE001  (raised in the test's thread)
                foreign.append(error)

        threads = [threading.Thread(target=fill, args=(name,)) for name in SEGMENTS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
            assert not thread.is_alive()
        if foreign:
            raise foreign[0]
        return errors["a"]

    def still_full(self, *, small: bool = True) -> None:
        """``small``: not even a short record fits (it may, where a large write has just failed)."""
        for name in SEGMENTS:
            with pytest.raises(StorageFull):
                self.append(name, bytes(2 * MIB))
        if small:
            with pytest.raises(StorageFull):
                self.store.create("one more")

    def verify(self, store: ChunkedSegmentStorage | None = None) -> None:
        store = store or self.store
        for name, data in self.content.items():
            found = store.read(name, 0, len(data) + MIB)
            more = self.may_follow.get(name)
            if more is not None and found == data + more:
                self.content[name] = data + self.may_follow.pop(name)
                continue
            assert found == data, f"{name}: {len(found)} bytes there, {len(data)} acknowledged"

    def settle(self) -> None:
        """Space was freed: the next changes succeed (an unknown one is decided first)."""
        if self.may_follow:
            self.store.update_attributes("a", {"settled": 1})
            self.verify()
        for name in SEGMENTS:
            self.append(name, b" goes on;" * 100)
        self.verify()
        assert problems(self.store.check("deep")) == []

    def close(self) -> None:
        with contextlib.suppress(ChunkstoreError):
            self.store.close()
        for storage in self._storages:
            storage.close()


@contextlib.contextmanager
def shop(mode: Mode, make: Callable[[], ChunkStorage], cache_dir: Path, **settings: Any) -> Iterator[Shop]:
    found = Shop(mode, make, cache_dir, **settings)
    try:
        yield found
    finally:
        found.close()


def on_disk(disk: SmallDisk) -> Callable[[], ChunkStorage]:
    return lambda: FilesystemChunkStorage(disk.path / "root", open_files_max=64)


# Each disk and each journal once.
ONCE = pytest.mark.parametrize(("disk", "mode"), [("tmpfs", "slot"), ("ext4", "append")], indirect=True)


@ONCE
def test_data_disk_filled_by_appends(disk: SmallDisk, mode: Mode, tmp_path: Path) -> None:
    disk.fill(leave_bytes=8 * MIB)
    with shop(mode, on_disk(disk), tmp_path / "cache", lease_s=0.2) as here:
        here.append_until_full(400 * KIB)
        assert sum(map(len, here.content.values())) > 4 * MIB
        here.verify()
        here.still_full(small=False)
        here.verify()
        disk.free()
        here.settle()
        here.store.close()
        with here.open() as successor:
            here.verify(successor)
            assert problems(successor.check("deep")) == []


# A slot is decided by its name; only a log's sync leaves it open whether the record is there.
@pytest.mark.parametrize("mode", ["append"], indirect=True)
def test_what_decides_a_record_has_the_reserve(disk: SmallDisk, mode: Mode, tmp_path: Path) -> None:
    """A sync that finds the disk full leaves it open whether the record of an append counts: a take-over decides, whose claim needs bytes
    as well. Without the reserve's the append would be in doubt for as long as the disk is full."""
    hooked = Hooked(on_disk(disk)())
    with shop(mode, lambda: hooked, tmp_path / "cache", free_bytes_min=2 * MIB) as here:
        here.store._container.space.reserve.keep()

        def full(operation: str, names: tuple[str, ...]) -> None:
            if operation == "sync":
                hooked.before = nothing
                disk.fill()
                raise StorageFull("no space left", object=names[0])

        hooked.before = full
        here.append("a", b"in its record")  # the take-over found it
        assert here.store._container.current.epoch > 1
        here.verify()
        disk.free()
        here.settle()


@ONCE
def test_cache_disk_full_to_the_last_byte(disk: SmallDisk, mode: Mode, tmp_path: Path) -> None:
    """Without a reserve a commit may be decided before its cache fails: then the outcome is unknown, and never "lost"."""
    make = lambda: FilesystemChunkStorage(tmp_path / "root", open_files_max=64)  # noqa: E731
    with shop(mode, make, disk.path / "cache", cache_free_bytes_min=0) as here:
        disk.fill()
        rows: dict[bytes, bytes] = {}
        unknown: set[bytes] = set()
        failed: set[bytes] = set()
        for number in range(400):
            # New rows make the cache grow, which appends to a segment hardly do.
            key = b"row %d" % number
            began_s = time.monotonic()
            try:
                here.store.table("rows").put(key, bytes(2000))
                rows[key] = bytes(2000)
            except StorageFull:
                failed.add(key)
            except OutcomeUnknown:
                unknown.add(key)
            assert time.monotonic() - began_s < 2 * DEADLINE_S
            if len(failed) + len(unknown) > 5:
                break
            here.verify()
        assert failed or unknown
        assert rows
        disk.free()
        here.settle()
        found = {entry.key: entry.value for entry in here.store.table("rows").scan()}
        assert rows.items() <= found.items()
        assert failed.isdisjoint(found)
        assert found.keys() - rows.keys() <= unknown
        here.store.close()
        with here.open() as successor:
            here.verify(successor)
            assert problems(successor.check("deep")) == []


@pytest.mark.parametrize(
    ("disk", "mode", "cache", "killed", "inline"),
    [
        ("tmpfs", "slot", "elsewhere", False, False),
        ("tmpfs", "append", "same disk", True, False),
        ("ext4", "slot", "same disk", True, True),
        ("ext4", "append", "elsewhere", False, True),
    ],
    indirect=["disk", "mode"],
)
def test_a_disk_filled_to_the_last_byte_comes_back_by_itself(
    disk: SmallDisk, mode: Mode, tmp_path: Path, cache: str, killed: bool, inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody gives anything back: what is truncated and collected is all that makes room, also for whoever opens it anew. ``inline``:
    nobody has looked at the disk yet, so small appends meet its end in the journal's own write."""
    folder = disk.path / "cache" if cache == "same disk" else tmp_path / "cache"
    settings: dict[str, Any] = {"free_bytes_min": 4 * MIB, "gc_grace_emergency_s": 0.0, "spill_s": 3600.0}
    with shop(mode, on_disk(disk), folder, inline_bytes_max=None if inline else 0, **settings) as here:
        for name in SEGMENTS:
            for _ in range(6):
                here.append(name, bytes(500 * KIB))
                here.append(name, b"small")
        with monkeypatch.context() as context:
            if inline:
                context.setattr(here.store._container.space, "look", lambda *_: None)
            disk.fill()
            here.append_until_full(50)
        if killed:
            abandon(here.store)
            here._storages[-1].close()  # a process that is gone holds no file open, and so no space
            disk.fill()
            here.store = here.open()
        here.still_full()
        here.verify()
        for name in SEGMENTS:
            assert inline == ("inline" in {chunk.kind for chunk in here.store.layout(name)})
        here.store.seal("a")
        assert {chunk.kind for chunk in here.store.layout("a")} == {"object"}, "spilling has the reserve"
        here.store.unseal("a")
        assert here.store.usage().safe_mode
        here.store.truncate("a", len(here.content["a"]) - 10)
        for name in ("b", "c"):
            here.store.delete(name)
            del here.content[name]
        assert here.store.collect().chunks > 0
        assert here.store.usage().safe_mode is False
        start = here.store.info("a").start_offset
        for _ in range(3):
            here.store.append("a", bytes(100 * KIB))
        assert here.store.read("a", start, 10) == here.content["a"][start:]
        here.store._container.space.tend(here.store._container.current.store)
        assert here.store._container.storage.exists("default/reserve")
        assert problems(here.store.check("deep")) == []


def let_the_spiller_try(store: ChunkedSegmentStorage) -> None:
    """All that it holds is due for once: the keeper begins the task, and it comes to its end."""
    spiller = next(background for background in store._maintenance.background if isinstance(background, Spiller))
    wait_for(lambda: spiller._knows_all and (spiller._task is None or not spiller._task.is_alive()))
    usual, run, ended = spiller._age_s, spiller._run, threading.Event()

    def run_and_say_so() -> None:
        run()
        ended.set()

    spiller._run, spiller._age_s = run_and_say_so, 0.0  # type: ignore[method-assign]
    assert ended.wait(120)
    spiller._run, spiller._age_s = run, usual  # type: ignore[method-assign]


@ONCE
def test_a_disk_that_small_appends_have_filled_comes_back_by_itself(
    disk: SmallDisk, mode: Mode, tmp_path: Path
) -> None:
    """All of it is the journal's: spilling beside leaves what deletions need, and a collection lets go of the stream that holds it."""
    settings: dict[str, Any] = {"spill_s": 3600.0, "spill_bytes": 1 << 29, "gc_grace_s": 0.0, "free_bytes_min": 4 * MIB}
    with shop(mode, on_disk(disk), tmp_path / "cache", **settings) as here:
        here.append_until_full(12 * KIB)
        here.verify()
        let_the_spiller_try(here.store)
        assert here.store._container.storage.exists("default/reserve"), "the spiller does not take it"
        with contextlib.suppress(StorageFull):
            here.store.spill()
        here.verify()
        for name in SEGMENTS:
            here.store.delete(name)
        assert here.store.collect().journal_objects > 0
        usage = here.store.usage()
        assert (usage.safe_mode, usage.live_bytes, usage.inline_bytes) == (False, 0, 0)
        assert disk.free_bytes() > 16 * MIB
        assert here.store._container.storage.exists("default/reserve")
        here.store.create("again")
        assert here.store.append("again", b"data") == 0
        assert problems(here.store.check("deep")) == []
        here.store.close()
        with here.open() as successor:
            assert successor.read("again", 0, 10) == b"data"


@pytest.mark.parametrize(("disk", "mode"), [("tmpfs", "append"), ("ext4", "slot")], indirect=True)
def test_a_collection_spills_what_holds_the_journal_of_a_full_disk(disk: SmallDisk, mode: Mode, tmp_path: Path) -> None:
    """What is left of segments that stay lies between records of those that were deleted."""
    settings: dict[str, Any] = {"spill_s": 600.0, "spill_bytes": 1 << 29, "gc_grace_s": 0.0, "free_bytes_min": 8 * MIB}
    with shop(mode, on_disk(disk), tmp_path / "cache", **settings) as here:
        here.append_until_full(12 * KIB)
        left, *others = SEGMENTS
        for name in others:
            here.store.delete(name)
            del here.content[name]
        assert here.store.usage().safe_mode
        with pytest.raises(StorageFull, match=f" has {disk.free_bytes()} bytes left"):
            here.store.create("one more")
        here.store.collect()
        here.append(left, b"goes on")  # at once: nobody waits for the next look at the disk
        usage = here.store.usage()
        assert usage.safe_mode is False
        assert usage.inline_bytes in (0, len(b"goes on"))
        here.verify()
        assert problems(here.store.check("deep")) == []
