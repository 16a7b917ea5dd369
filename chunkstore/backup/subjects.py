"""What exports and backups work at: an owner or a replica of the caller's, or a root, which is opened for it.

Promises: what was opened here is closed; what is the caller's stays open. Leaves out: opening (``chunkstore.assembly``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from chunkstore.assembly import open_store
from chunkstore.config import Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import InvalidArgument
from chunkstore.following import open_replica
from chunkstore.registry import Root
from chunkstore.replica import Replica

__all__ = ["Subject", "opened_to_read"]

Subject: TypeAlias = ChunkedSegmentStorage | Replica | Root


@contextmanager
def opened_to_read(
    subject: Subject,
    *,
    pins: bool,
    container: str,
    settings: Settings | None,
    wait_s: float | None,
    take_over: bool,
) -> Iterator[ChunkedSegmentStorage | Replica]:
    """``subject`` itself; of a root an owner where ``pins`` are to be made, else a replica. Raises ``InvalidArgument``, and as
    opening these."""
    if isinstance(subject, ChunkedSegmentStorage | Replica):
        yield subject
        return
    if not isinstance(subject, str | os.PathLike):
        text = f"give an owner, a replica, or a root, not {type(subject).__name__}"
        raise InvalidArgument(text, argument="store")
    opened: ChunkedSegmentStorage | Replica = (
        open_store(subject, container=container, create=False, settings=settings, wait_s=wait_s, take_over=take_over)
        if pins
        else open_replica(subject, container=container, settings=settings)
    )
    with opened:
        yield opened
