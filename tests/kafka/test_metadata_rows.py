"""Bytes of the rows: FORMAT.md says what they are, hostile ones are ``Damaged``; and a deposed owner changes nothing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgpack
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import chunkstore
from chunkstore.errors import Damaged, NotOwner
from chunkstore.kafka import RemoteLogMetadataManager, rows
from tests.kafka.support_metadata import (
    DELETING,
    FINISHED,
    PARTITION,
    Leader,
    Store,
    find,
    listed,
    segment,
)
from tests.support.data import refused
from tests.support.format_tables import table

FORMAT = (Path(rows.__file__).parent / "FORMAT.md").read_text()
BASE = rows.partition_key(PARTITION)


def test_the_rows_are_as_documented(store: Store) -> None:
    leader = Leader(RemoteLogMetadataManager(store))
    leader.finish(segment(1, 5, 10, {7: 5}), segment(2, 5, 20, {7: 5}, custom_metadata=b"x"))
    leader.add(segment(3, 21, 30, {7: 21}))
    leader.manager.record_log_start(PARTITION, 5, token=leader.token).result()
    found = {row.key[len(BASE) :]: row.value for row in store.table(rows.NAMESPACE).scan(BASE)}
    assert b"orders\0" + PARTITION.topic_id + (3).to_bytes(4, "big") == BASE
    epoch, start = (7).to_bytes(4, "big"), (5).to_bytes(8, "big")
    numbers = {"epoch": epoch, "start": start}
    last = {"`s`": 1, "`u`": 3, "`i`": 2}
    seen = set()
    fields = {
        name: len(text.replace(" (1 strict, 2 kafka-exact)", "").split(" (-")[0].split(","))
        for name, text in table("values", FORMAT)
    }
    for key, _, value in table("keys", FORMAT):
        kinds = [kind for kind in last if kind in key]
        numbers["id"] = (last[kinds[0]] if kinds else 0).to_bytes(16, "big")
        full = b"".join(numbers.get(word, word.strip("`").encode()) for word in key.split())
        seen.add(full)
        raw = found[full]
        if value == "empty":
            assert raw == b""
        else:
            assert msgpack.unpackb(raw)[:2] == [rows.MAJOR, rows.MINOR] == [1, 0]
            assert len(msgpack.unpackb(raw)) - 2 == fields[value]
    assert {key for key in found if key[:1] == b"e"} <= seen
    assert msgpack.unpackb(found[b"i" + (2).to_bytes(16, "big")])[2:] == [
        (2).to_bytes(16, "big"), 5, 20, 7, 1, 9, 1024, [7, 5], None, 1, False,
    ]  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    place=st.integers(0, 99),
    cut=st.integers(0, 99),
    put=st.one_of(st.none(), st.integers(-(1 << 63), (1 << 64) - 1), st.binary(max_size=20), st.lists(st.none())),
)
def test_hostile_rows_are_damage(store: Store, place: int, cut: int, put: object) -> None:
    good = store.table(rows.NAMESPACE)
    manager = RemoteLogMetadataManager(store)
    if good.get(BASE + rows.PARTITION) is None:
        Leader(manager).finish(segment(1, 0, 9, {0: 0}), segment(2, 0, 4, {0: 0}))
    several = [row for row in good.scan(BASE) if row.value]
    row = several[place % len(several)]
    values = msgpack.unpackb(row.value)
    at = cut % len(values)
    bad = msgpack.packb([*values[:at], put, *values[at + 1 :]]) if place % 2 else row.value[: cut % len(row.value)]
    good.put(row.key, bad)
    for call in (
        lambda: find(manager, 0, 5),
        lambda: listed(manager),
        lambda: listed(manager, 0),
        lambda: manager.highest_offset_for_epoch(PARTITION, 0),
        lambda: manager.token(PARTITION),
        lambda: Leader(manager).move(segment(2, 0, 4, {0: 0}), FINISHED),
    ):
        try:
            call()
        except chunkstore.ChunkstoreError as error:
            # What a changed field says may be possible, and then an argument or a mode is not.
            assert bad != row.value
            assert isinstance(error, Damaged) or place % 2
            if isinstance(error, Damaged):
                assert "table kafka, row b'orders" in str(error)
    for old in several:
        good.put(old.key, old.value)


def test_a_deposed_owner_changes_nothing(root: str) -> None:
    old = chunkstore.open(root)
    leader = Leader(RemoteLogMetadataManager(old))
    leader.finish(segment(1, 0, 9, {0: 0}))
    with chunkstore.open(root, take_over=True) as new:
        successor = RemoteLogMetadataManager(new)
        refused(
            NotOwner,
            lambda: leader.move(segment(1, 0, 9, {0: 0}), DELETING),
            lambda: leader.add(segment(2, 10, 19, {0: 10})),
            lambda: find(leader.manager, 0, 5),
        )
        assert find(successor, 0, 5) == 1
        # The token stays: the partition's leader is the same. The next one's is newer.
        assert successor.token(PARTITION) == leader.token
        present = Leader(successor)
        present.finish(segment(3, 10, 19, {0: 10}))
        assert listed(successor, 0) == [1, 3]
    with suppress(NotOwner):
        old.close()
