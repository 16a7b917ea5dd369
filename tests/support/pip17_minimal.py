"""The entries of topics that a genuine broker offloaded (PIP-17, v1), read by as little as that needs, and what a consumer saw of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from struct import unpack_from
from typing import Any

from chunkstore.codec.pulsar.pip76 import Entry

__all__ = ["TOPICS", "entries_of_object", "entries_of_topic", "seen_by_consumer"]

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "pulsar-broker"
TOPICS = sorted(
    str(path.relative_to(FOLDER)).removesuffix(".messages.json") for path in FOLDER.glob("*/*.messages.json")
)
"""``indexed/NAME`` and ``plain/NAME``."""


def entries_of_object(ledger: int, data: bytes, index: bytes) -> Iterator[Entry]:
    """The entries of a ledger, from its data object and its index object."""
    magic, length, data_length, header_length, blocks, metadata_length = unpack_from(">Iiqqii", index)
    assert (magic, length, data_length) == (0xDE47DE47, len(index), len(data))
    for block in range(blocks):
        first, _, offset = unpack_from(">qiq", index, 32 + metadata_length + 20 * block)
        block_magic, _, block_length, block_first = unpack_from(">Iqqq", data, offset)
        assert (block_magic, block_first) == (0xFBDBABCB, first)
        at, end = offset + header_length, offset + block_length
        while at < end and (size := unpack_from(">i", data, at)[0]) >= 0:
            (entry,) = unpack_from(">q", data, at + 4)
            yield Entry(ledger, entry, data[at + 12 : at + 12 + size])
            at += 12 + size


def entries_of_topic(topic: str) -> list[Entry]:
    """All entries of a topic that were offloaded, in their order."""
    folder, name = FOLDER / topic.split("/", maxsplit=1)[0], topic.split("/")[1]
    info = json.loads((folder / f"{name}.info-internal.json").read_text(encoding="utf-8"))
    found: list[Entry] = []
    for item in sorted(info["ledgers"], key=lambda item: int(item["ledgerId"])):
        if "offloadedContextUuid" in item:
            path = folder / "objects" / f"{item['offloadedContextUuid']}-ledger-{item['ledgerId']}"
            index = path.with_name(path.name + "-index").read_bytes()
            entries = list(entries_of_object(item["ledgerId"], path.read_bytes(), index))
            assert len(entries) == item["entries"]
            found += entries
    return found


def seen_by_consumer(topic: str) -> list[dict[str, Any]]:
    """The rows that a consumer got, but the last one, which is in the ledger that was not offloaded."""
    rows = json.loads((FOLDER / f"{topic}.messages.json").read_text(encoding="utf-8"))
    assert rows[-1]["properties"] == {"END": "1"}
    found: list[dict[str, Any]] = rows[:-1]
    return found
