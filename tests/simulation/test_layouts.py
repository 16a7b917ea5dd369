"""Header files that follow the journal, step by step: what the stories with layouts look for (``tests/simulator/layouts.py``)."""

from __future__ import annotations

import pytest

from chunkstore.errors import SegmentNotFound
from tests.simulator import World


@pytest.mark.parametrize("seed", range(6))
def test_a_deleted_segment_is_not_brought_back_by_a_power_cut(seed: int) -> None:
    """Deletions of files are not durable, the record that says that a header is gone is; and headers of others are imported."""
    with World(seed, "posix") as world:
        world.backend.overwrite("old$header", b"maxsize=100&0=old$offset.0&")
        world.backend.overwrite("old$offset.0", b"before")
        owner = world.process("owner")
        store = owner.open(layout="CODE_ONLY_UPGRADE")
        assert owner.run(lambda: store.read("old", 0, 100)) == b"before"
        owner.run(lambda: store.delete("old"))
        owner.run(store.close)
        world.power_cut()
        heir = world.process("heir")
        store = heir.open()
        with pytest.raises(SegmentNotFound):
            heir.run(lambda: store.read("old", 0, 100))
