"""Keeping what a repair cut off and can keep: comparing chunks, and committing in the repair's epoch (protocol 3.15).

Promises: a byte is kept only if its chunk has the CRC32C that a record says, and was made durable first; an append is kept whole or not at
all. Each segment is one commit, and only if its row is still what it was at the cut, so that an interrupted run is done again
without doing anything twice. Chunks are taken on where they lie: no record behind the cut removed them. What was removed there is removed
again, because a former owner may delete it at any time. Extents behind the cut lie in records that are history no more: their bytes
are copied, and extents of the cut that were spilled behind it are spilled again. Leaves out: which (``cut_off``); copying
(``regain_bytes``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from chunkstore.blocks import Borders
from chunkstore.changes import NewChunk
from chunkstore.errors import Conflict, Damaged
from chunkstore.journal import OpCode
from chunkstore.metadata.codec import decode_session, decode_table
from chunkstore.metadata.keys import REPAIR_KEY, SESSION, chunk_key, segment_key
from chunkstore.metadata.lines import decode_writer_row
from chunkstore.names import NO_CHUNK, ContainerNames
from chunkstore.operations.change_set import ChangeSet
from chunkstore.operations.commit_changes import commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.cut_off import CutOff
from chunkstore.operations.owned_epoch import OwnedEpoch
from chunkstore.operations.pins import end_pins
from chunkstore.operations.regain_bytes import clipped, is_stored, spill_again, with_copies
from chunkstore.operations.repair_plan import ChunkLink, SegmentPlan, TablePlan
from chunkstore.operations.repair_report import SegmentOutcome
from chunkstore.operations.replace import exchange, find_run
from chunkstore.operations.segments import plan_delete, plan_seal, plan_unseal
from chunkstore.operations.truncate import plan_truncate
from chunkstore.records import CLOSED, KIND_INLINE, KIND_OBJECT, ChunkRecord, SegmentRecord, TableRecord
from chunkstore.storage import ChunkStorage

__all__ = ["Regain", "plan_regain", "regain"]

_TRIES = 5
_ROWS_IN_A_COMMIT = 500


class Regain(NamedTuple):
    """What can be kept. ``not_applied``: changes of tables and sessions that are not made again, because bytes of their record are lost."""

    segments: tuple[SegmentPlan, ...]
    tables: tuple[TablePlan, ...]
    outcomes: tuple[SegmentOutcome, ...]
    not_applied: tuple[str, ...]
    pins: tuple[tuple[str, int], ...]


def plan_regain(storage: ChunkStorage, names: ContainerNames, cut_off: CutOff) -> Regain:
    """Compare every chunk that could be kept with its CRC32C; changes nothing. Raises ``StorageUnavailable``."""
    plans = cut_off.segments()
    reasons = [plan.obstacle or _compare(storage, names, plan) for plan in plans]
    spliced = {source.segment.id for plan in plans for source in plan.sources}
    spliced |= {segment.id for plan in plans for segment, _ in plan.ended}
    outcomes: list[SegmentOutcome] = []
    lost_lsns: set[int] = set()
    for plan, reason in zip(plans, reasons, strict=True):
        if plan.id in spliced:
            continue  # its bytes are another segment's now
        lost_lsns |= cut_off.lost_lsns(plan)
        kept = plan.kept_stop
        start = max(plan.length, plan.links[0].offset) if plan.links and not plan.obstacle else kept
        kept_ranges = ((start, kept),) if kept > start else ()
        lost_ranges = ((kept, plan.acknowledged),) if plan.acknowledged > kept else ()
        if kept_ranges or lost_ranges or plan.delete:
            why = reason if lost_ranges else ""
            outcomes.append(SegmentOutcome(plan.name, plan.id, kept_ranges, lost_ranges, why, plan.delete))
    others = cut_off.others()
    refused = tuple(f"{OpCode(plan.header[0]).name} of lsn {plan.lsn}" for plan in others if plan.lsn in lost_lsns)  # type: ignore[arg-type]
    tables = tuple(plan for plan in others if plan.lsn not in lost_lsns)
    whole = tuple(plan for plan in plans if not plan.obstacle and plan.id not in spliced)
    return Regain(whole, tables, tuple(outcomes), refused, cut_off.ended_pins())


def _compare(storage: ChunkStorage, names: ContainerNames, plan: SegmentPlan) -> str:
    """Cut the plan's links behind the last append whose bytes are there; why no more of them are kept."""
    reason = "it does not continue the stored bytes of the segment"
    stored = [item for item in plan.replaced if all(is_stored(storage, names, link) for link in item[2])]
    plan.replaced = [(start, end, [clipped(storage, names, link, end) for link in new]) for start, end, new in stored]
    tails = {plan.base.last_chunk if plan.base else NO_CHUNK, *(new[-1].identity for _, _, new in stored)}
    if plan.tail not in tails:
        plan.links, plan.sources = [], []
    good = 0
    for link in plan.links:
        if not is_stored(storage, names, link):
            reason = f"{names.address(link.identity, link.record).object} differs from its record in length or CRC32C"
            break
        good += 1
    links = plan.links[: min((source.first for source in plan.sources if source.last >= good), default=good)]
    stop = max((border for border in plan.borders if links and border <= links[-1].stop), default=plan.length)
    links = [link for link in links if link.offset < stop] if stop > plan.length else []
    links = links[: min((source.first for source in plan.sources if source.last >= len(links)), default=len(links))]
    plan.links = [clipped(storage, names, link, stop) for link in links]
    plan.sources = [source for source in plan.sources if source.last < len(links)]
    plan.ended = [item for item in plan.ended if links and item[1] <= plan.links[-1].stop]
    return reason


# --- committing -------------------------------------------------------------------------------------------------------


def regain(container: OwnedContainer, plan: Regain) -> tuple[SegmentOutcome, ...]:
    """Commit what can be kept, then say that the repair has ended; what became of it. Raises what commits raise; again: safe."""
    refused = {
        item.id for item in sorted(plan.segments, key=lambda item: not item.delete) if not _keep(container, item)
    }
    for first in range(0, len(plan.tables), _ROWS_IN_A_COMMIT):
        commit_changes(container, (), partial(_keep_rows, plan.tables[first : first + _ROWS_IN_A_COMMIT]), tables=True)
    end_pins(container, plan.pins, "repair")
    commit_changes(container, (), _end, tables=True)
    return tuple(_refused(outcome) if outcome.segment_id in refused else outcome for outcome in plan.outcomes)


def _keep(container: OwnedContainer, plan: SegmentPlan) -> bool:
    """Whether what is to be kept of a segment is, now or since an earlier run."""
    for link in (*plan.links, *(link for _, _, new in plan.replaced for link in new)):
        if link.record.kind == KIND_OBJECT and not link.copied:
            container.storage.harden(container.names.chunk(link.identity))  # P6
    names = [plan.name, *(source.segment.name for source in plan.sources), *(segment.name for segment, _ in plan.ended)]
    tries = _TRIES
    while True:
        owned = container.serving(container.deadline())
        copied = with_copies(container, owned, plan)
        try:
            kept = commit_changes(container, names, partial(_keep_segment, owned, copied), tables=True)
        except Conflict:  # another epoch of ours began meanwhile
            tries -= 1
            if not tries:
                raise
            continue
        if kept and plan.spilled is not None and not plan.delete:
            spill_again(container, plan.name, plan.spilled)
        return kept


def _refused(outcome: SegmentOutcome) -> SegmentOutcome:
    ranges = [*outcome.kept, *outcome.lost]
    lost = ((ranges[0][0], ranges[-1][1]),) if ranges else ()
    return outcome._replace(kept=(), lost=lost, reason="its owner has changed the segment since", deleted=False)


def _end(changes: ChangeSet) -> None:
    if changes.settled(REPAIR_KEY) is not None:
        changes.rows[REPAIR_KEY] = None
        changes.headers.append((int(OpCode.TABLE_DELETE), "!repair", b""))
        changes.table_keys.append(REPAIR_KEY)


def _keep_segment(owned: OwnedEpoch, plan: SegmentPlan, changes: ChangeSet) -> bool:
    """Plan what is to be kept; whether it is, by now or by an earlier run. Its owner's own changes since then stay. Raises ``Conflict``
    where the copies are not of this epoch."""
    if changes.view.get(segment_key(plan.name)) != plan.raw:
        present = changes.find(plan.name)
        if plan.delete:
            return present is None or present.id != plan.id
        whole = present is not None and present.id == plan.id and present.length >= plan.kept_stop
        return whole and (not plan.links or _is_taken_on(changes, present, plan.links[-1]))
    if changes.owned is not owned:
        raise Conflict(f"segment {plan.name!r}", expected=f"epoch {owned.epoch}", found=f"epoch {changes.owned.epoch}")
    if plan.delete:
        plan_delete(changes, plan.name, plan.id)
        return True
    segment = plan.base
    if segment is None:
        assert plan.final is not None
        segment = _made(changes, plan.final)
    for start, stop, new in plan.replaced:
        _replace_again(changes, plan, start, stop, new)
    if plan.links:
        _take_on(changes, changes.segment(plan.name), plan)
    segment = changes.segment(plan.name)
    plan_truncate(changes, plan.name, min(plan.truncate, segment.length))
    if plan.attributes is not None:
        changes.put(changes.segment(plan.name)._replace(attributes=plan.attributes, modified_ms=changes.now_ms))
        changes.headers.append((int(OpCode.ATTRIBUTES), plan.id))
    if plan.sealed:
        plan_seal(changes, plan.name)
    elif plan.sealed is False and segment.sealed:
        plan_unseal(changes, plan.name)
    for key, raw in plan.writers:
        if decode_writer_row(plan.name, raw).offset < plan.kept_stop:
            changes.rows[key] = TableRecord(0, decode_table(key, raw).value)
    return True


def _is_taken_on(changes: ChangeSet, present: SegmentRecord | None, link: ChunkLink) -> bool:
    """Whether a chunk is in the list, or another copy of the same bytes."""
    if not link.copied:
        return changes.view.get(chunk_key(link.identity)) is not None
    if present is None or not present.start_offset <= link.offset < present.length:
        return False
    identity, offset = changes.chunk_at(present, link.offset)
    record = changes.chunk(identity)
    return (offset, record.length, record.crc32c) == (link.offset, link.record.length, link.record.crc32c)


def _made(changes: ChangeSet, final: SegmentRecord) -> SegmentRecord:
    """The segment as it was made, under its own id; one without chunks: where it ends."""
    start = 0 if final.chunk_count else final.length
    segment = final._replace(
        flags=0,
        start_offset=start,
        length=start,
        first_chunk=NO_CHUNK,
        last_chunk=NO_CHUNK, last_chunk_offset=start,
        first_chunk_skip=0,
        owner_epoch=changes.owned.epoch,
        chunk_count=0,
    )  # fmt: skip
    changes.put(segment)
    ops = (int(OpCode.CREATE), segment.id, segment.name), (int(OpCode.TRUNCATE), segment.id, start)
    changes.headers += ops if start else ops[:1]
    return segment


def _replace_again(changes: ChangeSet, plan: SegmentPlan, start: int, stop: int, new: Sequence[ChunkLink]) -> None:
    """Let the chunks stand for a range that they stood for behind the cut, if it is one of whole chunks here, too: those that it had
    here are garbage to a former owner."""
    segment = changes.segment(plan.name)
    if segment.start_offset < start <= plan.truncate and changes.chunk_at(segment, start)[1] != start:
        plan_truncate(changes, plan.name, start)
        segment = changes.segment(plan.name)
    with suppress(Conflict):
        run = find_run(changes, segment, start, stop, count_max=segment.chunk_count)
        exchange(changes, segment, run, [NewChunk(link.identity, _ends_of(link.record)) for link in new])
        for link in new:
            row = changes.chunk(link.identity)
            changes.rows[chunk_key(link.identity)] = row._replace(epoch=link.record.epoch)


def _ends_of(record: ChunkRecord) -> Borders:
    return Borders((0, record.length), (0, record.crc32c or 0))


def _take_on(changes: ChangeSet, segment: SegmentRecord, plan: SegmentPlan) -> None:
    """Hang the plan's links behind the segment's list."""
    links = plan.links
    if links[0].offset > segment.length:
        # Everything below was truncated away, and its chunks are garbage.
        plan_truncate(changes, segment.name, segment.length)
        start = links[0].offset
        segment = changes.segment(segment.name)._replace(start_offset=start, length=start, last_chunk_offset=start)
        changes.headers.append((int(OpCode.TRUNCATE), segment.id, start))
    grown = links[0].identity == segment.last_chunk
    added = links[1:] if grown else links
    before = segment.last_chunk
    if grown:
        tail = links[0].record
        old = changes.chunk(before)
        changes.rows[chunk_key(before)] = old._replace(length=tail.length, crc32c=tail.crc32c, state=CLOSED)
    if added and before:
        last = changes.chunk(before)
        changes.rows[chunk_key(before)] = last._replace(next=added[0].identity, state=CLOSED)
    _set_rows(changes, before, added)
    for source in plan.sources:
        changes.rows[segment_key(source.segment.name)] = None
        changes.end_segment(source.segment.id)
        changes.headers.append((int(OpCode.DELETE), source.segment.id))
        changes.restructure(source.segment.id)
    for ended, _ in plan.ended:
        plan_delete(changes, ended.name, ended.id)
    changes.put(
        segment._replace(
            length=links[-1].stop,
            first_chunk=segment.first_chunk or links[0].identity,
            last_chunk=links[-1].identity,
            last_chunk_offset=links[-1].offset,
            chunk_count=segment.chunk_count + len(added),
            owner_epoch=changes.owned.epoch,
            modified_ms=changes.now_ms,
        )
    )
    offset = segment.length
    new = tuple((link.offset, link.identity) for link in added)
    changes.headers.append((int(OpCode.APPEND), segment.id, offset, links[-1].stop - offset, new))
    changes.restructure(segment.id)


def _set_rows(changes: ChangeSet, before: bytes, added: Sequence[ChunkLink]) -> None:
    for number, link in enumerate(added):
        after = added[number + 1].identity if number + 1 < len(added) else NO_CHUNK
        record = link.record
        if record.kind == KIND_INLINE:
            record = record.placed(*changes.chunk(link.identity)[:2])  # our OPEN may have moved it
        changes.rows[chunk_key(link.identity)] = record._replace(previous=before, next=after, state=CLOSED)
        before = link.identity


def _keep_rows(plans: Sequence[TablePlan], changes: ChangeSet) -> None:
    for plan in plans:
        if changes.settled(plan.key) != plan.before:
            continue  # done by an earlier run, or changed since by its owner
        with suppress(Damaged):
            session = plan.key[:1] == SESSION
            after = plan.after
            if after is None:
                changes.rows[plan.key] = None
            elif session:
                changes.rows[plan.key] = decode_session(plan.key, after)
            else:
                changes.rows[plan.key] = TableRecord(0, decode_table(plan.key, after).value)
            changes.headers.append(plan.header)
            changes.table_keys.append(plan.key)
