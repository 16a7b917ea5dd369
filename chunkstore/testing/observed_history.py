"""History H as an onlooker sees it grow: records that became visible, cut where the next OPEN cut them (protocol 3.4).

Promises: fed with every change of the journal as it takes effect, it knows at any moment which records are H, what state they
make, and where every append lies; each new record costs its own decoding and rows, nothing is scanned. What contradicts an
invariant (2 to 6, 8 to 10, 19, 28, 30) is reported as it happens. Records behind the last cut count as long as they are
visible; a power cut is followed by ``look_again``.
Leaves out: who was told what (``step_invariants``), damage to bytes at rest (``check``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from chunkstore.checksum import DIGEST_MODULUS, row_digest
from chunkstore.errors import Damaged
from chunkstore.journal import OpCode, RecordKind
from chunkstore.metadata.codec import decode_chunk, decode_garbage, decode_table
from chunkstore.metadata.keys import CHUNK, GARBAGE, chunk_key, table_key
from chunkstore.metadata.port import Op, RowChange
from chunkstore.names import ContainerNames, chunk_epoch
from chunkstore_journal.objects import Claim, ContainerFormat, decode_claim
from chunkstore_journal.payloads import OpenPayload, SnapshotLink, decode_note, decode_open, decode_ops
from chunkstore_journal.record import Record, decode_record, decode_slot, peek_length

__all__ = ["Entry", "ObservedHistory", "SegmentLength"]

_MISSING: Final = object()
_NO_HASH = bytes(16)


class Entry(NamedTuple):
    """One record of H. ``end``: where it ends in log.a. ``undo``: what to put back should it turn out not to be in H."""

    lsn: int
    hash: bytes
    epoch: int
    index: int  # type: ignore[assignment]
    end: int
    time_ms: int
    embedded: bool
    undo: list[tuple[dict[Any, Any], Any, Any]]


class SegmentLength(NamedTuple):
    """What the operations of H say of a segment."""

    name: str
    length: int
    start: int
    sealed: bool


class ObservedHistory:
    """See the module. ``content`` shows an object's present bytes; ``report(invariant, message)`` is told of violations."""

    def __init__(
        self,
        names: ContainerNames,
        container: ContainerFormat,
        content: Callable[[str], bytes | None],
        report: Callable[[int, str], None],
    ) -> None:
        self._names = names
        self._uuid = container.uuid
        self._append = container.mode == "append"
        self._content = content
        self._report = report
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []
        self._digest: dict[str, int] = {"digest": 0}
        self._logs: dict[int, bytearray] = {}
        self._parsed: dict[int, int] = {}
        self.claims: dict[int, Claim] = {}
        self.top = 0
        """The newest epoch that opened."""
        self.opens: dict[int, OpenPayload] = {}
        self.seals: dict[tuple[int, int], None] = {}
        """SEALs by (epoch, index); those with index 0 make streams void."""
        self.entries: list[Entry] = []
        self.rows: dict[bytes, bytes] = {}
        self.segments: dict[int, SegmentLength] = {}
        self.appends: dict[tuple[int, int], tuple[int, int]] = {}
        """(lsn, length) of the append at (segment id, offset)."""
        self.ids: dict[str, dict[int, int]] = {}
        """Ids that a name ever had, with the lsn of their creation."""
        self.ended: dict[int, int] = {}
        """Lsn at which a segment ceased to exist."""
        self.snapshots: dict[str, int] = {}
        """Snapshots that H notes, or that an OPEN names, with their lsn."""
        self.open_lsns: dict[int, int] = {}
        """Lsn of each OPEN in H."""
        self.removed: dict[bytes, int] = {}
        """Lsn at which a chunk became garbage."""
        self.seal_changes: dict[tuple[int, str], tuple[int, ...]] = {}
        """Lsns at which a segment became ("seal") or ceased to be ("unseal") sealed."""
        self.truncations: dict[int, tuple[tuple[int, int], ...]] = {}
        """(lsn, start) of a segment's truncations."""
        self.puts: dict[tuple[str, bytes, bytes | None], int] = {}
        """Lsn of the last put of (namespace, key, value); value None: a record that changes the key more than once."""

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
        if lsn == 0:
            return identity == _NO_HASH
        return lsn <= len(self.entries) and self.entries[lsn - 1].hash == identity

    def point(self, lsn: int) -> tuple[int, bytes]:
        """The point of H at an lsn that it has."""
        return (lsn, self.entries[lsn - 1].hash) if lsn else (0, _NO_HASH)

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
            claim = decode_claim(data, object=self._names.epoch(epoch))
        except Damaged as damage:
            self._report(1, f"the claim of epoch {epoch} is unreadable: {damage.message}")
            return None
        if epoch in self.claims and self.claims[epoch].token != claim.token:
            self._report(1, f"epoch {epoch} was claimed twice")
        if claim.epoch != epoch:
            self._report(1, f"the claim of epoch {claim.epoch} lies where {epoch} belongs")
        if epoch > 1 and epoch - 1 not in self.claims:
            self._report(1, f"epoch {epoch} was claimed before {epoch - 1}")
        self.claims[epoch] = claim
        return claim

    def slot_written(self, epoch: int, index: int, data: bytes) -> RecordKind | None:
        """Slot ``index`` of stream ``epoch`` holds these bytes now; returns what they are."""
        name = self._names.slot(epoch, index)
        try:
            record = decode_slot(data, object=name, container=self._uuid)
            kind = record.header.kind
            if kind == RecordKind.SEAL:
                self.seals[epoch, index] = None
            elif index == 0:
                self._slot0(epoch, record, name)
            elif record.header.epoch != epoch or record.header.index != index:
                self._report(6, f"record {record.header.index} of epoch {record.header.epoch} lies in {name}")
            else:
                self._slot(epoch, index, record, name)
            return kind
        except Damaged as damage:
            self._report(6 if index else 2, f"{name} was written and is unreadable: {damage.message}")
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

    def _slot0(self, epoch: int, record: Record, name: str) -> None:
        header = record.header
        if header.kind != RecordKind.OPEN:
            self._report(2, f"slot 0 of epoch {epoch} holds {header.kind.name}")
            return
        payload = decode_open(record.payload, object=name, position=0)
        claim = self.claims.get(epoch)
        if claim is None or claim.token != payload.token or header.token != payload.token:
            self._report(28, f"OPEN({epoch}) was not written by its claimant")
        previous = payload.previous_epoch
        if previous != self.top or epoch <= self.top:
            self._report(9, f"OPEN({epoch}) continues from epoch {previous}, but history has reached epoch {self.top}")
            return
        for between in range(previous + 1, epoch):
            if (between, 0) not in self.seals:
                self._report(3, f"epoch {between}, before OPEN({epoch}), is not void")
        self._cut(epoch, payload)
        self._undo = []
        if payload.embedded:
            inner = decode_slot(payload.embedded, object=name, container=self._uuid)
            self._add(inner, self._decoded(inner, name), embedded=True)
        if (payload.last_lsn, payload.last_hash) != (self.lsn, self._last_hash()):
            self._report(9, f"OPEN({epoch}) continues from lsn {payload.last_lsn}, history has {self.lsn} there")
        self.top = epoch
        self.opens[epoch] = payload
        self._add(record, (payload.ops, payload.rows))
        if payload.snapshot is not None:
            self._put(self.snapshots, payload.snapshot.name, payload.snapshot.lsn)
        self._parsed[epoch] = 0
        self._go_on_reading()

    def _cut(self, epoch: int, payload: OpenPayload) -> None:
        previous = payload.previous_epoch
        if not previous:
            return
        if not self._append and (previous, payload.end_index) not in self.seals:
            self._report(5, f"OPEN({epoch}) ends epoch {previous} at index {payload.end_index}, where no SEAL is")
        if self._append and len(self._logs.get(previous, b"")) < payload.end_byte:
            self._report(5, f"OPEN({epoch}) ends epoch {previous} at byte {payload.end_byte}, behind its end")
        while self.entries and self.entries[-1].epoch == previous and self.entries[-1].index >= payload.end_index:
            self._take_back()
        last = self.entries[-1] if self.entries else None
        if last is not None and last.epoch == previous and not last.embedded:
            right = (last.index + 1, last.end if self._append else 0) == (payload.end_index, payload.end_byte)
            if not right:
                self._report(5, f"OPEN({epoch}) ends epoch {previous} in the middle of something")

    def _slot(self, epoch: int, index: int, record: Record, name: str) -> None:
        if epoch > self.top:
            self._report(4, f"{name} was written before its stream was opened")
        if epoch != self.top:
            return  # a zombie's; whether it is told so is another question
        if any((epoch, below) in self.seals for below in range(max(1, index - 1), index)):
            return  # behind a SEAL: not history
        if self.entries[-1].index + 1 != index:
            self._report(4, f"{name} was written, and the record before it is missing")
            return
        self._add(record, self._decoded(record, name))

    def _parse_log(self) -> None:
        epoch = self.top
        log = self._logs.get(epoch)
        if log is None:
            return
        name = self._names.log(epoch)
        while True:
            at = self._parsed.get(epoch, 0)
            size = peek_length(log, at)
            if size is None or at + size > len(log):
                return
            try:
                record = decode_record(bytes(log[at : at + size]), 0, object=name, container=self._uuid)
            except Damaged:
                return  # torn; whether it may be is recovery's to judge
            if record.header.epoch != epoch or record.header.index != self.entries[-1].index + 1:
                self._report(
                    4, f"record {record.header.index} of epoch {record.header.epoch} lies at byte {at} of {name}"
                )
                return
            self._parsed[epoch] = at + size
            self._add(record, self._decoded(record, name), end=at + size)

    def _decoded(self, record: Record, name: str) -> tuple[Sequence[Op], Sequence[RowChange]]:
        return decode_ops(record.payload, object=name, position=0)

    def _last_hash(self) -> bytes:
        return self.entries[-1].hash if self.entries else _NO_HASH

    def _add(
        self, record: Record, what: tuple[Sequence[Op], Sequence[RowChange]], *, end: int = 0, embedded: bool = False
    ) -> None:
        header = record.header
        where = f"record {header.index} of epoch {header.epoch}"
        if header.lsn != self.lsn + 1:
            self._report(4, f"{where} has lsn {header.lsn} behind lsn {self.lsn}")
        elif header.previous_hash != self._last_hash():
            self._report(6, f"{where} does not follow the record before it")
        if self.entries and header.time_ms < self.entries[-1].time_ms:
            self._report(30, f"{where} says {header.time_ms} ms, the record before it {self.entries[-1].time_ms}")
        self._undo = []
        if header.kind == RecordKind.SNAPSHOT_NOTE:
            note = decode_note(header.kind, record.payload, object=where, position=0)
            if isinstance(note, SnapshotLink):
                self._put(self.snapshots, note.name, note.lsn)
        elif header.kind == RecordKind.OPEN:
            self._put(self.open_lsns, header.epoch, header.lsn)
        ops, rows = what
        for op in ops:
            self._operation(op, header.lsn)
        self._apply_rows(rows, header.lsn, header.epoch)
        self._note_puts(ops, header.lsn)
        if self.digest != header.digest:
            self._report(10, f"{where} states another digest than its state has")
        self.entries.append(
            Entry(
                header.lsn, record.hash, header.epoch, header.index, end, header.time_ms, embedded, self._undo
            )
        )  # fmt: skip

    # State

    def _put(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        self._undo.append((mapping, key, mapping.get(key, _MISSING)))
        if value is _MISSING:
            mapping.pop(key, None)
        else:
            mapping[key] = value

    def _apply_rows(self, rows: Sequence[RowChange], lsn: int, epoch: int) -> None:
        digest = self.digest
        for key, value in rows:
            old = self.rows.get(key)
            if old is not None:
                digest -= row_digest(key, old)
            if value is not None:
                digest += row_digest(key, value)
                if old is None and key[:1] == CHUNK and chunk_epoch(key[1:]) not in (0, epoch):
                    self._report(18, f"lsn {lsn} of epoch {epoch} adds a chunk of epoch {chunk_epoch(key[1:])}")
            self._put(self.rows, key, _MISSING if value is None else value)
        self._put(self._digest, "digest", digest % DIGEST_MODULUS)
        for key, value in rows:
            if key[:1] == GARBAGE and value is not None:
                self._remove(key, value, lsn)

    def _note_puts(self, ops: Sequence[Op], lsn: int) -> None:
        """Which values the record put. Of a key that it changes more than once, rows tell the last one only."""
        changed = Counter(op[1:3] for op in ops if op[0] in (OpCode.TABLE_PUT, OpCode.TABLE_DELETE))
        for (namespace, key), times in changed.items():
            raw = self.rows.get(table_key(str(namespace), key))  # type: ignore[arg-type]
            if times > 1:
                self._put(self.puts, (namespace, key, None), lsn)
            if raw is not None:
                self._put(self.puts, (namespace, key, decode_table("", raw).value), lsn)

    def _remove(self, key: bytes, value: bytes, lsn: int) -> None:
        garbage = decode_garbage(repr(key), value)
        identity = garbage.first
        for _ in range(garbage.count):
            raw = self.rows.get(chunk_key(identity)) if identity else None
            if raw is None:
                self._report(22, f"a garbage range of lsn {lsn} names a chunk that is unknown")
                return
            if identity in self.removed:
                return  # the rest of a range that is being collected
            self._put(self.removed, identity, lsn)
            identity = decode_chunk("", raw).next

    def _operation(self, op: Op, lsn: int) -> None:
        code, arguments = op[0], op[1:]
        segment_id = arguments[0]
        if code == OpCode.CREATE:
            name = str(arguments[1])
            if segment_id in self.segments or segment_id in self.ended:
                self._report(7, f"segment id {segment_id} was given twice")
            self._put(self.segments, segment_id, SegmentLength(name, 0, 0, False))
            self._put(self.ids, name, {**self.ids.get(name, {}), segment_id: lsn})
            return
        if code in (OpCode.TABLE_PUT, OpCode.TABLE_DELETE, OpCode.SESSION_OPEN, OpCode.SESSION_END, OpCode.COLLECT):
            return
        segment = self.segments.get(segment_id)  # type: ignore[call-overload]
        if segment is None:
            self._report(19, f"lsn {lsn} changes segment {segment_id}, which does not exist")
            return
        self._change(int(code), segment_id, segment, arguments, lsn)  # type: ignore[call-overload]

    def _change(self, code: int, segment_id: Any, segment: SegmentLength, arguments: Sequence[Any], lsn: int) -> None:
        if code in (OpCode.APPEND, OpCode.ATTACH):
            offset, length = arguments[1], arguments[2]
            if offset != segment.length:
                self._report(8, f"lsn {lsn} appends at {offset} to {segment.name!r}, which ends at {segment.length}")
            if segment.sealed:
                self._report(19, f"lsn {lsn} appends to {segment.name!r}, which is sealed")
            self._put(self.segments, segment_id, segment._replace(length=offset + length))
            self._put(self.appends, (segment_id, offset), (lsn, length))
        elif code in (OpCode.SEAL, OpCode.UNSEAL):
            what = (segment_id, "seal" if code == OpCode.SEAL else "unseal")
            self._put(self.segments, segment_id, segment._replace(sealed=code == OpCode.SEAL))
            self._put(self.seal_changes, what, (*self.seal_changes.get(what, ()), lsn))
        elif code == OpCode.TRUNCATE:
            start = arguments[1]
            if not segment.start < start <= segment.length:
                self._report(16, f"lsn {lsn} truncates {segment.name!r} [{segment.start}, {segment.length}) to {start}")
            self._put(self.segments, segment_id, segment._replace(start=start))
            self._put(self.truncations, segment_id, (*self.truncations.get(segment_id, ()), (lsn, start)))
        elif code == OpCode.DELETE:
            self._end(segment_id, lsn)
        elif code == OpCode.CONCAT:
            source = self.segments.get(arguments[2])
            if source is None or not source.sealed or source.start or segment.sealed or arguments[1] != segment.length:
                self._report(8, f"lsn {lsn} splices segment {arguments[2]} to {segment.name!r} at {arguments[1]}")
                return
            self._end(arguments[2], lsn)
            self._put(self.segments, segment_id, segment._replace(length=segment.length + source.length))

    def _end(self, segment_id: int, lsn: int) -> None:
        self._put(self.segments, segment_id, _MISSING)
        self._put(self.ended, segment_id, lsn)

    # Going back

    def _take_back(self) -> None:
        entry = self.entries.pop()
        for mapping, key, old in reversed(entry.undo):
            if old is _MISSING:
                mapping.pop(key, None)
            else:
                mapping[key] = old

    def _back_to_before_open(self) -> None:
        epoch = self.top
        while self.entries and self.entries[-1].epoch == epoch:
            self._take_back()
        while self.entries and self.entries[-1].embedded:
            self._take_back()
        self.top = self.opens.pop(epoch).previous_epoch

    def _back_to_what_is_left(self) -> None:
        """Take back the records of the newest stream from the first one on that is gone."""
        epoch = self.top
        log = (self._content(self._names.log(epoch)) or b"") if self._append and epoch else b""
        if self._append:
            self._logs[epoch] = bytearray(log)
        first = len(self.entries)
        while first and self.entries[first - 1].epoch == epoch and self.entries[first - 1].index > 0:
            first -= 1
        for position in range(first, len(self.entries)):
            entry = self.entries[position]
            if self._append:
                there = log[max(0, entry.end - 16) : entry.end] == entry.hash
            else:
                there = self._content(self._names.slot(epoch, entry.index)) is not None
            if not there:
                while len(self.entries) > position:
                    self._take_back()
                break
        last = self.entries[-1] if self.entries else None
        self._parsed[epoch] = last.end if last is not None and last.epoch == epoch else 0

    def _go_on_reading(self) -> None:
        """What lies visible behind the end of H in the newest stream belongs to it, as far as anybody knows."""
        epoch = self.top
        if not epoch:
            return
        if self._append:
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
