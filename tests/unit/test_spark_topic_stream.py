"""Streams of offloaded topics without Spark: every entry once, in the order of blocks, replays that give the same rows."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chunkstore
from chunkstore.config import KIB
from chunkstore.pulsar import LedgerNotFound, OffloadWriter
from chunkstore.pulsar.contexts import NAMESPACE, iter_contexts, key_of
from tests.support.spark_ground import Ground

pytest.importorskip("pyarrow", reason="pyarrow is not installed: Spark's streams are not tested")

from tests.support.spark_streams import Row, Stream

Store = chunkstore.ChunkedSegmentStorage
TOPIC = "tenant/ns/persistent/orders"


class Writer:
    """Entries that go into blocks of some KiB, and what was written."""

    def __init__(self, store: Store, topic: str = TOPIC) -> None:
        self.store, self.topic = store, topic
        self.rows: list[Row] = []
        self.begin()

    def begin(self) -> None:
        self.writer = OffloadWriter(self.store, self.topic, block_bytes=4 * KIB, segment_bytes_max=40 * KIB)

    def add(self, ledger: int, first: int, count: int, size: int = 100) -> None:
        for entry in range(first, first + count):
            payload = b"%d-%d;" % (ledger, entry) * (size // 8)
            self.writer.append(ledger, entry, payload)
            self.rows.append((self.topic, ledger, entry, payload))
        self.writer.flush()


def test_offload_segments_that_are_gone_are_a_loss(ground: Ground, store: Store) -> None:
    writer = Writer(store)
    for ledger in range(3):
        writer.add(ledger, 0, 5)
        writer.writer.complete()
    stream = Stream(ground.url, topic=TOPIC, startingOffsets="earliest")
    stream.step(size_bytes=1)
    contexts = iter_contexts(store, TOPIC)
    table = store.table(NAMESPACE)
    table.delete(key_of(TOPIC, contexts[0].sequence))
    stream.restart()
    assert stream.step(size_bytes=1) == writer.rows[5:10], "one that was read whole is no loss"
    assert stream.read(2) == writer.rows[5:10]
    assert stream.step(size_bytes=1) == writer.rows[10:15]
    table.delete(key_of(TOPIC, contexts[1].sequence))
    stream.restart()
    assert stream.read(3) == writer.rows[10:15], "nor is it when a batch is run again"
    for ledger in (7, 8):
        writer.add(ledger, 0, 5)
        writer.writer.complete()
    table.delete(key_of(TOPIC, contexts[2].sequence + 1))
    stream.restart()
    with pytest.raises(LedgerNotFound):
        stream.step()
    stream.restart(failOnDataLoss="false")
    assert stream.step() == writer.rows[20:]
    assert stream.offset().lost_segments == 1
    writer.writer.close()


def test_entries_are_counted_in_whole_blocks(ground: Ground, store: Store) -> None:
    writer = Writer(store)
    writer.add(1, 0, 200)
    writer.add(2, 0, 3)
    writer.writer.complete()
    stream = Stream(ground.url, topic=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger="130")
    found = stream.step()
    assert 65 < len(found) <= 130, "two blocks"
    stream.restart(maxBytesPerTrigger="1")
    assert 0 < len(stream.step()) <= 65, "one block, as bytes are the tighter limit"
    stream.drain(rows=1)
    assert [row for rows in stream.rows for row in rows] == writer.rows
    stream.replay()
    writer.writer.close()


@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_every_entry_comes_once(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    ground = Ground(tmp_path_factory.mktemp("model"))
    with ground.open() as store:
        writer = Writer(store)
        writer.add(0, 0, 1)
        following = {0: 1}
        stream = Stream(ground.url, topic=TOPIC, startingOffsets="earliest", minPartitions="3")
        for _ in range(data.draw(st.integers(5, 20), "steps")):
            match data.draw(
                st.sampled_from(("add", "add", "batch", "batch", "complete", "reopen", "defrag", "replay"))
            ):
                case "add":
                    ledger = data.draw(st.integers(max(following), max(following) + 1))
                    first = following.get(ledger, 0) + data.draw(st.integers(0, 2))
                    count = data.draw(st.integers(1, 40))
                    writer.add(ledger, first, count, data.draw(st.sampled_from((8, 200, 900))))
                    following[ledger] = first + count
                case "batch":
                    limits = st.fixed_dictionaries(
                        {}, optional={"rows": st.integers(1, 60), "size_bytes": st.integers(1, 20_000)}
                    )
                    stream.step(**data.draw(limits))
                case "complete":
                    writer.writer.complete()
                case "reopen":
                    writer.writer.close()
                    writer.begin()
                case "defrag":
                    store.defrag(policy=chunkstore.DefragPolicy(fanout=2))
                case _:
                    stream.replay()
        stream.drain()
        stream.replay()
        writer.writer.close()
    assert [row for rows in stream.rows for row in rows] == writer.rows
    for start, end in zip(stream.log, stream.log[1:], strict=False):
        assert json.loads(start)["topics"][TOPIC] != json.loads(end)["topics"][TOPIC]
