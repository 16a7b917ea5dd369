"""Other processes of this machine: whether one lives; and what is told in forked ones.

Leaves out: processes of other machines, and starting any.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["is_alive", "tell_in_child"]


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


def is_alive(pid: int) -> bool:
    """Whether there is a process of this number that has not ended (only its parent has not asked how)."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # it is somebody else's
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return True  # the system does not tell (all but Linux)
