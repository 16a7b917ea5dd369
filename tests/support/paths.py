"""Where the sources lie, for processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = os.pathsep.join(str(ROOT / part) for part in ("", "bindings", "journal"))
"""The PYTHONPATH of a checkout."""
