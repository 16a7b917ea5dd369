"""What a ``StorageWriter`` has on its way: pieces that wait, and the batches that they become.

Leaves out: when batches are written, and by which thread (``writer``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.errors import ChunkstoreError, Closed, InvalidArgument
from chunkstore.operations.append import Underway
from chunkstore.records.framing import Framing, check_framing
from chunkstore.runtime import Future

__all__ = ["Batch", "Pace", "Waiting", "superseded"]

_WINDOW_MAX: Final = 64


def superseded() -> Closed:
    """The error of a writer that gave way."""
    return Closed("this writer, in whose place a newer one of its id was opened,")


class Pace(NamedTuple):
    """When a writer's batches are due, and how much of them is on its way; its fields: arguments of ``Store.writer``."""

    flush_bytes: int
    flush_s: float
    buffer_bytes_max: int | None
    window: int
    framing: Framing | None

    def check(self) -> None:
        """Raise ``InvalidArgument`` unless all is in range."""
        numbers: dict[str, object] = {"flush_bytes": self.flush_bytes, "window": self.window}
        if self.buffer_bytes_max is not None:
            numbers["buffer_bytes_max"] = self.buffer_bytes_max
        for argument, value in numbers.items():
            if type(value) is not int or value < 1:
                raise InvalidArgument(f"{argument} must be a whole number from 1 on, not {value!r}", argument=argument)
        if self.window > _WINDOW_MAX:
            raise InvalidArgument(f"window must be at most {_WINDOW_MAX}, not {self.window}", argument="window")
        flush_s: object = self.flush_s
        if not isinstance(flush_s, (int, float)) or not 0 <= flush_s <= 3600:
            raise InvalidArgument(f"flush_s must be from 0 to 3600, not {flush_s!r}", argument="flush_s")
        if self.framing is not None:
            check_framing(self.framing)


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
