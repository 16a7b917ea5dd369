"""Planted bugs in the engine: commits, segments, chunks, the offset index. Names of the first ones are those of protocol 6.1.

Promises: every one breaks a rule that the protocol or the engine states, and none raises an error of its own making: what
notices it is an invariant or a history that cannot be. Leaves out: planting (``mutants``).
"""

from __future__ import annotations

from typing import Final

from chunkstore.testing.simulator.mutant import EVERYWHERE, POSIX, Mutant, Patch

__all__ = ["ENGINE_MUTANTS"]

_COMMITTER: Final = "chunkstore.operations.committer:Committer"
_LIFECYCLE: Final = "chunkstore.operations.lifecycle:Lifecycle"
_LAZY: Final = "chunkstore.operations.lazy"
_DRAFT: Final = "chunkstore.operations.draft:Draft"

ENGINE_MUTANTS: Final = (
    Mutant(
        "lazy-nocheck",
        "an append without a record is acknowledged without a look for a claim",
        POSIX,
        (Patch(f"{_LAZY}:append_lazily", "claimed = storage.exists(claim)", "claimed = False"),),
        needs=("lazy", "stall_at_call"),
    ),
    Mutant(
        "lazy-nosync",
        "an append without a record is acknowledged before it is durable",
        POSIX,
        (Patch(f"{_LAZY}:append_lazily", "storage.sync((name,))", "pass"),),
        needs=("lazy", "power_cut"),
    ),
    Mutant(
        "lazy-unknownchunk",
        "bytes are acknowledged in a chunk that history does not name yet",
        POSIX,
        (Patch(f"{_LAZY}:append_lazily", "raise Undecided(undecided)", "pass"),),
        needs=("lazy",),
    ),
    Mutant(
        "lazy-unmeasured",
        "a take-over believes the recorded length of a chunk that grew without records",
        POSIX,
        (Patch(f"{_LAZY}:_Measure.__call__", "while length < stop:", "while False:"),),
        needs=("lazy",),
    ),
    Mutant(
        "lazy-nosyncsize",
        "a take-over counts bytes of a chunk that a power cut may take",
        POSIX,
        (Patch(f"{_LAZY}:_Measure.__call__", "storage.harden(name)", "pass"),),
        needs=("lazy", "power_cut"),
    ),
    Mutant(
        "lazy-resize",
        "the chunk that a take-over has measured counts as growing still",
        POSIX,
        (
            Patch(f"{_LAZY}:_Measure.__call__", "crc32c=crc, state=CLOSED", "crc32c=crc"),
            Patch(f"{_LAZY}:_reconcile_some", "rows.append((lazy_key(item.identity), None))", "pass"),
            Patch(f"{_LAZY}:_reconcile_some", "    return True", "    return False"),
        ),
        needs=("lazy",),
    ),
    Mutant(
        "lazy-unclosed",
        "an append that failed is refused, and its chunk is measured all the same",
        POSIX,
        (Patch(f"{_LAZY}:_spoil", "closing=True", "closing=False"),),
        needs=("lazy",),
    ),
    Mutant(
        "journal-before-data",
        "the journal names bytes that are not durable yet",
        POSIX,
        (Patch(f"{_COMMITTER}._sync", "self._core.storage.sync(names)", "pass"),),
    ),
    Mutant(
        "reuse-chunk-after-failed-write",
        "a chunk whose last write failed is appended to again",
        ("posix-slot", "posix-append"),
        (
            Patch(
                "chunkstore.operations.append:_write_and_enter",
                "state.poisoned = written if state.poisoned is None else state.poisoned | written",
                "state.poisoned = None",
            ),
            Patch(
                "chunkstore.operations.pending:PendingOp.poison",
                "state.poisoned = written if state.poisoned is None else state.poisoned | written",
                "state.poisoned = None",
            ),
        ),
        needs=("late_write",),
    ),
    Mutant(
        "early-ack",
        "a caller is answered when its operation has entered the queue",
        EVERYWHERE,
        (
            Patch(
                "chunkstore.operations.append:append",
                "        core.committer.wait(op, deadline_s)",
                "        def later(op=op):\n"
                "                try:\n"
                "                    core.committer.wait(op, deadline_s)\n"
                "                except Exception:\n"
                "                    pass\n"
                "            runtime.spawn(later, 'early')",
            ),
        ),
    ),
    Mutant(
        "lmdb-before-journal",
        "the metadata show a record before the journal has it",
        EVERYWHERE,
        (
            Patch(
                f"{_COMMITTER}._commit_steps",
                "        position = journal.append(record)",
                "        journal.early = lambda position: core.store.apply(\n"
                "                [Commit(position, previous.hash, record.digest, record.ops, record.rows)],\n"
                "                owner_epoch=core.epoch, verify=False)\n"
                "        position = journal.append(record)",
            ),
            Patch(
                "chunkstore_journal.stream:OwnedStream.append",
                "    end_byte = self._commit(data)",
                "    if hasattr(self, 'early'):\n"
                "        end = head.end + len(data) if self._mode == 'append' else 0\n"
                "        self.early(Position(head.lsn + 1, identity, self.epoch, head.index + 1, end))\n"
                "    end_byte = self._commit(data)",
            ),
            Patch(f"{_LIFECYCLE}.apply", "if not applied:", "if False:"),
        ),
    ),
    Mutant(
        "delete-before-commit",
        "a truncation deletes its chunks at once",
        EVERYWHERE,
        (
            Patch(
                f"{_DRAFT}._discard",
                "self.garbage.append(",
                "if first:\n        self.core.storage.delete(self.core.names.chunk(first))\n    self.garbage.append(",
            ),
        ),
    ),
    Mutant(
        "cleanup-on-unknown",
        "an append whose outcome is unknown deletes the chunks it wrote",
        EVERYWHERE,
        (
            Patch(
                "chunkstore.operations.append:append",
                "    core.committer.wait(op, deadline_s)",
                "    try:\n"
                "                core.committer.wait(op, deadline_s)\n"
                "            except __import__('chunkstore').OutcomeUnknown:\n"
                "                for key in op.rows:\n"
                "                    if key[:1] == CHUNK:\n"
                "                        core.storage.delete(core.names.chunk(key[1:]))\n"
                "                raise",
            ),
        ),
    ),
    Mutant(
        "foreign-tail",
        "an owner appends to the chunk of an owner before it",
        POSIX,
        (
            Patch(
                "chunkstore.operations.core:Core.may_grow",
                "and tail.epoch == self.epoch\n        and chunk_epoch(identity) == self.epoch",
                "",
            ),
        ),
    ),
    Mutant(
        "batch-survivors",
        "what is queued behind a failed operation of its segment is committed all the same",
        EVERYWHERE,
        (
            Patch(
                f"{_COMMITTER}.fail",
                "if op.kind is RecordKind.OPS and any(id(state) in states for state in op.states):",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "old-epoch-chunks",
        "an operation planned in a former epoch is committed by its successor",
        EVERYWHERE,
        (
            Patch(f"{_COMMITTER}._drop_outdated", "if op.epoch not in (0, epoch)]", "if False]"),
            Patch(f"{_LIFECYCLE}._recover", "core.committer.fail_everything(lost)", "pass"),
        ),
    ),
    Mutant(
        "unknown-as-failed",
        "a record that may have happened is reported as not happened",
        EVERYWHERE,
        (
            Patch(
                f"{_LIFECYCLE}._decide_by_successor",
                "core.committer.fail(batch, unknown)",
                "core.committer.fail(batch, fenced)",
            ),
        ),
    ),
    Mutant(
        "self-forgets",
        "a self-take-over reports what it found in history as not happened",
        EVERYWHERE,
        (Patch(f"{_LIFECYCLE}._resolve", "if adopted.lsn >= lsn:", "if adopted.lsn > lsn:"),),
    ),
    Mutant(
        "self-believes",
        "a self-take-over acknowledges what it did not find in history",
        EVERYWHERE,
        (Patch(f"{_LIFECYCLE}._resolve", "if adopted.lsn >= lsn:", "if True:"),),
    ),
    Mutant(
        "no-expected-offset",
        "an append at an expected offset goes wherever the end is",
        EVERYWHERE,
        (
            Patch(
                "chunkstore.operations.append:_admit",
                "if request.expected_offset is not None and request.expected_offset != offset:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "no-event-number",
        "an exactly-once append does not look whether its event is there already",
        EVERYWHERE,
        (
            Patch(
                "chunkstore.operations.append:_admit",
                "if known is not None and request.event_number <= known[0]:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "append-after-seal",
        "a sealed segment takes appends",
        EVERYWHERE,
        (Patch("chunkstore.operations.append:_admit", "if segment.flags & FLAG_SEALED:", "if False:"),),
    ),
    Mutant(
        "concat-loses-first",
        "a concat skips the first chunk of its source in the list",
        EVERYWHERE,
        (
            Patch(
                f"{_DRAFT}.concat",
                "length=target.length + source.length,",
                "length=target.length + source.length - self.chunk(source.first_chunk).length,",
            ),
        ),
    ),
    Mutant(
        "concat-keeps-source",
        "a concat leaves its source where it was",
        EVERYWHERE,
        (
            Patch(
                f"{_DRAFT}.concat",
                "self.rows[segment_key(source_name)] = None",
                "pass",
            ),
        ),
    ),
    Mutant(
        "index-shift",
        "the offset index is one run off after a concat",
        EVERYWHERE,
        (
            Patch(
                "chunkstore.metadata.index:locate",
                "shift = base - _U64.unpack_from(row[0], _PREFIX_BYTES)[0]",
                "shift = base",
            ),
        ),
    ),
    Mutant(
        "truncate-forgets-skip",
        "a truncation inside a chunk forgets how many of its bytes are gone",
        EVERYWHERE,
        (Patch(f"{_DRAFT}.truncate", "first_chunk_skip=offset - chunk_offset,", "first_chunk_skip=0,"),),
    ),
    Mutant(
        "stale-plan",
        "a change of structure plans upon the committed state while an append is under way",
        EVERYWHERE,
        (
            Patch(
                "chunkstore.operations.pending:SegmentState.undecided",
                "return last if last is not None and not last.decided else None",
                "return None",
            ),
        ),
    ),
)
