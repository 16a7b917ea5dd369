"""The invariants of steps: what no correct run does, judged while it happens (protocol section 4).

A simulator tells it of every storage call that takes effect, of what clients were told, of take-overs and of power cuts; it
judges and never acts. Covered at every step: 1 to 6, 9 to 13, 18, 21, 22, 24 to 30, 35 to 37; 10 whole, and 20, where somebody takes over,
where power was cut and where somebody was told of damage; 34 when bytes come, behind each OPEN, behind power cuts and at the end. Those
about the whole state (14 to 17, 20, 23) come from ``check``, which the simulator calls at each take-over (metadata only) and at the end, 7,
8, 19 and 31 from ``checker``, 33 from the simulator.

Promises: a call costs a lookup by name, and the decoding of what it wrote to the journal; nothing is scanned but after a power
cut. It knows nothing of the simulator: names, bytes, processes by name, a clock that everybody shares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Literal, NamedTuple

from chunkstore.checksum import crc32c
from chunkstore.metadata.keys import CHUNK, ROW_KINDS, chunk_key
from chunkstore.metadata.port import Head, MetadataView
from chunkstore.records.names import ContainerNames, chunk_epoch
from chunkstore_journal.objects import ContainerFormat
from tests.judges.events import Event
from tests.judges.stored_history import Entry, StoredHistory
from tests.judges.stored_records import CHUNK_FIELDS, SEAL, decode_row

_KIND_AT = 5
_GENESIS = (0, bytes(16))
_NAMES_KEPT_MAX = 100_000
_LOOKING = frozenset(("read", "info", "exists", "list", "table_get"))
_FINDINGS = frozenset(("SegmentNotFound", "BadOffset", "SegmentTruncated"))
"""Errors that say something about the present."""


class _Name(NamedTuple):
    kind: Literal["format", "claim", "slot", "log", "chunk", "snapshot", "other"]
    epoch: int = 0
    index: int = 0  # type: ignore[assignment]
    identity: bytes = b""


class StepInvariants:
    """See the module. One per run and container; everything that happens must be told, from the container's creation on.

    Arguments: ``names`` and ``container`` as the container has them; ``content``: an object's present, visible bytes, or None;
    ``report`` is told of each violation: the invariant's number in protocol 4, and what broke it; ``now``: the clock of events' times.
    """

    def __init__(
        self,
        names: ContainerNames,
        container: ContainerFormat,
        content: Callable[[str], bytes | None],
        report: Callable[[int, str], None],
        now: Callable[[], int],
    ) -> None:
        self._report = report
        self.history = StoredHistory(names, container.uuid, container.mode, content, report, now)
        self.fence_by_stat = True
        """Whether a look at a name tells the truth: then a fenced look may not answer behind a stranger's claim."""
        self.fence_at_tail = False
        """Whether reads that end before the known end go without a look."""
        self.kept_until: Callable[[str, int, int], int] = lambda _process, _label_ms, _written: 0
        """Until when what a record removed stays where it is for a process, of the record's label and of when it was written."""
        self._names = names
        self._content = content
        self._known: dict[str, _Name] = {}
        self._slots: dict[str, bytes] = {}
        self._offers: dict[tuple[str, str], bytes] = {}
        self._chunks: dict[str, int] = {}
        self._deleted: dict[str, int] = {}
        self._taken_back: set[bytes] = set()
        """Chunks that were deleted, by their writer or a sweep, because no record of them ever was: there may never be one."""
        self._stored_snapshots: dict[str, int] = {}
        self._epochs: dict[str, dict[int, None]] = defaultdict(dict)
        self._owner_of: dict[int, str] = {}
        self._moment = 0
        self._now = now
        self._claimed_at: dict[int, int] = {}
        self._claimed_when: dict[int, int] = {}
        self._written_at: dict[int, int] = {}
        self._deletion = _GENESIS
        self._shown = _GENESIS
        self._replicas: dict[str, int] = {}

    @property
    def owners(self) -> dict[int, str]:
        """The process that claimed each epoch."""
        return self._owner_of

    def _parse(self, name: str) -> _Name:
        found = self._known.get(name)
        if found is None:
            if len(self._known) > _NAMES_KEPT_MAX:
                self._known.clear()
            found = self._known[name] = self._parse_afresh(name)
        return found

    def _parse_afresh(self, name: str) -> _Name:
        names = self._names
        if name == names.format:
            return _Name("format")
        if name.startswith(names.data_prefix()):
            identity = names.parse_chunk(name)
            return _Name("other") if identity is None else _Name("chunk", chunk_epoch(identity), 0, identity)
        if name.startswith(names.journal_prefix()):
            slot = names.parse_slot(name)
            if slot is not None:
                return _Name("slot", *slot)
            log = names.parse_log(name)
            return _Name("other") if log is None else _Name("log", log)
        if name.startswith(names.epoch_prefix()):
            claim = names.parse_epoch(name)
            return _Name("other") if claim is None else _Name("claim", claim)
        snapshot = names.parse_snapshot(name)
        return _Name("other") if snapshot is None else _Name("snapshot", snapshot[1], snapshot[0])

    # Storage calls that took effect

    def put(self, process: str, name: str, data: bytes | None, *, done: bool, late: bool = False) -> None:
        """A whole object was put, created, linked or renamed to ``name``; ``done`` False: the name was taken."""
        what = self._parse(name)
        if what.kind == "slot":
            self._put_slot(process, name, what, data, done=done)
        elif not done:
            return
        elif what.kind == "chunk":
            self._put_chunk(process, name, what, data, late=late)
        elif what.kind == "claim":
            self._put_claim(process, name, what)
        elif what.kind == "log":
            self._write_log(process, name, what, data or b"")
        elif what.kind == "snapshot":
            self._stored_snapshots[name] = what.index

    def write(self, process: str, name: str, data: bytes) -> None:
        """Bytes were appended to an object."""
        what = self._parse(name)
        if what.kind == "log":
            self._write_log(process, name, what, data)
        elif what.kind == "chunk":
            self._check_chunk_writer(process, what, name)
        elif what.kind == "slot" and data:
            self._report(26, f"{process} appended to {name}")

    def delete(self, process: str, name: str) -> None:
        """An object was deleted."""
        what = self._parse(name)
        if what.kind == "chunk":
            self._delete_chunk(process, name, what)
        elif what.kind in ("format", "claim"):
            self._report(25, f"{process} deleted {name}")
        elif what.kind in ("slot", "log"):
            self._delete_record(process, name, what)

    def withdrawn(self, name: str) -> None:
        """Whoever was making an object took it away again, because it could not be made whole: it was never there."""
        self._chunks.pop(name, None)

    def power_cut(self) -> None:
        """Something that was not durable may be gone."""
        history = self.history
        history.look_again()
        for epoch in [epoch for epoch in self._owner_of if epoch not in history.claims]:
            self._epochs[self._owner_of.pop(epoch)].pop(epoch, None)
            self._claimed_at.pop(epoch, None)
            self._claimed_when.pop(epoch, None)
        self._slots = {name: known for name, known in self._slots.items() if self._content(name) is not None}
        self._chunks = {name: known for name, known in self._chunks.items() if self._content(name) is not None}
        self._check_promises("a power cut")
        for key, raw in history.rows.items():
            if key[:1] == CHUNK and key[1:] not in history.removed and key[1:] not in history.extents.rows:
                self._check_chunk(key[1:], raw, "after a power cut ")
        history.extents.judge_all("after a power cut")

    # Claims, slots, logs

    def _put_claim(self, process: str, name: str, what: _Name) -> None:
        data = self._content(name)
        if data is None:
            return
        known = self._owner_of.get(what.epoch)
        if self.history.claimed(what.epoch, data) is not None and known in (None, process):
            self._owner_of[what.epoch] = process
            self._epochs[process][what.epoch] = None
            self._moment += 1
            self._claimed_at.setdefault(what.epoch, self._moment)
            self._claimed_when.setdefault(what.epoch, self._now())

    def _put_slot(self, process: str, name: str, what: _Name, data: bytes | None, *, done: bool) -> None:
        if data is not None and len(data) > _KIND_AT and data[_KIND_AT] != SEAL:
            offered = blake2b(data, digest_size=16).digest()
            if self._offers.setdefault((process, name), offered) != offered:
                self._report(27, f"{process} offers other bytes for {name} than before")
        if not done:
            return
        stored = self._content(name)
        if stored is None:
            return
        identity = blake2b(stored, digest_size=16).digest()
        known = self._slots.get(name)
        if known is not None:
            if known != identity:
                self._report(26, f"{process} changed what {name} holds")
            return
        self._slots[name] = identity
        top = self.history.top
        kind = self.history.slot_written(what.epoch, what.index, stored)
        if kind not in (SEAL, None):
            self._check_writer(process, what, name)
        if self.history.top != top:
            self._check_promises(f"OPEN({self.history.top})")
        self._check_taken_back(name)

    def _write_log(self, process: str, name: str, what: _Name, data: bytes) -> None:
        self._check_writer(process, what, name)
        before = self.history.lsn
        self.history.log_written(what.epoch, data)
        self._moment += 1
        for lsn in range(before + 1, self.history.lsn + 1):
            self._written_at[lsn] = self._moment
        self._check_taken_back(name)

    def _check_taken_back(self, name: str) -> None:
        for identity in self._taken_back:
            if chunk_key(identity) in self.history.rows:
                self._report(24, f"with {name} history refers to chunk {identity.hex()}, which was deleted before")

    def _check_writer(self, process: str, what: _Name, name: str) -> None:
        if what.epoch not in self._epochs[process]:
            self._report(26, f"{process} wrote {name}, a stream that it does not own")

    def _delete_record(self, process: str, name: str, what: _Name) -> None:
        self._slots.pop(name, None)
        history = self.history
        if what.kind == "slot" and what.index == 0:
            self._report(25, f"{process} deleted {name}, which decides a stream")
        elif what.kind == "slot" and (what.epoch, what.index) in history.seals and self._ends(what):
            self._report(25, f"{process} deleted {name}, the SEAL that ends a stream")
        elif not history.is_cut(what.epoch) and not self._takes_back(process, what):
            self._report(26, f"{process} deleted {name}, of a stream that is not sealed")
        else:
            index = what.index if what.kind == "slot" else None
            place = f"{what.epoch:x}" if index is None else f"{what.epoch:x}/{index:x}"
            history.extents.judge_deletion(process, name, place, self._now(), partial(self.kept_until, process))
            lsn = history.last_lsn_at(what.epoch, index)
            if lsn and not any(
                covered >= lsn and self._content(snapshot) is not None
                for snapshot, covered in reversed(history.snapshots.items())
            ):
                self._report(
                    11, f"{process} deleted {name}, whose lsn {lsn} no snapshot covers that is noted and there"
                )
            lowest = min(history.pins.values(), default=0)
            if (
                lsn
                and lowest
                and not any(
                    lowest >= covered >= lsn and self._content(snapshot) is not None
                    for snapshot, covered in reversed(self._stored_snapshots.items())
                )
            ):
                self._report(39, f"{process} deleted {name}: without lsn {lsn} the pin at {lowest} cannot be restored")

    def _takes_back(self, process: str, what: _Name) -> bool:
        """Whether a claimant removes its own log, in which nothing is and which no OPEN has made a stream."""
        unused = what.kind == "log" and what.epoch not in self.history.opens and self.history.is_empty(what.epoch)
        return unused and self._owner_of.get(what.epoch) == process

    def _ends(self, what: _Name) -> bool:
        return any(
            payload.previous_epoch == what.epoch and payload.end_index == what.index
            for payload in self.history.opens.values()
        )

    # Chunks

    def _put_chunk(self, process: str, name: str, what: _Name, data: bytes | None, *, late: bool) -> None:
        self._check_chunk_writer(process, what, name)
        if name in self._deleted and not late and what.identity not in self._taken_back:
            # What history never referred to may be sent again by who did not hear that it had arrived (#51): an orphan again.
            self._report(18, f"{process} wrote {name} again after it was deleted")
        stored = self._content(name)
        identity = hash(stored)
        known = self._chunks.setdefault(name, identity)
        if data is not None and known != identity:
            self._report(18, f"{process} replaced what {name} held")

    def _check_chunk_writer(self, process: str, what: _Name, name: str) -> None:
        if what.epoch and what.epoch not in self._epochs[process]:
            self._report(18, f"{process} wrote {name}, a chunk of an epoch that is not its own")

    def _delete_chunk(self, process: str, name: str, what: _Name) -> None:
        history = self.history
        self._chunks.pop(name, None)
        self._deleted[name] = what.epoch
        removed = history.removed.get(what.identity)
        if removed is not None:
            self._deletion = max(self._deletion, history.point(removed))
            lowest = min(history.pins.values(), default=removed)
            if removed > lowest:
                self._report(39, f"{process} deleted {name}, removed at lsn {removed}: a pin is at {lowest}")
        elif chunk_key(what.identity) in history.rows:
            self._report(21, f"{process} deleted {name}, which lsn {history.lsn} refers to")
        else:
            self._taken_back.add(what.identity)
            if what.epoch not in self._epochs[process] and what.epoch >= max(self._epochs[process], default=0):
                self._report(24, f"{process} deleted {name}, of a later epoch than its own, and nobody had removed it")

    # What was told to whom

    def answered(self, event: Event) -> None:
        """Invariant 29: whoever looks after a stranger has claimed the next epoch is told so, and not what he knew of."""
        if event.kind not in _LOOKING or (self.fence_at_tail and event.ends_inside):
            return
        claimed = self._claimed_when.get(event.epoch + 1)
        if claimed is None or event.invoked <= claimed or not event.epoch or not self.fence_by_stat:
            return
        strange = self._owner_of.get(event.epoch + 1) != self._owner_of.get(event.epoch)
        if strange and (event.outcome == "ok" or event.result in _FINDINGS):
            self._report(29, f"answered although epoch {event.epoch + 1} had been claimed before it was asked: {event}")

    def acknowledged(self, event: Event, lsn: int) -> None:
        """Invariant 29: in an APPEND stream nobody may be told yes for a record that was written after a stranger's claim."""
        entry = self.history.entries[lsn - 1]
        strange = self._owner_of.get(entry.epoch + 1) != self._owner_of.get(entry.epoch)
        if event.outcome != "ok" or not strange or not self._was_behind_claim(entry):
            return
        adopted = next((item.written for item in self.history.entries[lsn:] if item.epoch != entry.epoch), None)
        if adopted is None or adopted > (event.returned or 0):
            message = f"lsn {lsn} was written after epoch {entry.epoch + 1} had been claimed, and acknowledged: {event}"
            self._report(29, message)

    def _was_behind_claim(self, entry: Entry) -> bool:
        """Whether a record of an APPEND stream was written after the next epoch had been claimed."""
        claimed, written = self._claimed_at.get(entry.epoch + 1), self._written_at.get(entry.lsn)
        return claimed is not None and written is not None and entry.index != 0 and claimed < written

    def answered_damaged(self, name: str) -> bool:
        """Somebody was told that an object is damaged. Invariant 20, if it is a chunk that H refers to and that is not whole."""
        what = self._parse(name)
        raw = self.history.rows.get(chunk_key(what.identity)) if what.kind == "chunk" else None
        if raw is None or what.identity in self.history.removed:
            return False
        return self._check_chunk(what.identity, raw, "")

    def _check_chunk(self, identity: bytes, raw: bytes, when: str) -> bool:
        """Invariant 20, of one chunk that H refers to; whether it is broken."""
        _, _, length, crc = decode_row(raw, CHUNK_FIELDS)[:4]
        stored = (self.history.bytes_of(identity) or b"")[:length]
        if len(stored) == length and crc in (None, crc32c(stored)):
            return False
        lsn, name = self.history.lsn, self._names.chunk(identity)
        self._report(20, f"{when}{name} does not hold the {length} bytes that lsn {lsn} refers to")
        return True

    # Points of history

    def cache_at(self, process: str, head: Head) -> None:
        """Where an owner's metadata cache stands (invariants 12 and 10)."""
        lsn, identity = head.position.lsn, head.position.hash
        if not self.history.holds(lsn, identity):
            self._report(12, f"the cache of {process} stands at lsn {lsn}, which is not a point of history")
        elif lsn and head.digest != self.history.digest_at(lsn):
            self._report(10, f"the cache of {process} has another digest at lsn {lsn} than history")
        if head.position.epoch > self.history.last_claim:
            self._report(12, f"the cache of {process} stands in epoch {head.position.epoch}, which nobody has claimed")

    def rows_at(self, process: str, view: MetadataView) -> None:
        """What an owner's metadata cache holds where it stands at the end of history (invariant 10)."""
        position = view.head.position
        if (position.lsn, position.hash) != self.history.point(self.history.lsn):
            return
        rows = {key: value for key, value in view.scan(b"\x01", b"\xff") if key[0] in ROW_KINDS}
        wrong = sorted(
            key for key in rows.keys() | self.history.rows.keys() if rows.get(key) != self.history.rows.get(key)
        )
        if wrong:
            self._report(10, f"the cache of {process} holds other rows at lsn {position.lsn} than history: {wrong[:3]}")

    def replica_at(self, name: str, head: Head) -> None:
        """Where a replica stands (invariants 13 and 10)."""
        lsn, identity = head.position.lsn, head.position.hash
        if lsn and self.history.holds(lsn, identity) and head.digest != self.history.digest_at(lsn):
            self._report(10, f"replica {name} has another digest at lsn {lsn} than history")
        if not self.history.holds(lsn, identity):
            self._report(13, f"replica {name} stands at lsn {lsn}, which is not a point of history")
        elif lsn > self._shown[0]:
            self._shown = (lsn, identity)
            entry = self.history.entries[lsn - 1]
            if entry.epoch == self.history.top and self._was_behind_claim(entry):
                message = (
                    f"which was written after epoch {entry.epoch + 1} had been claimed, and which no OPEN has adopted"
                )
                self._report(13, f"replica {name} shows lsn {lsn}, {message}")
        if lsn < self._replicas.get(name, 0):
            self._report(13, f"replica {name} went back from lsn {self._replicas[name]} to {lsn}")
        self._replicas[name] = lsn

    def forget_replica(self, name: str) -> None:
        """The replica was closed: another one of its name begins anew."""
        self._replicas.pop(name, None)

    def taken_over(self, process: str, epoch: int, head: Head | None) -> None:
        """A process has begun to serve. ``head``: where its cache stands; None where that has rotted."""
        if epoch not in self._epochs[process]:
            self._report(1, f"{process} serves epoch {epoch}, which it has not claimed")
        if head is not None:
            self.cache_at(process, head)

    def _check_promises(self, what: str) -> None:
        """What was told, done or shown on the strength of a record must outlive every cut: that record is still in H."""
        history = self.history
        if not history.holds(*self._deletion):
            self._report(21, f"{what} cut off lsn {self._deletion[0]}; chunks that it removed are deleted already")
            self._deletion = _GENESIS
        if not history.holds(*self._shown):
            self._report(13, f"{what} cut off lsn {self._shown[0]}, which a replica has shown")
            self._shown = _GENESIS

    def finish(self) -> None:
        """The end: what must hold of everything."""
        self._check_promises("the end")
        self.history.extents.judge_all("at the end")
        history = self.history
        for epoch in range(1, history.top):
            if epoch not in history.opens and (epoch, 0) not in history.seals:
                self._report(2, f"slot 0 of epoch {epoch} was never decided, though epoch {history.top} opened")
