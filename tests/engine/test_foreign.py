"""Foreign chunks: adopted by reference, read everywhere, changed nowhere (protocol 3.14.8, decision 0021)."""

from __future__ import annotations

from tests.support.adopted import adopt_segment, build_source
from tests.support.worlds import World


def test_what_is_adopted_is_read_and_stays(world: World) -> None:
    data = build_source(world)
    theirs = world.chunks("there")
    with world.open() as store:
        adopt_segment(world, store)
        assert store.read("s", 0, 100) == data
        assert store.check("deep") == []
        assert {chunk.kind for chunk in store.layout("s")} == {"foreign"}
        store.append("s", b"ours")
        assert store.usage().foreign_bytes == len(data)
        assert world.replica().read("s", 0, 100) == data + b"ours"
        store.truncate("s", 17)
        assert store.read("s", 17, 100) == (data + b"ours")[17:]
        assert store.check("deep") == []
    assert world.chunks("there") == theirs
