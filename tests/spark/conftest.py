"""One Spark session for all tests of a process; skipped aloud where it cannot be."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.allowance import allow
from tests.support.spark import need_spark, start_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    allow(items, Path(__file__).parent, 900)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    need_spark()
    before = dict(os.environ)
    interrupted = signal.getsignal(signal.SIGINT)
    session = start_session(tmp_path_factory.mktemp("spark"))
    signal.signal(signal.SIGINT, interrupted)  # the tests that follow here are not Spark's
    yield session
    session.stop()
    os.environ.clear()
    os.environ.update(before)
