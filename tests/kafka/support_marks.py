"""Batches as the indexes see them."""

from __future__ import annotations

from collections.abc import Iterator

from chunkstore.codec.kafka.batches import iter_batches
from chunkstore.codec.kafka.indexes import BatchMark
from chunkstore.codec.kafka.records import control_record
from tests.kafka.support_batches import source_of

__all__ = ["marks_of"]


def marks_of(data: bytes) -> Iterator[BatchMark]:
    """The batches of a log, as the indexes see them."""
    for batch in iter_batches(source_of(data)):
        marker = control_record(batch) if batch.control and batch.producer_id >= 0 else None
        committed, coordinator = (
            (None, -1) if marker is None else (marker.type == "commit", marker.coordinator_epoch or 0)
        )
        sequence = batch.base_sequence + batch.last_offset - batch.base_offset
        yield BatchMark(
            batch.base_offset, batch.last_offset, batch.position, batch.max_timestamp, batch.producer_id, batch.producer_epoch,
            -1 if batch.base_sequence < 0 else sequence & 0x7FFFFFFF, batch.transactional, batch.control, committed, coordinator,
        )  # fmt: skip
