"""Snapshots: written, read back, loaded; golden bytes; every flipped bit and every cut is found before a head is set."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from itertools import count, islice
from types import SimpleNamespace
from typing import Any

import pytest

from chunkstore import runtime
from chunkstore.checksum import DIGEST_MODULUS, BytesLike, row_digest
from chunkstore.config import LIMITS, MIB
from chunkstore.errors import Damaged
from chunkstore.journal import SnapshotReport
from chunkstore.metadata.keys import is_row
from chunkstore.metadata.port import Head, Position
from chunkstore.records.names import ContainerNames
from chunkstore_bindings.memory import MemoryChunkStorage
from chunkstore_journal.snapshot import (
    delete_snapshot,
    load_snapshot,
    main_name,
    write_snapshot,
)
from chunkstore_journal.snapshot_reader import FrameKind, read_snapshot_header
from chunkstore_journal.wire import encode_frame, pack
from tests.golden.journal_samples import CONTAINER, GOLDEN, HASH, PAIRS

NAMES = ContainerNames("orders")
Pair = tuple[bytes, bytes]
_numbers = count()


def _digest(pairs: Iterable[Pair]) -> int:
    return sum(row_digest(key, value) for key, value in pairs if is_row(key)) % DIGEST_MODULUS


def view_of(pairs: Sequence[Pair], *, digest: int | None = None) -> Any:
    """As much of a view as a snapshot is written from; its rows need not be possible ones."""
    head = Head(Position(41, HASH, 3, 42, 9000), _digest(pairs) if digest is None else digest)
    return SimpleNamespace(
        head=head, scan=lambda start, stop: (pair for pair in sorted(pairs) if start <= pair[0] < stop)
    )


class Loaded:
    """As much of a store as a snapshot is loaded into."""

    def __init__(self, *, takes: int | None = None) -> None:
        self.pairs: list[Pair] = []
        self.finished: Head | None = None
        self._takes = takes

    def load(self, pairs: Iterable[Pair]) -> None:
        self.pairs += islice(pairs, self._takes)

    def finish_load(self, head: Head) -> None:
        self.finished = head


def _many(rows: int, size: int = 100) -> list[Pair]:
    return [(b"C%08d" % n, bytes([n % 251]) * size) for n in range(rows)] + [
        (b"x%08d" % n, bytes(28)) for n in range(rows)
    ]


def _storage(*, append: bool = True) -> MemoryChunkStorage:
    return MemoryChunkStorage(f"memory://snapshot-{next(_numbers)}", append=append)


def _write(storage: MemoryChunkStorage, pairs: Sequence[Pair], **more: int) -> SnapshotReport:
    return write_snapshot(storage, NAMES, container=CONTAINER, view=view_of(pairs), epoch=4, **more)


def _load(storage: MemoryChunkStorage, name: str, store: Any, **more: Any) -> Head:
    return load_snapshot(storage, name, store, **{"container": CONTAINER, **more})


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "now_ms", lambda: 1_700_000_000_000)
    monkeypatch.setattr(runtime, "token", lambda size: b"\xab" * size)


# --- writing and loading ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("append", [True, False])
@pytest.mark.parametrize("pairs", [[], PAIRS, _many(30_000)], ids=["empty", "few", "many"])
def test_what_is_written_is_loaded(append: bool, pairs: list[Pair]) -> None:
    storage = _storage(append=append)
    report = _write(storage, pairs, part_bytes=1 * MIB)
    view = view_of(pairs)
    rows = sum(is_row(key) for key, _ in pairs)
    assert report[1:4] == (view.head.position, view.head.digest, rows)
    assert NAMES.parse_snapshot(report.name) == (41, 4)
    stored = storage.list("orders/").items
    assert sum(info.length for info in stored) == report.size_bytes
    assert (len(stored) == 1) == (len(pairs) < 1000)
    assert {main_name(info.name) for info in stored} == {report.name}
    store = Loaded()
    head = _load(storage, report.name, store)
    assert store.pairs == sorted(pairs)
    assert head == store.finished == Head(view.head.position, view.head.digest)
    header = read_snapshot_header(storage, report.name, container=CONTAINER)
    assert (header.epoch, header.position, header.digest) == (4, view.head.position, view.head.digest)
    _load(storage, report.name, Loaded(), expected=header.link(report.name))
    for change in ({"lsn": 40}, {"hash": bytes(16)}, {"digest": 1}, {"epoch": 2}, {"index": 1}, {"end": 1}):
        with pytest.raises(Damaged, match="link"):
            expected = header.link(report.name)._replace(**change)
            _load(storage, report.name, Loaded(), expected=expected)
    assert delete_snapshot(storage, report.name) == report.size_bytes
    assert delete_snapshot(storage, report.name) == 0
    assert storage.list("orders/").items == ()


@pytest.mark.parametrize("append", [True, False])
def test_rows_without_the_heads_digest_are_never_published(append: bool) -> None:
    storage = _storage(append=append)
    with pytest.raises(Damaged, match="digest"):
        write_snapshot(storage, NAMES, container=CONTAINER, view=view_of(PAIRS, digest=5), epoch=4)
    assert storage.list("orders/").items == ()


@pytest.mark.parametrize(
    "pair", [(b"Z", b"unknown kind"), (b"C" + bytes(600), b""), (b"C", bytes(LIMITS.row_bytes_max + 1))]
)
def test_rows_no_reader_would_accept_are_never_published(pair: Pair) -> None:
    storage = _storage()
    with pytest.raises(Damaged):
        _write(storage, [*PAIRS, pair])
    assert storage.list("orders/").items == ()


class Rotten(MemoryChunkStorage):
    """Changes one stored byte of what it is asked to write, or runs full."""

    broken: Callable[[bytes], bytes] | None = None

    def do_create(self, name: str, data: BytesLike | None) -> None:
        raw = bytes(data or b"")
        super().do_create(name, self.broken(raw) if self.broken else raw)


def test_a_snapshot_that_reads_back_wrong_is_deleted_and_reported() -> None:
    storage = Rotten(f"memory://snapshot-{next(_numbers)}")
    storage.broken = lambda raw: raw.replace(b"value", b"valve")
    with pytest.raises(Damaged, match="CRC"):
        _write(storage, PAIRS)
    assert storage.list("orders/").items == ()


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("frozen")
def test_golden_bytes_are_written_and_read() -> None:
    storage = _storage()
    report = _write(storage, PAIRS)
    raw = storage.read(storage.open_read(report.name), 0, 1 << 20)
    assert raw == GOLDEN["snapshot/whole"]
    header = read_snapshot_header(storage, report.name, container=CONTAINER)
    assert (header.time_ms, header.container) == (1_700_000_000_000, CONTAINER)


@pytest.mark.usefixtures("frozen")
def test_golden_bytes_of_a_split_snapshot_are_written_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chunkstore_journal.snapshot._BLOCK_BYTES", 60)
    storage = _storage(append=False)
    report = _write(storage, PAIRS, part_bytes=100)
    stored = {
        info.name: storage.read(storage.open_read(info.name), 0, 1 << 20) for info in storage.list("orders/").items
    }
    assert sorted(stored) == [report.name, f"{report.name}.p0000"]
    assert stored[report.name] == GOLDEN["snapshot/split"]
    assert stored[f"{report.name}.p0000"] == GOLDEN["snapshot/split.p0000"]
    store = Loaded()
    _load(storage, report.name, store)
    assert store.pairs == list(PAIRS)


def _golden_storage(which: str) -> tuple[MemoryChunkStorage, list[str]]:
    storage = _storage(append=False)
    stored = {f"s.sn{key.removeprefix(which)}": raw for key, raw in GOLDEN.items() if key.startswith(which)}
    for name, raw in stored.items():
        storage.put(name, raw)
    return storage, sorted(stored)


@pytest.mark.parametrize("which", ["snapshot/whole", "snapshot/split"])
def test_every_flipped_bit_is_found_before_a_head_is_set(which: str) -> None:
    storage, names = _golden_storage(which)
    _load(storage, "s.sn", Loaded())
    for name in names:
        good = storage.read(storage.open_read(name), 0, 1 << 20)
        raw = bytearray(good)
        for bit in range(len(raw) * 8):
            raw[bit // 8] ^= 1 << bit % 8
            storage.put(name, raw)
            store = Loaded()
            with pytest.raises(Damaged) as caught:
                _load(storage, "s.sn", store)
            assert caught.value.object in names
            assert store.finished is None
            raw[bit // 8] ^= 1 << bit % 8
        storage.put(name, good)


@pytest.mark.parametrize("which", ["snapshot/whole", "snapshot/split"])
def test_every_cut_and_anything_behind_is_found(which: str) -> None:
    storage, names = _golden_storage(which)
    for name in names:
        good = storage.read(storage.open_read(name), 0, 1 << 20)
        for raw in [good[:length] for length in range(len(good))] + [good + b"\0", good + good]:
            storage.put(name, raw)
            # A part may have bytes behind its listed length; they are not part of the snapshot.
            if name != "s.sn" and raw[: len(good)] == good:
                _load(storage, "s.sn", Loaded())
                continue
            with pytest.raises(Damaged):
                _load(storage, "s.sn", Loaded())
        storage.put(name, good)


def _frame(kind: int, body: object) -> bytes:
    return encode_frame(b"CKSS", 1, kind, pack(body))


def _header_frame(digest: int = 0) -> bytes:
    return _frame(FrameKind.HEADER, (CONTAINER, 4, (41, HASH, 3, 42, 9000), digest.to_bytes(32, "big"), 0))


@pytest.mark.parametrize(
    "frames",
    [
        [_frame(FrameKind.BLOCK, (0, [b"Ca", b"1"]))],
        [_header_frame()],
        [_header_frame(), _header_frame()],
        [_header_frame(), _frame(FrameKind.BLOCK, (1, [b"Ca", b"1"]))],
        [_header_frame(), _frame(FrameKind.BLOCK, (0, [b"Cb", b"1", b"Ca", b"1"]))],
        [_header_frame(), _frame(FrameKind.BLOCK, (0, [b"Ca", b"1", b"Ca", b"1"]))],
        [_header_frame(), _frame(FrameKind.BLOCK, (0, [b"Ca"]))],
        [_header_frame(), _frame(FrameKind.BLOCK, (0, []))],
        [_header_frame(), _frame(FrameKind.BLOCK, (0, [b"Ca", 1]))],
        [_header_frame(), _frame(FrameKind.BLOCK, (0, [b"", b"1"]))],
        [_header_frame(), _frame(FrameKind.BLOCK, (0, [b"\x00h", b"1"]))],
        [_header_frame(), _frame(FrameKind.BLOCK, 7)],
        [_header_frame(), _frame(FrameKind.PARTS, 7)],
        [_header_frame(), _frame(FrameKind.PARTS, ((1,),))],
        [_header_frame(), _frame(9, ())],
        [_header_frame(), _frame(FrameKind.TRAILER, (1, 0, 0, bytes(32), bytes(32)))],
        [_header_frame(), _frame(FrameKind.TRAILER, (0, 0, 0, bytes(32), bytes(32)))],
        [_header_frame(1), _frame(FrameKind.TRAILER, (0, 0, 0, (1).to_bytes(32, "big"), bytes(32)))],
        [_header_frame(), _frame(FrameKind.BLOCK, (0, [b"x1", b"1"])), _frame(FrameKind.PARTS, ())],
        [encode_frame(b"CKSS", 1, FrameKind.HEADER, b"\xdd\x7f\xff\xff\xff" * 200)],
        [_header_frame(), encode_frame(b"CKSS", 1, FrameKind.BLOCK, bytes(LIMITS.snapshot_block_bytes_max + 1))],
        [encode_frame(b"CKSS", 2, FrameKind.HEADER, b"\x90")],
    ],
)
def test_frames_with_right_checksums_and_wrong_contents_are_damage(frames: list[bytes]) -> None:
    storage = _storage(append=False)
    storage.put("s.sn", b"".join(frames))
    store = Loaded()
    tracemalloc.start()
    try:
        with pytest.raises(Damaged):
            _load(storage, "s.sn", store)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert store.finished is None
    assert peak < 16 * MIB
