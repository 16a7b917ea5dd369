"""``pulsar verify``: sound buckets are sound, and planted damage is found with its kind and position, all of it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chunkstore.codec.pulsar.frames import BLOCK_HEADER_BYTES
from chunkstore.codec.pulsar.offload_metadata import encode_metadata
from chunkstore.codec.pulsar.pip17 import LedgerIndex, build_ledger_index
from chunkstore.codec.pulsar.windows import iter_entries
from chunkstore.pulsar.bucket import PulsarBucket
from chunkstore.pulsar.checking import Finding
from chunkstore.pulsar.live import LiveDocument, LiveFiles, read_live
from tests.cli.conftest import Call
from tests.pulsar.support_bucket import (
    A,
    B,
    C,
    FakeBucket,
    broker_bucket,
    key_of,
    live_files,
    put_v1,
    put_v2,
    url_of,
)  # fmt: skip
from tests.support.pip17 import encode_ledger
from tests.support.pulsar_broker import pair_of

TXN = "indexed/txn"
KEY = key_of(TXN, 39)


def findings_of(bucket: FakeBucket, live: LiveFiles | None = None, **only: Any) -> list[Finding]:
    return list(PulsarBucket(bucket, live=live).verify(**only))


def flip(bucket: FakeBucket, key: str, position: int, bit: int = 0) -> None:
    data, at_ms, metadata = bucket.objects[key]
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    bucket.objects[key] = (bytes(changed), at_ms, metadata)


def positions_of(key: str) -> list[tuple[int, int, int]]:
    """(entry, where its frame begins, where it ends) of a one-block object."""
    pair = pair_of("indexed", key)
    found, at = [], BLOCK_HEADER_BYTES
    for entry in iter_entries(pair.reader(ledger=1), 1):
        found.append((entry.entry, at, at + 12 + len(entry.payload)))
        at = found[-1][2]
    return found


@pytest.mark.parametrize("folder", ["indexed", "plain"])
@pytest.mark.parametrize("keeps_metadata", [False, True])
def test_what_a_broker_wrote_is_sound(call: Call, folder: str, keeps_metadata: bool) -> None:
    assert findings_of(broker_bucket(folder, keeps_metadata=keeps_metadata)) == []
    assert call("pulsar", "verify", url_of(folder), "--json").document == {"ok": True, "findings": []}


def test_a_bucket_without_ledgers_is_noted(call: Call, tmp_path: Path) -> None:
    for verb, note in (("verify", b"nothing was verified"), ("ls", b"no ledger is in this bucket")):
        assert note in call("pulsar", verb, tmp_path.as_uri()).err


def test_every_flipped_bit_of_a_data_object_is_found() -> None:
    bucket = broker_bucket()
    only = {key: bucket.objects[key] for key in (KEY, f"{KEY}-index")}
    frames = positions_of(KEY)
    chance = random.Random(7)
    whole = len(only[KEY][0])
    for position in [*range(BLOCK_HEADER_BYTES + 12), *(chance.randrange(whole) for _ in range(800))]:
        bucket.objects = dict(only)
        flip(bucket, KEY, position, chance.randrange(8))
        found = findings_of(bucket)
        inside = [begin for _, begin, end in frames if begin + 12 <= position < end]
        # No checksum covers the broker's own metadata: time and index of the entry.
        if not found:
            assert inside
            assert position < inside[0] + 12 + 6 + 16
            continue
        assert {finding.object for finding in found} == {KEY}
        assert {finding.kind for finding in found} <= ({"message"} if inside else {"message", "frame"})


def test_truncated_missing_and_miscounted_objects() -> None:
    bucket = broker_bucket()
    data, at_ms, _ = bucket.objects[KEY]
    bucket.add(KEY, data[:-5], at_ms)
    lone_index, lone_data = key_of(TXN, 38), key_of(TXN, 42)
    del bucket.objects[lone_index], bucket.objects[f"{lone_data}-index"]
    bad = next(key for key in sorted(bucket.objects) if not key.endswith("-index") and "-ledger-5" in key)
    flip(bucket, f"{bad}-index", 0)
    found = {(finding.kind, finding.object, finding.ledger, finding.position) for finding in findings_of(bucket)}
    assert found == {
        ("length", KEY, 39, len(data) - 5),
        ("index-without-data", f"{lone_index}-index", 38, 0),
        ("data-without-index", lone_data, 42, 0),
        ("index", f"{bad}-index", int(bad.rpartition("-")[2]), 0),
    }


def test_counts_and_lengths_against_metadata() -> None:
    bucket = FakeBucket()
    pair = encode_ledger([b"one", b"two"])
    index = pair.index
    said = replace(index.metadata, length=7)
    raw = build_ledger_index(LedgerIndex(index.data_length, said, encode_metadata(said), index.blocks))
    bucket.add(f"{A}-ledger-7", pair.data)
    bucket.add(f"{A}-ledger-7-index", raw)
    put_v2(bucket, B, [(1, 0), (1, 1), (2, 0)], entries={1: 3, 2: 1})
    counts = ("count", f"{A}-ledger-7", 7)
    assert [finding[:3] for finding in findings_of(bucket)] == [counts, ("count", B, 1)]
    put_v2(bucket, C, [(1, 0), (1, 1), (2, 0)], entries={1: 3, 2: 1})  # a second attempt adds nothing
    assert [finding[:3] for finding in findings_of(bucket)] == [counts]


def test_lone_objects_by_what_the_broker_says() -> None:
    bucket = broker_bucket()
    live = read_live(live_files([TXN]))
    lone = key_of(TXN, 42)
    del bucket.objects[f"{lone}-index"]
    bucket.add(f"{A}-ledger-42", b"of an attempt that was given up")
    bucket.add(f"{B}", b"a foreign object that is called like a uuid")
    bucket.add(f"{C}-index", b"another one")
    assert [finding[:2] for finding in findings_of(bucket, live)] == [("data-without-index", lone)]
    uuids = {42: live.uuids[42]}
    under_way = LiveFiles([LiveDocument(None, {42: live.uuids[42]})], uuids, {42: False})
    assert findings_of(bucket, under_way) == []
    put_v1(bucket, A, 42, [b"complete"])
    del bucket.objects[f"{A}-ledger-42-index"]
    bucket.objects[f"{lone}-index"] = broker_bucket().objects[f"{lone}-index"]
    assert findings_of(bucket) == []
