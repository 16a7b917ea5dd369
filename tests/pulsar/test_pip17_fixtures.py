"""PIP-17 pairs that Pulsar's own classes wrote: every entry, every field, and the same bytes from our encoder."""

from __future__ import annotations

import hashlib
import json

import pyarrow as pa
import pytest

from chunkstore.codec.pulsar.arrow import append_batch, read_batches
from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.offload_metadata import encode_metadata
from chunkstore.codec.pulsar.pip17 import LedgerEncoder, build_ledger_index
from chunkstore.codec.pulsar.windows import iter_entries
from tests.support.pip17 import Fixture, fixtures, minimal_read
from tests.support.pip76 import Sink
from tests.support.pulsar_broker import FOLDER, pair_of

ALL = fixtures()
every = pytest.mark.parametrize("fixture", ALL, ids=lambda fixture: fixture.name)


def payload(seed: str, ledger: int, entry: int, length: int) -> bytes:
    parts = (
        hashlib.sha256(f"{seed}:{ledger}:{entry}:{number}".encode()).digest() for number in range(length // 32 + 1)
    )
    return b"".join(parts)[:length]


def test_all_are_here() -> None:
    assert sorted(len(fixture.index.blocks) > 1 for fixture in ALL) == [False] * 3 + [True] * 4


@every
def test_index(fixture: Fixture) -> None:
    index, told = fixture.index, fixture.manifest["index"]
    assert index.data_length == told["data_object_length"] == len(fixture.data)
    assert index.raw_metadata.hex() == told["metadata_hex"]
    assert encode_metadata(index.metadata) == index.raw_metadata
    assert [(block.first_entry, block.part, block.offset) for block in index.blocks] == [
        (block["entry"], block["part"], block["offset"]) for block in told["entries"]
    ]
    assert (index.metadata.length, index.metadata.last_entry, index.metadata.state) == (
        fixture.manifest["ledger_length"], fixture.manifest["entries"] - 1, 3
    )  # fmt: skip
    assert build_ledger_index(index) == fixture.index_bytes


def test_custom_metadata_and_ensembles() -> None:
    [fixture] = [fixture for fixture in ALL if fixture.name == "v1-mixed-1000"]
    metadata = fixture.index.metadata
    assert metadata.topic == "tenant/ns/persistent/topic"
    assert metadata.custom == (
        ("component", b"pulsar-managed-ledger"),
        ("pulsar/managed-ledger", b"tenant/ns/persistent/topic"),
    )
    assert [ensemble.first_entry for ensemble in metadata.ensembles] == [0, 500]
    assert metadata.ensembles[1].members == ("bookie1:3181", "bookie4:3181", "bookie3:3181")
    assert (metadata.write_quorum, metadata.ensemble_size, metadata.ack_quorum) == (2, 3, 2)
    assert (metadata.digest_type, metadata.created_ms) == (3, 1_700_000_000_000)


@every
@pytest.mark.parametrize("window_bytes", [4096, 1 << 20])
def test_every_entry(fixture: Fixture, window_bytes: int) -> None:
    ledger, seed = fixture.manifest["ledger"], fixture.manifest["payload_seed"]
    reader = fixture.reader(window_bytes, ledger)
    entries = list(iter_entries(reader, ledger))
    assert [
        [entry.entry, len(entry.payload), hashlib.sha256(entry.payload).hexdigest()] for entry in entries
    ] == fixture.manifest["entry_id_len_sha256"]
    assert all(entry.payload == payload(seed, ledger, entry.entry, len(entry.payload)) for entry in entries)
    batches = list(read_batches(reader, ledger))
    assert [
        Entry(row["ledger"], row["entry"], row["payload"]) for batch in batches for row in batch.to_pylist()
    ] == entries
    assert minimal_read(fixture.data, fixture.index_bytes) == [(entry.entry, entry.payload) for entry in entries]


@every
def test_single_entries(fixture: Fixture) -> None:
    reader = fixture.reader()
    [ledger] = reader.ledgers
    count = fixture.manifest["entries"]
    wanted = {row[0]: row[2] for row in fixture.manifest["entry_id_len_sha256"]}
    for entry in {*range(0, count, 1 + count // 40), *range(min(3, count)), count - 1}:
        [found] = iter_entries(reader, ledger, entry, entry)
        assert hashlib.sha256(found.payload).hexdigest() == wanted[entry]
    assert list(iter_entries(reader, ledger, count)) == []


@every
@pytest.mark.parametrize("by_arrow", [False, True])
def test_our_encoder_writes_the_same_bytes(fixture: Fixture, by_arrow: bool) -> None:
    entries = fixture.entries()
    sink = Sink()
    encoder = LedgerEncoder(sink, fixture.index.metadata, block_bytes_max=fixture.manifest["max_block_size"])
    if by_arrow:
        append_batch(encoder, 0, pa.array([entry.payload for entry in entries], pa.binary()))
    else:
        for entry in entries:
            encoder.append(entry.entry, entry.payload)
    index = encoder.finish()
    assert sink.data == fixture.data
    assert [block.length for block in sink.blocks] == fixture.manifest["part_sizes"]
    # The pairs of the custom metadata keep the order they came in, so the index is the same, too.
    assert index == fixture.index_bytes


@pytest.mark.parametrize("folder", ["indexed", "plain"])
def test_what_a_broker_offloaded(folder: str) -> None:
    """Every object of a genuine broker: each entry, the topic, and the same bytes from our encoder."""
    told = json.loads((FOLDER / folder / "entries.json").read_text(encoding="utf-8"))
    objects = json.loads((FOLDER / folder / "objects.json").read_text(encoding="utf-8"))
    names = [name for name, item in objects.items() if item["user_metadata"]["role"] == "data"]
    found = []
    for name in names:
        pair, ledger = pair_of(folder, name), int(name.rpartition("-")[2])
        topic = objects[name]["user_metadata"]["managedledgername"]
        assert pair.index.metadata.topic == topic
        entries = list(iter_entries(pair.reader(ledger=ledger), ledger))
        found += [
            [
                topic.rpartition("/")[2],
                ledger,
                entry.entry,
                len(entry.payload),
                hashlib.sha256(entry.payload).hexdigest(),
            ]
            for entry in entries
        ]
        sink = Sink()
        encoder = LedgerEncoder(sink, pair.index.metadata)
        for entry in entries:
            encoder.append(entry.entry, entry.payload)
        assert (encoder.finish(), sink.data) == (pair.index_bytes, pair.data)
    assert sorted(found) == sorted(row[:5] for row in told)
