"""Readers of a range whose chunks are replaced and deleted all the time get every byte right, wherever they read.

``python -m benchmarks.bench_upkeep`` does the same with 100 readers and 1,000 merges."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

from chunkstore.errors import ChunkNotFound
from tests.support.data import problems
from tests.support.forwarding import Forwarding
from tests.support.merged_readers import RANGE_BYTES, Readers, fill, merge_again, readers_elsewhere
from tests.support.worlds import World

T = TypeVar("T")
MERGES = 20
PAUSE_S = 0.004


class Missing(Forwarding):
    """Counts reads of chunks that are gone."""

    missed = 0

    def around(self, operation: str, names: tuple[str, ...], call: Callable[[], T]) -> T:
        try:
            return call()
        except ChunkNotFound:
            self.missed += operation.startswith("read")
            raise


def test_every_byte_is_right_while_a_range_is_merged_without_grace(world: World) -> None:
    made: list[Missing] = []

    def wrap(inner: Any) -> Missing:
        made.append(Missing(inner))
        return made[-1]

    store = world.open(wrap=wrap, gc_grace_s=0)
    fill(store)
    replica = world.replica(wrap=wrap)
    with ExitStack() as stack:
        groups: list[Any] = [Readers(store.read, 4, PAUSE_S), Readers(replica.read, 4, PAUSE_S)]
        if world.kind != "memory":
            elsewhere = readers_elsewhere(world.root.as_uri(), world.tmp_path / "elsewhere", 4, PAUSE_S)
            groups.append(stack.enter_context(elsewhere))
        for group in groups:
            group.enter("merging")
        for _ in range(MERGES):
            merge_again(store)
        for seen in [group.end() for group in groups]:
            assert not seen["wrong"]
            assert seen["took_s"]["merging"]
    assert sum(storage.missed for storage in made) > 0, "nobody met what this is about"
    assert store.info("merged").length == RANGE_BYTES + 4
    assert problems(store.check("deep")) == []
