"""Results that are filled in place: whole, short, and never changed by a view that somebody kept."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

from chunkstore.buffers import filled, joined
from chunkstore.config import MIB


def _peak(call: Callable[[], bytes]) -> int:
    tracemalloc.start()
    try:
        assert len(call()) == 16 * MIB
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_what_is_filled_is_what_is_returned() -> None:
    def fill(view: memoryview) -> int:
        view[:3] = b"abc"
        return 3

    assert filled(3, fill) == b"abc"
    assert filled(5, fill) == b"abc"
    assert filled(0, lambda _view: 0) == b""


def test_a_view_that_is_kept_does_not_change_the_result() -> None:
    kept: list[memoryview] = []

    def fill(view: memoryview) -> int:
        kept.append(view[1:2])
        view[:3] = b"abc"
        return 3

    data = filled(3, fill)
    kept[0][:] = b"?"
    assert data == b"abc"


def test_neither_makes_a_second_copy() -> None:
    assert _peak(lambda: filled(16 * MIB, len)) < 17 * MIB
    assert _peak(lambda: joined(bytes(MIB) for _ in range(16))) < 20 * MIB
    assert joined([]) == b""
