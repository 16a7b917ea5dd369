"""Backup tests run in the four worlds of the engine's (``tests/support/worlds.py``), where records are appended with small appends in
them."""

from __future__ import annotations

import pytest

from tests.support.worlds import World, world

__all__ = ["world"]


@pytest.fixture(autouse=True)
def _appends_in_records(request: pytest.FixtureRequest) -> None:
    if "world" in request.fixturenames:
        chosen: World = request.getfixturevalue("world")
        if chosen.mode == "append":
            chosen.defaults["inline_bytes_max"] = None
