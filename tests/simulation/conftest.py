"""A ``scene`` is what named schedules play in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chunkstore import runtime
from tests.simulation.scene import Scene, scene_of


@pytest.fixture(autouse=True)
def production_afterwards() -> Iterator[None]:
    yield
    runtime.install(None)


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """In the world that ``@worlds(...)`` names."""
    with scene_of(request.param) as scene:
        yield scene
