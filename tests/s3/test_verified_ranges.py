"""Ranges on S3 are read out to the borders of blocks, and verified: in one request where they are short."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.errors import Damaged
from chunkstore.operations import read_slices
from chunkstore.records import blocks
from chunkstore_bindings.wrappers.metered import MeteredChunkStorage
from tests.support.data import pattern
from tests.support.rot import flip
from tests.support.servers.s3server import S3Server
from tests.support.worlds import RemoteWorld

BLOCK = 64


@pytest.mark.parametrize("at_once_bytes", [100, 1 << 20])
def test_a_flipped_bit_is_found_in_every_range_that_touches_it(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once_bytes: int
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(read_slices, "_REMOTE_BYTES", at_once_bytes)
    world = RemoteWorld("s3", server.root(server.make_bucket(), "world"), tmp_path)
    try:
        meter = MeteredChunkStorage(world.raw_storage())
        store = world.open(storage=meter, read_fence="tail")
        store.create("a")
        content = pattern(0, 1000)
        store.append("a", content)
        [chunk] = store.layout("a")
        world.still(store)
        for low, high in ((0, 1000), (1, 999), (64, 128), (63, 129), (70, 71), (500, 1000)):
            with meter.counting() as cost:
                assert store.read("a", low, high - low) == content[low:high]
            if at_once_bytes > 1000 > high:  # a read of the end looks at the fence, too
                assert cost.total.requests == 1
        flip(world, chunk.name, 200)
        for low, high in ((0, 1000), (192, 193), (255, 256), (100, 900), (64, 256), (192, 1000)):
            for call in (store.read("a", 0, 192), store.read("a", 256, 1 << 20)):
                assert call in (content[:192], content[256:])
            with pytest.raises(Damaged) as caught:
                store.read("a", low, high - low)
            assert (caught.value.object, caught.value.start, caught.value.stop) == (chunk.name, 192, 256)
        with store.reader("a", on_damage="skip") as pieces:
            assert b"".join(pieces) == content[:192] + content[256:]
    finally:
        world.close()
