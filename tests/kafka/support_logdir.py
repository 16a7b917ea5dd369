"""The genuine log directory of a broker, with what its consumers got."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from chunkstore.codec.kafka.batches import Batch, ReadOptions, iter_batches
from chunkstore.codec.kafka.records import Record
from chunkstore.codec.sources import DataSource
from tests.kafka.support_batches import source_of

__all__ = ["FIXTURES", "LOG_DIR", "Partition", "batches_of", "floor_of", "partitions", "row_of", "segments_of"]

FIXTURES = Path(__file__).parent.parent / "fixtures" / "kafka"
LOG_DIR = FIXTURES / "logdir-3.9"


class Partition(NamedTuple):
    """A partition that consumers read: how far it goes, and what they got."""

    topic: str
    number: int
    high: int
    rows: list[dict[str, Any]]

    @property
    def sources(self) -> list[DataSource]:
        """Its segments."""
        return segments_of(LOG_DIR / f"{self.topic}-{self.number}")


def partitions(name: str = "logdir-3.9.records.jsonl") -> list[Partition]:
    """All that were read."""
    found: list[Partition] = []
    for line in (FIXTURES / name).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "high" in row:
            found.append(Partition(row["topic"], row["partition"], row["high"], []))
        else:
            found[-1].rows.append(row)
    return found


def segments_of(folder: Path) -> list[DataSource]:
    """The segments of a partition's folder, in order."""
    return [source_of(path.read_bytes(), path.name) for path in sorted(folder.glob("*.log"))]


def floor_of(source: DataSource) -> ReadOptions:
    """Options with the offset in a segment's name."""
    return ReadOptions(floor=int(source.name[:20]))


def batches_of(sources: list[DataSource]) -> Iterator[Batch]:
    """The batches of all segments."""
    for source in sources:
        yield from iter_batches(source, floor_of(source))


def _shown(data: bytes | None) -> Any:
    if data is None:
        return None
    if len(data) <= 64:
        try:
            return data.decode()
        except UnicodeDecodeError:
            pass
    return {"sha256": sha256(data).hexdigest(), "len": len(data)}


def row_of(record: Record, *, committed: bool) -> dict[str, Any]:
    """A record as the list of expected ones shows it."""
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": record.timestamp_type,
        "key": _shown(record.key),
        "value": _shown(record.value),
        "headers": [[name, _shown(value)] for name, value in record.headers],
        "leader_epoch": record.leader_epoch,
        "committed": committed,
    }
