"""Planted bugs in appends that travel in records, and in spilling them.

Promises: as ``mutants_engine``. Leaves out: the windows of writers, and what a repair makes of extents.
"""

from __future__ import annotations

from typing import Final

from tests.simulator.mutant import APPEND, EVERYWHERE, POSIX, SLOT, Mutant, Patch, single

__all__ = ["INLINE_MUTANTS"]

_SPILL: Final = "chunkstore.operations.spill"
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
        "spill-not-indexed",
        "the offset index shows no chunk where a spill has made one",
        EVERYWHERE,
        f"{_SPILL}:_plan",
        "((run.start, target.identity),)",
        "()",
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
)
