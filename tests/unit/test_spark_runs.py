"""The bytes of a run, as a task of Spark reads them: window by window, verified block by block."""

from __future__ import annotations

import pickle

import pytest

from chunkstore import blocks
from chunkstore.errors import Damaged
from chunkstore.registry import open_storage
from chunkstore.spark import pieces as pieces_module
from chunkstore.spark.pieces import PieceReader, RunBytes
from chunkstore.spark.runs import Piece, SegmentRun
from chunkstore.storage import ChunkStorage
from tests.support.data import pattern
from tests.support.spark_ground import Ground, filled, flip, whole


def run_bytes(ground: Ground, name: str, start: int, stop: int) -> tuple[RunBytes, ChunkStorage]:
    with ground.replica() as replica:
        chunks = list(replica.layout(name))
    pieces = [
        Piece(
            chunk.name,
            max(0, start - chunk.offset),
            min(chunk.length, stop - chunk.offset),
            chunk.length,
            max(start, chunk.offset),
            whole(chunk),
        )
        for chunk in chunks
        if chunk.offset < stop and chunk.offset + chunk.length > start
    ]
    storage = open_storage(ground.url, ground.settings)
    return RunBytes(PieceReader(storage, lsn=1), name, pieces), storage


def test_windows_move_forward_over_chunks(ground: Ground) -> None:
    with ground.open() as store:
        filled(store, "d", 10_000, 700)
    whole = pattern(0, 10_000)
    source, storage = run_bytes(ground, "d", 100, 9_000)
    position = 100
    while position < 9_000:
        assert source.read(position, 1500) == whole[position : min(9_000, position + 1500)]
        assert source.read(position, 12) == whole[position : min(9_000, position + 12)], (
            "more is held than is asked for"
        )
        position += 1400
    assert source.read(9_000, 10) == b""
    assert source.read(150, 900) == whole[150:1050], "a look back still finds the bytes"
    source.finish()
    storage.close()


def test_finishing_verifies_what_nobody_asked_for(ground: Ground) -> None:
    with ground.open() as store:
        filled(store, "d", 10_000, 700)
        chunks = list(store.layout("d"))
    flip(ground.file(chunks[-1].name), 3)
    source, storage = run_bytes(ground, "d", 0, 10_000)
    assert source.read(0, 10) == pattern(0, 10)
    with pytest.raises(Damaged):
        source.finish()
    storage.close()


def test_pieces_are_read_out_to_the_borders_of_their_blocks(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 100)
    monkeypatch.setattr(pieces_module, "LOCAL_FETCH_BYTES", 300)
    with ground.open() as store:
        filled(store, "d", 930, 930)
        [chunk] = store.layout("d")
    storage = open_storage(ground.url, ground.settings)
    fetched: list[tuple[int, int]] = []
    reader = PieceReader(storage, lsn=1)
    plain = reader._fetch

    def counting(piece: Piece, start: int, stop: int) -> bytes:
        fetched.append((start, stop))
        return plain(piece, start, stop)

    reader._fetch = counting  # type: ignore[method-assign]
    with ground.replica() as replica:
        [borders] = replica.borders("d")
    assert borders is not None and borders.at == [*range(0, 901, 100), 930]
    for start, stop, reads in (
        (0, 930, [(0, 300), (300, 600), (600, 900), (900, 930)]),
        (150, 160, [(100, 200)]),
        (199, 301, [(100, 300), (300, 400)]),
        (900, 930, [(900, 930)]),
    ):
        piece = Piece(chunk.name, start, stop, 930, start, borders.between(start, stop))
        assert b"".join(span.data for span in reader.spans("d", [piece])) == pattern(0, 930)[start:stop]
        assert fetched == reads
        fetched.clear()
    flip(ground.file(chunk.name), 250)
    for start, stop in ((0, 930), (200, 201), (299, 300), (199, 930)):
        with pytest.raises(Damaged) as caught:
            list(reader.spans("d", [Piece(chunk.name, start, stop, 930, start, borders.between(start, stop))]))
        assert (caught.value.segment, caught.value.start, caught.value.stop) == ("d", 200, 300)
    for start, stop in ((0, 200), (300, 930)):
        list(reader.spans("d", [Piece(chunk.name, start, stop, 930, start, borders.between(start, stop))]))
    storage.close()


def test_a_run_is_plain_data(ground: Ground) -> None:
    with ground.open() as store:
        filled(store, "a", 100, 10)
    tasks = ground.plan("a")
    assert pickle.loads(pickle.dumps(tasks)) == tasks
    assert isinstance(tasks[0].runs[0], SegmentRun)
    assert b"lmdb" not in pickle.dumps(tasks)
