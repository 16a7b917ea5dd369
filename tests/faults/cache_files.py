"""A container on disk with an LMDB cache beside it, made once and copied for each bit that flips in the cache's file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from chunkstore.assembly import open_store
from chunkstore.config import RollingPolicy, Settings, Tuning
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import CacheDamaged, ChunkstoreError
from chunkstore.observer import Observer
from tests.support.data import pattern, problems

SEGMENTS = 60
CHUNK_BYTES = 40
NAMESPACE = "facts"


def settings(cache: Path) -> Settings:
    return Settings(
        inline_bytes_max=0,
        cache_dir=str(cache),
        lease_s=0,
        gc_grace_s=0,
        default_rolling=RollingPolicy(chunk_size_bytes_max=CHUNK_BYTES),
        tuning=Tuning(io_workers=1, lmdb_map_bytes=1 << 26, snapshot_bytes_min=1 << 30),
    )


class Watching(Observer):
    """Remembers which failures were reported."""

    def __init__(self) -> None:
        self.failures: list[ChunkstoreError] = []

    def failed(self, error: ChunkstoreError) -> None:
        self.failures.append(error)

    @property
    def damage(self) -> list[ChunkstoreError]:
        """Those of the cache."""
        return [error for error in self.failures if isinstance(error, CacheDamaged)]


class Model(NamedTuple):
    """What was acknowledged: bytes of segments, rows of the table, the last event of the writer in each segment."""

    segments: dict[str, bytes]
    table: dict[bytes, bytes]
    events: dict[str, int]

    def copy(self) -> Model:
        return Model(dict(self.segments), dict(self.table), dict(self.events))


class Made(NamedTuple):
    """A folder with ``root`` and ``cache``, and what is in it."""

    folder: Path
    model: Model


def data_file(cache: Path) -> Path:
    """The current store's data file below an owner's cache directory."""
    (found,) = cache.glob("*/owner/*/STATE")
    return found.with_name("data.mdb")


def open_in(folder: Path, observer: Observer | None = None) -> ChunkedSegmentStorage:
    folder.mkdir(parents=True, exist_ok=True)
    return open_store(f"file://{folder}/root", settings=settings(folder / "cache"), observer=observer)


def append(store: ChunkedSegmentStorage, model: Model, name: str, length: int, *, event: int = 0) -> None:
    """Append what belongs there; with ``event`` as the writer's."""
    at = len(model.segments[name])
    data = pattern(at, length, seed=len(name))
    if event:
        assert store.append(name, data, writer_id=b"w", event_number=event) == at
        model.events[name] = event
    else:
        assert store.append(name, data, expected_offset=at) == at
    model.segments[name] += data


def put(store: ChunkedSegmentStorage, model: Model, key: bytes, value: bytes) -> None:
    store.table(NAMESPACE).put(key, value)
    model.table[key] = value


def fill(store: ChunkedSegmentStorage) -> Model:
    """Segments of several chunks, writers, a table, an end spliced on, garbage."""
    model = Model({}, {}, {})
    for number in range(SEGMENTS):
        name = f"segment/{number:03d}"
        store.create(name, attributes={"n": number})
        model.segments[name] = b""
        for length in (30, 25, 50)[: 1 + number % 3]:
            append(store, model, name, length)
        if number % 4 == 0:
            append(store, model, name, 7, event=3)
    for number in range(40):
        put(store, model, b"key %03d" % number, b"%d" % number * 9)
    put(store, model, b"long", bytes(range(256)) * 40)
    store.create("source")
    store.append("source", b"spliced")
    store.seal("source")
    store.concat("segment/001", len(model.segments["segment/001"]), "source")
    model.segments["segment/001"] += b"spliced"
    store.create("gone")
    store.append("gone", bytes(100))
    store.delete("gone")
    return model


def make(folder: Path) -> Made:
    """A container that was closed cleanly."""
    with open_in(folder) as store:
        model = fill(store)
        store.snapshot()
        for number in range(20):
            append(store, model, f"segment/{number:03d}", 11)
    return Made(folder, model)


def flip(path: Path, position: int, bit: int) -> None:
    """One bit, in place: what has the file mapped sees it."""
    with path.open("r+b", buffering=0) as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes((byte ^ 1 << bit,)))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)  # on another file system


def copied(made: Made, folder: Path) -> Made:
    """A copy to damage, as if it had been made there: its cache is this root's. What lies in the root is linked: another epoch
    replaces it or leaves it alone."""
    shutil.copytree(made.folder / "cache", folder / "cache")
    state = data_file(folder / "cache").with_name("STATE")
    state.write_text(state.read_text().replace(quote(str(made.folder)), quote(str(folder))))
    shutil.copytree(made.folder / "root", folder / "root", copy_function=_link)
    return Made(folder, made.model.copy())


def state_differs(store: ChunkedSegmentStorage, model: Model) -> str:
    """In which way the container is not what was acknowledged; empty if it is."""
    names = [info.name for info in store.segments()]
    if names != sorted(model.segments):
        return f"segments {set(names) ^ set(model.segments)}"
    for name, expected in model.segments.items():
        if store.read(name, 0, len(expected) + 1) != expected:
            return f"bytes of {name}"
    for name, number in model.events.items():
        if store.last_event_number(name, b"w") != number:
            return f"last event of {name}"
    rows = {row.key: row.value for row in store.table(NAMESPACE).scan()}
    return "" if rows == model.table else f"table rows {rows.items() ^ model.table.items()}"


def replayed_differs(made: Made) -> str:
    """The same of the state that the journal alone leads to. A record that replay refuses is an error (``ChunkstoreError``)."""
    shutil.rmtree(made.folder / "cache")
    with open_in(made.folder) as store:
        return state_differs(store, made.model) or ", ".join(map(str, problems(store.check("quick"))))
