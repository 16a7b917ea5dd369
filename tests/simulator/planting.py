"""A plugin of pytest: the planted bug that ``CHUNKSTORE_MUTANT`` names is in the code as long as the tests run.

``python -m pytest -p tests.simulator.planting FILES``. Promises: nothing else is changed. Leaves out: processes that tests start.
"""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from tests.simulator.mutants import MUTANTS, planted

__all__ = ["MUTANT", "pytest_configure"]

MUTANT = "CHUNKSTORE_MUTANT"


def pytest_configure(config: pytest.Config) -> None:
    """Plant it."""
    stack = ExitStack()
    stack.enter_context(planted(MUTANTS[os.environ[MUTANT]]))
    config.add_cleanup(stack.close)
