"""Borders of a chunk that consists of parts of others: from theirs, without their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from google_crc32c import value
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.metadata.reserved import border_rows
from chunkstore.records import blocks
from chunkstore.records.blocks import Borders, Piece, known_pieces, merged_borders
from tests.unit.test_metadata_blocks import CHUNK, find, record


def borders_of(data: bytes, inside: Sequence[int]) -> Borders:
    at = [0, *inside, len(data)]
    return Borders(at, [value(data[:border]) for border in at])


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_any_parts(data: st.DataObject) -> None:
    """With borders on any grid or none, cut anywhere: all CRCs are those of the bytes, and only what is unknown is read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", data.draw(st.sampled_from((1, 4, 9))))
        content, pieces = b"", list[Piece]()
        for _ in range(data.draw(st.integers(1, 8))):
            chunk = data.draw(st.binary(min_size=1, max_size=40))
            inside = data.draw(st.sets(st.integers(1, len(chunk)))) - {len(chunk)}
            start = data.draw(st.integers(0, len(chunk) - 1))
            stop = data.draw(st.integers(start + 1, len(chunk)))
            borders = data.draw(st.sampled_from((None, borders_of(chunk, sorted(inside)))))
            if borders is not None:
                borders = borders.between(start, stop)
            parts = [*known_pieces(Piece(start, stop, borders))]
            known = set() if borders is None else {border for border in borders.at if start <= border <= stop}
            assert [part.start for part in parts] == [start, *(part.stop for part in parts[:-1])]
            assert parts[-1].stop == stop
            assert sum(part.stop - part.start for part in parts if part.borders) == max(known, default=0) - min(
                known, default=0
            )
            for part in parts:
                if part.borders is None:
                    read = Borders([part.start, part.stop], [0, value(chunk[part.start : part.stop])])
                    part = part._replace(borders=read)
                pieces.append(part)
            content += chunk[start:stop]
        merged = merged_borders(pieces)
        assert [*merged.crcs] == [value(content[:border]) for border in merged.at]
        assert (merged.at[0], merged.at[-1]) == (0, len(content))
        assert all(high - low >= blocks.BLOCK_BYTES for low, high in pairwise(merged.at[:-1]))
        rows = border_rows(CHUNK, merged)
        low = data.draw(st.integers(0, len(content) - 1))
        high = data.draw(st.integers(low + 1, len(content)))
        found = find(rows, record(content), low, high)
        if len(merged.at) > 2:
            assert found == merged.between(low, high)
