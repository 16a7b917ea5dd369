"""Scripts that run in an interpreter of their own, with the packages of this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(str(_ROOT / part) for part in ("", "bindings", "journal"))}


def run_script(script: str, *arguments: object) -> str:
    """What it prints; it must end well."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True, text=True, timeout=120, env=ENVIRONMENT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
