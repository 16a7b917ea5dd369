"""Objects that Pulsar's own classes wrote (``tests/fixtures/pulsar``): every entry, every gap, and the defective one by name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chunkstore.codec.pulsar.arrow import read_batches
from chunkstore.codec.pulsar.frames import DataSource, Entry
from chunkstore.codec.pulsar.offload_metadata import encode_metadata
from chunkstore.codec.pulsar.pip76 import SegmentEncoder, SegmentReader, build_index, read_index
from chunkstore.codec.pulsar.windows import iter_entries
from chunkstore.errors import Damaged
from tests.support.pip76 import Sink, source_of

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "pulsar"
DEFECTIVE = "v2-multi-block-one-ledger-BUGGY-OFFSETS"
Digest = tuple[int, int, int, str]


@dataclass(frozen=True)
class Fixture:
    name: str
    manifest: dict[str, Any]
    segment: dict[str, Any]
    data: bytes
    index: bytes

    @property
    def expected(self) -> list[Digest]:
        return [(row[0], row[1], row[2], row[3]) for row in self.segment["ledger_entry_len_sha256"]]


def fixtures() -> list[Fixture]:
    found = []
    for path in sorted(FOLDER.glob("v2-*.json")):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        for segment in manifest["segments"]:
            data, index = (FOLDER / segment["data_file"]).read_bytes(), (FOLDER / segment["index_file"]).read_bytes()
            assert hashlib.sha256(data).hexdigest() == segment["data_sha256"]
            assert hashlib.sha256(index).hexdigest() == segment["index_sha256"]
            found.append(Fixture(segment["data_file"].removesuffix(".data"), manifest, segment, data, index))
    return found


ALL = fixtures()
GOOD = [fixture for fixture in ALL if fixture.name != DEFECTIVE]
every = pytest.mark.parametrize("fixture", ALL, ids=lambda fixture: fixture.name)
every_good = pytest.mark.parametrize("fixture", GOOD, ids=lambda fixture: fixture.name)


def digests(entries: Iterable[Entry]) -> list[Digest]:
    return [
        (entry.ledger, entry.entry, len(entry.payload), hashlib.sha256(entry.payload).hexdigest()) for entry in entries
    ]


def payload(seed: str, ledger: int, entry: int, length: int) -> bytes:
    parts = (
        hashlib.sha256(f"{seed}:{ledger}:{entry}:{number}".encode("ascii")).digest()
        for number in range(length // 32 + 1)
    )
    return b"".join(parts)[:length]


def test_all_are_here() -> None:
    assert len(ALL) == 9
    assert len(GOOD) == 8


@every
def test_index(fixture: Fixture) -> None:
    index = read_index(fixture.index)
    told = fixture.segment["index"]
    assert index.data_length == told["data_object_length"]
    assert [group.ledger for group in index.ledgers] == sorted(ledger["ledger"] for ledger in told["ledgers"])
    for ledger in told["ledgers"]:
        group = index.group(ledger["ledger"])
        assert group.metadata.hex() == ledger["metadata_hex"]
        assert encode_metadata(group.info) == group.metadata
        assert [(block.first_entry, block.part, block.offset) for block in group.blocks] == [
            (block["entry"], block["part"], block["offset"]) for block in ledger["entries"]
        ]
    if [group.ledger for group in index.ledgers] == [ledger["ledger"] for ledger in told["ledgers"]]:
        assert build_index(index) == fixture.index


@every_good
@pytest.mark.parametrize("window_bytes", [4096, 1 << 20])
def test_every_entry(fixture: Fixture, window_bytes: int) -> None:
    reader = SegmentReader(source_of(fixture.data), read_index(fixture.index), window_bytes=window_bytes)
    entries = [entry for ledger in reader.ledgers for entry in iter_entries(reader, ledger)]
    assert digests(entries) == fixture.expected
    seed = fixture.manifest["payload_seed"]
    assert all(entry.payload == payload(seed, entry.ledger, entry.entry, len(entry.payload)) for entry in entries)
    rows = [
        Entry(row["ledger"], row["entry"], row["payload"])
        for ledger in reader.ledgers
        for batch in read_batches(reader, ledger)
        for row in batch.to_pylist()
    ]
    assert rows == entries


@every_good
def test_single_entries_and_what_is_missing(fixture: Fixture) -> None:
    reader = SegmentReader(source_of(fixture.data), read_index(fixture.index))
    for ledger in reader.ledgers:
        there = {row[1]: row for row in fixture.expected if row[0] == ledger}
        for entry in range(max(there) + 2):
            found = digests(iter_entries(reader, ledger, entry, entry))
            assert found == ([there[entry]] if entry in there else [])


def test_the_gap_is_one() -> None:
    [fixture] = [fixture for fixture in GOOD if fixture.name == "v2-gap-inside-ledger"]
    reader = SegmentReader(source_of(fixture.data), read_index(fixture.index))
    assert [entry.entry for entry in iter_entries(reader, 150)] == [0, 1, 2, 3, 4, 8, 9, 10, 11, 12]
    assert [entry.entry for entry in iter_entries(reader, 150, 3, 9)] == [3, 4, 8, 9]
    assert list(iter_entries(reader, 150, 5, 7)) == []


def test_one_ledger_over_three_segments() -> None:
    parts = [fixture for fixture in GOOD if fixture.name.startswith("v2-one-ledger-three-segments")]
    ids = []
    for fixture in parts:
        reader = SegmentReader(source_of(fixture.data), read_index(fixture.index))
        ids += [entry.entry for entry in iter_entries(reader, 140)]
    assert ids == list(range(30))


@every_good
def test_encoding_makes_the_same_bytes(fixture: Fixture) -> None:
    """With Pulsar's least block size; blocks that Pulsar leaves without padding at their end are another matter."""
    reader = SegmentReader(source_of(fixture.data), read_index(fixture.index))
    sink = Sink()
    least = fixture.manifest["min_block_size"]
    encoder = SegmentEncoder(sink, block_bytes_max=max(least, 4096), block_bytes_min=least)
    for ledger in reader.ledgers:
        encoder.begin_ledger(ledger, reader.index.group(ledger).info)
        for entry in iter_entries(reader, ledger):
            encoder.append(entry.entry, entry.payload)
    index = encoder.finish()
    if "no-padding" in fixture.name:
        assert sink.data != fixture.data
        again = SegmentReader(source_of(sink.data), read_index(index))
        assert digests(iter_entries(again, again.ledgers[0])) == fixture.expected
    else:
        assert sink.data == fixture.data
        assert index == fixture.index


def test_the_defective_object_is_refused_by_name() -> None:
    [fixture] = [fixture for fixture in ALL if fixture.name == DEFECTIVE]
    index = read_index(fixture.index)
    name = re.escape("first-entry defect of Pulsar's own PIP-76 writer")
    with pytest.raises(Damaged, match=name) as caught:
        SegmentReader(source_of(fixture.data, "the-object"), index)
    assert (caught.value.object, caught.value.position) == ("the-object", 4508)
    # Told the length that the index claims, the reader meets the defect on its way.
    source = DataSource("the-object", index.data_length, lambda at, length: fixture.data[at : at + length])
    with pytest.raises(Damaged, match=name):
        list(iter_entries(SegmentReader(source, index), 180))
    with pytest.raises(Damaged, match=name):
        list(iter_entries(SegmentReader(source, index), 180, 45, 45))
