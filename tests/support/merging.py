"""What a merge does before it commits: new chunks with the bytes of a run of old ones, and the change that puts them there."""

from __future__ import annotations

from itertools import pairwise

from google_crc32c import value

from chunkstore.changes import NewChunk, Replace
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Conflict
from chunkstore.metadata.index import walk
from chunkstore.metadata.reserved import find_borders
from chunkstore.operations.read import find_segment
from chunkstore.records.blocks import Borders, Piece, known_pieces, merged_borders
from chunkstore.storage import ChunkHandle


def merge(
    store: ChunkedSegmentStorage, name: str, first: int, count: int, *, parts: int = 1, leave_head: bool = False
) -> Replace:
    """Write ``parts`` chunks with the bytes of chunks ``[first, first + count)`` of a segment; the change that commits them."""
    container = store._container
    owned, storage, names = container.current, container.storage, container.names
    with owned.store.view() as view:
        segment = find_segment(view, name, None)
        run = [*walk(view.get, segment)][first : first + count]
        if not run:
            raise Conflict(f"chunks of segment {name!r}", expected=first, found=segment.chunk_count)
        start = max(run[0][0], segment.start_offset if leave_head else 0)
        stop = run[-1][0] + run[-1][2].length
        parts = min(parts, stop - start)
        cuts = [start + (stop - start) * number // parts for number in range(parts + 1)]
        new = []
        for low, high in pairwise(cuts):
            pieces, data = list[Piece](), b""
            for offset, identity, record in run:
                begin, end = max(low, offset) - offset, min(high, offset + record.length) - offset
                if begin >= end:
                    continue
                part = storage.read(ChunkHandle(names.chunk(identity), False), begin, end - begin)
                data += part
                for piece in known_pieces(Piece(begin, end, find_borders(view, identity, record, begin, end))):
                    if piece.borders is None:
                        crc = value(part[piece.start - begin : piece.stop - begin])
                        piece = piece._replace(borders=Borders((piece.start, piece.stop), (0, crc)))
                    pieces.append(piece)
            fresh = owned.new_chunk(segment.id)
            storage.create(names.chunk(fresh), data)
            new.append(NewChunk(fresh, merged_borders(pieces)))
    return Replace(name, start, stop, tuple(identity for _, identity, _ in run), tuple(new))
