"""The process that the demonstration kills: it offloads the flights and tells what was acknowledged.

Promises: a line is written only after the store has acknowledged what it says. It begins on request, and never gets
beyond 80 % of the stream: there it waits to be killed. Leaves out: resuming (``stage``).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

import chunkstore
from chunkstore.config import KIB, MIB, RollingPolicy, Settings
from chunkstore.demo.flights import TOPICS, events
from chunkstore.pulsar import OffloadWriter

__all__ = ["Sizes", "main", "writers"]

_EVENT_BYTES: Final = 300
_BLOCKS: Final = 400
_BRAKE: Final = 0.8
_SNAPSHOT: Final = 0.1


class Sizes(NamedTuple):
    """Bytes of blocks, of data segments (at most, about) and of their chunks."""

    block: int
    segment: int
    chunk: int

    @classmethod
    def of(cls, rows: int) -> Sizes:
        """Such that the stream has about 400 blocks, at 4 KiB or more each."""
        block = max(4 * KIB, min(MIB, rows * _EVENT_BYTES // _BLOCKS))
        return cls(block, 64 * block, 16 * block)


def writers(store: chunkstore.ChunkedSegmentStorage, rows: int) -> Mapping[str, OffloadWriter]:
    """A writer for each topic; they go on where others have stopped. Raises as ``OffloadWriter``."""
    sizes = Sizes.of(rows)
    rolling = RollingPolicy(chunk_size_bytes_max=sizes.chunk)
    return {
        topic: OffloadWriter(store, topic, segment_bytes_max=sizes.segment, block_bytes=sizes.block, rolling=rolling)
        for topic in TOPICS
    }


def main(root: str, container: str, cache: str, rows: int) -> None:
    """Write; tells ``ready``, its epoch, then ``ack TOTAL TOPIC LEDGER LAST`` for each block, once ``snapshot TOTAL``."""
    stream = events(rows)
    with chunkstore.open(root, container=container, settings=Settings(cache_dir=cache)) as store:
        _tell(f"ready {store.epoch}")
        sys.stdin.readline()
        writing = writers(store, rows)
        ledgers: dict[str, int] = {}
        acknowledged = 0
        snapshot_due = True
        for event in stream:
            writer = writing[event.topic]
            before = writer.entries_acknowledged
            writer.append(event.ledger, event.entry, event.payload)
            if writer.entries_acknowledged != before:
                # The block ends before this event.
                ledger = ledgers[event.topic]
                acknowledged += writer.entries_acknowledged - before
                _tell(f"ack {acknowledged} {event.topic} {ledger} {writer.last_entry(ledger)}")
                if snapshot_due and acknowledged >= rows * _SNAPSHOT:
                    snapshot_due = False
                    store.snapshot()
                    _tell(f"snapshot {acknowledged}")
                if acknowledged >= rows * _BRAKE:
                    sys.stdin.readline()
            ledgers[event.topic] = event.ledger


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
