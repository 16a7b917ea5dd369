"""Foreign exceptions of storage bindings as errors of ours. Leaves out: what a binding knows of its own library's errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from chunkstore.errors import ChunkstoreError, StorageUnavailable

__all__ = ["OURS", "translated", "translating"]

OURS = (ChunkstoreError, AssertionError, MemoryError)
"""What passes untouched."""


def translated(error: Exception, operation: str, name: str = "") -> StorageUnavailable:
    """A foreign exception of a binding as an error of ours; to be raised ``from`` it."""
    return StorageUnavailable(
        f"unexpected {type(error).__name__} in {operation}{' of ' + name if name else ''}: {error}", object=name
    )


def translating(method: Callable[..., object]) -> Callable[..., object]:
    """A ``do_*`` method whose foreign exceptions are ``translated``."""
    operation = method.__name__.removeprefix("do_")

    @wraps(method)
    def call(*arguments: object) -> object:
        try:
            return method(*arguments)
        except OURS:
            raise
        except Exception as error:
            name = arguments[1] if len(arguments) > 1 and isinstance(arguments[1], str) else ""
            raise translated(error, operation, name) from error

    return call
