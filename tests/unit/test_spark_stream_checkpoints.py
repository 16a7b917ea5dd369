"""Checkpoints of streams without Spark: which container and history they fit, and what a restart makes of them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.errors import (
    Conflict,
    Damaged,
    RolledBack,
    SegmentTruncated,
    Unsupported,
)
from chunkstore.spark.positions import StreamOffset
from tests.support.data import pattern
from tests.support.spark_ground import Ground, filled

pytest.importorskip("pyarrow", reason="pyarrow is not installed: Spark's streams are not tested")

from tests.support.spark_streams import Stream

Store = chunkstore.ChunkedSegmentStorage


def test_the_checkpoint_of_another_container_is_refused(ground: Ground, store: Store, tmp_path: Path) -> None:
    filled(store, "a", 30, 10)
    stream = Stream(ground.url, segments="a", startingOffsets="earliest")
    stream.step()
    other = Ground(tmp_path / "other")
    with other.open() as another:
        filled(another, "a", 30, 10)
    stream.restart(path=other.url)
    with pytest.raises(Conflict, match="container of the checkpoint"):
        stream.step()
    with pytest.raises(Conflict):
        stream.read(1)


def test_a_container_that_was_restored_to_before_is_refused(ground: Ground) -> None:
    root, kept = ground.path / "root", ground.path / "kept"
    with ground.open() as store:
        filled(store, "a", 10, 10)
        stream = Stream(ground.url, segments="a", startingOffsets="earliest")
        stream.step()
        lsn = stream.offset().lsn
        shutil.copytree(root, kept)
        store.append("a", b"lost")
        stream.step()
    shutil.rmtree(root)
    shutil.move(kept, root)
    with chunkstore.open(ground.url, settings=ground.settings, accept_rollback=True) as store:
        stream.restart()
        with pytest.raises(RolledBack, match="after a restore") as caught:
            stream.step()
        assert caught.value.lsn_seen > lsn
        for _ in range(20):
            store.append("a", b"something else, and more of it")
        stream.restart()
        with pytest.raises(RolledBack):
            stream.step()
        stream.restart()
        with pytest.raises(RolledBack):
            stream.read(2)
        stream.log.pop()
        stream.rows.pop()
        assert stream.step()[0][1] == 10, "what was seen before is still true"


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": "1"},
        {"container": "zz"},
        {"epoch": -1},
        {"lsn": True},
        {"segments": []},
        {"segments": {"a": 5}},
        {"segments": {"a": {"id": 1, "at": -1}}},
        {"segments": {"a": {"id": 1, "at": 1 << 63}}},
        {"segments": {"a": {"id": 1, "at": 1, "from": 2}}},
        {"lost": {"bytes": 1}},
    ],
)
def test_offsets_of_others_are_refused(change: Mapping[str, Any]) -> None:
    good = {"version": 1, "container": "0" * 32, "epoch": 1, "lsn": 2, "segments": {"a": {"id": 1, "at": 3}}}
    assert StreamOffset.from_json(good).to_json() == good
    for document in ({**good, **change}, None, [good], {}):
        with pytest.raises((Damaged, Unsupported)):
            StreamOffset.from_json(document)


def test_the_first_batch_that_runs_again_is_the_same(ground: Ground, store: Store) -> None:
    """Spark keeps its end alone, and asks again where the query begins; that may be another place by then."""
    filled(store, "a", 30, 10)
    stream = Stream(ground.url, segmentsPattern="[ab]")  # from what is latest
    store.append("a", b"new")
    filled(store, "b", 5, 5)
    wanted = [("a", 30, b"new"), ("b", 0, pattern(0, 5))]
    assert stream.step() == wanted
    store.append("a", b"behind it")
    stream.replay()
    assert stream.step() == [("a", 33, b"behind it")]
    old = Stream(ground.url, segments="a").planner  # before Spark 4.2 the end may be asked for first
    end = old.latestOffset()
    assert end["segments"]["a"]["at"] == 42 and not old.partitions(old.initialOffset(), end)
    old.stop()
    truncated = Stream(ground.url, segments="a", startingOffsets="earliest")
    truncated.step()
    store.truncate("a", 20)
    truncated.restart()
    with pytest.raises(SegmentTruncated):
        truncated.read(1)
