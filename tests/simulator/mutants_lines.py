"""Planted bugs in appends by lines: the rows that follow from them, and their way to the acknowledgement.

Promises: as ``mutants_engine``. Leaves out: spilling what lines have added (``mutants_inline``).
"""

from __future__ import annotations

from typing import Final

from tests.simulator.mutant import EVERYWHERE, Mutant, Patch, single

__all__ = ["LINE_MUTANTS"]

_FOLD: Final = "chunkstore.metadata.lines:LineFold"
_QUEUE: Final = "chunkstore.operations.commit_queue:CommitQueue"
_APPENDED: Final = 'step = "append"\n            position, lines = environment.append_lines'

LINE_MUTANTS: Final = (
    single(
        "line-crc-of-the-first",
        "an extent keeps the CRC of its first line",
        EVERYWHERE,
        f"{_FOLD}.add",
        "tail[3] = crc",
        "pass",
    ),
    single(
        "line-without-previous",
        "an extent does not lead back to the chunk before it",
        EVERYWHERE,
        f"{_FOLD}.add",
        "crc, grown.last, NO_CHUNK,",
        "crc, NO_CHUNK, NO_CHUNK,",
    ),
    single(
        "line-last-chunk-offset",
        "a segment's last chunk is said to begin where the one before it does",
        EVERYWHERE,
        f"{_FOLD}._lengthened",
        "offset, last = grown.ids[-1]",
        "offset, last = grown.segment.last_chunk_offset, grown.ids[-1][1]",
    ),
    single(
        "line-without-writer",
        "an append by line does not remember its writer",
        EVERYWHERE,
        f"{_FOLD}.add",
        "if event is not None:",
        "if False:",
    ),
    single(
        "line-before-durable",
        "appends by line are acknowledged before their record is durable",
        EVERYWHERE,
        f"{_QUEUE}._commit",
        _APPENDED,
        f"self._decide(batch, None, previous.lsn + 1)\n            {_APPENDED}",
    ),
    single(
        "lines-of-two-leaders",
        "two threads lead, each with a record of its own, behind the same one",
        EVERYWHERE,
        f"{_QUEUE}.enter_line",
        "self._leading = True",
        "pass",
    ),
    Mutant(
        "line-tip-outlives-failure",
        "behind a batch that failed, the next line goes where that would have ended",
        EVERYWHERE,
        (
            Patch(
                "chunkstore.operations.append_line:append_line",
                "or state.tip_generation != queue.generation\n        or container.closed",
                "or container.closed",
            ),
            Patch(
                "chunkstore.operations.append_line:append_line",
                "or state.tip_generation != queue.generation\n                or state.sealed",
                "or state.sealed",
            ),
            Patch(
                "chunkstore.operations.append_line:enter_line",
                "event, state.tip_generation)",
                "event, container.current.queue.generation)",
            ),
        ),
    ),
)
