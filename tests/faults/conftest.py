"""What the fault suites stand on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chunkstore import runtime
from tests.faults.ground import fast_folder
from tests.faults.tiny import InlineRuntime


@pytest.fixture(params=["slot", "append"])
def mode(request: pytest.FixtureRequest) -> Any:
    """The journal's mode."""
    return request.param


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory, if there is such a folder."""
    with fast_folder(tmp_path) as found:
        yield found


@pytest.fixture
def inline() -> Iterator[None]:
    """Pools start no threads."""
    runtime.install(InlineRuntime())
    yield
    runtime.install(None)
