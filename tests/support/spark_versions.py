"""``make spark-versions``: the tests of the Spark part on older versions of PySpark, each in an environment of its own.

An environment has its PySpark to itself and shares all else with the one that runs this. It is made once, below ``build``; a newer
patch of the same minor version is taken by ``--fresh``. Prints a table; exits 1 where a test failed or none ran.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

from tests.support.paths import ROOT, SOURCES
from tests.support.wheels import new_environment, run, site_of

__all__ = ["Outcome", "environment_of", "main", "outcome_of"]

VERSIONS = ("4.1", "4.2")
# Reading, writing and streaming through Spark, and all that is tested of them without a JVM.
TESTS = ["tests/spark", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/unit/test_spark_*.py"))]
# PySpark 4.1 leaves the sockets of collected results to the garbage collector; everywhere else such a warning is an error.
_ALLOWED = ("-W", "ignore:unclosed <socket:ResourceWarning")


class Outcome(NamedTuple):
    """What the tests did on one version."""

    version: str
    passed: int
    failed: int
    skipped: int
    seconds: float

    @property
    def is_good(self) -> bool:
        return self.passed > 0 and self.failed == 0


def environment_of(version: str, folder: Path, *, fresh: bool = False) -> Path:
    """The Python of the environment of a minor version, which is made if it is not there; downloads half a gigabyte then."""
    place = folder / f"spark-{version}"
    python, ready = place / "bin" / "python", place / "ready"
    if ready.exists() and not fresh:
        return python
    shutil.rmtree(place, ignore_errors=True)
    print(f"spark-versions: downloading PySpark {version} into {place} (once, half a gigabyte)", flush=True)
    new_environment(place)
    target = str(site_of(python))
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, f"pyspark=={version}.*")
    ready.touch()
    return python


def outcome_of(version: str, report: Path, seconds: float) -> Outcome:
    """Counted from a report of pytest's in JUnit's XML; nothing passed where there is none."""
    try:
        suites = list(ET.parse(report).iter("testsuite"))
    except (OSError, ET.ParseError):
        return Outcome(version, 0, 0, 0, seconds)
    tests, skipped, failed = (
        sum(int(suite.get(name, 0)) for suite in suites for name in names)
        for names in (("tests",), ("skipped",), ("failures", "errors"))
    )
    return Outcome(version, tests - skipped - failed, failed, skipped, seconds)


def _run_tests(version: str, python: Path, what: list[str]) -> Outcome:
    said = run(python, "-c", "import pyspark; print(pyspark.__version__)", cwd=ROOT).strip()
    if not said.startswith(f"{version}."):
        raise SystemExit(f"spark-versions: {python} has PySpark {said} instead of {version}; run again with --fresh")
    report = python.parent.parent / "report.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *_ALLOWED, f"--junitxml={report}", *what]
    environment = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"} | {"PYTHONPATH": SOURCES}
    begun = time.monotonic()
    subprocess.run(command, cwd=ROOT, env=environment, check=False)
    return outcome_of(said, report, time.monotonic() - begun)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", default=",".join(VERSIONS), help="minor versions, separated by commas")
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="where the environments are kept")
    parser.add_argument("--fresh", action="store_true", help="make them anew")
    parser.add_argument("tests", nargs="*", default=TESTS, help="what pytest is given")
    chosen = parser.parse_args()
    outcomes = [
        _run_tests(version, environment_of(version, chosen.folder, fresh=chosen.fresh), chosen.tests)
        for version in chosen.versions.split(",")
    ]
    print(f"\n{'PySpark':<10}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    for one in outcomes:
        print(f"{one.version:<10}{one.passed:>8}{one.failed:>8}{one.skipped:>9}{one.seconds:>9.0f}")
    return 0 if all(one.is_good for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
