"""More time for the tests of a folder than the usual limit of one test, which is meant for what hangs: servers and JVMs start in them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest


def allow(items: Iterable[pytest.Item], folder: Path, seconds: int) -> None:
    """Give each test below ``folder`` so much time, unless it says itself how much it takes."""
    for item in items:
        if folder in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(seconds))
