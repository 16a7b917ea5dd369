"""What appends in records cost, counted by the metered wrapper: their record, and nothing else."""

from __future__ import annotations

from chunkstore import changes
from chunkstore_bindings.wrappers.metered import MeteredChunkStorage
from chunkstore_bindings.wrappers.wrapping import WRITING
from tests.support.alone import alone
from tests.support.worlds import World


def test_small_appends_cost_their_record_alone(world: World) -> None:
    """One append, many of several segments in one commit, a spill, and the collection of what many spills have left."""
    metered = MeteredChunkStorage(world.raw_storage())
    store = world.open(storage=metered, inline_bytes_max=None, spill_s=3600.0, gc_grace_s=0.0)
    alone(store)
    names = ["a", "b", "c"]
    store.commit([changes.Create(name) for name in names])
    record = {"create_if_absent": 1} if world.mode == "slot" else {"exists": 1, "write": 1, "sync": 1}
    record |= {"identity": 1} if world.kind == "filesystem" else {}  # whether it is still the same tree
    with metered.counting() as cost:
        store.append("a", b"x" * 1000)
    assert cost.requests == record
    with metered.counting() as cost:
        store.commit([changes.Append(name, b"x" * 1000) for name in names * 10])
    assert cost.requests == record
    assert 30_000 < cost.total.sent_bytes < 33_000
    chunk = {"create": 1, "sync": 1} if world.appends else {"create": 1}
    with metered.counting() as cost:
        store.spill(["a"])
    assert cost.requests == {key: record.get(key, 0) + chunk.get(key, 0) for key in record | chunk}
    assert 11_000 < cost.total.sent_bytes < 12_000
    for number in range(20):
        store.append(names[number % 3], b"more")
        store.spill([names[number % 3]])
    with metered.counting() as cost:
        store.collect()
    written = {key: count for key, count in cost.requests.items() if key in WRITING}
    assert written == {key: count for key, count in record.items() if key in WRITING}
