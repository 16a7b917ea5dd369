"""Repairs of journals in which segments were created with a start offset, as imports of truncated ones do."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chunkstore.changes import Append, Concat, Create, Seal
from tests.engine.test_repair import MODES, zero
from tests.support.repairing import Place, broken


@pytest.mark.parametrize("mode", MODES)
def test_segments_that_begin_above_0_are_made_again(mode: str, tmp_path: Path) -> None:
    place = Place(mode, tmp_path)
    store = place.open()
    store.create("other")
    cut = store._container.current.queue.head.lsn
    store.append("other", b"lost record")
    store.append("other", b"and one that says so again")
    store.create("hidden")
    store.append("hidden", b"h" * 90)
    store.commit([Create("above", start_offset=1000), Append("above", b"a" * 90)])
    store.commit([Seal("hidden"), Create("joined", start_offset=500), Concat("joined", "hidden"), Seal("joined")])
    store.commit([Create("bare", start_offset=77)])
    expected = {info.name: (info.start_offset, info.length, info.sealed) for info in store.segments()}
    store.close()
    zero(place, cut + 1, random.Random(1))
    report = place.repair()
    assert report.last_lsn == cut and not any(item.lost for item in report.segments) and report.not_applied == ()
    with place.open() as store:
        found = {info.name: (info.start_offset, info.length, info.sealed) for info in store.segments()}
        assert found == expected
        assert store.read("above", 1000, 999) == b"a" * 90
        assert store.read("joined", 500, 999) == b"h" * 90
        assert broken(store.check("deep")) == []
