"""Named schedules: storages that do not keep their word, and data that arrives late (protocol 3.18: 39, 46, 47, 49)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from chunkstore.assembly import open_store_on
from chunkstore.config import Settings, Tuning
from chunkstore.errors import Damaged, NotOwner, StorageUnavailable, Unsupported
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.hdfs import HdfsChunkStorage
from chunkstore_bindings.wrappers.probe import PROBE_RACERS
from chunkstore_bindings.wrappers.retrying import RetryingChunkStorage, RetryPolicy
from tests.simulation.scene import ALL, APPEND, SEGMENT, Owner, Scene, scene_of, worlds
from tests.simulation.test_schedules_fence import test_01_zombie_append_after_tail as zombie_append_after_tail
from tests.support.fake_webhdfs import Asked, FakeWebHdfs, Fault
from tests.support.forwarding import Forwarding


class Server(Forwarding):
    """A storage behind a server, which says who it is."""

    def server_identity(self) -> Mapping[str, str]:
        return {"server": "the same as ever"}

    def check_root(self) -> str:
        return "no rules"


def spoil(scene: Scene, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on put-if-absent is not what it says."""
    backend = scene.world.backend
    born: dict[str, int] = {}

    def ignores_the_condition(name: str, data: bytes) -> bool:
        backend.overwrite(name, data)
        return True

    def refuses_and_overwrites(name: str, data: bytes) -> bool:
        known = scene.there(name)
        backend.overwrite(name, data)
        return not known

    def looks_then_writes(name: str, data: bytes) -> bool:
        # What it decides by is a moment old: concurrent ones all find the name free.
        now = scene.world.scheduler.now
        if scene.there(name) and now - born.get(name, 0) > scene.world.latency_ns:
            return False
        born.setdefault(name, now)
        backend.overwrite(name, data)
        return True

    act: Callable[[str, bytes], bool] = {
        "ignores the condition": ignores_the_condition,
        "refuses and overwrites": refuses_and_overwrites,
        "looks, then writes": looks_then_writes,
    }[how]
    if scene.s3:
        put = backend.put  # type: ignore[union-attr]
        monkeypatch.setattr(
            backend,
            "put",
            lambda name, data, *, only_if_absent: (
                act(name, data) if only_if_absent else put(name, data, only_if_absent=False)
            ),
        )
    else:
        monkeypatch.setattr(backend, "link", lambda temporary, name: act(name, bytes(scene.posix.find(temporary).data)))


WAYS = ("ignores the condition", "refuses and overwrites", "looks, then writes")


@worlds(*ALL)
@pytest.mark.parametrize("how", WAYS)
def test_39_conditional_ignored_store(scene: Scene, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.first("z", "a")
    spoil(scene, how, monkeypatch)
    n = scene.world.process("n", "other")
    names = ContainerNames("fresh")
    error = n.start(
        lambda: open_store_on(n.storage, container="fresh", cache=n.cache(), settings=scene.world.settings)
    ).failure()
    assert isinstance(error, Unsupported) and error.feature == "create_if_absent"
    assert not scene.there(names.format)
    assert scene.seen(op="create_if_absent", process="n"), "it was asked, not believed"
    assert not [name for name in scene.world.backend.names() if name.startswith("fresh/")], "and has tidied up"


@pytest.mark.parametrize("how", WAYS)
def test_39_conditional_ignored_store_behind_a_container(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that exists is found behind another server, or the same one configured anew: probed before it is claimed."""
    with scene_of("s3-slot", wrap=Server) as scene:
        scene.first("z", "a")
        spoil(scene, how, monkeypatch)
        _, opening = scene.opening("n")
        assert isinstance(opening.failure(), Unsupported)
        assert not scene.there(scene.names.epoch(2))


@pytest.mark.parametrize("kind", ["s3-slot", "posix-slot"])
def test_39_conditional_ignored_store_without_the_probe(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative: were it trusted, a zombie would be acknowledged."""
    with scene_of(kind) as scene, pytest.raises((AssertionError, Damaged)):
        spoil(scene, "ignores the condition", monkeypatch)
        zombie_append_after_tail(scene, "record")


class Renames(FakeWebHdfs):
    """The model of WebHDFS, carrying out every RENAME and losing the reply of one of them (``lost``; 0: of none)."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.lost = lost
        self.renames = 0

    def fault_for(self, asked: Asked) -> Fault | None:
        if asked.op == "RENAME":
            self.renames += 1
            if self.renames == self.lost:
                return Fault(asked.op, asked.where, "lose_reply", 1)
        return None


def schedule_over_webhdfs(fake: Renames) -> int:
    """A container is made, owned, written, taken over, written: every conditional create is a RENAME."""
    # As every remote root is opened: what may be asked again is.
    storage = RetryingChunkStorage(
        HdfsChunkStorage(fake.root(), deadline_s=10),
        RetryPolicy(tries_max=6, budget_s=10.0),
    )
    settings = Settings(op_deadline_s=10, lease_s=0, inline_bytes_max=0, tuning=Tuning(io_workers=2))
    stores = []
    try:
        for epoch, tags in ((1, (b"<a>", b"<b>")), (2, (b"<c>",))):
            cache = MemoryMetadataCache(bytes(16), "here", shelf=MemoryShelf())
            stores.append(open_store_on(storage, container="c", settings=settings, cache=cache))
            store = stores[-1]
            assert store.epoch == epoch, "it has recognised its own claim, and not climbed over it"
            if epoch == 1:
                store.create(SEGMENT)
            for tag in tags:
                store.append(SEGMENT, tag)
            assert store.epoch == epoch, "and its own records"
        renames = fake.renames
        assert store.read(SEGMENT, 0, 99) == b"<a><b><c>"
        assert [item for item in store.check("deep") if item.severity == "damage"] == []
        with pytest.raises(NotOwner):
            stores[0].append(SEGMENT, b"<d>")
        return renames
    finally:
        for store in stores:
            store.close()
        storage.close()


def test_46_webhdfs_rename_reply_lost() -> None:
    """RENAME is done and its reply lost: of the probe, of FORMAT, claims, OPENs, records, the SEAL."""
    with Renames(0) as fake:
        renames = schedule_over_webhdfs(fake)
    first = PROBE_RACERS + 2  # those of the probe that race for one name are all the same
    assert renames >= first + 9
    # A sample: claims, records and the SEAL are all compared alike.
    for lost in (1, 2, *range(first, renames + 1, 13)):
        with Renames(lost) as fake:
            schedule_over_webhdfs(fake)
            assert fake.renames >= lost


class NegativeDentries(Forwarding):
    """A name that was looked for and not there stays not there, however long it has been: a network file system's client."""

    def __init__(self, inner: ChunkStorage) -> None:
        super().__init__(inner)
        self.missing: set[str] = set()
        self.lies = 0

    def exists(self, name: str) -> bool:
        if name in self.missing:
            self.lies += 1
            return False
        found = super().exists(name)
        if not found:
            self.missing.add(name)
        return found


@worlds(*APPEND)
def test_47_nfs_negative_dentry(scene: Scene) -> None:
    """A container with an APPEND journal, found on a file system that is not trusted with one, is refused."""
    scene.first("z", "a")
    backend = scene.world.backend
    backend.capabilities = replace(backend.capabilities, append_journal=False, fence_by_stat=False, medium="nfs4")
    n = scene.world.process("n", "other")
    error = n.start(n.opening(journal_mode="auto")).failure()
    assert isinstance(error, Unsupported) and error.feature == "append_journal"
    assert "nfs4" in error.message
    assert not scene.there(scene.names.epoch(2)), "nothing was claimed"
    assert scene.judge() == ["a"]  # whose settings say "append" aloud


@worlds(*APPEND)
def test_47_nfs_negative_dentry_that_was_allowed(scene: Scene) -> None:
    """Negative, the test of the test: with a stale stat for a fence, an acknowledged event is lost, and the judge says so."""
    process = scene.world.process("z")
    process.storage = stale = NegativeDentries(process.storage)
    z = Owner(scene, process, process.open())
    z.run(lambda store: store.create(SEGMENT))
    z.append("a")
    n = scene.owner("n", "other")
    n.append("b")
    z.append("lost")
    assert stale.lies > 0
    with pytest.raises(AssertionError, match="lost was acknowledged and is lost"):
        scene.judge()


@worlds(*ALL)
@pytest.mark.parametrize("lands", ["before the next", "behind the next"])
def test_49_late_data_write(scene: Scene, lands: str) -> None:
    z = scene.first("z", "a")
    event = z.begin("b")
    call = z.process.until(op="create" if scene.s3 else "write", name="*/d/*")
    assert call.data == b"<b>"
    call.fail(StorageUnavailable("no answer", object=call.name))
    assert isinstance(event.failure(), StorageUnavailable), "which means that it did not happen"

    def land() -> None:
        if scene.s3:
            assert call.late() is True
        else:
            # What a stuck system call does: it asks nobody how long the file is by now.
            scene.posix.find(call.name).data[3:6] = b"<b>"

    if lands == "before the next":
        land()
    z.append("c")
    if lands == "behind the next":
        land()
    z.append("d")
    assert z.epoch == 1
    (chunk, *others) = z.run(lambda store: [*store.layout(SEGMENT)])
    assert chunk.length == 3
    if scene.s3:
        assert call.name not in {item.name for item in (chunk, *others)}, "an orphan"
    else:
        assert chunk.name == call.name and scene.content(call.name) == b"<a><b>", "behind the closed length"
        assert len(others) == 1
    assert scene.judge() == ["a", "c", "d"]
