"""Containers with a record that does not lead to the state it tells, as an owner whose memory is rotten would write it.

Opening refuses them; repair brings back what can be had.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import chunkstore
from chunkstore.config import RollingPolicy, Settings
from chunkstore.metadata.keys import segment_key

__all__ = ["Wreck", "wreck"]


class Wreck(NamedTuple):
    """What the container held at the last good record, ``lsn``; and every append that was acknowledged, with its offset."""

    lsn: int
    held: dict[str, bytes]
    acknowledged: list[tuple[str, int, bytes]]


def wreck(mode: Literal["append", "slot"], folder: Path) -> Wreck:
    """Make one in ``folder / "root"``. Behind the record a segment is replaced by another one of its name, and two others go on."""
    settings = Settings(
        journal_mode=mode,
        cache_dir=str(folder / "cache-of-the-wreck"),
        lease_s=0,
        lmdb_map_bytes=1 << 26,
        inline_bytes_max=0,
        default_rolling=RollingPolicy(chunk_size_bytes_max=64),
    )
    folder.mkdir(parents=True, exist_ok=True)
    root, acknowledged = f"file://{folder}/root", list[tuple[str, int, bytes]]()

    def append(store: chunkstore.ChunkedSegmentStorage, segment: str, data: bytes) -> None:
        acknowledged.append((segment, store.append(segment, data), data))

    with chunkstore.open(root, settings=settings) as store:
        for name in ("lost", "plain", "rest"):
            store.create(name, attributes={"mark": "flip me"} if name == "plain" else {})
            append(store, name, b"first of %s;" % name.encode())
        store.table("colours").put(b"red", b"of the original")
        store.snapshot()
        append(store, "rest", b"behind the snapshot;")
    store = chunkstore.open(root, settings=settings)
    held = {info.name: store.read(info.name, 0, 999) for info in store.segments()}
    current = store._container.current
    build: Any = current.queue._environment.build
    lsn, builder = current.queue.head.lsn, build.__self__
    sound, rotten = builder._old_row, segment_key("plain")
    builder._old_row = lambda key: sound(key).replace(b"flip me", b"fliq me") if key == rotten else sound(key)
    append(store, "plain", b"spoilt;")
    append(store, "rest", b"after it;")
    append(store, "plain", b"spoilt again;")
    store.delete("lost")
    store.create("lost")
    append(store, "lost", b"anew;")
    store.create("later")
    append(store, "later", b"created after it;")
    store._container.current.journal.close()  # as a process that was killed: nothing more is written
    store.close()
    return Wreck(lsn, held, acknowledged)
