"""What stored text names is opened only where the reader names it, too: every way in, with a private file that must stay unread."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from chunkstore import (
    AccessDenied,
    ChunkstoreError,
    Damaged,
    DefragPolicy,
    InvalidArgument,
    RootRefused,
    Settings,
    open_replica,
)
from chunkstore import backup as backups
from chunkstore.assembly import open_store_on
from chunkstore.backup.files import ExportHeader, container_uuid
from chunkstore.blocks import Borders
from chunkstore.changes import Adopt, AdoptedChunk, Create
from chunkstore.checksum import crc32c
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.invariants import ROOTS
from chunkstore.metadata.roots import pin_prefix, scan_roots
from chunkstore.operations import adopt as adopting
from chunkstore.records import ACTIVE, RootRecord
from chunkstore.registry import is_named, require_known_place
from chunkstore.spark.batches import Column, read_task
from chunkstore.spark.options import parse_options
from chunkstore.spark.plan import plan_read
from tests.support.adopted import SOURCE, adopt_segment, build_source, url_of
from tests.support.worlds import World

SECRET = b"the reader's private key"
NAMED = Settings(foreign_roots=("file:///named",))


# ---- the rule


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("s3://bucket/a", "s3://bucket/a"),
        ("s3://bucket/a/b", "s3://bucket/a"),
        ("s3://bucket/a/", "s3://bucket/a"),
        ("S3://Bucket/a/b", "s3://bUCKET/a/"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a?endpoint_url=http://here", "s3://bucket?endpoint_url=http://here"),
        ("file:///a/b%20c", "file://localhost/a/b c"),
        ("file:///etc", "file:///"),
        ("memory://x", "memory://x"),
        ("hdfs://host:9870/a/b", "hdfs://user@host:9870/a"),
    ],
)
def test_what_is_named(url: str, named: str) -> None:
    assert is_named(url, ("file:///else", named))


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("s3://bucket/ab", "s3://bucket/a"),
        ("s3://bucket", "s3://bucket/a"),
        ("s3://bucket2/a", "s3://bucket"),
        ("s3://bucket.evil/a", "s3://bucket/a"),
        ("s3://evil@bucket/a", "s3://bucket/a"),
        ("s3://bucket@evil/a", "s3://bucket/a"),
        ("s3://bucket\\@evil/a", "s3://bucket/a"),
        ("s3://bucket/A", "s3://bucket/a"),
        ("s3://bucket/a/../b", "s3://bucket/a"),
        ("s3://bucket/a/%2e%2E/b", "s3://bucket/a"),
        ("s3://bucket/a/%252e%252e/b", "s3://bucket/a"),
        ("s3://bucket/a%2f..%2fb", "s3://bucket/a"),
        ("s3://bucket/a\\..\\b", "s3://bucket/a"),
        ("s3://bucket/a/..", "s3://bucket/a/.."),
        ("s3://bucket/./a", "s3://bucket/./a"),
        ("s3://bucket/a\0", "s3://bucket/a\0"),
        ("s3://bucket/a/%00", "s3://bucket/a"),
        ("s3://bucket/a/%2500", "s3://bucket/a"),
        ("s3://bucket/a\n/b", "s3://bucket"),
        ("s3://bucket/%" + "25" * 1_000_000 + "2e", "s3://bucket"),
        ("s3://bucket/a?endpoint_url=http://evil", "s3://bucket/a"),
        ("s3://bucket/a?endpoint_url=http://evil", "s3://bucket/a?endpoint_url=http://here"),
        ("s3://bucket/a", "s3://bucket/a?endpoint_url=http://here"),
        ("s3://bucket/a#?endpoint_url=http://evil", "s3://bucket/a"),
        ("hdfs://host:1/a", "hdfs://host/a"),
        ("file:////etc", "file:///etc"),
        ("file://evil/etc", "file:///etc"),
        ("other:///a%2Fb", "other:///a/b"),
        ("/etc", "file:///etc"),
        ("", "file:///"),
        ("file:///a", "a"),
        (" file:///a", "file:///a"),
        ("s3n://bucket/a", "s3://bucket/a"),
    ],
)
def test_what_is_not_named(url: str, named: str) -> None:
    assert not is_named(url, (named,))
    assert not is_named(url, ())


@pytest.mark.parametrize(
    "value", [["file:///a"], "file:///a", ("",), ("/a",), (b"file:///a",), ("file://",), ("file:/a",), None]
)
def test_settings_take_urls(value: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Settings(foreign_roots=value)  # type: ignore[arg-type]
    assert caught.value.argument == "foreign_roots"


def test_the_error_tells_and_travels() -> None:
    error = RootRefused("s3://bucket/a", object="@1/x")
    for told in (error, pickle.loads(pickle.dumps(error)), ChunkstoreError.told("RootRefused", "x", error.to_fields())):
        assert isinstance(told, AccessDenied)
        assert told.to_fields() == {"object": "@1/x", "until_ms": None, "root": "s3://bucket/a"}


# ---- a hostile row


class Hostile(NamedTuple):
    """A container with a row that leads to a private folder of the reader, and a chunk there."""

    world: World
    url: str
    opened: list[str]

    @property
    def named(self) -> dict[str, Any]:
        return {"foreign_roots": (self.url,)}

    def refused(self, call: Callable[[], object], url: str | None = None) -> RootRefused:
        """What refuses it. Nothing there has been opened."""
        with pytest.raises(AccessDenied) as caught:
            call()
        error = caught.value
        assert isinstance(error, RootRefused) and error.root == (url or self.url)
        self.tells(error.message, url)
        return error

    def tells(self, message: str, url: str | None = None) -> None:
        assert (url or self.url) in message and "Settings.foreign_roots" in message
        assert [there for there in self.opened if there.startswith(url or self.url)] == []


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every URL that is opened from now on."""
    from chunkstore import registry

    found: list[str] = []
    real = registry._open_binding

    def recorded(scheme: str, url: str, settings: Settings) -> Any:
        found.append(url)
        return real(scheme, url, settings)

    monkeypatch.setattr(registry, "_open_binding", recorded)
    return found


@pytest.fixture
def hostile(world: World, tmp_path: Path, opened: list[str]) -> Hostile:
    private = tmp_path / "private"
    private.mkdir()
    (private / "key").write_bytes(SECRET)
    made = Hostile(world, private.as_uri(), opened)
    with world.open() as store:
        _lead_there(store, made.url, crc=True)
    return made


def _lead_there(store: ChunkedSegmentStorage, url: str, *, crc: bool, pin: str = "") -> None:
    where = ("there", bytes(16)) if pin else ("", b"")
    number = store.add_root(RootRecord(url, "", *where, pin, 0, 0, ACTIVE, 0))
    borders = Borders((0, len(SECRET)), (0, crc32c(SECRET))) if crc else None
    store.commit([Create("s"), Adopt("s", number, (AdoptedChunk("key", len(SECRET), borders),))])


def test_reads(hostile: Hostile) -> None:
    with hostile.world.open() as store, hostile.world.replica() as replica:
        for reader in (store, replica):
            error = hostile.refused(lambda: reader.read("s", 0, 99))  # noqa: B023
            assert error.object.endswith("/key")
    with hostile.world.open(**hostile.named) as store, hostile.world.replica(**hostile.named) as replica:
        assert store.read("s", 0, 99) == replica.read("s", 0, 99) == SECRET
    assert hostile.url in hostile.opened


def test_only_what_needs_it_fails(hostile: Hostile) -> None:
    """Checks and scrubs go on, and say it; merges leave the segment as it is."""
    with hostile.world.open() as store:
        for findings in (store.check("exists"), store.check("deep")):
            [finding] = findings
            assert (finding.invariant, finding.severity, finding.segment) == (ROOTS, "warning", "s")
            hostile.tells(finding.message)
        report = store.scrub()
        assert report.done and [item.severity for item in report.findings] == ["warning"]
        hostile.tells(report.findings[0].message)
        merged = store.defrag(policy=DefragPolicy(foreign=True))
        assert (merged.actions, merged.refused) == ((), ("s",))
        assert hostile.opened == []
    with hostile.world.open(**hostile.named) as store:
        assert store.check("deep") == [] and store.scrub().findings == ()
        store.defrag(policy=DefragPolicy(foreign=True))
        assert {chunk.kind for chunk in store.layout("s")} == {"object"}


def test_backups_restores_and_imports(hostile: Hostile, tmp_path: Path) -> None:
    world, file = hostile.world, tmp_path / "export"
    with world.open() as store:
        hostile.refused(lambda: backups.backup(store, f"file://{tmp_path}/vault"))
        backups.export(store, file, pin=False)
    settings = world.settings(metadata="lmdb")
    here, named = url_of(world), replace(settings, **hostile.named)
    sources: tuple[str | Path, ...] = (here, file)
    for number, source in enumerate(sources):
        new = f"file://{tmp_path}/new-{number}"
        hostile.opened.clear()
        hostile.refused(lambda: backups.import_(new, source, settings=settings))  # noqa: B023
        backups.import_(new, source, settings=named)
        with open_replica(new, settings=settings) as made:
            assert made.read("s", 0, 99) == SECRET
    hostile.opened.clear()
    new = f"file://{tmp_path}/restored"
    hostile.refused(lambda: backups.restore(here, new, settings=settings))
    found = backups.verify(file, here, deep=True, settings=settings)
    assert [item.severity for item in found.findings] == ["warning"]
    hostile.tells(found.findings[0].message)
    backups.restore(here, new, settings=named)


def test_the_planner_of_spark_refuses_before_any_task(hostile: Hostile) -> None:
    options = replace(parse_options({"path": "file:///x", "segments": "s"}), path=url_of(hostile.world))
    with hostile.world.replica() as replica:
        hostile.refused(lambda: plan_read(replica, options))
        [task] = plan_read(replica, replace(options, foreign_roots=(hostile.url,)))
    hostile.refused(lambda: list(read_task(task._replace(foreign_roots=()), [Column("value")])))
    [batch] = read_task(pickle.loads(pickle.dumps(task)), [Column("value")])
    assert batch["value"].to_pylist() == [SECRET]
    with pytest.raises(InvalidArgument) as caught:
        parse_options({"path": "file:///x", "segments": "s", "foreignRoots": "file:///a /b"})
    assert caught.value.argument == "foreignRoots"


# ---- exports


def _rewritten(monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    """Exports that are read from now on say that they are of this root."""
    from chunkstore.backup import exporting, sources

    real = exporting.read_export

    def changed(path: Any) -> Any:
        found = real(path)
        header: ExportHeader = found.header._replace(root=root)
        found.header = header
        return found

    for module in (exporting, sources):
        monkeypatch.setattr(module, "read_export", changed)


@pytest.mark.parametrize(
    "root",
    [
        "s3://bucket/a?endpoint_url=http://evil",
        "hdfs://evil:9870/a",
        "evil://a",
        "file:///a/../etc",
        "file:///a/%2e%2e",
    ],
)
def test_an_export_does_not_lead_just_anywhere(
    world: World, tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    build_source(world)
    file, settings = tmp_path / "export", world.settings(metadata="lmdb")
    with world.open(SOURCE) as store:
        backups.export(store, file, pin=False)
    _rewritten(monkeypatch, root)
    shown = root.partition("?")[0]
    hostile = Hostile(world, shown, opened)
    hostile.refused(lambda: backups.import_(f"file://{tmp_path}/new", file, settings=settings))
    hostile.refused(lambda: backups.verify(file, settings=settings))
    assert [url for url in opened if url.startswith(shown)] == []
    assert backups.verify(file, url_of(world), settings=settings).ok


def test_a_plain_root_of_an_export_needs_no_name() -> None:
    for root in ("file:///srv/log", "memory://x", "s3://bucket/log"):
        require_known_place(root, NAMED)
    require_known_place("hdfs://host:1/a", Settings(foreign_roots=("hdfs://host:1",)))


# ---- nothing is believed unverified


def test_a_chunk_there_without_a_crc_is_damage(
    hostile: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, named = hostile.world, hostile.named
    settings = replace(world.settings(metadata="lmdb"), **named)
    with world.open(**named) as store:
        store.delete("s")
        with pytest.raises(InvalidArgument, match="CRC32C"):
            _lead_there(store, hostile.url, crc=False)
        # As a hostile owner has it, or one of before.
        monkeypatch.setattr(
            adopting, "OWN_ROOT", next(number for number, _ in store.look(lambda view: list(scan_roots(view))))
        )
        _lead_there(store, hostile.url, crc=False)
        monkeypatch.undo()
        hostile.opened.clear()
        calls: list[Callable[[], object]] = [
            lambda: store.read("s", 0, 9),
            lambda: world.replica(**named).read("s", 0, 9),
            lambda: backups.backup(store, f"file://{tmp_path}/vault"),
            lambda: backups.restore(url_of(world), f"file://{tmp_path}/new", settings=settings),
            lambda: backups.import_(f"file://{tmp_path}/new", url_of(world), settings=settings),
        ]
        for call in calls:
            with pytest.raises(Damaged, match="no CRC32C") as caught:
                call()
            assert caught.value.object.endswith("/key")
        assert [item.severity for item in store.check("deep")] == ["damage"]
        assert [item.severity for item in store.scrub().findings] == ["damage"]
        assert store.defrag(policy=DefragPolicy(foreign=True)).refused == ("s",)
        store.delete("s")
        store.collect()


# ---- pins elsewhere


def _unused(store: ChunkedSegmentStorage, world: World, pin: str) -> None:
    """A root that nothing refers to, with a pin of this name."""
    with world.open(SOURCE) as owner:
        uuid = container_uuid(owner.read_context.storage, owner.read_context.names)
        owner.pin(pin)
    store.add_root(RootRecord(url_of(world), "", SOURCE, uuid, pin, 0, 0, ACTIVE, 0))


def _roots(store: ChunkedSegmentStorage) -> list[object]:
    return [root for _, root in store.look(lambda view: list(scan_roots(view)))]


def test_a_pin_is_given_up_only_where_the_root_is_named(world: World, opened: list[str]) -> None:
    build_source(world)
    here = Hostile(world, url_of(world), opened)
    with world.open(gc_grace_s=0.0) as store:
        adoption = adopt_segment(world, store)
        store.delete("s")
        opened.clear()
        for _ in range(2):
            store._container.roots_asked_s.clear()
            store.collect()
        assert opened == [] and len(_roots(store)) == 1  # it waits
        assert store.check("deep") == []
    with world.open(SOURCE, ask_s=0.05) as owner, world.open(gc_grace_s=0.0, **here.named) as store:
        assert [pin.name for pin in owner.pins()] == [adoption.pin]
        store.collect()
        assert (_roots(store), owner.pins()) == ([], [])


def test_a_pin_of_others_stays(world: World, opened: list[str]) -> None:
    """Whatever a row says: another container's, or one that somebody keeps a backup by."""
    build_source(world)
    names = ["backup", "adopted-0011223344556677", pin_prefix("default", "elsewhere", bytes(16)) + "00"]
    with world.open(gc_grace_s=0.0, foreign_roots=(url_of(world),)) as store:
        for name in names:
            _unused(store, world, name)
        opened.clear()
        store.collect()
        assert (opened, _roots(store)) == ([], [])
    with world.open(SOURCE) as owner:
        assert {pin.name for pin in owner.pins()} == set(names)


def test_a_copy_gives_up_no_pin_of_the_original(tmp_path: Path) -> None:
    import shutil

    world = World("filesystem", "append", tmp_path)
    try:
        build_source(world)
        with world.open() as store:
            adoption = adopt_segment(world, store)
        shutil.copytree(world.root, tmp_path / "copy")
        copied = World("filesystem", "append", tmp_path / "machine")
        settings = replace(
            world.settings(gc_grace_s=0.0, foreign_roots=(url_of(world),)), cache_dir=str(tmp_path / "c")
        )
        from chunkstore_bindings.filesystem import FilesystemChunkStorage

        with (
            world.open(SOURCE, ask_s=0.05) as owner,
            open_store_on(
                FilesystemChunkStorage(str(tmp_path / "copy"), open_files_max=64), settings=settings, close_storage=True
            ) as copy,
        ):
            copy.delete("s")
            copy.collect()
            assert _roots(copy) == []
            assert [pin.name for pin in owner.pins()] == [adoption.pin]
        copied.close()
    finally:
        world.close()
