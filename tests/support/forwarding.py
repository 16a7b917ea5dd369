"""A storage in front of another one: every call passes one gate, where a test counts, waits or fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from chunkstore.storage import ChunkStorage
from chunkstore_bindings.wrappers.wrapping import WrappingChunkStorage

T = TypeVar("T")
Hook = Callable[[str, tuple[str, ...]], None]
"""Called with the operation and the object names; may wait, or raise."""


def nothing(operation: str, names: tuple[str, ...]) -> None:
    """A hook that does nothing."""


class Forwarding(WrappingChunkStorage):
    """Passes every call on. Override ``around``, or single calls."""

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        return call()


class Hooked(WrappingChunkStorage):
    """Calls ``before`` and ``after`` around every call."""

    def __init__(self, inner: ChunkStorage) -> None:
        super().__init__(inner)
        self.before: Hook = nothing
        self.after: Hook = nothing

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        self.before(operation, tuple(names))
        result = call()
        self.after(operation, tuple(names))
        return result
