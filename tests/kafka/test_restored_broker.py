"""A genuine broker serves what was copied from another one while it wrote. Needs Java and Maven."""

from __future__ import annotations

from pathlib import Path

import pytest

import chunkstore
from chunkstore.kafka.container import ContainerSource
from chunkstore.kafka.tier import Tiered, restore, tier
from tests.kafka.support_clients import Clients, genuine_broker
from tests.kafka.support_metadata import fresh_root
from tests.support.servers.kafka import NEW, OLD

pytestmark = [pytest.mark.proof, pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")]


@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_fresh_broker_serves_what_was_copied_while_another_wrote(tmp_path: Path, version: str) -> None:
    broker, fresh = (genuine_broker(tmp_path / name, version) for name in ("broker", "fresh"))
    with chunkstore.open(fresh_root()) as store:
        broker.start()
        try:
            with Clients(broker) as clients:
                clients.create_topics()
                clients.open_producers()
                passes: list[Tiered] = []
                with clients.writing() as written:

                    def watch(done: Tiered) -> bool:
                        passes.append(done)
                        written()
                        return sum(each.copied > 0 for each in passes) < 4

                    tier(str(broker.data), store, watch=watch)
                clients.write(end=False)
                expected = [clients.read(), clients.read("read_committed")]
        finally:
            broker.stop()
        ends: dict[tuple[str, int], int] = {}
        for each in ContainerSource(store, "").listing().segments:
            ends[each.topic, each.partition] = max(each.end_offset, ends.get((each.topic, each.partition), 0))
        assert ends.keys() == expected[0].keys()
        fresh.start()
        clients = Clients(fresh)
        clients.create_topics()
        fresh.stop()
        restore(store, str(fresh.data), keep_partition_metadata=True)
        fresh.start()
        try:
            for isolation, rows in zip(("read_uncommitted", "read_committed"), expected, strict=True):
                served = clients.read(isolation)
                assert served == {place: [row for row in rows[place] if row[0] <= end] for place, end in ends.items()}
                assert all(served.values())
        finally:
            fresh.stop()
