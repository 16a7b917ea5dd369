"""Writing the pieces of a planned append to their chunks: one in the caller's thread, several in parallel.

Leaves out: syncing (``commit_queue``), what a failure means (``append``, ``commit_changes``).
"""

from __future__ import annotations

from functools import partial

from chunkstore.checksum import BytesLike
from chunkstore.deadline import Deadline
from chunkstore.operations.append_plan import PlannedAppend
from chunkstore.operations.container import OwnedContainer
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = ["write_pieces"]


def write_pieces(container: OwnedContainer, planned: PlannedAppend, data: BytesLike, deadline: Deadline) -> None:
    """Write every piece to its chunk. Raises what the storage raises."""
    storage, pieces = container.storage, planned.pieces
    with container.bounded(deadline):
        if not pieces:
            _write_piece(storage, planned.targets[0], planned.tail.length - len(data), False, data)
        elif len(pieces) == 1:
            _write_piece(storage, planned.targets[0], pieces[0].offset_in_chunk, pieces[0].new, data)
        else:
            view = memoryview(data)
            calls = [
                partial(_write_piece, storage, target, piece.offset_in_chunk, piece.new, view[piece.start : piece.stop])
                for target, piece in zip(planned.targets, pieces, strict=True)
            ]
            container.pool.run_all(calls)


def _write_piece(storage: ChunkStorage, target: str, offset: int, new: bool, data: BytesLike) -> None:
    if new:
        storage.create(target, data)
    else:
        storage.write(ChunkHandle(target, True), offset, data)
