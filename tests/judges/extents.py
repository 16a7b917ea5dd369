"""Extents as the storage holds them: bytes of chunks that lie in records of the journal, and what spills make of them.

Invariants 34 to 37, of a recorded history (``stored_history``). 34: what is in a list or in garbage is there with its CRC: when it comes,
behind each OPEN, behind power cuts and at the end. 35: no object of the journal goes that holds such an extent, or one that a pin, a row of
garbage or the time of grace still keeps. 36: a spill leaves each byte where it was, in a chunk with their CRC, and the list in order. 37:
behind an OPEN no address lies at or behind a cut. It reads rows and bytes with the judges' own decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from chunkstore.checksum import crc32c
from tests.judges.stored_records import CHUNK_FIELDS, GARBAGE_FIELDS, SEGMENT_FIELDS, decode_row

SPILL: Final = 16
_INLINE: Final = 2
_NO_OBJECT: Final = 0xA0
"""How the text begins that names no object: nearly all rows of chunks have it."""


class Gone(NamedTuple):
    """An extent whose row is gone: where it lay, the record that took it out of the list, and when that was written. ``spilled``: by a
    spill, whose garbage row says so; the rows of others go when they are collected, and no sooner."""

    place: str
    lsn: int
    written: int
    spilled: bool


class _Piece(NamedTuple):
    """A chunk of a list, where it begins in its segment, and its row's fields."""

    offset: int
    identity: bytes
    fields: list[Any]


def _order(place: str) -> tuple[int, int]:
    """Epoch and index of a place; 0 in a log, whatever the record's."""
    epoch, _, index = place.partition("/")
    return int(epoch, 16), int(index or "0", 16)


class Extents:
    """Those of one history. ``rows`` and ``gone`` change with it, and go back with it."""

    def __init__(self, history: Any) -> None:  # the ``StoredHistory`` that makes it
        self._history = history
        self.rows: dict[bytes, bytes] = {}
        """The rows of all extents, in lists and in garbage, by their ids."""
        self.gone: dict[bytes, Gone] = {}
        self._deleted: set[str] = set()
        """Places of objects that were rightly deleted. Where history goes back behind that, what is garbage then may have nothing."""

    @staticmethod
    def is_extent(raw: bytes) -> bool:
        """Whether a chunk's row leads into the journal."""
        return raw[3] != _NO_OBJECT and int(decode_row(raw, CHUNK_FIELDS)[9]) == _INLINE

    def spilled_segments(self, ops: Sequence[Sequence[Any]]) -> list[tuple[Sequence[Any], list[_Piece], bytes | None]]:
        """Of each spill among the operations of a record that is about to be applied: the chunks that hold its bytes, and these."""
        found = []
        for op in ops:
            if op[0] == SPILL:
                pieces = self._pieces(op[1], op[2], op[3])
                found.append((op, pieces, self._bytes(pieces, op[2], op[3])))
        return found

    def judge_spills(
        self, lsn: int, before: Sequence[tuple[Sequence[Any], list[_Piece], bytes | None]], *, embedded: bool
    ) -> None:
        """Invariant 36, of a record that was applied. ``embedded``: an OPEN embeds it; it was judged when it was written."""
        for (_, segment, start, stop, added, *_), old, data in before:
            where = f"the spill of lsn {lsn} of segment {segment} in [{start}, {stop})"
            if embedded and data is None and any(piece.fields[0] in self._deleted for piece in old):
                continue  # where history goes back to it, what it took may have gone since
            if any(piece.fields[9] != _INLINE for piece in old) or data is None or len(data) != stop - start:
                self._report(36, f"{where} takes what are no extents, or not there: {[piece.fields for piece in old]}")
                continue
            if any(b"C" + piece.identity in self._history.rows for piece in old):
                self._report(36, f"{where} leaves rows of extents")
            if not all(self._is_waited_for(lsn, piece.fields[0]) for piece in old):
                self._report(35, f"{where} leaves no row of garbage for the records that held its extents")
            row = self._segment(segment)
            if row is None or row[3] > start:
                continue  # the same record has deleted or truncated it, or taken it into another one
            new = self._pieces(segment, start, stop)
            if len(new) != 1 or (added and [new[0].offset, new[0].identity] != list(added[0])):
                self._report(36, f"{where} names {added}, and the list has {new}")
                continue
            content = self._history.bytes_of(new[0].identity) or b""
            at, length, crc = start - new[0].offset, new[0].fields[2], new[0].fields[3]
            if content[at : at + len(data)] != data:
                self._report(36, f"{where} makes {content[at : at + len(data)]!r} of {data!r}")
            elif len(content) < length or crc32c(content[:length]) != crc:
                self._report(36, f"{where} gives a chunk a CRC that its {length} bytes do not have")

    def changed(self, key: bytes, value: bytes | None, lsn: int, written: int) -> None:
        """A chunk's row has changed."""
        identity, history = key[1:], self._history
        known = self.rows.get(identity)
        if value is not None and self.is_extent(value):
            history.put(self.rows, identity, value)
            place, offset, length = decode_row(value, CHUNK_FIELDS)[:3]
            if known is None or decode_row(known, CHUNK_FIELDS)[:3] != [place, offset, length]:
                history.arrived.append(identity)
        elif known is not None:
            history.drop(self.rows, identity)
            removed = history.removed.get(identity)
            at = lsn if removed is None else removed
            when = written if removed is None else history.entries[at - 1].written
            history.put(self.gone, identity, Gone(decode_row(known, CHUNK_FIELDS)[0], at, when, removed is None))

    def judge(self, identities: Iterator[bytes] | list[bytes], when: str) -> None:
        """Invariant 34, of some of them."""
        for identity in identities:
            raw = self.rows.get(identity)
            if raw is None:
                continue
            place, offset, length, crc = decode_row(raw, CHUNK_FIELDS)[:4]
            data = self._history.extent(raw)
            if data is None and place in self._deleted and identity in self._history.removed:
                continue
            if data is None or len(data) != length or crc != crc32c(data):
                text = f"extent {identity.hex()}, {length} bytes from byte {offset} of {place}"
                self._report(34, f"{when}: {text}: there is {'nothing' if data is None else repr(data)}")

    def judge_all(self, when: str) -> None:
        """Invariant 34, of all."""
        self.judge(list(self.rows), when)

    def judge_cuts(self, epoch: int) -> None:
        """Invariant 37, behind the OPEN of an epoch."""
        opens, append = self._history.opens, self._history.append
        ends: dict[int, tuple[int, int]] = {}
        at = epoch
        while at in opens:
            ends[opens[at].previous_epoch] = opens[at].end_index, opens[at].end_byte
            at = opens[at].previous_epoch
        for identity, raw in self.rows.items():
            place, offset, length = decode_row(raw, CHUNK_FIELDS)[:3]
            stream, _, index = place.partition("/")
            where = int(stream, 16)
            if where == epoch and index == "0":
                continue  # embedded in this OPEN
            end_index, end_byte = ends.get(where, (0, 0))
            beyond = int(index, 16) >= end_index if index else not append or offset + length > end_byte
            if where not in ends or (beyond and index != "0"):
                self._report(37, f"behind OPEN({epoch}) extent {identity.hex()} lies in {place} from byte {offset} on")

    def judge_deletion(
        self, process: str, name: str, place: str, now: int, kept_until: Callable[[int, int], int]
    ) -> None:
        """Invariant 35, of an object of the journal that was deleted at ``now``; ``kept_until``: how long what a record took stays, of its
        label and of when it was written."""
        packed = bytes([_NO_OBJECT + len(place)]) + place.encode()
        self._deleted.add(place)
        for identity, raw in self.rows.items():
            if raw[3 : 3 + len(packed)] == packed:
                self._report(35, f"{process} deleted {name}, which holds extent {identity.hex()}")
        history = self._history
        lowest = min(history.pins.values(), default=None)
        for identity, gone in self.gone.items():
            if gone.place != place:
                continue
            what = f"{process} deleted {name}, which holds extent {identity.hex()}, removed at lsn {gone.lsn}"
            if lowest is not None and gone.lsn > lowest:
                self._report(35, f"{what}: a pin is at {lowest}")
            elif gone.spilled and self._is_waited_for(gone.lsn, place):
                self._report(35, f"{what}, whose garbage is not collected yet")
            elif now < kept_until(history.entries[gone.lsn - 1].time_ms, gone.written):
                self._report(35, f"{what}, {now - gone.written} ns after that")

    def _is_waited_for(self, lsn: int, place: str) -> bool:
        """Whether a row of garbage says that spills in this record took extents from there on."""
        prefix, where = b"G" + lsn.to_bytes(8), _order(place)
        rows = (decode_row(raw, GARBAGE_FIELDS) for key, raw in self._history.rows.items() if key.startswith(prefix))
        return any(not fields[0] and tuple(fields[7:9]) <= where for fields in rows if len(fields) >= 9)

    # Lists

    def _report(self, invariant: int, message: str) -> None:
        self._history.report(invariant, message)

    def _segment(self, number: int) -> list[Any] | None:
        for key, raw in self._history.rows.items():
            if key[:1] == b"S":
                fields = decode_row(raw, SEGMENT_FIELDS)
                if fields[1] == number:
                    return fields
        return None

    def _pieces(self, number: int, start: int, stop: int) -> list[_Piece]:
        """The chunks of a list that hold ``[start, stop)``, in order; [] where it leads nowhere."""
        rows = self._history.rows
        row = self._segment(number)
        offset, identity = (0, b"") if row is None else (row[7], row[6])
        following = b""
        found: list[_Piece] = []
        while identity:
            raw = rows.get(b"C" + identity)
            fields = None if raw is None else decode_row(raw, CHUNK_FIELDS)
            if fields is None or fields[5] != following:
                self._report(36, f"the list of segment {number} leads from {identity.hex()} to no or another chunk")
                return []
            if offset < stop and offset + fields[2] > start:
                found.append(_Piece(offset, identity, fields))
            following, identity = identity, fields[4]
            if offset <= start or not identity:
                break
            before = rows.get(b"C" + identity)
            if before is None:
                return []
            offset -= decode_row(before, CHUNK_FIELDS)[2]
        return found[::-1]

    def _bytes(self, pieces: Sequence[_Piece], start: int, stop: int) -> bytes | None:
        data = b""
        for piece in pieces:
            content = self._history.bytes_of(piece.identity)
            if content is None:
                return None
            data += content[max(0, start - piece.offset) : min(piece.fields[2], stop - piece.offset)]
        return data
