"""What a container holds as plain data, for comparing it with what an earlier version saw."""

from __future__ import annotations

import hashlib
from typing import Any

from chunkstore.pulsar import LedgerReader
from chunkstore.pulsar.contexts import Stored

TOPIC = "persistent://public/default/orders"
TABLES = ("colours", "numbers", "offload")


def payload(entry: int) -> bytes:
    return b"entry %d " % entry * (entry % 20 + 1)


def contents(store: Stored) -> dict[str, Any]:
    """All segments with the hashes of their bytes and chunks, all table rows, all ledgers."""
    segments = {}
    for info in store.segments():
        kept = store.read(info.name, info.start_offset, info.length - info.start_offset)
        chunks = [(chunk.name, chunk.offset, chunk.length, chunk.crc32c) for chunk in store.layout(info.name)]
        segments[info.name] = {
            "id": info.id,
            "start": info.start_offset,
            "length": info.length,
            "sealed": info.sealed,
            "owner_epoch": info.owner_epoch,
            "attributes": {name: repr(value) for name, value in info.attributes.items()},
            "times": [info.created_at, info.modified_at],
            "sha256": hashlib.sha256(kept).hexdigest(),
            "chunks": hashlib.sha256(repr(chunks).encode()).hexdigest(),
        }
    tables = {
        name: [[row.key.hex(), hashlib.sha256(row.value).hexdigest(), row.version] for row in store.table(name).scan()]
        for name in TABLES
    }
    reader = LedgerReader(store)
    ledgers = {
        topic: {
            str(ledger.ledger): hashlib.sha256(repr(list(reader.read(topic, ledger.ledger))).encode()).hexdigest()
            for ledger in reader.ledgers(topic)
        }
        for topic in reader.topics()
    }
    return {"segments": segments, "tables": tables, "ledgers": ledgers}
