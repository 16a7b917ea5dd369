"""Encoding the records that operations hand to the committer, each by its own codec.

Promises: rows of tables get the record's lsn as their version here, and only here. Leaves out: the codecs (``metadata.codec``).
"""

from __future__ import annotations

from chunkstore.metadata.codec import encode_chunk, encode_garbage, encode_segment, encode_session, encode_table
from chunkstore.operations.pending import RowRecord
from chunkstore.records import ChunkRecord, GarbageRecord, SegmentRecord, SessionRecord, TableRecord

__all__ = ["encode_row"]


def encode_row(record: RowRecord, lsn: int) -> bytes:
    """The value of a row that the record with this lsn changes."""
    # Exact types, most frequent first: this runs for every row of every commit.
    if type(record) is SegmentRecord:
        return encode_segment(record)
    if type(record) is ChunkRecord:
        return encode_chunk(record)
    if type(record) is TableRecord:
        return encode_table(record._replace(version=lsn))
    if type(record) is GarbageRecord:
        return encode_garbage(record)
    assert isinstance(record, SessionRecord)
    return encode_session(record)
