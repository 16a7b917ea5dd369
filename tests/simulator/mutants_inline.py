"""Planted bugs in appends that travel in records, and in spilling them.

Promises: as ``mutants_engine``. Leaves out: the windows of writers, and what a repair makes of extents.
"""

from __future__ import annotations

from typing import Final

from tests.simulator.mutant import APPEND, EVERYWHERE, POSIX, SLOT, Mutant, Patch, single

__all__ = ["INLINE_MUTANTS"]

_SPILL: Final = "chunkstore.operations.spill"
_APPENDING: Final = "chunkstore.operations.append:_enter_inline"
_QUEUE: Final = "chunkstore.operations.commit_queue:CommitQueue"
_OWNED: Final = "chunkstore.operations.owned_epoch:OwnedEpoch"
_NO_COMPARING: Final = Patch(
    f"{_SPILL}:_plan_target",
    "if crc32c_of_bytes(data[offset - run.start : offset - run.start + length]) != crc:",
    "if False:",
)

INLINE_MUTANTS: Final = (
    single(
        "collect-live-extent",
        "the journal is collected whatever extents it holds",
        EVERYWHERE,
        "chunkstore_journal.service:ContainerJournal.collect",
        "held_from(view)",
        "None",
    ),
    Mutant(
        "collect-pinned-extent",
        "that a spill has taken extents away is forgotten while a pin keeps them",
        EVERYWHERE,
        (
            Patch(
                "chunkstore.operations.collect:_find",
                "garbage.lsn > lowest:",
                "garbage.lsn > lowest and garbage.first:",
            ),
        ),
        ("pins",),
        upkeep=True,
    ),
    single(
        "collect-spilled-at-once",
        "what a spill has taken away is not waited for",
        EVERYWHERE,
        "chunkstore.metadata.inline_index:held_from",
        "places += spilled_from(decode_garbage(repr(key), row))",
        "pass",
    ),
    single(
        "spill-no-garbage",
        "a spill leaves no row of garbage that names the records",
        EVERYWHERE,
        f"{_SPILL}:_plan",
        "changes.garbage.append(GarbageRecord(NO_CHUNK, NO_CHUNK, 0, 0, 0, 0, 0, oldest))",
        "pass",
    ),
    Mutant(
        "spill-out-of-order",
        "a spill joins extents in another order than they have",
        EVERYWHERE,
        (
            Patch(
                f"{_SPILL}:spill",
                "target = _plan_target(owned, run, data)",
                "data, rest = b'', data\n"
                "    for record in run.records:\n"
                "        data, rest = rest[: record.length] + data, rest[record.length :]\n"
                "    target = _plan_target(owned, run, data)",
            ),
            _NO_COMPARING,
        ),
    ),
    single(
        "spill-wrong-crc",
        "a spill gives its chunk another CRC than its bytes have",
        EVERYWHERE,
        f"{_SPILL}:_plan_target",
        "return _Target(identity, chunk.length, grown, rows)",
        "return _Target(identity, chunk.length, grown._replace(crc32c=(grown.crc32c or 0) ^ 1), rows)",
    ),
    single(
        "spill-deletes-early",
        "a spill deletes the records of what it takes, and then commits",
        SLOT,
        f"{_SPILL}:spill",
        "_write(container, owned, run.segment_id, target, data)",
        "_write(container, owned, run.segment_id, target, data)\n"
        "        for record in run.records:\n"
        "            if parse_place(record.object) < (owned.epoch, 0):\n"
        "                with suppress(ChunkstoreError):\n"
        "                    container.storage.delete(container.names.place(record.object))",
    ),
    single(
        "spill-unsynced",
        "a spill is committed before its bytes are durable",
        POSIX,
        f"{_SPILL}:_plan",
        "if owned.appendable:",
        "if False:",
        ("power_cut",),
    ),
    single(
        "spill-cleans-up",
        "a spill whose outcome is unknown deletes its chunk",
        EVERYWHERE,
        f"{_SPILL}:spill",
        "except (OutcomeUnknown, NotOwner, Closed):",
        "except (Closed,):",
    ),
    single(
        "spill-former-epoch",
        "a spill that an epoch has begun is committed by the next one",
        EVERYWHERE,
        f"{_SPILL}:_plan",
        "same = changes.owned is owned and",
        "same =",
    ),
    single(
        "spill-unchecked",
        "a spill takes the place of whatever chunks hold its range by now",
        EVERYWHERE,
        f"{_SPILL}:_plan",
        "    if not same:",
        "    records = records or run.records\n    if False:",
    ),
    single(
        "spill-half-linked",
        "the extent behind a spill still names the one that was in front of it",
        EVERYWHERE,
        f"{_SPILL}:_plan",
        "if following is not None:\n        changes",
        "if False:\n        changes",
    ),
    single(
        "spill-not-indexed",
        "the offset index shows no chunk where a spill has made one",
        EVERYWHERE,
        f"{_SPILL}:_plan",
        "((run.start, target.identity),)",
        "()",
    ),
    Mutant(
        "spill-grows-anothers-chunk",
        "a spill makes a chunk longer that a concat has put in front of the extents, and that lies in another run",
        POSIX,
        (
            Patch(
                f"{_SPILL}:_plan_target",
                "owned.spillable.get(run.segment_id) == (run.before, front.length)",
                "(run.before, front.length) in owned.spillable.values()",
            ),
            Patch(
                f"{_SPILL}:_write",
                "if owned.spillable.pop(segment_id, None) !=",
                "if (target.identity, target.offset) !=",
            ),
        ),
    ),
    single(
        "append-into-spilled",
        "an append goes on with a chunk that a spill has made",
        POSIX,
        f"{_OWNED}.may_grow",
        "and identity not in self.spilled",
        "",
    ),
    single(
        "open-keeps-addresses",
        "an OPEN leaves the addresses of the record that it embeds as they were",
        APPEND,
        "chunkstore_journal.extents:moved_extents",
        "if record is None or not blob_of(record.payload):",
        "if True:",
    ),
    single(
        "address-one-record-off",
        "extents are said to lie in the record in front of theirs",
        SLOT,
        "chunkstore_journal.stream:OwnedStream.place",
        "Place(journal_place(self.epoch, head.index),",
        "Place(journal_place(self.epoch, head.index - 1),",
    ),
    single(
        "address-without-header",
        "extents are said to lie where their record begins",
        APPEND,
        "chunkstore_journal.stream:OwnedStream.place",
        "head.end + HEADER_BYTES + BLOB_AT",
        "head.end + BLOB_AT",
    ),
    Mutant(
        "extends-what-is-written",
        "an extent grows whose record is being written",
        EVERYWHERE,
        (
            Patch(_APPENDING, "and not before.taken", ""),
            Patch(f"{_QUEUE}.enter", "if op.extends is not None and op.extends.taken:", "if False:"),
        ),
    ),
    Mutant(
        "tail-before-commit",
        "the tail cache holds what a record was to hold that failed, and goes on behind it",
        POSIX,
        (
            Patch(
                f"{_OWNED}._append",
                "position = self.journal.append(batch)",
                "self._tail.put_record(batch.ops, batch.blob)\n    position = self.journal.append(batch)",
            ),
            Patch(
                "chunkstore.tail_cache:TailCache.put",
                "if tail is not None and tail.end != offset:",
                "if tail is not None and offset < tail.end:\n"
                "            return\n"
                "        if tail is not None and tail.end != offset:",
            ),
        ),
        tests=("tests/engine/test_inline_appends.py",),
    ),
    Mutant(
        "spill-lets-go",
        "while a spill makes its chunk longer, and until its commit is known, appends take it for one of theirs",
        POSIX,
        (
            Patch(
                f"{_SPILL}:_write",
                "            if owned.spillable.pop",
                "            owned.spilled.discard(target.identity)\n            if owned.spillable.pop",
            ),
            Patch(
                f"{_SPILL}:spill",
                "owned.spillable[run.segment_id] =",
                "owned.spilled.add(target.identity)\n        owned.spillable[run.segment_id] =",
            ),
        ),
    ),
    Mutant(
        "spoilt-unproven",
        "a record with a damaged byte is replayed without proof that nothing but bytes of appends is damaged",
        EVERYWHERE,
        (
            Patch(
                "chunkstore_journal.spoilt:spoilt_record",
                "if not extents or crc32c_extend(proven, record.payload[at:]) != crc:",
                "if not extents:",
            ),
        ),
        tests=("tests/journal/test_spoilt_records.py",),
    ),
    Mutant(
        "spoilt-unlinked",
        "a record of which bytes are damaged is replayed without one behind it that has its hash",
        EVERYWHERE,
        (
            Patch(
                "chunkstore_journal.repair:_readable",
                "if end is None or (last.lsn, last.hash) != (end.lsn, end.hash):\n            raise damages[0]",
                "pass",
            ),
        ),
        tests=("tests/engine/test_repair.py",),
    ),
    Mutant(
        "spill-stops-at-damage",
        "a damaged extent holds up all that its segment got behind it",
        EVERYWHERE,
        (Patch("chunkstore.operations.spiller:Spiller._spill_all", "past=damaged", "past=()"),),
        tests=("tests/engine/test_inline_damage.py",),
    ),
    Mutant(
        "sealed-unlooked",
        "what earlier owners left of a segment is not spilled when it is sealed before anybody has looked",
        EVERYWHERE,
        (Patch("chunkstore.operations.spiller:Spiller.sealed", "not self._knows_all or ", ""),),
        tests=("tests/engine/test_spills_due.py",),
    ),
)
