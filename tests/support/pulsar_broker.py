"""Topics that a genuine broker offloaded (PIP-17, v1): their objects, their entries, and what a consumer saw of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.windows import iter_entries
from tests.support.pip17 import Pair

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "pulsar-broker"
TOPICS = sorted(
    str(path.relative_to(FOLDER)).removesuffix(".messages.json") for path in FOLDER.glob("*/*.messages.json")
)
"""``indexed/NAME`` and ``plain/NAME``."""


def pair_of(folder: str, name: str) -> Pair:
    """A data object and its index, by the key of the former."""
    path = FOLDER / folder / "objects" / name
    return Pair(path.read_bytes(), path.with_name(f"{name}-index").read_bytes())


def entries_of_topic(topic: str) -> list[Entry]:
    """All entries of a topic that were offloaded, in their order."""
    folder = topic.partition("/")[0]
    info = json.loads((FOLDER / f"{topic}.info-internal.json").read_text(encoding="utf-8"))
    found: list[Entry] = []
    for item in sorted(info["ledgers"], key=lambda item: int(item["ledgerId"])):
        if "offloadedContextUuid" in item:
            ledger = int(item["ledgerId"])
            pair = pair_of(folder, f"{item['offloadedContextUuid']}-ledger-{ledger}")
            entries = list(iter_entries(pair.reader(ledger=ledger), ledger))
            assert len(entries) == item["entries"]
            found += entries
    return found


def seen_by_consumer(topic: str) -> list[dict[str, Any]]:
    """The rows that a consumer got, but the last one, which is in the ledger that was not offloaded."""
    rows = json.loads((FOLDER / f"{topic}.messages.json").read_text(encoding="utf-8"))
    assert rows[-1]["properties"] == {"END": "1"}
    found: list[dict[str, Any]] = rows[:-1]
    return found
