"""The log that a process of a chaos run keeps of what it tried and what it was told.

Promises: one JSON array a line, written by one ``write`` each, before a call and after its answer, so that what is in the file
outlives ``SIGKILL`` and says which calls were acknowledged, which failed, and which nobody knows about. Times are of the
machine's monotonic clock, the same for all processes. A last line without a newline is half a note and is left for later.
Leaves out: power cuts (notes are not synced), and what notes mean (``ledger``).
"""

from __future__ import annotations

import json
import os
from typing import Any

from chunkstore import runtime

__all__ = ["NoteReader", "Notes"]


class Notes:
    """A process's own log. Thread-safe: the kernel appends each line whole."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *items: object) -> None:
        """Add ``[time, *items]``."""
        line = json.dumps((round(runtime.monotonic_s(), 6), *items), separators=(",", ":"))
        os.write(self._fd, line.encode() + b"\n")

    def close(self) -> None:
        """End the log."""
        os.close(self._fd)


class NoteReader:
    """Reads a log that may still be growing, a little more at each call."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._position = 0
        self._rest = b""

    def more(self) -> list[list[Any]]:
        """The whole lines that were added since the last call."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return []
        self._position += len(data)
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest
        return [json.loads(line) for line in whole.split(b"\n")] if newline else []
