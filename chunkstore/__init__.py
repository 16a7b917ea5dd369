"""chunkstore: an embeddable storage engine for endless append-only segments on cheap storage.

``open`` claims a container and serves it; ``open_replica`` follows one read-only. See README.md for ten running lines,
docs/guide-embed.md for the rest. Settings and errors are here at once; the engine is loaded by the first name that needs it.
"""

from importlib import import_module
from logging import NullHandler, getLogger
from typing import TYPE_CHECKING

from chunkstore import errors
from chunkstore.config import GIB, KIB, MIB, DefragPolicy, OptimiserPolicy, RetentionPolicy, RollingPolicy, Settings
from chunkstore.errors import *  # noqa: F403  (all of them, by their own list)

if TYPE_CHECKING:
    from chunkstore.assembly import open_asker
    from chunkstore.assembly import open_store as open  # noqa: A004  (the name people expect: chunkstore.open)
    from chunkstore.engine.owner import Asker
    from chunkstore.engine.reader import StorageReader
    from chunkstore.engine.replica import Replica
    from chunkstore.engine.segment import Segment
    from chunkstore.engine.segment_file import Record
    from chunkstore.engine.store import ChunkedSegmentStorage, Store
    from chunkstore.engine.writer import StorageWriter
    from chunkstore.following import open_replica
    from chunkstore.records.segments import LayoutChunk, Pin, SegmentInfo, Usage
    from chunkstore.upkeep.optimiser import StorageOptimiser

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "Asker",
    "ChunkedSegmentStorage",
    "DefragPolicy",
    "LayoutChunk",
    "OptimiserPolicy",
    "Pin",
    "Record",
    "Replica",
    "RetentionPolicy",
    "RollingPolicy",
    "Segment",
    "SegmentInfo",
    "Settings",
    "StorageOptimiser",
    "StorageReader",
    "StorageWriter",
    "Store",
    "Usage",
    "open",
    "open_asker",
    "open_replica",
]
__all__ += errors.__all__

getLogger(__name__).addHandler(NullHandler())  # what no one wants to see does not reach standard error

_PLACES = {
    "Asker": "engine.owner",
    "ChunkedSegmentStorage": "engine.store",
    "LayoutChunk": "records.segments",
    "Pin": "records.segments",
    "Record": "engine.segment_file",
    "Replica": "engine.replica",
    "Segment": "engine.segment",
    "SegmentInfo": "records.segments",
    "StorageOptimiser": "upkeep.optimiser",
    "StorageReader": "engine.reader",
    "StorageWriter": "engine.writer",
    "Store": "engine.store",
    "Usage": "records.segments",
    "open": "assembly",
    "open_asker": "assembly",
    "open_replica": "following",
}

if not TYPE_CHECKING:  # a checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        """A public name, or a module (``chunkstore.changes``), at its first use."""
        place = f"{__name__}.{_PLACES.get(name, name)}"
        try:
            module = import_module(place)
        except ModuleNotFoundError as error:
            if error.name != place:
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
        if name not in _PLACES:
            return module
        found = globals()[name] = getattr(module, "open_store" if name == "open" else name)
        return found


def __dir__() -> list[str]:
    return sorted((*__all__, "aio", "backup", "changes"))
