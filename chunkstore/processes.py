"""Other processes of this machine: whether one lives, and whether it is the same one still; and what is told in forked ones.

Leaves out: processes of other machines, and starting any.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["began", "is_alive", "tell_in_child"]


class _Shared(Protocol):
    def _leave_to_parent(self) -> None: ...


_shared: weakref.WeakSet[_Shared] = weakref.WeakSet()


def tell_in_child(thing: _Shared) -> None:
    """Call its ``_leave_to_parent`` in processes that are forked while it lives: its threads, and those that hold its locks, are not
    there."""
    _shared.add(thing)


def _after_fork_in_child() -> None:
    for thing in _shared:
        thing._leave_to_parent()  # noqa: SLF001  (theirs, told by us)


os.register_at_fork(after_in_child=_after_fork_in_child)


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
