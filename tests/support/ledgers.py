"""Offload segments written with the codec alone, and a planner that finds them: what Spark needs of the offload layer.

A data segment is the bytes of one PIP-76 data object; which ledgers it holds is noted in a table, a row for each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from chunkstore.codec.pulsar.encoding import EncodedBlock
from chunkstore.codec.pulsar.pip76 import SegmentEncoder
from chunkstore.engine.reading import ReadableContainer
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import InvalidArgument
from chunkstore.pulsar import Block, LedgerRange

__all__ = ["TABLE", "plan_from_table", "write_segment"]

TABLE = "planned-ledgers"


def write_segment(
    store: ChunkedSegmentStorage,
    topic: str,
    segment: str,
    ledgers: Mapping[int, Iterable[tuple[int, bytes]]],
    *,
    block_bytes: int,
) -> None:
    """Append one data object with these entries to ``segment``, which exists and is empty, and note its blocks."""
    blocks: list[EncodedBlock] = []

    def sink(block: EncodedBlock) -> None:
        store.append_many(segment, [bytes(part) for part in block.buffers])
        blocks.append(block._replace(buffers=()))

    encoder = SegmentEncoder(sink, block_bytes_max=block_bytes)
    for ledger, entries in ledgers.items():
        encoder.begin_ledger(ledger)
        for entry, payload in entries:
            encoder.append(entry, payload)
    encoder.finish()
    table = store.table(TABLE)
    for ledger in ledgers:
        own = [block for block in blocks if block.ledger == ledger]
        row = {
            "ledger": ledger,
            "first_entry": own[0].first_entry,
            "last_entry": own[-1].last_entry,
            "segment": segment,
            "blocks": [(block.first_entry, block.offset, block.offset + block.length) for block in own],
        }
        table.put(f"{topic}\0{ledger:020}\0{own[0].first_entry:020}".encode(), json.dumps(row).encode())


def plan_from_table(
    replica: ReadableContainer,
    topic: str,
    ledgers: Sequence[int] | None,
    blocks: Callable[[LedgerRange], bool] = lambda part: True,
) -> list[LedgerRange]:
    """A ledger planner, for ``plan_read``."""
    assert isinstance(replica, Replica)
    parts: list[LedgerRange] = []
    for entry in replica.table(TABLE).scan(topic.encode() + b"\0"):
        row = json.loads(entry.value)
        row["blocks"] = tuple(Block(*block) for block in row["blocks"])
        part = LedgerRange(topic, complete=True, **row)
        if ledgers is None or part.ledger in ledgers:
            parts.append(part if blocks(part) else part._replace(blocks=()))
    for ledger in ledgers or ():
        if all(part.ledger != ledger for part in parts):
            raise InvalidArgument(f"topic {topic!r} has no ledger {ledger}", argument="ledgers")
    return parts
