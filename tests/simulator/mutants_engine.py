"""Planted bugs in the engine: commits, segments, chunks, the offset index, writers. Names of the first ones are those of protocol 6.1.

Promises: every one breaks a rule that the protocol or the engine states, and none raises an error of its own making: what
notices it is an invariant or a history that cannot be. Leaves out: planting (``mutants``).
"""

from __future__ import annotations

from typing import Final

from tests.simulator.mutant import EVERYWHERE, POSIX, S3, Mutant, Patch, single

__all__ = ["ENGINE_MUTANTS"]

_QUEUE: Final = "chunkstore.operations.commit_queue:CommitQueue"
_RECOVERY: Final = "chunkstore.operations.recovery:Recovery"
_CONTAINER: Final = "chunkstore.operations.container:OwnedContainer"
_EPOCH: Final = "chunkstore.operations.owned_epoch:OwnedEpoch"
_GO_ON_WHEN_FULL: Final = Patch(
    "chunkstore_journal.slot_stream:SlotStream._commit",
    "raise self._broken(refused, happened=False) from refused",
    "raise",
)
"""No bug: a full disk fails its batch, and the epoch goes on. Else nearly every failure of a batch ends the epoch."""

_WINDOW: Final = "chunkstore.operations.append:AppendWindow"
_WRITER: Final = "chunkstore.writer:StorageWriter"
_ENTERS: Final = Patch(
    f"{_WINDOW}._check", "if before is not None and before.op.decided and before.op.error is not None:", "if False:"
)

ENGINE_MUTANTS: Final = (
    single(
        "kept-plan-outlives-rows",
        "a plan that a read has kept is used after the rows have moved",
        EVERYWHERE,
        "chunkstore.operations.kept_plans:KeptPlans.find",
        "window is None or window.position != position",
        "window is None",
    ),
    single(
        "journal-before-data",
        "the journal names bytes that are not durable yet",
        POSIX,
        f"{_QUEUE}._commit",
        "environment.sync(tuple(names))",
        "pass",
    ),
    single(
        "reuse-chunk-after-failed-write",
        "a chunk whose last write failed is appended to again",
        ("posix-slot", "posix-append"),
        "chunkstore.operations.pending:PendingSegment.settle_write",
        "self.unwritable |= {key[1:] for key in self.writing if key[:1] == CHUNK}",
        "pass",
        needs=("late_write",),
    ),
    single(
        "early-ack",
        "a caller is answered when its operation has entered the queue",
        EVERYWHERE,
        f"{_CONTAINER}.wait",
        "    owned.queue.wait(op, deadline)",
        "    def later(op=op, owned=owned):\n"
        "            try:\n"
        "                owned.queue.wait(op, deadline)\n"
        "            except Exception:\n"
        "                pass\n"
        "        runtime.spawn(later, 'early')",
    ),
    Mutant(
        "lmdb-before-journal",
        "the metadata show a record before the journal has it",
        EVERYWHERE,
        (
            Patch(
                f"{_QUEUE}._commit",
                "            position = environment.append(record)",
                "            environment.append.__self__.journal.early = lambda position: environment.apply(\n"
                "                    (Commit(position, previous.hash, record.digest, record.ops, record.rows),))\n"
                "            position = environment.append(record)",
            ),
            Patch(
                "chunkstore_journal.stream:OwnedStream.append",
                "    end_byte = self._commit(data)",
                "    if hasattr(self, 'early'):\n"
                "        end = head.end + len(data) if self._mode == 'append' else 0\n"
                "        self.early(Position(head.lsn + 1, identity, self.epoch, head.index + 1, end))\n"
                "    end_byte = self._commit(data)",
            ),
            Patch(
                f"{_QUEUE}._commit", "if not environment.apply((commit,)):", "if environment.apply((commit,)) is None:"
            ),
        ),
    ),
    single(
        "delete-before-commit",
        "a truncation deletes its chunks at once",
        EVERYWHERE,
        "chunkstore.operations.change_set:ChangeSet.discard",
        "self.garbage.append(",
        "if first:\n"
        "        storage = self.owned.queue._environment.sync.__self__\n"
        "        storage.delete(self.owned.names.chunk(first))\n"
        "    self.garbage.append(",
    ),
    single(
        "cleanup-on-unknown",
        "an append whose outcome is unknown deletes the chunks it wrote",
        EVERYWHERE,
        f"{_CONTAINER}.wait",
        "    owned.queue.wait(op, deadline)",
        "    try:\n"
        "            owned.queue.wait(op, deadline)\n"
        "        except __import__('chunkstore').OutcomeUnknown:\n"
        "            for key in getattr(op, 'rows', ()):\n"
        "                if key[:1] == b'C' and op.headers[0][0] == 2:\n"
        "                    self.storage.delete(self.names.chunk(key[1:]))\n"
        "            raise",
    ),
    single(
        "sweep-own-epoch",
        "a sweep takes what its own epoch writes for orphans",
        EVERYWHERE,
        "chunkstore.operations.orphans:_standing",
        "if own < epoch else",
        "if own <= epoch else",
    ),
    single(
        "foreign-tail",
        "an owner appends to the chunk of an owner before it",
        POSIX,
        f"{_EPOCH}.may_grow",
        "and tail.epoch == self.epoch\n        and chunk_epoch(identity) == self.epoch",
        "",
    ),
    Mutant(
        "batch-survivors",
        "what is queued behind a batch that failed is committed all the same",
        ("posix-slot",),
        (Patch(f"{_QUEUE}.fail", "self._fail_queued(error)", "pass"), _GO_ON_WHEN_FULL),
        needs=("disk_full",),
    ),
    single(
        "unknown-as-failed",
        "a record that may have happened is reported as not happened",
        EVERYWHERE,
        f"{_RECOVERY}._decide_by_successor",
        "    _decide_unknown(owned, failure, message, error)",
        "    owned.queue.decide(failure.batch, container.fence.close_behind(owned.epoch))",
    ),
    single(
        "self-forgets",
        "a self-take-over reports what it found in history as not happened",
        EVERYWHERE,
        f"{_RECOVERY}._take_over",
        "ownership.adopted.lsn >= doubt.lsn",
        "ownership.adopted.lsn > doubt.lsn",
    ),
    single(
        "self-believes",
        "a self-take-over acknowledges what it did not find in history",
        EVERYWHERE,
        f"{_RECOVERY}._take_over",
        "ownership.adopted.lsn >= doubt.lsn",
        "True",
    ),
    single(
        "no-expected-offset",
        "an append at an expected offset goes wherever the end is",
        EVERYWHERE,
        "chunkstore.operations.append:_admit",
        "if request.expected_offset is not None and request.expected_offset != offset:",
        "if False:",
    ),
    single(
        "no-event-number",
        "an exactly-once append does not look whether its event is there already",
        EVERYWHERE,
        "chunkstore.operations.append:_admit",
        "if known is not None and request.event_number <= known.number:",
        "if False:",
    ),
    single(
        "append-after-seal",
        "a sealed segment takes appends",
        EVERYWHERE,
        "chunkstore.operations.append:_admit",
        "if state.sealed:",
        "if False:",
    ),
    single(
        "concat-keeps-source",
        "a concat leaves its source where it was",
        EVERYWHERE,
        "chunkstore.operations.concat:plan_concat",
        "changes.rows[segment_key(source_name)] = None",
        "pass",
    ),
    single(
        "index-shift",
        "the offset index is one run off after a concat",
        EVERYWHERE,
        "chunkstore.metadata.index:locate",
        "shift = base - _U64.unpack_from(row[0], _PREFIX_BYTES)[0]",
        "shift = base",
    ),
    single(
        "truncate-forgets-skip",
        "a truncation inside a chunk forgets how many of its bytes are gone",
        EVERYWHERE,
        "chunkstore.operations.truncate:plan_truncate",
        "first_chunk_skip=offset - chunk_offset,",
        "first_chunk_skip=0,",
    ),
    single(
        "stale-plan",
        "a change of structure plans upon the committed state while an append is under way",
        EVERYWHERE,
        "chunkstore.operations.pending:PendingSegment.undecided",
        "return last if last is not None and not last.decided else None",
        "return None",
    ),
    single(
        "enter-ended-queue",
        "an operation enters the queue of an epoch that has ended",
        EVERYWHERE,
        f"{_QUEUE}.enter",
        "if op.generation != self.generation or self.generation == _ENDED:",
        "if op.generation != self.generation != _ENDED:",
    ),
    single(
        "acknowledge-ended-queue",
        "what is queued when an epoch ends is acknowledged",
        EVERYWHERE,
        f"{_QUEUE}.end",
        "self._fail_queued(error)",
        "self._decide(self._queue, None, 0)\n        self._queue.clear()",
    ),
    single(
        "roll-undecided",
        "a roll takes for committed what is still undecided",
        EVERYWHERE,
        f"{_QUEUE}.end_if_idle",
        "    if idle := self._is_idle():",
        "    self._decide([*self._taken, *self._queue], None, 0)\n"
        "        self._queue.clear()\n"
        "        if idle := True:",
    ),
    single(
        "gc-pinned-chunks",
        "a collection does not look at pins",
        EVERYWHERE,
        "chunkstore.operations.collect:_find",
        "if lowest is not None and garbage.lsn > lowest:",
        "if False:",
    ),
    Mutant(
        "window-acks-behind-a-hole",
        "a batch that fails fails alone: what is behind it is committed and acknowledged",
        S3,
        (
            _ENTERS,
            Patch(f"{_WRITER}._finish", "self._failing = True", "pass"),
            Patch(f"{_WRITER}._run", "self._failing = self._failing or batch.error is not None", "pass"),
            Patch(
                f"{_WRITER}._resolve",
                "            self._break(batch.error)\n                break",
                "            with self._condition:\n"
                "                    self._underway.popleft()\n"
                "                    self._underway_bytes -= len(batch.data)\n"
                "                    self._committed_to = batch.event_number\n"
                "                    self._condition.notify_all()\n"
                "                for future, _ in batch.pieces:\n"
                "                    future.set_exception(batch.error.copy())\n"
                "                continue",
            ),
        ),
    ),
    Mutant(
        "writer-gives-no-way",
        "a writer of the same id begins while what its former has under way is not decided",
        EVERYWHERE,
        (Patch(f"{_WRITER}.give_way", "self._gives_way = self._failing = True", "return"),),
    ),
)
