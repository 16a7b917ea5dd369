"""Copying a store that somebody else holds: consistently, beside its writer, and never for longer than a deadline.

Promises: the copy is one commit of the store, whole. A process that is stopped, whatever it was doing, holds nobody up: what opens
its store is a thread of its own, which is given up after ``COPY_S_MAX``; what it leaves is deleted by itself, or swept later.
Leaves out: whether a copy is wanted (``cache``), and whether it can be used (the journal confirms its head).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import lmdb

from chunkstore import runtime
from chunkstore.errors import ChunkstoreError
from chunkstore.metadata.cachedir import UsersLock, delete_unused
from chunkstore.metadata.lmdb.environment import Environment, acquire, opened_here, release

__all__ = ["COPY_S_MAX", "copy_store"]

COPY_S_MAX: Final = 10.0


def copy_store(
    source: str,
    target: str,
    users: UsersLock,
    map_bytes: int,
    wanted: Callable[[Environment], bool],
) -> bool:
    """Copy the store in ``source`` into the empty directory ``target``, held by ``users``, if ``wanted`` says so of it.

    Returns whether it is there; if not, ``target`` is deleted, or will be.
    """
    if opened_here(source):
        # LMDB forbids to open it twice in one process; and what our own threads do ends.
        copied = _try(lambda: _copy_here(source, target, map_bytes, wanted))
        if not copied:
            users.release()
            delete_unused(target)
        return copied
    return _Attempt(source, target, users, map_bytes, wanted).run()


def _try(copy: Callable[[], bool]) -> bool:
    """Whatever goes wrong, there are other ways to the state."""
    try:
        return copy()
    except (ChunkstoreError, OSError, lmdb.Error):
        return False


def _copy_here(source: str, target: str, map_bytes: int, wanted: Callable[[Environment], bool]) -> bool:
    environment = acquire(source, map_bytes, UsersLock(source, create=False))
    try:
        if not wanted(environment):
            return False
        environment.copy(target, COPY_S_MAX)
        return True
    finally:
        release(environment, writes=False, clean=False)


class _Attempt:
    """A copy in a thread of its own. Whoever is last, the thread or who gave it up, deletes what came to nothing."""

    def __init__(
        self, source: str, target: str, users: UsersLock, map_bytes: int, wanted: Callable[[Environment], bool]
    ) -> None:
        self._source, self._target, self._users = source, target, users
        self._map_bytes = map_bytes
        self._wanted = wanted
        self._lock = runtime.lock()
        self._copied: bool | None = None
        self._given_up = False

    def run(self) -> bool:
        task = runtime.spawn_if_possible(self._run, "chunkstore-copy")
        try:
            if task is not None:
                task.join(COPY_S_MAX)
        finally:
            with self._lock:
                copied = self._copied
                self._given_up = True
        if copied is False or task is None:
            self._clean_up()
        return copied is True

    def _run(self) -> None:
        copied = _try(self._copy)
        with self._lock:
            self._copied = copied
            given_up = self._given_up
        if given_up:
            self._clean_up()

    def _copy(self) -> bool:
        environment = Environment(self._source, self._map_bytes, UsersLock(self._source, create=False))
        try:
            if not self._wanted(environment):
                return False
            environment.copy(self._target, COPY_S_MAX)
            return True
        finally:
            environment.close()

    def _clean_up(self) -> None:
        with suppress(OSError):
            self._users.release()
        delete_unused(self._target)
