"""Imports of export files and of backup roots: what comes along, and which files are refused before anything is done."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore import backup
from chunkstore.backup.exporting import FileSink
from chunkstore.backup.files import write_export
from chunkstore.config import Tuning
from chunkstore.errors import (
    ChunksMissing,
    ContainerNotFound,
    Damaged,
    InvalidArgument,
    SegmentNotFound,
)
from chunkstore.metadata.codec import decode_chunk, decode_segment, encode_row, encode_segment
from chunkstore.metadata.keys import chunk_key, segment_key
from chunkstore.pulsar import LedgerReader, OffloadWriter
from chunkstore.pulsar.contexts import iter_contexts
from tests.support.data import refused

SMALL = chunkstore.RollingPolicy(chunk_size_bytes_max=100)
TOPIC = "persistent://a/b"


@pytest.fixture
def settings(tmp_path: Path) -> chunkstore.Settings:
    return chunkstore.Settings(cache_dir=str(tmp_path / "cache"), lease_s=0, gc_grace_s=0, tuning=Tuning(collect_s=0))


@pytest.fixture
def root(tmp_path: Path, settings: chunkstore.Settings) -> str:
    url = (tmp_path / "root").as_uri()
    with chunkstore.open(url, settings=settings) as store:
        for name in ("orders-0", "orders-1"):
            store.create(name, rolling=SMALL, attributes={"k": name})
            store.append(name, name.encode() * 40, writer_id="w", event_number=7)
        store.truncate("orders-0", 120)
        store.seal("orders-1")
        store.table("mine").put(b"key", b"value")
        with OffloadWriter(store, TOPIC) as writer:
            for entry in range(3):
                writer.append(1, entry, b"entry")
    return url


@pytest.fixture
def file(root: str, tmp_path: Path, settings: chunkstore.Settings) -> Path:
    with chunkstore.open(root, settings=settings) as store:
        backup.export(store, tmp_path / "all.cks")
    return tmp_path / "all.cks"


def content(store: Any) -> dict[str, tuple[int, bytes, bool, dict[str, Any]]]:
    return {
        info.name: (
            info.start_offset,
            store.read(info.name, info.start_offset, 99_999),
            info.sealed,
            dict(info.attributes),
        )
        for info in store.segments()
    }


def entries(store: Any) -> list[bytes]:
    return [bytes(entry.payload) for entry in LedgerReader(store).read(TOPIC, 1)]


def test_everything_and_its_ledgers(root: str, file: Path, tmp_path: Path, settings: chunkstore.Settings) -> None:
    other = (tmp_path / "other").as_uri()
    with chunkstore.open(root, settings=settings) as store:
        expected, read = content(store), entries(store)
    report = backup.import_(other, file, settings=settings)
    assert report.segments == len(expected) and report.rows == 2
    with chunkstore.open(other, settings=settings) as store:
        assert content(store) == expected and entries(store) == read
        assert store.table("mine").get(b"key").value == b"value"  # type: ignore[union-attr]
        assert store.append("orders-0", b"orders-0" * 40, writer_id="w", event_number=7) == 0
        assert store.check("deep") == []
    # A topic alone: its segments by their prefix, its rows with them.
    alone = (tmp_path / "alone").as_uri()
    report = backup.import_(alone, file, ["offload/*"], settings=settings)
    assert (report.segments, report.rows) == (2, 1)
    with chunkstore.open(alone, settings=settings) as store:
        assert entries(store) == read and set(content(store)) == {name for name in expected if name.startswith("off")}
    part = (tmp_path / "part").as_uri()
    with chunkstore.open_replica(root, settings=settings) as replica:
        data = iter_contexts(replica, TOPIC)[0].data
    assert backup.import_(part, file, [data], settings=settings).rows == 0, "a ledger comes whole or not at all"


def test_from_a_backup_root_and_from_the_past(root: str, tmp_path: Path, settings: chunkstore.Settings) -> None:
    backups = (tmp_path / "backups").as_uri()
    with chunkstore.open(root, settings=settings) as store:
        store.append("orders-0", b"growing")
        first = backup.backup(store, backups).backup
        expected = content(store)
        store.append("orders-0", b"later")
        backup.backup(store, backups)
    call = partial(backup.restore, settings=settings)
    backup.import_((tmp_path / "then").as_uri(), backups, ["orders-0"], lsn=first.lsn, settings=settings)
    with chunkstore.open((tmp_path / "then").as_uri(), settings=settings) as store:
        assert content(store) == {"orders-0": expected["orders-0"]}
    new = tmp_path / "new"
    refused(
        InvalidArgument,
        lambda: call(backups, new, ["orders-0"], lsn=1),
        lambda: call(backups, new, from_=root),
        lambda: call(backups, new, lsn=1, time=1),
    )
    refused(ContainerNotFound, lambda: call(tmp_path / "nothing", new))
    refused(SegmentNotFound, lambda: call(backups, new, ["orders-9"]))
    assert call(backups, new, ["orders-*"], dry_run=True).segments == 2
    assert not (tmp_path / "new" / "default").exists()


def rewritten(file: Path, change: Callable[[dict[bytes, bytes]], object], header: dict[str, Any] | None = None) -> Path:
    """The same export with other rows: what somebody could write who knows the format."""
    found = backup.read_export(file)
    rows = dict(found)
    change(rows)
    path = file.with_name("hostile.cks")
    path.unlink(missing_ok=True)
    sink = FileSink(str(path))
    write_export(sink, found.header._replace(**(header or {})), sorted(rows.items()), str(path))
    sink.close()
    return path


def changed_segment(rows: dict[bytes, bytes], **fields: Any) -> None:
    key = segment_key("orders-0")
    rows[key] = encode_segment(decode_segment("orders-0", rows[key])._replace(**fields))


def changed_chunk(rows: dict[bytes, bytes], **fields: Any) -> None:
    segment = decode_segment("orders-0", rows[segment_key("orders-0")])
    key = chunk_key(segment.first_chunk)
    rows[key] = encode_row(decode_chunk("chunk", rows[key])._replace(**fields))


def in_a_circle(rows: dict[bytes, bytes]) -> None:
    segment = decode_segment("orders-0", rows[segment_key("orders-0")])
    changed_chunk(rows, next=segment.first_chunk)


HOSTILE: dict[str, Callable[[dict[bytes, bytes]], object]] = {
    "circle": in_a_circle,
    "length": lambda rows: changed_segment(rows, length=1 << 60),
    "start": lambda rows: changed_segment(rows, start_offset=1 << 40),
    "skip": lambda rows: changed_segment(rows, first_chunk_skip=1 << 40),
    "no room": lambda rows: changed_segment(rows, chunk_size_bytes_max=0),
    "name": lambda rows: changed_segment(rows, name="another"),
    "count": lambda rows: changed_segment(rows, chunk_count=1),
    "elsewhere": lambda rows: changed_chunk(rows, object="default/FORMAT"),
    "state": lambda rows: changed_chunk(rows, kind=3),
    "no crc": lambda rows: changed_chunk(rows, crc32c=None),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_rows_that_do_not_add_up_change_nothing(
    what: str, root: str, file: Path, tmp_path: Path, settings: chunkstore.Settings
) -> None:
    bad = rewritten(file, HOSTILE[what])
    other = (tmp_path / "other").as_uri()
    refused(Damaged, lambda: backup.import_(other, bad, settings=settings))
    assert not (tmp_path / "other" / "default").exists()


def test_chunks_that_were_collected_since_are_listed(root: str, tmp_path: Path, settings: chunkstore.Settings) -> None:
    other = (tmp_path / "other").as_uri()
    with chunkstore.open(root, settings=settings) as store:
        backup.export(store, tmp_path / "all.cks", pin=False)
        store.delete("orders-0")
        store.collect()
        with pytest.raises(ChunksMissing) as caught:
            backup.import_(other, tmp_path / "all.cks", settings=settings)
        assert {item["segment"] for item in caught.value.missing} == {"orders-0"}
        assert not (tmp_path / "other" / "default").exists()
        assert backup.import_(other, tmp_path / "all.cks", ["orders-1"], settings=settings).segments == 1
