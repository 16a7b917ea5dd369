"""A container that has adopted chunks of another one, for tests of foreign chunks."""

from __future__ import annotations

from typing import NamedTuple

from chunkstore.assembly import open_replica
from chunkstore.backup.files import container_uuid
from chunkstore.changes import Adopt, AdoptedChunk, Create
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.metadata.roots import pin_prefix
from chunkstore.records import ACTIVE, RootRecord
from chunkstore.replica import Replica
from tests.support.worlds import World

__all__ = [
    "PIECE",
    "SOURCE",
    "Adoption",
    "adopt",
    "adopt_segment",
    "another_format",
    "build_source",
    "chunks_of",
    "url_of",
]

PIECE = b"0123456789abcdef"
SOURCE = "there"


def url_of(world: World) -> str:
    """The root of a world, for whoever opens it by its URL."""
    return world.raw_storage().url


def build_source(world: World, pieces: int = 4) -> bytes:
    """Container ``there`` with a segment ``s`` of so many chunks; its bytes."""
    data = b""
    with world.open(SOURCE, rolling=len(PIECE)) as store:
        store.create("s")
        for number in range(pieces):
            store.append("s", PIECE[number:] + PIECE[:number])
            data += PIECE[number:] + PIECE[:number]
    return data


def another_format(world: World) -> bytes:
    """The FORMAT of another container that is called ``there``, in a root of its own."""
    other = World("memory", "slot", world.tmp_path / "another")
    try:
        with other.open(SOURCE):
            return other.content(other.names(SOURCE).format)
    finally:
        other.close()


class Adoption(NamedTuple):
    """``root``: the number to adopt under; ``source``: the container there, under the pin of this name."""

    root: int
    source: Replica
    pin: str

    def close(self) -> None:
        self.source.close()


def adopt(world: World, store: ChunkedSegmentStorage) -> Adoption:
    """Get ready to adopt from ``there``, whose owner makes the pin, unless one of the store's stays there."""
    source = open_replica(url_of(world), container=SOURCE, settings=store.settings)
    prefix = pin_prefix(
        store.container, store.read_context.storage.address, container_uuid(world.raw_storage(), world.names())
    )
    with world.open(SOURCE) as owner:
        pin = next((pin.name for pin in owner.pins() if pin.name.startswith(prefix)), f"{prefix}{len(owner.pins())}")
        number = store.add_root(RootRecord(source.storage.url, "", SOURCE, source.uuid, pin, 0, 0, ACTIVE, 0))
        if pin not in {item.name for item in owner.pins()}:
            owner.pin(pin)
    source.refresh()
    return Adoption(number, source, pin)


def chunks_of(adoption: Adoption, segment: str) -> tuple[AdoptedChunk, ...]:
    """What the source has of a segment."""
    pairs = zip(adoption.source.layout(segment), adoption.source.borders(segment), strict=True)
    return tuple(AdoptedChunk(chunk.name, chunk.length, borders) for chunk, borders in pairs)


def adopt_segment(world: World, store: ChunkedSegmentStorage, name: str = "s") -> Adoption:
    """Adopt segment ``s`` of ``there`` as ``name``."""
    adoption = adopt(world, store)
    try:
        store.commit([Create(name), Adopt(name, adoption.root, chunks_of(adoption, "s"))])
    finally:
        adoption.close()
    return adoption
