"""History H as the storage held it: a recorder of stored bytes, fed with every change of the journal (protocol 3.4).

Promises: fed with claims, slots and logs as they take effect, it knows at any moment which records are H, their rows, and which
bytes of which chunks each append refers to; a record costs its own decoding, nothing is scanned. What contradicts an invariant
(1 to 6, 9, 10, 18, 22, 28, 30) is reported as it happens. Records behind the last cut count as long as they are visible; a power
cut is followed by ``look_again``. It reads with a decoder of its own (``stored_records``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chunkstore.records.names import ContainerNames, chunk_epoch
from tests.judges.extents import SPILL, Extents
from tests.judges.lines import appended
from tests.judges.stored_records import (
    CHUNK_FIELDS,
    GARBAGE_FIELDS,
    OPEN,
    PIN_FIELDS,
    SEAL,
    TABLE_FIELDS,
    Claim,
    Open,
    Record,
    Unreadable,
    decode_claim,
    decode_open,
    decode_payload,
    decode_record,
    decode_row,
    record_size,
    row_digest,
)

_MISSING: Final = object()
_NO_HASH: Final = bytes(16)
_APPENDING: Final = (2, 9)
_CONCAT: Final = 7
_REPLACE: Final = 15
_TABLES: Final = (10, 11)
_MODULUS: Final = 1 << 256


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of H.

    ``digest``: the state digest behind it. ``end``: where it ends in log.a. ``written``: when it became visible, by the clock of the
    recorder. ``ops``: its operations; ``data``: for each of them the bytes that the storage held for it: what was appended, what was put
    (None: nothing, or not there, or put over in the same record). ``undo``: what to put back should it turn out not to be in H.
    """

    lsn: int
    hash: bytes
    digest: int
    epoch: int
    index: int
    end: int
    time_ms: int
    embedded: bool
    written: int
    ops: Sequence[Sequence[Any]]
    data: Sequence[bytes | None]
    undo: list[tuple[dict[Any, Any], Any, Any]]


class StoredHistory:
    """See the module.

    Arguments: ``content`` shows an object's present bytes, or None; ``report(invariant, message)`` is told of violations;
    ``now``: the clock of ``Entry.written``.
    """

    def __init__(
        self,
        names: ContainerNames,
        container: bytes,
        mode: str,
        content: Callable[[str], bytes | None],
        report: Callable[[int, str], None],
        now: Callable[[], int],
    ) -> None:
        self._names = names
        self._uuid = container
        self.append = mode == "append"
        self._content = content
        self.report = report
        self._now = now
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []
        self._digest: dict[str, int] = {"digest": 0}
        self._logs: dict[int, bytearray] = {}
        self._parsed: dict[int, int] = {}
        self._written: dict[bytes, int] = {}
        self._tails: dict[int, tuple[int, bytes]] = {}
        """Segment offset and id of the last chunk of each segment id."""
        self.extents = Extents(self)
        self.arrived: list[bytes] = []
        """Extents that the record at hand has put, or moved."""
        self._embedded: dict[int, tuple[int, bytes]] = {}
        """Of each stream whose last record an OPEN embeds: where that lay, and its bytes."""
        self.claims: dict[int, Claim] = {}
        self.top = 0
        """The newest epoch that opened."""
        self.opens: dict[int, Open] = {}
        self.seals: dict[tuple[int, int], None] = {}
        """SEALs by (epoch, index); those with index 0 make streams void."""
        self.entries: list[Entry] = []
        self.rows: dict[bytes, bytes] = {}
        self.snapshots: dict[str, int] = {}
        """Snapshots that H notes, or that an OPEN names, with their lsn."""
        self.pins: dict[bytes, int] = {}
        """The lsn of each pin, by its row's key."""
        self.open_lsns: dict[int, int] = {}
        """Lsn of each OPEN in H."""
        self.removed: dict[bytes, int] = {}
        """Lsn at which a chunk became garbage."""

    # What is known

    @property
    def lsn(self) -> int:
        """The last lsn of H."""
        return self.entries[-1].lsn if self.entries else 0

    @property
    def last_claim(self) -> int:
        """M."""
        return max(self.claims, default=0)

    @property
    def digest(self) -> int:
        """The state digest at the end of H."""
        return self._digest["digest"]

    def holds(self, lsn: int, identity: bytes) -> bool:
        """Whether (lsn, hash) is a point of H."""
        return lsn <= len(self.entries) and self.point(lsn)[1] == identity

    def point(self, lsn: int) -> tuple[int, bytes]:
        """The point of H at an lsn that it has."""
        return (lsn, self.entries[lsn - 1].hash) if lsn else (0, _NO_HASH)

    def digest_at(self, lsn: int) -> int:
        """The state digest behind a record of H; 0 where H begins."""
        return self.entries[lsn - 1].digest if lsn else 0

    def bytes_of(self, identity: bytes) -> bytes | None:
        """What the storage holds for a chunk now; None: nothing."""
        raw = self.rows.get(b"C" + identity, b"")
        if identity in self.extents.rows:
            return self.extent(raw)
        return self._content(self._names.chunk(identity))

    def extent(self, raw: bytes) -> bytes | None:
        """The bytes of an extent by its row: of a record behind a cut, as the OPEN has them that embeds it."""
        place, offset, length = decode_row(raw, CHUNK_FIELDS)[:3]
        epoch, _, index = place.partition("/")
        begin, data = self._embedded.get(int(epoch, 16), (0, b"")) if not index else (0, b"")
        if data and offset >= begin:
            return data[offset - begin : offset - begin + length]
        name = self._names.slot(int(epoch, 16), int(index, 16)) if index else self._names.log(int(epoch, 16))
        found = self._content(name)
        return None if found is None else found[offset : offset + length]

    def is_cut(self, epoch: int) -> bool:
        """Whether history has left this stream for ever, or never comes to it."""
        return epoch < self.top or (epoch, 0) in self.seals

    def last_lsn_at(self, epoch: int, index: int | None) -> int:
        """The lsn of the record in a slot, or of the last one in a log (``index`` None); 0 if it is not in H."""
        first = self.open_lsns.get(epoch)
        if first is None:
            return 0
        following = bisect_left(self.entries, True, lo=first, key=lambda entry: entry.epoch != epoch or entry.embedded)
        if index is None:
            return following
        return first + index if first + index <= following else 0

    def is_empty(self, epoch: int) -> bool:
        """Whether nothing was ever written to the log of this stream."""
        return not self._logs.get(epoch)

    # What happens

    def claimed(self, epoch: int, data: bytes) -> Claim | None:
        """A claim has become visible."""
        try:
            claim = decode_claim(data)
        except Unreadable as damage:
            self.report(1, f"the claim of epoch {epoch} is unreadable: {damage}")
            return None
        if epoch in self.claims and self.claims[epoch].token != claim.token:
            self.report(1, f"epoch {epoch} was claimed twice")
        if claim.epoch != epoch:
            self.report(1, f"the claim of epoch {claim.epoch} lies where {epoch} belongs")
        if epoch > 1 and epoch - 1 not in self.claims:
            self.report(1, f"epoch {epoch} was claimed before {epoch - 1}")
        self.claims[epoch] = claim
        return claim

    def slot_written(self, epoch: int, index: int, data: bytes) -> int | None:
        """Slot ``index`` of stream ``epoch`` holds these bytes now; returns the kind of the record."""
        name = self._names.slot(epoch, index)
        try:
            record = decode_record(data, self._uuid)
            if record.kind == SEAL:
                self.seals[epoch, index] = None
            elif index == 0:
                self._slot0(epoch, record)
            elif (record.epoch, record.index) != (epoch, index):
                self.report(6, f"record {record.index} of epoch {record.epoch} lies in {name}")
            else:
                self._slot(epoch, index, record, name)
            return record.kind
        except Unreadable as damage:
            self.report(6 if index else 2, f"{name} was written and is unreadable: {damage}")
            return None

    def log_written(self, epoch: int, data: bytes) -> None:
        """Bytes were appended to log.a of stream ``epoch``."""
        self._logs.setdefault(epoch, bytearray()).extend(data)
        if epoch == self.top:
            self._parse_log()

    def look_again(self) -> None:
        """After a power cut: names and bytes may be gone. H goes back to what is left of it, if need be."""
        for epoch in [epoch for epoch in self.claims if self._content(self._names.epoch(epoch)) is None]:
            del self.claims[epoch]
        for epoch, index in [seal for seal in self.seals if self._content(self._names.slot(*seal)) is None]:
            if not self.is_cut(epoch) or index == 0:
                del self.seals[epoch, index]
        while self.top and self._content(self._names.slot(self.top, 0)) is None:
            self._back_to_before_open()
        self._back_to_what_is_left()
        self._go_on_reading()

    # Records

    def _slot0(self, epoch: int, record: Record) -> None:
        if record.kind != OPEN:
            self.report(2, f"slot 0 of epoch {epoch} holds a record of type {record.kind}")
            return
        payload = decode_open(record)
        claim = self.claims.get(epoch)
        if claim is None or not claim.token == payload.token == record.token:
            self.report(28, f"OPEN({epoch}) was not written by its claimant")
        previous = payload.previous_epoch
        if previous != self.top or epoch <= self.top:
            self.report(9, f"OPEN({epoch}) continues from epoch {previous}, but history has reached epoch {self.top}")
            return
        for between in range(previous + 1, epoch):
            if (between, 0) not in self.seals:
                self.report(3, f"epoch {between}, before OPEN({epoch}), is not void")
        self._cut(epoch, payload)
        if payload.embedded:
            self._embedded[payload.previous_epoch] = payload.end_byte, payload.embedded
            self._add(decode_record(payload.embedded, self._uuid, payload.end_byte), embedded=True)
        if (payload.last_lsn, payload.last_hash) != self.point(self.lsn):
            self.report(9, f"OPEN({epoch}) continues from lsn {payload.last_lsn}, history has {self.lsn} there")
        self.top = epoch
        self.opens[epoch] = payload
        self._add(record, opened=payload)
        self._parsed[epoch] = 0
        self.extents.judge_cuts(epoch)
        self.extents.judge_all(f"behind OPEN({epoch})")
        self._go_on_reading()

    def _cut(self, epoch: int, payload: Open) -> None:
        previous = payload.previous_epoch
        if not previous:
            return
        if not self.append and (previous, payload.end_index) not in self.seals:
            self.report(5, f"OPEN({epoch}) ends epoch {previous} at index {payload.end_index}, where no SEAL is")
        if self.append and len(self._logs.get(previous, b"")) < payload.end_byte:
            self.report(5, f"OPEN({epoch}) ends epoch {previous} at byte {payload.end_byte}, behind its end")
        while self.entries and self.entries[-1].epoch == previous and self.entries[-1].index >= payload.end_index:
            self._take_back()
        last = self.entries[-1] if self.entries else None
        if last is None or last.epoch != previous or last.embedded:
            return
        if (last.index + 1, last.end if self.append else 0) != (payload.end_index, payload.end_byte):
            self.report(5, f"OPEN({epoch}) ends epoch {previous} in the middle of something")

    def _slot(self, epoch: int, index: int, record: Record, name: str) -> None:
        if epoch > self.top:
            self.report(4, f"{name} was written before its stream was opened")
        if epoch != self.top:
            return  # a zombie's; whether it is told so is another question
        if any((epoch, below) in self.seals for below in range(max(1, index - 1), index)):
            return  # behind a SEAL: not history
        if self.entries[-1].index + 1 != index:
            self.report(4, f"{name} was written, and the record before it is missing")
            return
        self._add(record)

    def _parse_log(self) -> None:
        epoch = self.top
        log = self._logs.get(epoch, bytearray())
        while True:
            at = self._parsed.get(epoch, 0)
            size = record_size(log, at)
            if size is None or at + size > len(log):
                return
            try:
                record = decode_record(bytes(log[at : at + size]), self._uuid, at)
            except Unreadable:
                return  # torn; whether it may be is recovery's to judge
            if record.epoch != epoch or record.index != self.entries[-1].index + 1:
                where = f"byte {at} of {self._names.log(epoch)}"
                self.report(4, f"record {record.index} of epoch {record.epoch} lies at {where}")
                return
            self._parsed[epoch] = at + size
            self._add(record, end=at + size)

    def _add(self, record: Record, *, end: int = 0, embedded: bool = False, opened: Open | None = None) -> None:
        where = f"record {record.index} of epoch {record.epoch}"
        if record.lsn != self.lsn + 1:
            self.report(4, f"{where} has lsn {record.lsn} behind lsn {self.lsn}")
        elif record.previous_hash != self.point(self.lsn)[1]:
            self.report(6, f"{where} does not follow the record before it")
        if self.entries and record.time_ms < self.entries[-1].time_ms:
            self.report(30, f"{where} says {record.time_ms} ms, the record before it {self.entries[-1].time_ms}")
        self._undo = []
        ops: list[Any]
        rows: Sequence[Any]
        snapshot: tuple[str, int] | None
        if record.appended is not None:
            ops, rows, snapshot = [], [], None
            try:
                ops, rows = appended(self.rows, record, append=self.append)
            except Unreadable as wrong:
                self.report(10, f"{where}: {wrong}")
        elif opened is None:
            ops, rows, snapshot = decode_payload(record)
        else:
            ops, rows, snapshot = [], opened.rows, opened.snapshot
            self.put(self.open_lsns, record.epoch, record.lsn)
        if snapshot is not None:
            self.put(self.snapshots, *snapshot)
        written = self._written.setdefault(record.hash, self._now())
        spilled = self.extents.spilled_segments(ops)
        self._apply_rows(rows, record.lsn, record.epoch, written)
        lasts = {(op[1], op[2]): number for number, op in enumerate(ops) if op[0] in _TABLES}
        data = [
            self._stored_value(op, last=number == lasts[op[1], op[2]]) if op[0] in _TABLES else self._stored_bytes(op)
            for number, op in enumerate(ops)
        ]
        if record.appended is None and self.digest != record.digest:
            self.report(10, f"{where} states another digest than its state has")
        self.entries.append(
            Entry(
                record.lsn, record.hash, self.digest, record.epoch, record.index, end, record.time_ms, embedded, written, ops,
                data, self._undo,
            )
        )  # fmt: skip
        self.extents.judge(self.arrived, f"lsn {record.lsn}")
        self.extents.judge_spills(record.lsn, spilled, embedded=embedded)

    # State

    def put(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        """Change what the record at hand changes, and its going back puts back."""
        self._undo.append((mapping, key, mapping.get(key, _MISSING)))
        if value is _MISSING:
            mapping.pop(key, None)
        else:
            mapping[key] = value

    def drop(self, mapping: dict[Any, Any], key: Any) -> None:
        """The same, of what is no more."""
        self.put(mapping, key, _MISSING)

    def _stored_value(self, op: Sequence[Any], *, last: bool) -> bytes | None:
        """The value that a put has left; None where the record has changed the row once more."""
        space = op[1].encode()
        row = self.rows.get(b"T" + bytes([len(space)]) + space + op[2])
        return None if row is None or not last else bytes(decode_row(row, TABLE_FIELDS)[1])

    def _stored_bytes(self, op: Sequence[Any]) -> bytes | None:
        """The bytes that an append has added, as the storage holds them now; and where the segment's last chunk is then."""
        if op[0] == _CONCAT:
            _, target, offset, source = op[:4]
            if source in self._tails:
                start, chunk = self._tails[source]
                self.put(self._tails, target, (offset + start, chunk))
        if op[0] == SPILL and op[2] <= self._tails[op[1]][0] < op[3]:
            # What spills have made nothing else makes longer: no append goes there.
            self.put(self._tails, op[1], (op[4][-1][0] if op[4] else op[2], b""))
        if op[0] == _REPLACE and op[2] <= self._tails[op[1]][0] < op[3]:
            self.put(self._tails, op[1], tuple(op[4][-1]))
        if op[0] not in _APPENDING:
            return None
        _, segment, offset, length, chunks = op[:5]
        found, position = b"", offset
        for start, chunk in [self._tails.get(segment, (offset, b"")), *chunks, (offset + length, b"")]:
            if start > position and segment in self._tails:
                begin, tail = self._tails[segment]
                if not tail:
                    self.report(
                        18, f"an append to segment {segment} at {offset} goes into a chunk that spills have made"
                    )
                content = self.bytes_of(tail) or b"" if tail else b""
                found += content[position - begin : start - begin]
                position = start
            if chunk:
                self.put(self._tails, segment, (start, chunk))
        return found if len(found) == length else None

    def _apply_rows(self, rows: Sequence[Sequence[Any]], lsn: int, epoch: int, written: int) -> None:
        digest = self.digest
        self.arrived = []
        for key, value in rows:
            old = self.rows.get(key)
            if old is not None:
                digest -= row_digest(key, old)
            if value is not None:
                digest += row_digest(key, value)
                if key[:1] == b"C" and chunk_epoch(key[1:]) not in (0, epoch):
                    if old is None:
                        self.report(18, f"lsn {lsn} of epoch {epoch} adds a chunk of epoch {chunk_epoch(key[1:])}")
                    elif decode_row(old, CHUNK_FIELDS)[2] != decode_row(value, CHUNK_FIELDS)[2]:
                        self.report(18, f"lsn {lsn} of epoch {epoch} writes a chunk of epoch {chunk_epoch(key[1:])}")
            self.put(self.rows, key, _MISSING if value is None else value)
            if key[:1] == b"C" and (value is not None or key[1:] in self.extents.rows):
                self.extents.changed(key, value, lsn, written)
        self.put(self._digest, "digest", digest % _MODULUS)
        for key, value in rows:
            if key[:1] == b"G" and value is not None:
                self._remove(value, lsn)
            elif key[:1] == b"P":
                self.put(self.pins, key, _MISSING if value is None else decode_row(value, PIN_FIELDS)[0])

    def _remove(self, value: bytes, lsn: int) -> None:
        identity, _, count = decode_row(value, GARBAGE_FIELDS)[:3]
        for _ in range(count):
            raw = self.rows.get(b"C" + identity) if identity else None
            if raw is None:
                self.report(22, f"a garbage range of lsn {lsn} names a chunk that is unknown")
                return
            if identity in self.removed:
                return  # the rest of a range that is being collected
            self.put(self.removed, identity, lsn)
            identity = decode_row(raw, CHUNK_FIELDS)[5]

    # Going back

    def _take_back(self) -> None:
        for mapping, key, old in reversed(self.entries.pop().undo):
            if old is _MISSING:
                mapping.pop(key, None)
            else:
                mapping[key] = old

    def _back_to_before_open(self) -> None:
        epoch = self.top
        while self.entries and (self.entries[-1].epoch == epoch or self.entries[-1].embedded):
            self._take_back()
        self.top = self.opens.pop(epoch).previous_epoch

    def _back_to_what_is_left(self) -> None:
        """Take back the records of the newest stream from the first one on that is gone."""
        epoch = self.top
        log = (self._content(self._names.log(epoch)) or b"") if self.append and epoch else b""
        if self.append:
            self._logs[epoch] = bytearray(log)
        first = len(self.entries)
        while first and self.entries[first - 1].epoch == epoch and self.entries[first - 1].index > 0:
            first -= 1
        start = 0
        for position in range(first, len(self.entries)):
            entry = self.entries[position]
            if self.append:
                there = self._is_whole(log[start : entry.end], start, entry)
                start = entry.end
            else:
                there = self._content(self._names.slot(epoch, entry.index)) is not None
            if not there:
                while len(self.entries) > position:
                    self._take_back()
                break
        last = self.entries[-1] if self.entries else None
        self._parsed[epoch] = last.end if last is not None and last.epoch == epoch else 0

    def _is_whole(self, data: bytes, at: int, entry: Entry) -> bool:
        """Whether this is the record still: of what was not durable any part may have stayed, its end as well."""
        try:
            return decode_record(bytes(data), self._uuid, at).hash == entry.hash
        except Unreadable:
            return False

    def _go_on_reading(self) -> None:
        """What lies visible behind the end of H in the newest stream belongs to it, as far as anybody knows."""
        epoch = self.top
        if not epoch:
            return
        if self.append:
            self._parse_log()
            return
        while True:
            index = self.entries[-1].index + 1
            data = self._content(self._names.slot(epoch, index))
            if data is None or (epoch, index) in self.seals:
                return
            before = len(self.entries)
            self.slot_written(epoch, index, data)
            if len(self.entries) == before:
                return
