"""Processes of this machine: where numbers count, whether a process lives, and what a forked child learns.

Leaves out: processes of other machines, and starting any.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["is_alive", "pid_namespace", "read_boot_id", "tell_in_child", "this_process"]


class _Shared(Protocol):
    def _leave_to_parent(self) -> None: ...


_shared: weakref.WeakSet[_Shared] = weakref.WeakSet()
_here = object()


def this_process() -> object:
    """An object of this process alone. A forked child has another one, also where its number in a new namespace is the same."""
    return _here


def tell_in_child(thing: _Shared) -> None:
    """Call its ``_leave_to_parent`` in processes that are forked while it lives: its threads, and those that hold its locks, are not
    there."""
    _shared.add(thing)


def _after_fork_in_child() -> None:
    global _here  # noqa: PLW0603
    _here = object()
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


def read_boot_id() -> str:
    """The id of this boot of the machine; empty where the system does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """The id of our PID namespace, asked each time: a forked child may be in a new one. Empty where the system does not tell, or /proc
    is of another one and shows other processes under our numbers."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino) if os.readlink("/proc/self") == str(os.getpid()) else ""
    except OSError:
        return ""
