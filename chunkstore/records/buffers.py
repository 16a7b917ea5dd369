"""Results of type ``bytes`` that are filled in place.

Promises: ``filled`` needs the memory of its result, ``joined`` up to an eighth more; neither makes a second copy.
Leaves out: buffers of the caller's (``read_into``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import SEEK_END, BytesIO

__all__ = ["filled", "joined"]


def filled(size_bytes: int, fill: Callable[[memoryview], int]) -> bytes:
    """``size_bytes`` bytes that ``fill`` writes; the first ones only where it returns a smaller count.

    A ``BytesIO`` keeps its content as ``bytes`` and hands that out itself, unless it has another size or somebody still holds a
    view of it (then a copy: what is returned never changes). ``bytes`` of a ``bytearray``, and ``join``, always copy.
    """
    room = BytesIO(bytes(size_bytes))
    with room.getbuffer() as view:
        count = fill(view)
        if count != size_bytes:
            return bytes(view[:count])
    return room.getvalue()


def joined(pieces: Iterable[bytes | bytearray | memoryview]) -> bytes:
    """The pieces as one, whose size is not known beforehand. Each is let go before the next one is asked for; one alone is not copied."""
    rest = iter(pieces)
    gathered = BytesIO(next(rest, b""))
    gathered.seek(0, SEEK_END)
    for piece in rest:
        gathered.write(piece)
    return gathered.getvalue()
