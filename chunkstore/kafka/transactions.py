"""How the transactions of a partition ended, from its segments' transaction indexes and producer snapshots, or from its batches.

Promises: a transaction whose end is in no segment is never shown as committed: it is withheld, and named. Leaves out: transactions whose
records are all outside of the pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chunkstore.codec.kafka.batches import Batch, ReadOptions, iter_batches
from chunkstore.codec.kafka.indexes import read_producer_snapshot, read_transaction_index
from chunkstore.codec.kafka.records import AbortedTransaction, Transactions, scan_transactions
from chunkstore.errors import Damaged
from chunkstore.kafka.lineage import Piece
from chunkstore.kafka.sources import Segment, SegmentSource

__all__ = ["first_open", "open_after", "transactions_of"]


def transactions_of(source: SegmentSource, pieces: Sequence[Piece]) -> tuple[Transactions, list[str]]:
    """How the transactions with records in ``pieces`` ended, and what is withheld. Raises what ``source`` raises, ``Damaged``."""
    aborted: list[AbortedTransaction] = []
    notes: list[str] = []
    going: dict[int, int] = {}
    begin = 0
    for number, piece in enumerate(pieces, 1):
        if number < len(pieces) and pieces[number].start == piece.stop:
            continue
        found, going = _run(source, pieces[begin:number])
        aborted += found
        begin = number
        for producer, first in going.items():
            whose = "its" if number < len(pieces) else "all"
            text = f"a transaction of producer {producer} has no end here: {whose} records from offset {first} on are left out"
            notes.append(f"{piece.segment.topic}-{piece.segment.partition}: {text}")
            if number < len(pieces):
                aborted.append(AbortedTransaction(producer, first, piece.stop - 1))
    return Transactions(tuple(aborted), min(going.values(), default=None), going), notes


def first_open(source: SegmentSource, segments: Sequence[Segment], high: int) -> int:
    """Where the first transaction begins that has no end below offset ``high``, or ``high``; of a partition's segments, ascending.

    Batches are read from the last producer snapshot at or below ``high`` on, and only where it has open transactions. Raises as above.
    """
    below = (each for each in segments if each.start_offset < high)
    pieces = [Piece(each, each.start_offset, min(each.end_offset + 1, high)) for each in below]
    at = last = sum(each.end_offset < high for each in segments if each.state == "ROLLED")
    going = None
    while at and (going := open_after(source, pieces[at - 1])) is None:
        at -= 1
    if at == last and not going:
        return high
    return min([high, *scan_transactions(_batches(source, pieces[at:]), going).open.values()])


def _run(source: SegmentSource, run: Sequence[Piece]) -> tuple[list[AbortedTransaction], dict[int, int]]:
    """The aborted transactions of pieces without a gap, and those without an end: the first offsets by producer."""
    scan, going = len(run), None
    while scan and (going := open_after(source, run[scan - 1])) is None:
        scan -= 1
    known = [_aborted(source, piece) for piece in run[:scan]]
    if None in known:  # its batches tell, and those before it, where the transactions began
        known, scan, going = [], 0, None
    found = scan_transactions(_batches(source, run[scan:]), going)
    return [*(entry for entries in known for entry in entries or ()), *found.aborted], dict(found.open)


def open_after(source: SegmentSource, piece: Piece) -> dict[int, int] | None:
    """Open transactions after a piece, first offsets by producer, as a snapshot says; None: there is none, or it is damaged."""
    try:
        data = source.index(piece.segment, "producerSnapshot")
        if not data or piece.stop <= piece.segment.end_offset:
            return None
        entries = read_producer_snapshot(data, object=piece.segment.name)
    except Damaged:
        return None
    return {entry.producer_id: entry.transaction_offset for entry in entries if entry.transaction_offset >= 0}


def _aborted(source: SegmentSource, piece: Piece) -> list[AbortedTransaction] | None:
    """Aborted transactions with their marker in a piece; None: its indexes are missing or damaged."""
    try:
        data = source.index(piece.segment, "transaction")
        if data is None and source.index(piece.segment, "offset") is None:
            return None
        entries = read_transaction_index(data or b"", object=piece.segment.name)
    except Damaged:
        return None
    last = piece.stop - 1  # what ``attach`` aborted ends after the segment
    held = [entry for entry in entries if piece.stop > piece.segment.end_offset or entry.last_offset <= last]
    return [AbortedTransaction(*entry[:2], min(entry.last_offset, last)) for entry in held]


def _batches(source: SegmentSource, pieces: Sequence[Piece]) -> Iterator[Batch]:
    for piece in pieces:
        with source.log(piece.segment) as log:
            yield from iter_batches(log, ReadOptions(floor=piece.segment.start_offset, end_offset=piece.stop))
