"""Exports: what is in them, that they are whole, that their pin keeps what they name, and what refuses them."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore import backup, errors
from chunkstore.backup import files
from chunkstore.backup.exporting import FileSink
from chunkstore.backup.files import ExportHeader, read_small, small_object, write_export
from chunkstore.config import Tuning
from chunkstore.engine.reading import context_of
from chunkstore.metadata.codec import decode_chunk, decode_segment
from chunkstore.metadata.keys import CHUNK, SEGMENT, TABLE, block_range, table_prefix, writer_range
from chunkstore.pulsar import LedgerNotFound, OffloadWriter
from chunkstore.pulsar.contexts import NAMESPACE, iter_contexts
from chunkstore_bindings.memory import MemoryChunkStorage
from tests.golden.backup_samples import GOLDEN, HEADER, ROWS, SMALL_OBJECTS

SMALL = chunkstore.RollingPolicy(chunk_size_bytes_max=100)


def rows_of(path: Path) -> dict[bytes, bytes]:
    found = backup.read_export(path)
    rows = dict(found)
    assert found.verified
    return rows


def segments_of(path: Path) -> list[str]:
    return [info.name for info in backup.read_segments(backup.read_export(path))]


@pytest.fixture
def root(tmp_path: Path) -> str:
    return (tmp_path / "root").as_uri()


@pytest.fixture
def store(root: str, tmp_path: Path) -> Any:
    settings = chunkstore.Settings(
        cache_dir=str(tmp_path / "cache"), lease_s=0, gc_grace_s=0, tuning=Tuning(collect_s=0)
    )
    with chunkstore.open(root, settings=settings) as opened:
        for name in ("orders-0", "orders-1", "logs"):
            opened.create(name, rolling=SMALL)
            opened.append(name, bytes(250), writer_id="w", event_number=7)
        opened.table("mine").put(b"key", b"value")
        opened.set_retention("logs", chunkstore.RetentionPolicy(size_bytes_max=10))
        opened.create("gone", rolling=SMALL)
        opened.append("gone", bytes(250), writer_id="w", event_number=7)
        opened.delete("gone")
        opened.truncate("orders-0", 120)
        opened.session("s")
        yield opened


def test_everything_but_what_belongs_to_history(store: Any, tmp_path: Path) -> None:
    report = backup.export(store, tmp_path / "all.cks")
    rows = rows_of(tmp_path / "all.cks")
    assert {key[:1] for key in rows} == {CHUNK, SEGMENT, TABLE}
    named = {chunk.name for info in store.segments() for chunk in store.layout(info.name)}
    assert len(named) == report.chunks == 8 and report.segments == 3
    assert sum(key[:1] == CHUNK for key in rows) == 8
    with context_of(store).store().view() as view:
        assert all(view.get(key) == raw for key, raw in rows.items())
        tables = {key for key, _ in view.scan(TABLE, b"U")}
        ended = set(tables) - set(rows)
    [lost] = ended
    assert lost.startswith(table_prefix("!writers")), "of the segment that was deleted"
    assert report.chunk_bytes == sum(decode_chunk("", raw).length for key, raw in rows.items() if key[:1] == CHUNK)
    assert (report.rows, report.file_bytes) == (len(rows), os.path.getsize(tmp_path / "all.cks"))
    assert stat.S_IMODE(os.stat(tmp_path / "all.cks").st_mode) == 0o600
    assert sorted(item.name for item in tmp_path.iterdir()) == ["all.cks", "cache", "root"]
    header = backup.read_export(tmp_path / "all.cks").header
    assert report.pin is not None and header.position.lsn == report.lsn >= report.pin.lsn
    assert (header.name, header.pin, header.choice) == ("default", "export-all.cks", ((), ""))


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (["logs"], ["logs"]),
        (["orders-*"], ["orders-0", "orders-1"]),
        (["orders-*", "logs", "orders-0"], ["logs", "orders-0", "orders-1"]),
        (["*"], ["logs", "orders-0", "orders-1"]),
    ],
)
def test_a_part_is_whole_in_itself(store: Any, tmp_path: Path, chosen: list[str], expected: list[str]) -> None:
    path = tmp_path / "part.cks"
    backup.export(store, path, chosen)
    assert segments_of(path) == expected
    rows = rows_of(path)
    with context_of(store).store().view() as view:
        for name in expected:
            segment = decode_segment(name, rows[SEGMENT + name.encode()])
            writers = dict(view.scan(*writer_range(segment.id)))
            assert len(writers) == 1 and writers.items() <= rows.items()
            identity, count = segment.first_chunk, 0
            while identity:
                assert dict(view.scan(*block_range(identity))).items() <= rows.items()
                identity, count = decode_chunk("", rows[CHUNK + identity]).next, count + 1
            assert count == segment.chunk_count
    assert any(key.startswith(table_prefix("!retention")) for key in rows) == ("logs" in expected)
    assert not any(key.startswith(table_prefix("mine")) for key in rows)


def test_a_topic_comes_with_what_its_ledgers_are(store: Any, tmp_path: Path) -> None:
    for topic in ("persistent://a/b/c", "persistent://a/b"):
        with OffloadWriter(store, topic) as writer:
            for entry in range(3):
                writer.append(1, entry, b"entry")
    contexts = iter_contexts(store, "persistent://a/b")
    backup.export(store, tmp_path / "t.cks", topic="persistent://a/b")
    expected = sorted(name for c in contexts for name in (c.data, c.index_segment) if store.exists(name))
    assert segments_of(tmp_path / "t.cks") == expected != []
    assert sum(key.startswith(table_prefix(NAMESPACE)) for key in rows_of(tmp_path / "t.cks")) == len(contexts) == 1
    backup.export(store, tmp_path / "names.cks", expected)
    assert rows_of(tmp_path / "names.cks") == rows_of(tmp_path / "t.cks"), "by name it is the same"
    with pytest.raises(LedgerNotFound):
        backup.export(store, tmp_path / "none.cks", topic="persistent://a")
    assert [pin.name for pin in store.pins()] == ["export-names.cks", "export-t.cks"], "no pin of what failed"


def test_its_pin_keeps_every_chunk_it_names(store: Any, root: str, tmp_path: Path) -> None:
    backup.export(store, tmp_path / "kept.cks")
    backup.export(store, tmp_path / "loose.cks", pin=False)
    store.delete("orders-0")
    store.defrag()
    store.collect()
    assert backup.verify(tmp_path / "kept.cks", deep=True).ok
    assert store.unpin("export-kept.cks")
    store.collect()
    found = backup.verify(tmp_path / "kept.cks")
    assert not found.ok and all("absent" in finding.message for finding in found.findings)
    assert backup.read_export(tmp_path / "loose.cks").header.pin == ""


def test_verify_finds_short_and_other_chunks(store: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.cks"
    backup.export(store, path)
    first, second, *_ = sorted(chunk.name for chunk in store.layout("orders-1"))
    (tmp_path / "root" / first).write_bytes(b"")
    content = bytearray((tmp_path / "root" / second).read_bytes())
    content[3] ^= 1
    (tmp_path / "root" / second).write_bytes(content)
    sizes: list[int] = []
    assert [finding.object for finding in backup.verify(path, progress=sizes.append).findings] == [first]
    assert sum(sizes) == backup.verify(path).chunk_bytes > 0
    assert {finding.object for finding in backup.verify(path, deep=True).findings} == {first, second}


def test_a_live_owner_is_asked_for_the_pin(root: str, tmp_path: Path) -> None:
    settings = chunkstore.Settings(cache_dir=str(tmp_path / "cache"))
    with chunkstore.open(root, settings=settings) as store:
        store.create("a")
        store.append("a", b"bytes")
        with chunkstore.open_asker(root, settings=settings) as asker:
            report = backup.export(asker.replica, tmp_path / "x.cks", pins=asker)
            made = backup.backup(asker.replica, (tmp_path / "backup").as_uri(), pins=asker).backup
        assert [pin.name for pin in store.pins()] == ["export-x.cks"] and made.lsn > report.lsn
        assert segments_of(tmp_path / "x.cks") == ["a"]


# ---- bytes


def write_golden(path: Path) -> None:
    sink = FileSink(str(path))
    assert write_export(sink, HEADER, ROWS, str(path)) == len(ROWS)
    sink.close()


def test_golden_bytes(tmp_path: Path) -> None:
    write_golden(tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == GOLDEN["export"]
    found = backup.read_export(tmp_path / "x")
    assert found.header == HEADER and tuple(found) == ROWS and found.verified


@pytest.mark.parametrize("name", list(SMALL_OBJECTS))
def test_golden_bytes_of_small_objects(name: str) -> None:
    kind, fields = SMALL_OBJECTS[name]
    assert small_object(kind, fields) == GOLDEN[name]
    storage = MemoryChunkStorage(f"memory://golden-{name}")
    storage.put("x", GOLDEN[name])
    found = read_small(storage, "x", kind)
    assert tuple(found.take() for _ in fields) == fields
    for at in range(len(GOLDEN[name])):
        storage.put("x", GOLDEN[name][:at] + bytes((GOLDEN[name][at] ^ 1,)) + GOLDEN[name][at + 1 :])
        with pytest.raises(errors.Damaged):
            read_small(storage, "x", kind)
    assert read_small(storage, "y", kind) is None
    storage.put("x", GOLDEN[name])
    with pytest.raises(errors.Damaged, match="belongs"):
        read_small(storage, "x", kind + 1)


def test_kinds_of_small_objects_are_listed() -> None:
    text = (Path(files.__file__).parent / "FORMAT.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.split("<!-- table: small -->\n")[1].split("\n\n")[0].splitlines()[2:]]
    listed = {row[1]: int(row[0].strip("| ")) for row in rows}
    assert listed == {name: getattr(files, name) for name in ("MARKER", "RUNNING", "DONE", "NEWEST")}


def test_the_table_of_the_header_is_the_header() -> None:
    text = (Path(files.__file__).parent / "FORMAT.md").read_text(encoding="utf-8")
    table = text.split("<!-- table: header -->\n")[1].split("\n\n")[0]
    names = [re.split(r"\s*\|\s*", line)[2] for line in table.splitlines()[2:]]
    assert tuple(names) == ExportHeader._fields
    assert f"magic `{files.MAGIC.decode()}` and version {files.EXPORT_VERSION}" in text


def consume(path: Path) -> Any:
    found = backup.read_export(path)
    for _ in found:
        pass
    return found


def test_every_flipped_byte_and_every_cut_is_found(tmp_path: Path) -> None:
    raw, path = GOLDEN["export"], tmp_path / "x"
    for at in range(len(raw)):
        path.write_bytes(raw[:at] + bytes((raw[at] ^ 0x40,)) + raw[at + 1 :])
        with pytest.raises(errors.Damaged) as caught:
            consume(path)
        assert caught.value.object == str(path) and caught.value.position <= len(raw)
        path.write_bytes(raw[:at])
        with pytest.raises(errors.Damaged):
            consume(path)
    path.write_bytes(raw + b"\0")
    with pytest.raises(errors.Damaged, match="bytes follow"):
        consume(path)


def test_foreign_and_newer_files_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(errors.Damaged, match="is stored where b'CKSE' belongs"):
        backup.read_export(path)
    path.unlink()
    monkeypatch.setattr(files, "EXPORT_VERSION", 2)
    write_golden(path)
    with pytest.raises(errors.Damaged, match=r"version 2 is not 1.*upgrade"):
        backup.read_export(path)
    with pytest.raises(errors.InvalidArgument):
        backup.read_export(tmp_path / "none")
    with pytest.raises(errors.InvalidArgument):
        backup.read_export(tmp_path)


@pytest.mark.parametrize("name", ["", "../x", "a" * 65])
def test_a_hostile_name_of_the_container_is_damage(tmp_path: Path, name: str) -> None:
    sink = FileSink(str(tmp_path / "x"))
    write_export(sink, HEADER._replace(name=name), ROWS, "x")
    sink.close()
    with pytest.raises(errors.Damaged):
        backup.read_export(tmp_path / "x")


def test_a_full_disk_leaves_nothing(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(errors.StorageFull):
        backup.export(store, tmp_path / "x.cks")
    monkeypatch.undo()
    assert store.pins() == [] and not list(tmp_path.glob("*.cks*"))
    backup.export(store, tmp_path / "x.cks")
