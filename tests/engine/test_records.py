"""Readers are files and give records; segments have objects; what follows may wait for what does not exist yet."""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import chunkstore
from chunkstore.engine.segment_file import Record
from chunkstore.errors import Closed, ContainerNotFound, Damaged, InvalidArgument, SegmentNotFound
from chunkstore.records.framing import Framing, framed
from tests.support.data import pattern, refused
from tests.support.worlds import World

PIECE = 4_096
LIVENESS_S = 60.0


def test_what_takes_a_binary_file_takes_a_reader(world: World) -> None:
    store = world.open(rolling=5_000)
    rows = [{"number": number, "text": "x" * 50} for number in range(2_000)]
    contents = {
        "json": json.dumps(rows).encode(),
        "csv": b"a,b\r\n" + b"1,2\r\n" * 9_000,
        "gzip": gzip.compress(pattern(0, 50_000)),
        "pickle": pickle.dumps([pattern(0, 99_999), rows], protocol=5),
    }
    for name, content in contents.items():
        store.create(name)
        store.append(name, content)

    def opened(name: str, prefetch: int = 1 << 20) -> chunkstore.StorageReader:
        return store.reader(name, piece_bytes=PIECE, prefetch_bytes=prefetch)

    for prefetch in (0, 1 << 16):
        assert json.load(opened("json", prefetch)) == rows
        assert [*csv.reader(io.TextIOWrapper(opened("csv", prefetch), newline=""))] == [
            ["a", "b"],
            *[["1", "2"]] * 9_000,
        ]
        with gzip.open(opened("gzip", prefetch)) as unpacked:
            assert unpacked.read() == pattern(0, 50_000)
            assert unpacked.seek(10) == 10 and unpacked.read(5) == pattern(10, 5)
        assert pickle.load(opened("pickle", prefetch)) == [pattern(0, 99_999), rows]
        assert pickle.load(io.BufferedReader(opened("pickle", prefetch)))[1] == rows
        assert pa.PythonFile(opened("json", prefetch), mode="r").read() == contents["json"]
        shutil.copyfileobj(opened("json", prefetch), copied := io.BytesIO())
        assert copied.getvalue() == contents["json"]


@pytest.mark.parametrize("prefetch", [0, 1 << 16], ids=str)
def test_a_reader_reads_and_seeks_as_a_file_of_the_same_bytes(world: World, prefetch: int) -> None:
    store = world.open(rolling=5_000)
    store.create("a")
    content = b"".join(b"line %d\n" % number * (number % 5) for number in range(6_000)) + b"rest"
    store.append("a", content)
    file = io.BytesIO(content)
    reader = store.reader("a", piece_bytes=PIECE, prefetch_bytes=prefetch)
    assert (reader.name, reader.readable(), reader.seekable(), reader.writable()) == ("a", True, True, False)
    steps: list[tuple[str, Any]] = [
        *[("readline", (-1,)), ("read", (7,)), ("readline", (3,)), ("read", (3 * PIECE,)), ("seek", (10_000,)), ("readline", ())],
        *[("seek", (-50, 2)), ("readlines", ()), ("read", (5,)), ("seek", (0,)), ("seek", (123, 1)), ("read", (0,))],
        *[("read", ()), ("read", ()), ("readline", ()), ("seek", (len(content) - 3,)), ("read", (None,))],
    ]  # fmt: skip
    for method, arguments in steps:
        assert getattr(reader, method)(*arguments) == getattr(file, method)(*arguments), (method, arguments)
        assert reader.tell() == reader.position == file.tell()
    reader.seek(PIECE)
    assert next(reader) + b"".join(reader) == content[PIECE:]
    refused(InvalidArgument, lambda: reader.seek(-1), lambda: reader.seek(0, 9))
    reader.close()
    assert reader.closed
    refused(Closed, lambda: reader.read(1), lambda: reader.seek(0), lambda: next(reader))


def test_a_part_before_damage_never_passes_for_all(world: World) -> None:
    store, name = damaged(world, b"0123456\n" * 512 * 3)
    with store.reader("a", piece_bytes=PIECE) as reader:
        for read_all in (reader.read, reader.readall, reader.readlines, reader.read):
            refused(Damaged, read_all)
            assert reader.position == 0
        assert len(reader.read(PIECE + 1)) == PIECE  # by its size it is there
        for read in (reader.read, reader.readline, lambda: [*reader.lines()]):
            with pytest.raises(Damaged) as caught:
                read()
            assert caught.value.object == name
    with store.reader("a", piece_bytes=PIECE) as reader:
        got = []
        with pytest.raises(Damaged):
            for record in reader.lines():
                got.append(record)  # noqa: PERF402  (those before the error)
        assert got == [Record(8 * number, b"0123456") for number in range(512)]


def damaged(world: World, content: bytes) -> tuple[chunkstore.Store, str]:
    """A segment "a" of chunks of a piece each, the second of which is damaged."""
    store = world.open(rolling=PIECE)
    store.create("a")
    store.append("a", content)
    name = [*store.layout("a")][1].name
    world.overwrite(name, bytes([world.content(name)[0] ^ 1]) + world.content(name)[1:])
    return store, name


def test_lines_go_on_after_a_gap_at_the_next_newline(world: World) -> None:
    content = b"123456\n" * 2_000
    store, _ = damaged(world, content)
    with store.reader("a", piece_bytes=PIECE, on_damage="skip") as reader:
        found = [*reader.lines()]
        (gap,) = reader.skipped
    whole = [Record(at, b"123456") for at in range(0, len(content), 7)]
    assert found == [record for record in whole if record.offset + 7 <= gap.start or record.offset >= gap.stop]
    assert PIECE - 7 < gap.start <= PIECE and 2 * PIECE <= gap.stop < 2 * PIECE + 7
    with store.reader("a", piece_bytes=PIECE, on_damage="skip") as reader, pytest.raises(Damaged):
        list(reader.records("length-prefixed", record_bytes_max=1 << 31))


@pytest.mark.parametrize("framing", ["lines", "length-prefixed"])
def test_a_writer_frames_what_records_give_back(world: World, framing: Framing) -> None:
    store = world.open(rolling=5_000)
    store.create("a")
    payloads = [b"", b"one", b"x" * 9_000, b"last"]
    with store.writer("a", framing=framing, writer_id="w") as writer:
        offsets = [future.result() for future in map(writer.append, payloads)]
        if framing == "lines":
            refused(InvalidArgument, lambda: writer.append(b"two\nlines"))
        with writer.resume(store) as resumed:
            offsets.append(resumed.append(b"again").result())
    assert store.read("a", 0, 1 << 20) == b"".join(framed(data, framing) for data in [*payloads, b"again"])
    expected = [*zip(offsets, [*payloads, b"again"], strict=True)]
    assert [*store.reader("a", piece_bytes=PIECE).records(framing)] == expected
    assert [*store["a"].records(framing)] == expected
    before = []
    with pytest.raises(Damaged) as caught:
        for record in store.reader("a").records(framing, record_bytes_max=8_999):
            before.append(record)  # noqa: PERF402  (those before the error)
    assert (before, caught.value.position) == (expected[:2], offsets[2])
    refused(InvalidArgument, lambda: store.writer("a", framing="json"))  # type: ignore[arg-type]
    refused(InvalidArgument, lambda: store.reader("a").records("json"))  # type: ignore[arg-type]


@pytest.mark.parametrize("prefetch", [0, 8 << 20], ids=str)
def test_a_follower_gets_each_line_when_it_is_whole(world: World, prefetch: int) -> None:
    store = world.open()
    store.create("a")
    lines = store.reader("a", prefetch_bytes=prefetch).lines(follow=True)
    store.append("a", b"first\nsec")
    assert next(lines) == (0, b"first")
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(next, lines)
        store.append("a", b"ond\nrest")
        assert second.result(LIVENESS_S) == (6, b"second")
    store.seal("a")
    assert [*lines] == [(13, b"rest")]


def test_a_follower_waits_for_its_segment_and_its_container(world: World, tmp_path: Path) -> None:
    store = world.open()
    refused(SegmentNotFound, lambda: store.reader("new"), lambda: store.reader("new", wait_for_segment_s=0.01))

    def first(at: chunkstore.Store | chunkstore.Replica) -> bytes:
        return next(at.reader("new", follow=True, wait_for_segment_s=LIVENESS_S))

    root = tmp_path / "new"
    refused(ContainerNotFound, lambda: chunkstore.open_replica(root, wait_s=0.01))
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(first, at) for at in (store, world.replica())]
        opening = pool.submit(chunkstore.open_replica, root, wait_s=LIVENESS_S)
        store.create("new")
        store.append("new", b"bytes")
        assert [each.result(LIVENESS_S) for each in waiting] == [b"bytes"] * 2
        with chunkstore.open(root), opening.result(LIVENESS_S) as replica:
            assert [*replica] == []


def test_names_and_segment_objects(world: World) -> None:
    store = world.open()
    for name in ("b", "a"):
        store.create(name)
    segment, replica = store["a"], world.replica()
    assert [*store] == [*replica] == ["a", "b"]
    assert ("a" in store, "c" in store, "a" in replica) == (True, False, True)
    refused(SegmentNotFound, lambda: store["c"], lambda: replica["c"])
    assert (len(segment), bool(segment)) == (0, True)
    assert segment.append(b"one\ntwo\n") == 0
    with segment.writer() as writer:
        writer.append(b"three\n")
    store.truncate("a", 4)
    replica.refresh()
    for each in (segment, replica["a"]):
        assert (each.name, len(each), each.read(4, 3), each.info().start_offset) == ("a", 10, b"two", 4)
        assert [*each.lines()] == [(4, b"two"), (8, b"three")]
        assert b"".join(each.reader()) == b"two\nthree\n"
        assert sum(chunk.length for chunk in each.layout()) >= 10
        assert repr(each).startswith(f"<{type(each).__name__} 'a' of <")
    assert not hasattr(replica["a"], "append")
    store.delete("a")
    store.create("a")
    refused(SegmentNotFound, segment.info, lambda: segment.append(b"x"))
