"""HTTP answers, heads included, that end by the deadline of their request and stay within its measure.

Promises: inside ``bounded``, a server that answers a byte at a time is given up at the deadline (a socket's own timeout
begins anew with every byte), one that answers without end at ``bytes_max``, and room is made for what has come, not for
what was announced. Libraries get there through connections whose ``response_class`` is ``AnswerInTime``.
Leaves out: sending, resolving names, what is asked.
"""

from __future__ import annotations

import http.client
import io
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, cast

from chunkstore.deadline import Deadline

__all__ = ["AnswerInTime", "AnswerTooLong", "bounded"]

_PIECE_BYTES: Final = 1 << 20


class AnswerTooLong(OSError):
    """More came than any answer to this request may have."""


class _Bounds(NamedTuple):
    deadline: Deadline
    bytes_max: int | None


_bounds: ContextVar[_Bounds | None] = ContextVar("chunkstore-answer-bounds", default=None)


@contextmanager
def bounded(deadline: Deadline, bytes_max: int | None = None) -> Iterator[None]:
    """Answers that begin in this block, in this thread, end by ``deadline`` and have ``bytes_max`` bytes at most, head and all:
    ``TimeoutError``, ``AnswerTooLong``."""
    before = _bounds.set(_Bounds(deadline, bytes_max))
    try:
        yield
    finally:
        _bounds.reset(before)


class _InTime(io.RawIOBase):
    """What comes from a socket, within bounds."""

    def __init__(self, raw: io.RawIOBase, wire: socket.socket, bounds: _Bounds) -> None:
        self._raw = raw
        self._wire = wire
        self._deadline, self._bytes_max = bounds
        self._taken = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._deadline.left_s()
        if left_s <= 0.0:
            raise TimeoutError("the deadline passed while the answer was read")
        silence_s = self._wire.gettimeout()
        if silence_s is None or silence_s > left_s:
            # Its owner sets it anew before each request.
            self._wire.settimeout(left_s)
        count = cast("int | None", self._raw.readinto(buffer))
        self._taken += count or 0
        if self._bytes_max is not None and self._taken > self._bytes_max:
            raise AnswerTooLong(f"the answer is longer than {self._bytes_max} bytes")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Piecewise(io.BufferedReader):
    """Makes no room for a length that was only announced."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size <= _PIECE_BYTES:
            return super().read(size)
        pieces = []
        while size > 0 and (piece := super().read(min(size, _PIECE_BYTES))):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


class AnswerInTime(http.client.HTTPResponse):
    """See the module."""

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        if (bounds := _bounds.get()) is not None:
            self.fp = _Piecewise(_InTime(self.fp.detach(), sock, bounds))
