"""Stores that were written with the withdrawn lazy lengths (decision 0012) and left without a close.

``tests/golden/lazy-store`` holds one per journal mode, written by chunkstore 1.0 in a process that ended with ``os._exit``: chunks of
state 3 whose last bytes were acknowledged without a record.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import chunkstore
from chunkstore.assembly import journal_records, open_replica, open_store_on
from chunkstore.config import Settings
from chunkstore.errors import StorageUnavailable
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from tests.support.forwarding import Hooked
from tests.support.packed import unpack

GOLDEN = Path(__file__).parent.parent / "golden" / "lazy-store"
ACKNOWLEDGED = {
    "one": b"first second third",
    "one record": b"recorded",
    "rolled": b"".join(b"%06d" % number for number in range(9)),
    "sealed": b"xy",
    "settled": b"abc",
    "writers": b"plaine1++",
}
RECORDED = {"one": 5, "one record": 8, "rolled": 42, "sealed": 2, "settled": 2, "writers": 9}


class Place:
    def __init__(self, mode: str, folder: Path) -> None:
        self.mode, self.folder, self.opened = mode, folder, 0
        unpack(GOLDEN / f"{mode}.tar.gz", folder / "root")

    @property
    def root(self) -> str:
        return f"file://{self.folder}/root"

    def settings(self) -> Settings:
        self.opened += 1
        cache = str(self.folder / f"cache-{self.opened}")
        return Settings(journal_mode=self.mode, cache_dir=cache, lease_s=0)  # type: ignore[arg-type]

    def open(self) -> chunkstore.ChunkedSegmentStorage:
        return chunkstore.open(self.root, settings=self.settings())


@pytest.fixture(params=["append", "slot"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


def contents(store: chunkstore.ChunkedSegmentStorage) -> dict[str, bytes]:
    return {info.name: store.read(info.name, 0, 99) for info in store.segments()}


def test_a_replica_reads_what_has_a_record(place: Place) -> None:
    with open_replica(place.root, settings=place.settings()) as replica:
        replica.refresh()
        for name, length in RECORDED.items():
            assert replica.read(name, 0, 99) == ACKNOWLEDGED[name][:length]


def test_open_measures_and_closes_every_lazy_chunk(place: Place) -> None:
    with place.open() as store:
        assert contents(store) == ACKNOWLEDGED
        assert {chunk.state for name in ACKNOWLEDGED for chunk in store.layout(name)} == {"closed"}
        assert store.check("deep") == []
        for name in ACKNOWLEDGED.keys() - {"sealed"}:
            assert store.append(name, b" more") == len(ACKNOWLEDGED[name])
        assert store.append("writers", b"e1", writer_id=b"w", event_number=1) == 5, "answered again, not appended"
        after = contents(store)
    records = len(list(journal_records(place.root)))
    with place.open() as store:
        assert len(list(journal_records(place.root))) == records + 1, "its OPEN: nothing is measured again"
        assert contents(store) == after
        assert store.check("deep") == []


def test_nobody_is_served_before_what_is_measured_is_durable(place: Place) -> None:
    """A storage that cannot harden what was measured: opening fails, and the next one measures again."""
    storage = Hooked(FilesystemChunkStorage(str(place.folder / "root")))
    hardened: set[str] = set()

    def before(operation: str, names: tuple[str, ...]) -> None:
        if operation == "harden" and "/d/" in names[0]:
            hardened.add(names[0])
            raise StorageUnavailable("injected", object=names[0])

    storage.before = before
    with pytest.raises(StorageUnavailable):
        open_store_on(storage, settings=place.settings())
    assert len(hardened) == 4, "one, one record, rolled, settled: those that were lazy"
    storage.before = lambda *_: None
    with open_store_on(storage, settings=place.settings()) as store:
        assert contents(store) == ACKNOWLEDGED
    storage.close()


def test_what_an_old_zombie_writes_after_the_measure_is_not_read(place: Place) -> None:
    chunks = [path for path in (place.folder / "root" / "default" / "d").rglob("*") if path.is_file()]
    with place.open() as store:
        for path in chunks:
            with path.open("ab") as grown:
                grown.write(b"zombie")
        assert contents(store) == ACKNOWLEDGED
        store.append("one", b"!")
    with place.open() as store:
        assert contents(store) == ACKNOWLEDGED | {"one": ACKNOWLEDGED["one"] + b"!"}
