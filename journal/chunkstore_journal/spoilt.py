"""Records of which nothing but bytes of appends is damaged: what a repair replays nevertheless (protocol 3.15).

Promises: reads only. All of a record but the bytes of its extents is proven: its header has its CRC32C, and the header's CRC32C of the
payload is what follows from the payload with the CRC32Cs of the extents in the place of their bytes. That it was durable is not: the record
behind it names its hash, and the caller compares them. Leaves out: the damaged bytes, which whoever reads them is told of.
"""

from __future__ import annotations

from chunkstore.checksum import crc32c_combine, crc32c_extend, crc32c_of_bytes
from chunkstore.errors import Damaged
from chunkstore.metadata.lines import line_extents
from chunkstore.storage import ChunkHandle
from chunkstore_journal.extents import extents_of, lines_of
from chunkstore_journal.history import Streams
from chunkstore_journal.payloads import BLOB_AT, decode_ops
from chunkstore_journal.record import HEADER_BYTES, Record, decode_unproven, peek_length

__all__ = ["spoilt_record"]


def spoilt_record(streams: Streams, name: str, begin: int | None) -> tuple[Record, Damaged] | None:
    """The record at byte ``begin`` of a log (None: in a slot of its own), and what to say of it; None where more of it is damaged, or
    nothing is there. Raises ``ChunkNotFound``, and what the storage raises."""
    handle, position = ChunkHandle(name, False), begin or 0
    size = peek_length(streams.storage.read(handle, position, HEADER_BYTES), 0, position)
    found = decode_unproven(streams.storage.read(handle, position, size or HEADER_BYTES), streams.container, position)
    if found is None:
        return None
    record, crc = found
    if crc32c_of_bytes(record.payload) == crc:
        return None  # its hash is damaged, or what lies behind it
    try:
        lines = lines_of(record, begin, object=name, position=position)
        if lines is None:
            ops, rows = decode_ops(record.payload, object=name, position=position)
            rows_of = extents_of(record, ops, rows, begin=begin, object=name, position=position)
            extents = [(row.object_offset - position - HEADER_BYTES, row.length, row.crc32c or 0) for _, row in rows_of]
        else:
            starts, extents = BLOB_AT, []
            for _, _, length, part in line_extents(lines):
                extents.append((starts, length, part))
                starts += length
    except Damaged:
        return None
    proven, at = 0, 0
    for start, length, part in extents:
        proven = crc32c_extend(proven, record.payload[at:start])
        proven = crc32c_combine(proven, part, length)
        at = start + length
    if not extents or crc32c_extend(proven, record.payload[at:]) != crc:
        return None
    return record, Damaged("bytes of appends are damaged in this record", object=name, position=position)
