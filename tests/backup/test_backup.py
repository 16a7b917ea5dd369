"""Backups: what is copied, that a backup is read like a root, that only whole ones count."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore import backup, errors
from chunkstore.backup.copies import Copier
from chunkstore.changes import Concat
from chunkstore.engine.reading import context_of
from chunkstore.storage import ChunkHandle
from tests.backup.conftest import SMALL, Place


def test_a_backup_is_read_like_a_root(place: Place) -> None:
    plans: list[backup.BackupPlan] = []
    sizes: list[int] = []
    report = place.backup(before=plans.append, progress=sizes.append)
    used = place.store.usage()
    made = report.backup
    assert (made.segments, made.chunks, made.chunk_bytes) == (3, used.chunks, used.live_bytes + used.dead_head_bytes)
    assert (made.copied_chunks, made.copied_bytes) == (made.chunks, made.chunk_bytes) == plans[0][2:4]
    assert sum(sizes) == made.copied_bytes and plans[0].base_lsn == 0
    assert place.store.pins() == [] and not any(name.startswith(("running", "tmp")) for name in place.names())
    with place.replica() as replica:
        assert place.content(replica) == place.content()
        assert replica.check("deep") == [] and replica.lsn == made.lsn
        assert replica.orphans().orphans == 0
        target = place.target()
        for chunk in replica.layout("a"):
            data = target.read(ChunkHandle(chunk.name, False), 0, 1000)
            assert chunk.length == len(data) if chunk.state == "closed" else chunk.length <= len(data)
        target.close()
    place.assert_sound()


def test_only_what_is_new_is_copied(place: Place) -> None:
    first = place.backup().backup
    before = place.names()
    again = place.backup().backup
    assert (again.copied_chunks, again.copied_bytes) == (0, 0) and again.chunks == first.chunks
    assert {name for name in place.names() - before if not name.startswith(("backups/", "done/"))} == set()
    place.store.append("c", b"new" * 100)
    grown = place.backup().backup
    assert 300 <= grown.copied_bytes <= 300 + 50, "the tail that has grown is copied once more"
    place.store.unseal("b")
    place.store.seal("b")
    place.store.commit([Concat("c", "b")])
    spliced = place.backup().backup
    assert spliced.segments == 2 and spliced.copied_bytes <= 50, (
        "the tail that grew is closed now, and has its own name"
    )
    found = list(backup.list_backups(place.url, settings=place.settings))
    assert [item.run for item, _ in found] == [first.run, again.run, grown.run, spliced.run] and all(
        ok for _, ok in found
    )
    with place.replica() as replica:
        assert place.content(replica) == place.content()
    place.assert_sound()


def test_a_backup_root_is_no_root_to_write_to(place: Place) -> None:
    place.backup()
    with pytest.raises(errors.Unsupported, match="backups of container"):
        chunkstore.assembly.open_store_on(place.target(), settings=place.settings, close_storage=True)
    assert not any(name == "FORMAT" or name.startswith(("epoch", "j/")) for name in place.names())


def test_a_root_inside_the_containers_own_tree_is_refused_and_nothing_made(tmp_path: Path) -> None:
    """A folder of backups there is swept, copied and listed with the container."""
    settings = chunkstore.Settings(cache_dir=str(tmp_path / "cache"), lease_s=0)
    root = tmp_path / "root"
    inside = root / "default" / "backups"
    with chunkstore.open(root.as_uri(), settings=settings) as store:
        store.create("s")
        inside.mkdir()
        (tmp_path / "link").symlink_to(inside)
        for path in (root / "default", inside, inside / "deep", tmp_path / "link", tmp_path / "link" / "deep"):
            for call in (
                lambda url: backup.backup(store, url),
                lambda url: backup.check_roots(root.as_uri(), url, settings=settings),
                lambda url: backup.restore(root.as_uri(), url, settings=settings),
            ):
                with pytest.raises(errors.InvalidArgument, match="choose a root outside of it"):
                    call(path.as_uri())
        assert list(inside.iterdir()) == [] and store.pins() == []
        backup.backup(store, (root / "default-backups").as_uri())


def test_a_root_of_another_container_is_refused(tmp_path: Path) -> None:
    settings = chunkstore.Settings(cache_dir=str(tmp_path / "cache"), lease_s=0)
    url = (tmp_path / "backup").as_uri()
    with pytest.raises(errors.ContainerNotFound):
        list(backup.list_backups(url))
    for name in ("one", "two"):
        with chunkstore.open((tmp_path / name).as_uri(), settings=settings) as store:
            if name == "one":
                backup.backup(store, url)
            else:
                with pytest.raises(errors.InvalidArgument, match="another container"):
                    backup.backup(store, url)
                assert store.pins() == []
    with chunkstore.open((tmp_path / "one").as_uri(), container="x", settings=settings) as store:
        backup.backup(store, url)
    assert len(list(backup.list_backups(url, container="x"))) == 1


def test_nobody_else_reads_a_backup_on_a_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = chunkstore.Settings(cache_dir=str(tmp_path / "cache"), lease_s=0)
    mask = os.umask(0o022)
    try:
        with chunkstore.open((tmp_path / "root").as_uri(), settings=settings) as store:
            store.create("a", rolling=SMALL)
            store.append("a", bytes(250))
            backup.backup(store, (tmp_path / "backups").as_uri())
            backup.export(store, tmp_path / "x.cks")
    finally:
        os.umask(mask)
    found = [tmp_path / "backups", *(tmp_path / "backups").rglob("*"), tmp_path / "x.cks"]
    assert {path.stat().st_mode & 0o777 for path in found if path.is_dir()} == {0o700}
    # What is closed may be read-only besides.
    assert {path.stat().st_mode & 0o577 for path in found if path.is_file()} == {0o400}
    assert (tmp_path / "root").stat().st_mode & 0o777 == 0o755, "the container's own modes stay"


def test_a_damaged_chunk_is_named_and_all_else_is_copied(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = next(iter(place.store.layout("b"))).name
    real = Copier._stream

    class Rotten:
        def read(self, handle: ChunkHandle, offset: int, length: int) -> bytes:
            data: bytes = context_of(place.store).storage.read(handle, offset, length)
            return b"x" + data[1:] if handle.name == chunk else data

    def stream(self: Any, item: Any) -> bool:
        self._source = Rotten()
        return real(self, item)

    monkeypatch.setattr(Copier, "_stream", stream)
    with pytest.raises(errors.Damaged, match="CRC32C") as caught:
        place.backup()
    assert caught.value.object == chunk
    assert list(backup.list_backups(place.url, settings=place.settings)) == [] and place.store.pins() == []
    copied = sum(name.startswith(("d/", "o/")) for name in place.names())
    assert copied == place.store.usage().chunks - 1
    monkeypatch.undo()


def test_chunks_longer_than_a_batch_go_in_pieces(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("_BATCH_BYTES", 60), ("_PIECE_BYTES", 16)):
        monkeypatch.setattr(f"chunkstore.backup.copies.{name}", size)
    place.backup()
    assert not any(name.startswith("tmp/") for name in place.names())
    with place.replica() as replica:
        assert place.content(replica) == place.content()
    place.assert_sound()


def test_without_a_pin_it_fails_where_a_chunk_is_collected(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:

    def meanwhile(_plan: Any) -> None:
        place.store.delete("b")
        place.store.collect()

    with pytest.raises(errors.Conflict, match="run it again"):
        place.backup(pin=False, before=meanwhile)
    assert place.backup(pin=False).backup.segments == 2
    place.store.create("b")
    place.store.append("b", b"bytes")
    place.backup(before=meanwhile)
    place.assert_sound()
