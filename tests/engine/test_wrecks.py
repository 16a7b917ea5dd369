"""Containers that an earlier version spoilt (``tests/golden/wrecks``): opening refuses them, and changes nothing that counts."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.config import Settings
from chunkstore.errors import Damaged

GOLDEN = Path(__file__).parents[1] / "golden" / "wrecks"
EXPECTED: dict[str, dict[str, Any]] = json.loads((GOLDEN / "expected.json").read_text())


class Wreck:
    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.caches = name, folder, 0
        self.root = f"file://{folder}/root"
        self.expected = EXPECTED[name]
        with tarfile.open(GOLDEN / f"{name}.tar.gz") as packed:
            packed.extractall(folder / "root", filter="data")

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
