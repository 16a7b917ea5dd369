"""The Python functions that one exact append enters: how many, in which files. ``python -m tests.support.profile_append``."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import FrameType

import chunkstore
from chunkstore.assembly import open_store_on
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory

_URL = "memory://profile-append"
_ROOT = f"{Path(__file__).resolve().parents[2]}/"
_OPERATIONS = f"{_ROOT}chunkstore/operations/"


def calls_of(action: Callable[[], object]) -> list[str]:
    """``file:function`` of every Python function that ``action`` enters in this thread, in order."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.append(f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}")

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def operations_entered(calls: list[str]) -> list[str]:
    """The files of ``chunkstore/operations`` among them."""
    return sorted({call.rpartition(":")[0] for call in calls if call.startswith(_OPERATIONS)})


def profile_append(appends: int = 101) -> list[str]:
    """The calls of the median one of ``appends`` exact appends of 1 KiB to one segment in memory, in APPEND mode."""
    data = bytes(1024)
    with tempfile.TemporaryDirectory() as cache_dir:
        settings = chunkstore.Settings(cache_dir=cache_dir, journal_mode="append", lease_s=0)
        with open_store_on(MemoryChunkStorage(_URL), settings=settings) as store:
            store.create("s")
            for _ in range(100):
                store.append("s", data)
            # Without the call of the lambda itself.
            runs = [calls_of(lambda: store.append("s", data))[1:] for _ in range(appends | 1)]
    forget_memory(_URL)
    size = median(len(run) for run in runs)
    return next(run for run in runs if len(run) == size)


def main() -> None:
    """Print the counts and the calls."""
    calls = profile_append()
    files = operations_entered(calls)
    print(f"{len(calls)} Python calls, {len(files)} files of chunkstore/operations: {[Path(f).name for f in files]}")
    for call in calls:
        print(f"  {call.removeprefix(_ROOT)}")


if __name__ == "__main__":
    main()
