"""Records in a sequence of bytes: how they are written, and how buffers are cut into them again.

Promises: records do not depend on how the bytes come in buffers; memory is one buffer and one unfinished record, which
``record_bytes_max`` bounds before its bytes are taken. ``lines``: a newline ends each record; the last one of all may lack it.
``length-prefixed``: 4 bytes of length, big-endian, precede each record.
Leaves out: reading the bytes.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final, Literal, NamedTuple

from chunkstore.errors import Damaged, InvalidArgument

__all__ = ["Framing", "RecordSplitter", "Records", "check_framing", "framed"]

Framing = Literal["lines", "length-prefixed"]
_PREFIX_BYTES: Final = 4
_NEWLINE: Final = b"\n"


class Records(NamedTuple):
    """Consecutive records: the offset of each one's first byte (its prefix included), and its payload."""

    offsets: list[int]
    values: list[bytes]


def check_framing(framing: object) -> None:
    """Raise ``InvalidArgument`` for what is no framing."""
    if framing not in ("lines", "length-prefixed"):
        raise InvalidArgument(f"framing must be 'lines' or 'length-prefixed', not {framing!r}", argument="framing")


def framed(payload: bytes, framing: Framing | None) -> bytes:
    """A record as it is stored; None: as it is. Raises ``InvalidArgument``: a line with a newline in it, or 4 GiB with a length."""
    if framing is None:
        return payload
    if framing == "lines":
        if _NEWLINE in payload:
            raise InvalidArgument(
                "a record holds a newline: with framing 'lines' it is read as two", argument="framing"
            )
        return payload + _NEWLINE
    if len(payload) >> 8 * _PREFIX_BYTES:
        raise InvalidArgument(
            f"a record of {len(payload)} bytes: its length has {_PREFIX_BYTES} bytes", argument="data"
        )
    return len(payload).to_bytes(_PREFIX_BYTES, "big") + payload


class RecordSplitter:
    """Cuts consecutive buffers into records. ``object`` names their source in errors, ``start`` is the offset of the first byte.

    ``unfinished_bytes``: how many bytes of the next record it holds. Not thread-safe.
    """

    def __init__(self, object: str, framing: Framing, start: int, record_bytes_max: int) -> None:
        self._object = object
        self._lines = framing == "lines"
        self._limit = record_bytes_max
        self._at = start
        self._parts: list[bytes] = []
        self.unfinished_bytes: int = 0
        self._wanted = _PREFIX_BYTES
        self._too_long_at: int | None = None

    def feed(self, data: bytes) -> Records:
        """The records that end in the next buffer. Raises ``Damaged`` at the first record above the limit, which cannot be passed;
        where records come before it in the buffer, these are returned, and it is raised next."""
        self._check_length()
        return self._feed_lines(data) if self._lines else self._feed_prefixed(data)

    def end(self) -> Records:
        """The rest: a last line without a newline. Raises ``Damaged`` where a record with a length is cut off."""
        self._check_length()
        rest = b"".join(self._parts)
        if rest and not self._lines:
            text = f"its last record is cut off: {len(rest)} bytes instead of {self._wanted} with the length"
            raise Damaged(text, object=self._object, position=self._at)
        self._parts.clear()
        self.unfinished_bytes = 0
        return Records([self._at], [rest]) if rest else Records([], [])

    def _feed_lines(self, data: bytes) -> Records:
        end = data.rfind(_NEWLINE)
        if end < 0:
            self._hold(data)
            found = Records([], [])
            return self._before(found, self._at) if self.unfinished_bytes > self._limit else found
        block = b"".join((*self._parts, data[:end]))
        values = block.split(_NEWLINE)
        offsets = list(accumulate((len(line) + 1 for line in values), initial=self._at))
        self._at = offsets.pop()
        for number, line in enumerate(values if len(block) > self._limit else ()):
            if len(line) > self._limit:
                return self._before(Records(offsets[:number], values[:number]), offsets[number])
        self._parts.clear()
        self.unfinished_bytes = 0
        self._hold(data[end + 1 :])
        if self.unfinished_bytes > self._limit:
            self._too_long_at = self._at
        return Records(offsets, values)

    def _feed_prefixed(self, data: bytes) -> Records:
        self._hold(data)
        found = Records([], [])
        if self.unfinished_bytes < self._wanted:
            return found
        buffer = b"".join(self._parts)
        low = 0
        while len(buffer) - low >= _PREFIX_BYTES:
            begin = low + _PREFIX_BYTES
            length = int.from_bytes(buffer[low:begin], "big")
            if length > self._limit:
                return self._before(found, self._at)
            self._wanted = _PREFIX_BYTES + length
            if len(buffer) - low < self._wanted:
                break
            found.offsets.append(self._at)
            found.values.append(buffer[begin : begin + length])
            low += self._wanted
            self._at += self._wanted
            self._wanted = _PREFIX_BYTES
        self._parts.clear()
        self.unfinished_bytes = 0
        self._hold(buffer[low:])
        return found

    def _hold(self, data: bytes) -> None:
        if data:
            self._parts.append(data)
            self.unfinished_bytes += len(data)

    def _before(self, found: Records, too_long_at: int) -> Records:
        self._too_long_at = too_long_at
        if not found.values:
            self._check_length()
        return found

    def _check_length(self) -> None:
        if self._too_long_at is None:
            return
        what = "a line" if self._lines else "a record"
        text = f"{what} of more than {self._limit} bytes begins at {self._too_long_at}: allow more, or read with another framing"
        raise Damaged(text, object=self._object, position=self._too_long_at)
