"""Containers that an earlier version spoilt (``tests/golden/wrecks``): opening refuses them, and repair brings back what can be had."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.assembly import open_replica
from chunkstore.config import Settings
from chunkstore.errors import Damaged
from chunkstore.repair import repair
from tests.support.data import problems
from tests.support.packed import unpack

GOLDEN = Path(__file__).parents[1] / "golden" / "wrecks"
EXPECTED: dict[str, dict[str, Any]] = json.loads((GOLDEN / "expected.json").read_text())


class Wreck:
    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.caches = name, folder, 0
        self.root = f"file://{folder}/root"
        self.expected = EXPECTED[name]
        unpack(GOLDEN / f"{name}.tar.gz", folder / "root")

    def settings(self) -> Settings:
        """Another machine each time."""
        self.caches += 1
        return Settings(cache_dir=str(self.folder / f"cache-{self.caches}"), lease_s=0, lmdb_map_bytes=1 << 26)

    def open(self) -> chunkstore.ChunkedSegmentStorage:
        return chunkstore.open(self.root, settings=self.settings(), create=False)


@pytest.fixture(params=sorted(EXPECTED))
def wreck(request: pytest.FixtureRequest, tmp_path: Path) -> Wreck:
    return Wreck(request.param, tmp_path)


def test_nothing_opens_it_by_itself(wreck: Wreck) -> None:
    for _ in range(2):
        with pytest.raises(Damaged):
            wreck.open()


LOST = {"copied-append": ("plain", (15, 43)), "flipped-name": ("lost", (0, 14))}
"""What cannot be kept: bytes behind those of the copy, which lie elsewhere; a second segment under a name that is taken."""


def files(wreck: Wreck) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (wreck.folder / "root").rglob("*") if path.is_file()}


def test_a_dry_run_says_the_same_and_changes_no_byte(wreck: Wreck) -> None:
    before = files(wreck)
    told = repair(wreck.root, settings=wreck.settings(), dry_run=True)
    assert files(wreck) == before
    done = repair(wreck.root, settings=wreck.settings())
    assert told.dry_run and told.epoch == 0
    assert replace(done, dry_run=True, epoch=0) == told
    after = files(wreck)
    hints = ("lease", "LATEST", "VOIDED")
    assert all(after[name] == data for name, data in before.items() if not name.endswith(hints)), (
        "all of it stays stored"
    )


def test_it_is_repaired_up_to_the_last_good_record(wreck: Wreck) -> None:
    report = repair(wreck.root, settings=wreck.settings())
    assert not report.sound and report.last_lsn == wreck.expected["lsn"] and report.unreadable == ()
    segment, lost = LOST.get(wreck.name.split("-", 1)[1], ("", None))
    assert {item.segment: item.lost for item in report.segments if item.lost} == ({segment: (lost,)} if lost else {})
    for round_ in range(2):
        with wreck.open() as store:  # each time without a cache
            for name, held in wreck.expected["held"].items():
                assert store.read(name, 0, 999).startswith(bytes.fromhex(held)), name
            for name, offset, data in wreck.expected["acknowledged"]:
                kept = store.exists(name) and store.read(name, 0, 999)[offset:].startswith(bytes.fromhex(data))
                assert kept or name == segment, (name, offset)
            assert problems(store.check("deep")) == []
            for info in store.segments():
                assert store.append(info.name, b"behind it;", expected_offset=info.length) == info.length
            if round_:
                store.collect()
                assert problems(store.check("deep")) == []
    if wreck.name.endswith("copied-table"):
        with wreck.open() as store:
            found = store.table("colours").get(b"red")
            assert found is not None and found.value == b"of the original"
    with open_replica(wreck.root, settings=wreck.settings()) as replica:
        replica.refresh()
        assert problems(replica.check("deep")) == []
    assert repair(wreck.root, settings=wreck.settings()).sound
