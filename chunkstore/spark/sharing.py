"""How a micro-batch is shared among the segments or topics of a stream, and what happens to data that are gone.

Promises: nobody starves, and nobody waits for a longer backlog than its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from chunkstore.errors import ChunkstoreError
from chunkstore.spark.options import ReadOptions

__all__ = ["Limit", "lose", "share_out"]

_LOG = logging.getLogger("chunkstore.spark")


class Limit(NamedTuple):
    """Of one batch; None: none. What has something new gives one row (of a topic: one block) at least."""

    size_bytes: int | None = None


def share_out(backlog: Mapping[str, int], limit: Limit, go_on: Callable[[str, Limit], int]) -> None:
    """Call ``go_on`` for each name, the smallest backlog first, with its equal share of what is left; it answers with how many bytes it
    took."""
    busy = sum(size > 0 for size in backlog.values())
    left = limit.size_bytes
    for size, name in sorted((size, name) for name, size in backlog.items()):
        if size <= 0:
            go_on(name, Limit(left))
            continue
        took = go_on(name, Limit(None if left is None else max(1, left // busy)))
        left = None if left is None else max(0, left - took)
        busy -= 1


def lose(options: ReadOptions, error: ChunkstoreError) -> None:
    """Data that nobody has read is gone: raise ``error`` unless that is allowed."""
    if options.fail_on_data_loss:
        error.add_note(
            "The stream had not seen it sealed and read to its end. Option failOnDataLoss=false continues, and counts the lost bytes."
        )
        raise error
    _LOG.warning("a stream continues without the lost bytes: %s", error.message)
