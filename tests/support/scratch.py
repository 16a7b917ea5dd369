"""Temporary folders in memory, for tests in which processes die and machines do not: there the disk only takes time.

A sync costs milliseconds on a disk and nothing in memory, and a test of the engine makes hundreds. What is about the disk itself
stays on it: the storage's own tests and contract, the command line, the chaos, whatever races with real syncs. Everything
lies on the disk with ``CHUNKSTORE_FAULTS=full``, and where the system has no folder in memory with room for it.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

_SHARED = "/dev/shm"
_ROOM_BYTES = 4 << 30


@cache
def memory_folder() -> Path | None:
    """A folder in memory with room for tests and their servers; None: use the disk."""
    if os.environ.get("CHUNKSTORE_FAULTS", "") == "full" or not os.access(_SHARED, os.W_OK | os.X_OK):
        return None
    return Path(_SHARED) if shutil.disk_usage(_SHARED).free >= _ROOM_BYTES else None
