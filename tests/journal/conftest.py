from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from tests.journal.world import World, make_storage


@pytest.fixture(params=["memory-slot", "memory-append", "filesystem-slot", "filesystem-append"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    kind, _, mode = str(request.param).partition("-")
    return World(make_storage(kind, tmp_path), "slot" if mode == "slot" else "append")


@pytest.fixture(params=["memory", "filesystem"])
def append_world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(make_storage(str(request.param), tmp_path), "append")


@pytest.fixture(params=["memory", "filesystem"])
def slot_world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(make_storage(str(request.param), tmp_path), "slot")


@pytest.fixture(params=["slot", "append"])
def memory_world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    mode: Literal["slot", "append"] = "slot" if request.param == "slot" else "append"
    return World(make_storage("memory", tmp_path), mode)
