"""Deciding a name: every conditional create of the journal goes through ``put_decided`` (protocol 2.3).

Promises: the bytes offered for a name never change while its fate is open; "taken" is read back and compared whole, so a
lost reply is recognised as our own success; "not there" after a failed attempt proves nothing and is never believed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from chunkstore.config import LIMITS
from chunkstore.deadline import Backoff
from chunkstore.errors import (
    AccessDenied,
    ChunkNotFound,
    ChunkstoreError,
    Damaged,
    DeadlineExceeded,
    RootUnavailable,
    StorageFull,
    StorageUnavailable,
)
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = [
    "Undecided",
    "put_decided",
    "race_backoff",
    "read_hint",
    "read_if_present",
    "read_whole",
]

_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 1.0
T = TypeVar("T")


class Undecided(Exception):
    """The deadline passed while an attempt may still land. ``error`` is the last thing the storage said."""

    def __init__(self, error: StorageUnavailable) -> None:
        super().__init__(str(error))
        self.error = error


def race_backoff(deadline_s: float) -> Backoff:
    """The pauses of those that race for a name, or ask again what a record waits for: short ones, for ``deadline_s`` seconds."""
    return Backoff(deadline_s, pause_s_first=_FIRST_PAUSE_S, pause_s_max=_LONGEST_PAUSE_S)


def read_whole(storage: ChunkStorage, name: str, *, size_max: int = LIMITS.record_bytes_max) -> bytes:
    """All bytes of ``name``. Raises: ``ChunkNotFound``; ``Damaged`` when it is longer than ``size_max``."""
    # A handle is plain data: building it ourselves saves the request that open_read would cost.
    data = storage.read(ChunkHandle(name, False), 0, size_max + 1)
    if len(data) > size_max:
        raise Damaged(f"the object is longer than {size_max} bytes", object=name, position=size_max)
    return data


def read_if_present(storage: ChunkStorage, name: str, *, size_max: int = LIMITS.record_bytes_max) -> bytes | None:
    """As ``read_whole``, None where there is nothing."""
    try:
        return read_whole(storage, name, size_max=size_max)
    except ChunkNotFound:
        return None


def read_hint(storage: ChunkStorage, name: str, decode: Callable[..., T]) -> T | None:
    """What the hint under ``name`` says; None when there is none or it is unreadable: a hint proves nothing either way."""
    try:
        data = read_if_present(storage, name, size_max=LIMITS.small_object_bytes_max)
        return None if data is None else decode(data, object=name)
    except Damaged:
        return None


def put_decided(storage: ChunkStorage, name: str, data: bytes, *, deadline_s: float) -> bytes:
    """Create ``name`` with ``data`` unless it exists, and return what it holds for ever: ``data``, or the bytes of another writer.

    Raises: ``StorageFull``, ``AccessDenied``, ``RootUnavailable``, or another answer to the first attempt (certainly did not
    happen); ``Undecided`` (may still happen: keep the bytes, ask again, or let another writer occupy the name); ``Damaged``
    (the name is taken, by what cannot be read). Repeating the call with the same bytes is always safe.
    """
    backoff = race_backoff(deadline_s)
    in_flight = False
    taken = False
    while True:
        error: StorageUnavailable
        try:
            if storage.create_if_absent(name, data):
                return data
            taken = True
            found = read_whole(storage, name, size_max=max(len(data), LIMITS.record_bytes_max))
            if found == data:
                # Our own earlier attempt, seen again: visible is not yet durable if its reply was lost (P6).
                storage.harden(name)
            return found
        except ChunkNotFound as missing:
            error = StorageUnavailable(f"{name} was taken and then not readable", object=name)
            error.__cause__ = missing
        except (StorageFull, AccessDenied, RootUnavailable) as answer:
            # This attempt did not happen, but an earlier one may still land: only then is the answer unknown.
            if not in_flight and not taken:
                raise
            error = _in_doubt(answer, name)
        except StorageUnavailable as unavailable:
            in_flight = True
            error = unavailable
        except Damaged:
            raise
        except ChunkstoreError as answer:
            # No turn, no right, closed: true of this attempt, and says nothing of one before it, nor of whose the name is.
            if not in_flight and not taken:
                raise
            error = _in_doubt(answer, name)
            if not isinstance(answer, DeadlineExceeded):
                raise Undecided(error) from error
        if not backoff.pause():
            raise Undecided(error) from error


def _in_doubt(error: ChunkstoreError, name: str) -> StorageUnavailable:
    wrapped = StorageUnavailable(f"{error}; an attempt before that may still land", object=name)
    wrapped.__cause__ = error
    return wrapped
