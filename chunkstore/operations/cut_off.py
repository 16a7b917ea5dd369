"""What a repair can keep of the records that it cuts off (protocol 3.15): planning, without I/O.

Promises: pure. The state at the cut is believed; a record behind it is believed in what its operations say, never in fields of rows that
no operation explains, because it may have been planned on rows that were wrong. The bytes of an append are kept where they follow, chunk by
chunk, on what the segment holds at the cut; that the chunks hold them is for the caller to compare (``ChunkLink``).
Leaves out: reading chunks and committing (``regain``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from chunkstore.errors import Damaged
from chunkstore.journal import OpCode
from chunkstore.metadata.codec import decode_chunk, decode_segment
from chunkstore.metadata.keys import CHUNK, SEGMENT, chunk_key, pin_key, segment_key, session_key, table_key, writer_key
from chunkstore.metadata.lines import LineFold, by_segment, line_extents
from chunkstore.metadata.pins import scan_pins
from chunkstore.metadata.port import Lines, MetadataView, Op, RowChange
from chunkstore.names import NO_CHUNK, ContainerNames, confined
from chunkstore.operations.repair_plan import ChunkLink, SegmentPlan, Source, TablePlan
from chunkstore.records import KIND_INLINE, AttributeValue, ChunkRecord, PinRecord, SegmentRecord

__all__ = ["CutOff"]


_APPENDS = (OpCode.APPEND, OpCode.ATTACH)
_LISTING = (*_APPENDS, OpCode.REPLACE, OpCode.SPILL)


class CutOff:
    """What the readable records behind the cut say together. ``add`` them in order, then ask for plans."""

    def __init__(self, view: MetadataView, names: ContainerNames) -> None:
        self._view, self._names = view, names
        self._rows: dict[bytes, bytes | None] = {}
        self._final: dict[int, SegmentRecord] = {}
        self._appends: dict[int, list[tuple[int, int, int]]] = {}
        """By segment: begin, end and lsn of each append."""
        self._deleted: set[int] = set()
        self._merged: dict[int, tuple[int, int]] = {}
        """By segment: the one that it was spliced into, and where."""
        self._truncated: dict[int, int] = {}
        self._replaced: dict[int, list[tuple[int, int, Sequence[tuple[int, bytes]]]]] = {}
        self._starts: dict[bytes, tuple[int, int]] = {}
        """By chunk: the segment that got it, and the offset there."""
        self._spilled: dict[int, int] = {}
        """By segment: the lowest offset of an extent that was spilled."""
        self._sealed: dict[int, bool] = {}
        self._attributes: dict[int, Mapping[str, AttributeValue]] = {}
        self._others: dict[bytes, tuple[Op, int]] = {}
        self._created: dict[int, str] = {}

    def add(
        self, lsn: int, ops: Sequence[Op], rows: Sequence[RowChange], lines: Lines | None = None
    ) -> None:
        """One record."""
        if lines is not None:
            ops = [
                (int(OpCode.APPEND), line.segment_id, line.offset, length, ((line.offset, identity),), 1)
                for identity, line, length, _ in line_extents(lines)
            ]
            derived: list[RowChange] = []
            for number, run in by_segment(lines):
                with suppress(Damaged):  # what does not follow on the rows before is not kept
                    folding = LineFold(self._get)
                    folding.add(run, number)
                    made = [(key, value) for key, value, _ in folding.take().rows]
                    self._rows.update(made)
                    derived += made
            rows = derived
        self._rows.update(rows)
        for key, value in rows:
            if key[:1] == SEGMENT and value is not None:
                with suppress(Damaged):
                    segment = decode_segment(key, value)
                    self._final[segment.id] = segment
        for op in ops:
            self._add(lsn, op)

    def _add(self, lsn: int, op: Op) -> None:
        code, *rest = op
        arguments: list[Any] = rest
        first = arguments[0]
        if code in _LISTING:
            self._starts.update((identity, (first, offset)) for offset, identity in arguments[3])
        if code == OpCode.CREATE:
            self._created[first] = arguments[1]
        elif code in _APPENDS:
            self._appends.setdefault(first, []).append((arguments[1], arguments[1] + arguments[2], lsn))
        elif code in (OpCode.SEAL, OpCode.UNSEAL):
            self._sealed[first] = code == OpCode.SEAL
        elif code == OpCode.DELETE:
            self._deleted.add(first)
        elif code == OpCode.TRUNCATE:
            self._truncated[first] = max(arguments[1], self._truncated.get(first, 0))
        elif code == OpCode.REPLACE:
            self._replaced.setdefault(first, []).append((arguments[1], arguments[2], arguments[3]))
        elif code == OpCode.SPILL:
            self._spilled[first] = min(arguments[1], self._spilled.get(first, arguments[1]))
        elif code == OpCode.CONCAT:
            self._merged[arguments[2]] = first, arguments[1]
            if first in self._final:
                self._appends.setdefault(first, []).append((arguments[1], self._final[first].length, lsn))
        elif code == OpCode.ATTRIBUTES and first in self._final:
            self._attributes[first] = self._final[first].attributes
        elif code in (OpCode.TABLE_PUT, OpCode.TABLE_DELETE):
            self._others[table_key(first, arguments[1])] = (op, lsn)
        elif code in (OpCode.SESSION_OPEN, OpCode.SESSION_END):
            self._others[session_key(first)] = (op, lsn)

    def ended_pins(self) -> tuple[tuple[str, int], ...]:
        """Pins of the cut, by name and position, that were given up behind it."""
        pins = [(name, pin.lsn) for name, pin in scan_pins(self._view) if isinstance(pin, PinRecord)]
        return tuple((name, lsn) for name, lsn in pins if pin_key(name) in self._rows)

    # Rows as the cut-off part left them

    def _get(self, key: bytes) -> bytes | None:
        return self._rows[key] if key in self._rows else self._view.get(key)

    def _chunk(self, identity: bytes) -> ChunkRecord | None:
        key = chunk_key(identity)
        raw, held = self._get(key), self._view.get(key)
        if raw is not None:
            with suppress(Damaged):
                record = decode_chunk(key, raw)
                if record.kind == KIND_INLINE and held is not None:
                    # An OPEN behind the cut may have moved it; where it lies in history only history says.
                    record = record.placed(*decode_chunk(key, held)[:2])
                return record if confined(self._names, identity, record).length else None
        return None

    def _followers(self) -> dict[bytes, bytes]:
        """What follows a chunk, as the next one's row says: the row of the chunk itself may be in a record that is unreadable."""
        found = {}
        for key, raw in self._rows.items():
            if key[:1] == CHUNK and raw is not None:
                with suppress(Damaged):
                    found[decode_chunk(key, raw).previous] = key[1:]
        found.pop(NO_CHUNK, None)
        return found

    # Plans

    def segments(self) -> list[SegmentPlan]:
        """A plan for each segment that the records speak of, by id."""
        touched = {
            *self._final,
            *self._appends,
            *self._deleted,
            *self._truncated,
            *self._sealed,
            *self._merged,
            *self._created,
            *self._spilled,
        }
        bases = {}
        for key, raw in self._view.scan(SEGMENT, bytes((SEGMENT[0] + 1,))):
            with suppress(Damaged):
                segment = decode_segment(key, raw)
                if segment.id in touched:
                    bases[segment.id] = segment
        followers = self._followers()
        plans = [self._plan(segment_id, bases, followers) for segment_id in sorted(touched)]
        freed = {plan.name for plan in plans if plan.delete and plan.base is not None}
        freed |= {source.segment.name for plan in plans for source in plan.sources}
        freed |= {segment.name for plan in plans for segment, _ in plan.ended}
        newest = {plan.name: plan.id for plan in plans if plan.base is None and not plan.delete}
        for plan in plans:
            if plan.base is not None or plan.delete:
                continue
            if plan.name not in freed and self._view.get(segment_key(plan.name)) is not None:
                plan.obstacle = "at the last good record the name belongs to another segment"
            elif newest[plan.name] != plan.id:
                plan.obstacle = "a segment that was made later has its name"
        return [plan for plan in plans if plan.base is not None or not plan.delete]

    def _plan(
        self, segment_id: int, bases: Mapping[int, SegmentRecord], followers: Mapping[bytes, bytes]
    ) -> SegmentPlan:
        base, final = bases.get(segment_id), self._final.get(segment_id)
        known = base or final
        name = known.name if known else self._created.get(segment_id, f"#{segment_id:x}")
        plan = SegmentPlan(segment_id, name, base, final)
        target = self._merged.get(segment_id)
        # What is empty at the cut and was spliced as it was has nothing to keep, whatever becomes of the target.
        is_empty = base is None or not (base.length or self._appends.get(segment_id))
        plan.delete = segment_id in self._deleted or (target is not None and is_empty)
        plan.raw = None if base is None else self._view.get(segment_key(base.name))
        for begin, end, _ in self._appends.get(segment_id, ()):
            plan.borders |= {begin, end}
        if final is not None:
            plan.borders.add(final.length)
        plan.acknowledged = 0 if plan.delete else max(plan.borders, default=0)
        spilled = self._spilled.get(segment_id)
        if base is not None and spilled is not None and spilled < base.length:
            plan.spilled = [] if final is None else self._walk_back(final, spilled)
        if target is not None or plan.delete:
            return plan
        if final is None:
            plan.obstacle = "" if base is not None else "no readable record describes it"
            return plan
        plan.truncate = self._truncated.get(segment_id, 0)
        plan.sealed = self._sealed.get(segment_id)
        plan.attributes = self._attributes.get(segment_id)
        if base is not None:
            plan.replaced = [*self._replacements(segment_id, base.length)]
        own = [bases[source] for source in sorted(self._merged_into(segment_id) - {segment_id}) if source in bases]
        self._link(plan, final, own, followers)
        return plan

    def _replacements(self, segment_id: int, length: int) -> Iterator[tuple[int, int, list[ChunkLink]]]:
        """Those of a segment that begin below the cut and whose chunks are all known. The last chunk may reach beyond the cut: what it
        holds there follows on the base."""
        for start, stop, added in self._replaced.get(segment_id, ()):
            records = [(offset, identity, self._chunk(identity)) for offset, identity in added]
            links = [ChunkLink(offset, identity, record) for offset, identity, record in records if record is not None]
            joined = [start, *(link.stop for link in links)]
            if start < length and len(links) == len(added) and joined == [*(link.offset for link in links), stop]:
                yield start, min(stop, length), [link for link in links if link.offset < length]

    def _link(
        self, plan: SegmentPlan, final: SegmentRecord, own: Sequence[SegmentRecord], followers: Mapping[bytes, bytes]
    ) -> None:
        base = plan.base
        links: list[ChunkLink] = []
        if base is not None and base.last_chunk:
            last, last_offset = base.last_chunk, base.last_chunk_offset
            for _, stop, added in plan.replaced:
                if stop == base.length:
                    last, last_offset = added[-1].identity, added[-1].offset
            plan.tail = last
            links = list(self._walk(last, last_offset, followers))
            if links and links[0].stop <= base.length:
                links = links[1:]  # not grown: its row at the cut stays
                if links and links[0].offset != base.length:
                    links = []
        behind = final.start_offset - final.first_chunk_skip
        follows = behind == plan.length or plan.length < behind <= plan.truncate
        if final.first_chunk and follows and (not links or links[-1].stop < final.length):
            links = list(self._walk(final.first_chunk, behind, followers))
        if not links or links[-1].stop < final.length:
            # What the list goes on from here may have been spilled or merged with what came behind.
            whole = self._walk_back(final, behind if base is None or follows else base.length)
            if whole and self._is_placed(whole[0], plan, final, own):
                plan.tail = NO_CHUNK if base is None else base.last_chunk
                links = [plan.behind(whole[0]), *whole[1:]]
        plan.links, plan.sources = self._without_strangers(links, plan, own)
        last_link = next((link for link in plan.links if link.identity == final.last_chunk), None)
        if last_link is not None and last_link.offset - last_link.skip != final.last_chunk_offset:
            plan.links, plan.sources = [], []  # not all of what lies between is known
        prefix = writer_key(plan.id, b"")
        plan.writers = [(key, raw) for key, raw in self._rows.items() if raw is not None and key.startswith(prefix)]

    def _walk(self, identity: bytes, offset: int, followers: Mapping[bytes, bytes]) -> Iterator[ChunkLink]:
        seen: set[bytes] = set()
        while identity and identity not in seen:
            seen.add(identity)
            record = self._chunk(identity)
            if record is None:
                return
            yield ChunkLink(offset, identity, record)
            offset += record.length
            identity = record.next or followers.get(identity, NO_CHUNK)

    def _walk_back(self, final: SegmentRecord, low: int) -> list[ChunkLink]:
        """The chunks from that with the offset ``low`` to the last one; none where one of them is not known."""
        found: list[ChunkLink] = []
        identity, stop = final.last_chunk, final.length
        while identity and stop > low:
            record = self._chunk(identity)
            if record is None or record.length > stop:
                return []
            stop -= record.length
            found.append(ChunkLink(stop, identity, record))
            identity = record.previous
        return found[::-1] if stop <= low else []

    def _is_placed(
        self, link: ChunkLink, plan: SegmentPlan, final: SegmentRecord, own: Sequence[SegmentRecord]
    ) -> bool:
        """Whether more than the lengths of what follows says where it begins: of a chunk that has grown the last length may be unread."""
        base, identity, offset = plan.base, link.identity, link.offset
        if identity == final.first_chunk and offset == final.start_offset - final.first_chunk_skip:
            return True
        if base is None:
            return False
        if self._view.get(chunk_key(identity)) is None:
            segment_id, begin = self._starts.get(identity, (0, 0))
            if segment_id in self._merged_into(plan.id):
                return self._place_in(plan.id, segment_id)[0] + begin == offset
            return (link.record.previous, offset) == (base.last_chunk, base.length)
        if offset < base.length:
            return self._view.locate(plan.id, offset) == (identity, offset)
        return any(identity == item.first_chunk and offset == self._place_in(plan.id, item.id)[0] for item in own)

    def _without_strangers(
        self, links: list[ChunkLink], plan: SegmentPlan, own: Iterable[SegmentRecord]
    ) -> tuple[list[ChunkLink], list[Source]]:
        """Up to the first chunk that is another segment's, unless all of that one was spliced in here; then it is copied, if its list is no
        more what it is at the cut. So are extents: what is cut off of the journal is nobody's."""
        firsts = {source.first_chunk: source for source in own if source.first_chunk}
        makers = self._merged_into(plan.id)
        sources: list[Source] = []
        number = 0
        while number < len(links):
            link = links[number]
            source = firsts.get(link.identity)
            last = number + source.chunk_count - 1 if source is not None else 0
            if source is not None and last < len(links) and links[last].identity == source.last_chunk:
                sources.append(Source(source, number, last))
                number = last + 1
                continue
            is_tail = (
                plan.base is not None and link.identity == plan.base.last_chunk
            ) and link.record.kind != KIND_INLINE
            is_new = link.record.segment_id in makers and self._view.get(chunk_key(link.identity)) is None
            if not (is_tail or is_new or link.copied or self._is_spliced(plan.id, makers, link)):
                break
            if not is_tail and (not is_new or link.record.kind == KIND_INLINE):
                links[number] = link._replace(copied=True)
            number += 1
        spliced = {source.segment.id for source in sources}
        for segment in own:
            if segment.id not in spliced and number:
                plan.ended.append((segment, self._place_in(plan.id, segment.id)[1]))
        return links[:number], sources

    def _place_in(self, target: int, source: int) -> tuple[int, int]:
        """Where the bytes of a segment begin and end in one that it was spliced into."""
        begin, length = 0, self._final[source].length if source in self._final else 0
        while source != target:
            source, offset = self._merged[source]
            begin += offset
        return begin, begin + length

    def _is_spliced(self, target: int, makers: set[int], link: ChunkLink) -> bool:
        """Whether it lies in bytes that were another segment's."""
        places = [self._place_in(target, source) for source in makers if source != target]
        return any(begin <= link.offset and link.stop <= stop for begin, stop in places)

    def _merged_into(self, segment_id: int) -> set[int]:
        """The segment, and those that were spliced into it, also by way of others."""
        found = {segment_id}
        more = found
        while more:
            more = {source for source, (target, _) in self._merged.items() if target in found} - found
            found |= more
        return found

    def lost_lsns(self, plan: SegmentPlan) -> set[int]:
        """The records of which an append to this segment reaches beyond what is kept."""
        return {lsn for _, end, lsn in self._appends.get(plan.id, ()) if end > plan.kept_stop and not plan.delete}

    def others(self) -> list[TablePlan]:
        """Table rows and sessions that changed, in key order."""
        plans = [
            TablePlan(key, self._view.get(key), self._rows.get(key), op, lsn)
            for key, (op, lsn) in sorted(self._others.items())
        ]
        return [plan for plan in plans if plan.before != plan.after]
