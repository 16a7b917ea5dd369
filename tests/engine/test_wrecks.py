"""Containers with a record that does not lead to the state it tells: opening refuses them, and repair brings back what can be had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import chunkstore
from chunkstore.config import Settings
from chunkstore.errors import Damaged
from chunkstore.following import open_replica
from chunkstore.repair import repair
from tests.engine.wrecks import wreck
from tests.support.data import problems


class Place:
    def __init__(self, mode: str, folder: Path) -> None:
        self.folder, self.caches = folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        self.root = f"file://{folder}/root"
        self.wreck = wreck(mode, folder)  # type: ignore[arg-type]

    def settings(self) -> Settings:
        """Another machine each time."""
        self.caches += 1
        return Settings(cache_dir=str(self.folder / f"cache-{self.caches}"), lease_s=0, lmdb_map_bytes=1 << 26)

    def open(self) -> chunkstore.ChunkedSegmentStorage:
        return chunkstore.open(self.root, settings=self.settings(), create=False)


@pytest.fixture(params=["append", "slot"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


def test_nothing_opens_it_by_itself(place: Place) -> None:
    for _ in range(2):
        with pytest.raises(Damaged):
            place.open()


def files(place: Place) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (place.folder / "root").rglob("*") if path.is_file()}


def test_a_dry_run_says_the_same_and_changes_no_byte(place: Place) -> None:
    before = files(place)
    told = repair(place.root, settings=place.settings(), dry_run=True)
    assert files(place) == before
    done = repair(place.root, settings=place.settings())
    assert told.dry_run and told.epoch == 0
    assert replace(done, dry_run=True, epoch=0) == told
    after = files(place)
    hints = ("lease", "LATEST", "VOIDED")
    assert all(after[name] == data for name, data in before.items() if not name.endswith(hints)), (
        "all of it stays stored"
    )


def test_it_is_repaired_up_to_the_last_good_record(place: Place) -> None:
    report = repair(place.root, settings=place.settings())
    assert not report.sound and report.last_lsn == place.wreck.lsn and report.unreadable == ()
    assert not [item for item in report.segments if item.lost]
    for round_ in range(2):
        with place.open() as store:  # each time without a cache
            for name, held in place.wreck.held.items():
                assert name == "lost" or store.read(name, 0, 999).startswith(held), name
            for name, offset, data in place.wreck.acknowledged[4:]:
                assert store.read(name, 0, 999)[offset:].startswith(data), (name, offset)
            assert problems(store.check("deep")) == []
            for info in store.segments():
                assert store.append(info.name, b"behind it;", expected_offset=info.length) == info.length
            if round_:
                store.collect()
                assert problems(store.check("deep")) == []
            found = store.table("colours").get(b"red")
            assert found is not None and found.value == b"of the original"
    with open_replica(place.root, settings=place.settings()) as replica:
        replica.refresh()
        assert problems(replica.check("deep")) == []
    assert repair(place.root, settings=place.settings()).sound
