"""Stores that earlier versions wrote open with this one, hold what they held, and go on (``tests/golden/stores``)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.assembly import journal_records, open_replica
from chunkstore.changes import Attach, EndSession
from chunkstore.config import Settings
from chunkstore.errors import BadOffset, Conflict, SegmentSealed
from chunkstore.pulsar import LedgerReader, OffloadWriter
from chunkstore.sessions import SessionChunk
from tests.golden.stores.reading import TOPIC, contents, payload
from tests.support.data import problems
from tests.support.packed import unpack

GOLDEN = Path(__file__).parents[1] / "golden"
EXPECTED: dict[str, dict[str, Any]] = json.loads((GOLDEN / "stores" / "expected.json").read_text())
INLINE: dict[str, dict[str, Any]] = json.loads((GOLDEN / "inline_stores" / "expected.json").read_text())
"""With bytes in the journal's records."""
KNOWN_ELSEWHERE = ("head", "session", "chunk", "kinds")


class Place:
    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.caches = name, folder, 0
        self.root = f"file://{folder}/root"
        self.expected = {**EXPECTED, **INLINE}[name]
        self.holds = {key: value for key, value in self.expected.items() if key not in KNOWN_ELSEWHERE}
        unpack(GOLDEN / ("inline_stores" if name in INLINE else "stores") / f"{name}.tar.gz", folder / "root")

    def settings(self, **more: Any) -> Settings:
        """Another machine each time: without a cache, and with the container's own journal mode."""
        self.caches += 1
        cache = str(self.folder / f"cache-{self.caches}")
        return Settings(cache_dir=cache, lease_s=0, lmdb_map_bytes=1 << 26, **more)

    def open(self, **more: Any) -> chunkstore.ChunkedSegmentStorage:
        return chunkstore.open(self.root, settings=self.settings(**more), create=False)

    def files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in (self.folder / "root").rglob("*") if path.is_file()}


@pytest.fixture(params=sorted(EXPECTED))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


@pytest.mark.parametrize("name", [*sorted(EXPECTED), *sorted(INLINE)])
def test_a_replica_reads_all_of_it_and_changes_nothing(name: str, tmp_path: Path) -> None:
    place = Place(name, tmp_path)
    before = place.files()
    with open_replica(place.root, settings=place.settings()) as replica:
        replica.refresh()
        assert contents(replica) == place.holds
        assert replica.lsn == place.expected["head"]["lsn"]
        last = list(journal_records(place.root))[-1]
        assert isinstance(last["hash"], bytes)
        assert (last["lsn"], last["hash"].hex()) == (replica.lsn, place.expected["head"]["hash"])
        assert problems(replica.check("deep")) == []
    assert place.files() == before


def test_an_owner_holds_all_of_it_and_goes_on(place: Place) -> None:
    with place.open() as store:
        assert contents(store) == place.holds
        opening = list(journal_records(place.root))[-1]
        # The sum over all rows, whatever lies in them: the OPEN of this version changes none.
        assert f"{opening['digest']:064x}" == place.expected["head"]["digest"]
        assert problems(store.check("deep")) == []
        go_on(store, place)
        after = contents(store)
        store.snapshot()
        assert problems(store.check("deep")) == []
    with place.open() as again:
        assert contents(again) == after
        assert problems(again.check("deep")) == []
        again.collect()
        assert contents(again) == after


def go_on(store: chunkstore.ChunkedSegmentStorage, place: Place) -> None:
    """Use what is there: append to every segment, write more rows, attach to the open session, offload on."""
    for name, was in place.expected["segments"].items():
        if name.startswith("offload/"):
            continue
        if was["sealed"]:
            with pytest.raises(SegmentSealed):
                store.append(name, b"more")
            store.unseal(name)
        with pytest.raises(BadOffset):
            store.append(name, b"more", expected_offset=was["length"] + 1)
        assert store.append(name, b"more") == was["length"]
        before = store.read(name, was["start"], was["length"] - was["start"])
        assert hashlib.sha256(before).hexdigest() == was["sha256"]
    assert store.append("writers", b"three", writer_id=b"w1", event_number=5) == 6, "answered again, not appended"
    assert (store.last_event_number("writers", b"w1"), store.last_event_number("writers", "w2")) == (5, 1)
    store.table("colours").put(b"green", b"#0f0", expected_version=0)
    with pytest.raises(Conflict):
        store.table("colours").put(b"red", b"", expected_version=1)
    identity, length, crc = place.expected["chunk"]
    chunk = SessionChunk(bytes.fromhex(identity), length, crc)
    session = place.expected["session"]
    at = store.commit([Attach("attached", session, (chunk,)), EndSession(session)])[0]
    assert at is not None and store.read("attached", at, 99) == b"not attached yet"
    store.truncate("front cut", 40)
    store.seal("three in one")
    store.concat("target", store.info("target").length, "three in one")
    with OffloadWriter(store, TOPIC, block_bytes=4096) as writer:
        assert writer.last_entry(11) == 59
        writer.append(11, 60, payload(60))
    assert [entry.payload for entry in LedgerReader(store).read(TOPIC, 11, 55)] == [payload(n) for n in range(55, 61)]


@pytest.mark.parametrize("golden", sorted(INLINE))
def test_one_with_bytes_in_records_goes_on(golden: str, tmp_path: Path) -> None:
    """Live, half spilled, cut, and (APPEND) embedded in OPENs: they are read, appended to, spilled, and, switched off, gone."""
    place = Place(golden, tmp_path)
    data: dict[str, bytes] = {}
    with place.open(spill_s=3600) as store:
        assert contents(store)["segments"].keys() == place.holds["segments"].keys()
        assert {name: [chunk.kind for chunk in store.layout(name)] for name in place.expected["segments"]} == (
            place.expected["kinds"]
        )
        assert problems(store.check("deep")) == []
        for name, was in place.expected["segments"].items():
            held = store.read(name, was["start"], was["length"] - was["start"])
            assert hashlib.sha256(held).hexdigest() == was["sha256"]
            assert store.append(name, b"more") == was["length"]
            data[name] = held + b"more"
        store._spiller.spill_all("half spilled")
        assert store.append("live", b"again", writer_id=b"w1", event_number=7) < store.info("live").length - 4
        store.snapshot()
    with place.open(inline_bytes_max=0) as off:
        for name, was in place.expected["segments"].items():
            off._spiller.spill_all(name)
            assert {chunk.kind for chunk in off.layout(name)} == {"object"}
            assert off.read(name, was["start"], 9999) == data[name]
        assert problems(off.check("deep")) == []
