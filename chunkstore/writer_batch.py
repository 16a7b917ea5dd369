"""What a ``StorageWriter`` has on its way: pieces that wait, and the batches that they become.

Leaves out: when, and who carries them out (``writer``).
"""

from __future__ import annotations

from typing import NamedTuple

from chunkstore import runtime
from chunkstore.errors import ChunkstoreError
from chunkstore.operations.append import Underway
from chunkstore.runtime import Future

__all__ = ["Batch", "Waiting"]


class Waiting(NamedTuple):
    """One append that waits for its batch."""

    data: bytes
    future: Future[int]
    event_number: int


class Batch:
    """What becomes one append: its bytes, and the future and length of each piece of them. ``underway``: it has entered the queue."""

    __slots__ = (
        "began_s",
        "data",
        "done",
        "done_bytes_before",
        "error",
        "event_number",
        "expected_offset",
        "offset",
        "pieces",
        "underway",
        "written",
    )

    def __init__(self, items: list[Waiting], done_bytes_before: int, expected_offset: int | None) -> None:
        self.data: bytes = items[0].data if len(items) == 1 else b"".join(item.data for item in items)
        self.pieces: list[tuple[Future[int], int]] = [(item.future, len(item.data)) for item in items]
        self.event_number: int = items[-1].event_number if items else 0
        self.began_s: float = runtime.monotonic_s()
        self.done_bytes_before: int = done_bytes_before
        self.expected_offset: int | None = expected_offset
        self.underway: Underway | None = None
        self.offset: int = 0
        self.error: ChunkstoreError | None = None
        self.done: bool = False
        self.written: bool = False
        """Its bytes are in the storage; a record is to name them."""
