"""Servers for all tests, and what every run says at its end: which guarantees it did not test, and why.

A guarantee is named by the reason of a skip that begins with "not tested: " (``tests.support.servers.base.missing``). The
run's very last line names them again, so that nobody has to scroll.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support.scratch import memory_folder
from tests.support.servers.base import GUARANTEES, required
from tests.support.servers.running import moto, rgw, s3_environment
from tests.support.worlds import is_left_to_proofs

__all__ = ["moto", "rgw", "s3_environment"]

_KEEPER = "chunkstore-keeper"
_KEEPER_S = 15.0
_blamed: set[threading.Thread] = set()
_UNTESTED = pytest.StashKey[list[str]]()
_FAILED = pytest.StashKey[bool]()

# Whether an example took 200 ms is for the machine to say, not for the code: a thread that was held up made a test "flaky". Without
# a deadline drawing may take its time, too.
hypothesis.settings.register_profile("chunkstore", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("chunkstore")

_HERE = Path(__file__).parent
# Collected first, so that one worker runs them in a row (each would start servers of its own) and long ones do not come last.
_FIRST = (
    "contract/test_storage_hdfs.py",
    "hdfs/",
    "contract/test_storage_s3.py",
    "s3/",
    "bucket/",
)
# Collected where the second worker begins: one session of Spark for all, and long ones do not come last.
_SECOND = ("spark/", "integration/")
_frozen_for: set[Path] = set()
_IN_MEMORY = {"bucket", "engine", "faults", "hdfs", "journal", "offload", "regressions", "s3", "spark"}
# Of these, the share that meets a real disk: its syncs take long enough for others to come between.
_ON_DISK = {
    "engine/test_basic.py",
    "engine/test_concurrency.py",
    "regressions/test_hangs.py",
}


def pytest_configure(config: pytest.Config) -> None:
    """A name in CHUNKSTORE_REQUIRE that nobody knows would require nothing: say so before any test runs.

    A run under ``nohup``, or behind a shell's ``&``, ignores signals, and so would every process that a test starts and signals."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        required()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test of several worlds runs in half of them here, and in the others by ``make proofs``."""
    if is_left_to_proofs(item):
        item.add_marker(pytest.mark.proof)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What talks to servers goes first, Spark where the second worker begins; everything else stays in its order."""
    places = {
        path: path.relative_to(_HERE).as_posix() for path in {item.path for item in items} if path.is_relative_to(_HERE)
    }

    def rank(item: pytest.Item) -> int:
        place = places.get(item.path, "")
        return next((number for number, name in enumerate(_FIRST) if place.startswith(name)), len(_FIRST))

    items.sort(key=rank)
    second = [item for item in items if places.get(item.path, "").startswith(_SECOND)]
    others = [item for item in items if not places.get(item.path, "").startswith(_SECOND)]
    begin = len(items) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = others[:begin] + second + others[begin:]


def _freeze() -> None:
    """What lives by now lives to the end (thousands of collected tests, their reports, libraries): out of the sight of the full
    collections that tests ask for, and that come by themselves. The simulator collects at the end of each world: over this heap that
    took most of a second, and in a worker with Spark behind it several."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    _freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.path not in _frozen_for:
        _frozen_for.clear()
        _frozen_for.add(item.path)
        _freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fixtures may want to know that their test has failed."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """A store that a test leaves open works on, in the tests after it: simulated worlds, which change what time is, would stumble."""
    yield
    left = [thread for thread in threading.enumerate() if thread.name == _KEEPER and thread not in _blamed]
    for thread in left:
        thread.join(_KEEPER_S)
    left = [thread for thread in left if thread.is_alive()]
    if left:
        _blamed.update(left)
        pytest.fail("a store was left open; close it", pytrace=False)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """As pytest's; in memory (``tests/support/scratch.py``) for the folders above. What a failed test leaves goes to the disk."""
    parent = memory_folder()
    place = request.path.relative_to(_HERE)
    if parent is None or place.parts[0] not in _IN_MEMORY or place.as_posix() in _ON_DISK:
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="chunkstore-test-", dir=parent))
    yield folder
    if request.node.stash.get(_FAILED, False):
        shutil.copytree(folder, tmp_path / "in-memory", symlinks=True, ignore_dangling_symlinks=True)
    shutil.rmtree(folder, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the reasons of skipped tests, each once."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[text.removeprefix("Skipped: ")] += 1
    terminalreporter.section("not tested in this run, and why")
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"- {reason} ({count} {'test' if count == 1 else 'tests'})")
    if not reasons:
        terminalreporter.line("none: nothing was skipped")
    terminalreporter.config.stash[_UNTESTED] = [
        name for name, text in GUARANTEES.items() if any(reason.startswith(f"not tested: {text}") for reason in reasons)
    ]


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line of the run. Workers of a parallel run have no summary, and say nothing."""
    untested = config.stash.get(_UNTESTED, None)
    if untested is not None:
        print(f"guarantees not tested here: {'; '.join(GUARANTEES[name] for name in untested) or 'none'}", flush=True)
