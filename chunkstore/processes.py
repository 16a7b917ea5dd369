"""Other processes of this machine: whether one lives, and whether it is the same one still.

Leaves out: processes of other machines, and starting any.
"""

from __future__ import annotations

import os

__all__ = ["began", "is_alive"]


def began(pid: int) -> str | None:
    """When a process began, in the system's words; empty where the system does not tell (all but Linux). None: there is none, or it has
    ended and only its parent has not asked how. Another one that has got its number began at another time."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except OSError:
        pass  # it is somebody else's
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return None if fields[0] in "ZX" else fields[19]


def is_alive(pid: int) -> bool:
    """Whether there is a process of this number."""
    return began(pid) is not None
