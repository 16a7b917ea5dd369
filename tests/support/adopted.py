"""A container that has adopted chunks of another one, for tests of foreign chunks."""

from __future__ import annotations

from chunkstore.backup.adopting import Adoption, adopt
from chunkstore.changes import Adopt, AdoptedChunk, Create
from chunkstore.engine import ChunkedSegmentStorage
from tests.support.worlds import World

__all__ = ["PIECE", "SOURCE", "adopt_segment", "another_format", "build_source", "chunks_of", "url_of"]

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


def chunks_of(adoption: Adoption, segment: str) -> tuple[AdoptedChunk, ...]:
    """What the source has of a segment."""
    pairs = zip(adoption.source.layout(segment), adoption.source.borders(segment), strict=True)
    return tuple(AdoptedChunk(chunk.name, chunk.length, borders) for chunk, borders in pairs)


def adopt_segment(world: World, store: ChunkedSegmentStorage, name: str = "s", *, no_pin: bool = False) -> Adoption:
    """Adopt segment ``s`` of ``there``, whose owner makes the pin, as ``name``."""
    if no_pin:
        adoption = adopt(store, url_of(world), container=SOURCE, no_pin=True)
    else:
        with world.open(SOURCE) as owner:
            adoption = adopt(store, url_of(world), container=SOURCE, pins=owner)
    try:
        store.commit([Create(name), Adopt(name, adoption.root, chunks_of(adoption, "s"))])
    finally:
        adoption.close()
    return adoption
