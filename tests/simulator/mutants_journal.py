"""Planted bugs in the journal: claims, fences, streams, recovery, collection. Names of the first ones are those of protocol 6.1.

Promises: every one breaks a rule that the protocol or the engine states, and none raises an error of its own making: what
notices it is an invariant or a history that cannot be. Leaves out: planting (``mutants``).
"""

from __future__ import annotations

from typing import Final

from tests.simulator.mutant import APPEND, EVERYWHERE, SLOT, Mutant, Patch, single

__all__ = ["JOURNAL_MUTANTS"]

_COMMIT: Final = "chunkstore_journal.append_stream:AppendStream._commit"
_SLOT_STREAM: Final = "chunkstore_journal.slot_stream"
_CLAIM: Final = "chunkstore_journal.claim"
_TAKE_OVER: Final = "chunkstore_journal.takeover:TakeOver"

JOURNAL_MUTANTS: Final = (
    single(
        "nocheck",
        "an owner does not look for a newer claim after it has written its record",
        APPEND,
        "chunkstore.chunks:LogAppender.look",
        "not storage.exists(self._absent)",
        "True",
    ),
    Mutant(
        "checkbefore",
        "an owner looks for a newer claim before it writes, and takes that answer for the one after",
        APPEND,
        (
            Patch(_COMMIT, "start = self.head.end", "start, passed = self.head.end, self._appender.look()"),
            Patch(_COMMIT, "if not self._appender.look():", "if not passed:"),
        ),
    ),
    single(
        "novoid",
        "a claimant passes an epoch without OPEN by, and leaves its slot 0 free",
        EVERYWHERE,
        f"{_CLAIM}:decide_below",
        "decision = put_decided(storage, names.slot(epoch, 0), data, deadline_s=deadline_s)",
        "decision = Mine()",
    ),
    single(
        "noseal",
        "a claimant takes the first free slot for the end of the stream without occupying it",
        SLOT,
        f"{_SLOT_STREAM}:seal_stream",
        "decision = put_decided(storage, name, encode_seal_record(streams, attempt, epoch, index), "
        "deadline_s=deadline_s)",
        "decision = Mine()",
    ),
    single(
        "nextslot",
        "an owner whose slot is taken tries the next one",
        SLOT,
        f"{_SLOT_STREAM}:SlotStream._commit",
        "    raise self._refused(name, decision)",
        "    name = self._names.slot(self.epoch, self.head.index + 1)\n"
        "    self.head = self.head._replace(index=self.head.index + 1)\n"
        "    if isinstance(put_decided(self._storage, name, data, deadline_s=self._deadline_s), Mine):\n"
        "        return 0\n"
        "    raise self._refused(name, decision)",
    ),
    single(
        "reclaim",
        "an owner that recovers climbs over a foreign claim",
        EVERYWHERE,
        f"{_TAKE_OVER}._claim",
        "    claim_own_next(self._storage, self._names, self._attempt, deadline_s=self._deadline_s)\n"
        "        return self._attempt",
        "    return claim_next(self._storage, self._names, self._attempt.epoch - 1, deadline_s=self._deadline_s)",
    ),
    Mutant(
        "blindopen",
        "a claimant whose OPEN found its slot taken serves all the same",
        EVERYWHERE,
        (
            Patch(
                f"{_TAKE_OVER}._open",
                "opened = self._streams.decode_slot0(epoch, attempt.open_data if isinstance(decision, Mine) else decision.data)\n"
                "    if not isinstance(decision, Mine) or not isinstance(opened, Opened):",
                "opened = self._streams.decode_slot0(epoch, attempt.open_data)\n    if not isinstance(opened, Opened):",
            ),
            Patch(f"{_TAKE_OVER}._open", "if storage.exists(names.epoch(epoch + 1)):", "if False:"),
        ),
    ),
    single(
        "lostwins",
        "a name that is taken after an attempt without answer counts as lost, though it holds our own bytes",
        EVERYWHERE,
        "chunkstore_journal.slots:put_decided",
        "if found != data:",
        "if found != data or in_flight:",
    ),
    single(
        "notthere",
        "an attempt without answer whose object is not seen counts as not made",
        ("s3-slot",),
        "chunkstore_journal.slots:put_decided",
        "        in_flight = True\n            error = unavailable",
        "        in_flight = True\n"
        "            error = unavailable\n"
        "            try:\n"
        "                if not storage.exists(name):\n"
        "                    raise StorageFull(str(unavailable))\n"
        "            except StorageUnavailable:\n"
        "                pass",
        needs=("late_apply",),
    ),
    single(
        "409-as-exists",
        "an answer that decides nothing is taken for a name that is taken",
        ("s3-slot",),
        "chunkstore_journal.slots:put_decided",
        "        in_flight = True\n            error = unavailable",
        "        in_flight = True\n"
        "            error = unavailable\n"
        "            if '409' in str(unavailable):\n"
        "                return Foreign(b'')",
    ),
    single(
        "rebatch",
        "a record whose slot is undecided is offered once more with other bytes",
        ("s3-slot",),
        f"{_SLOT_STREAM}:SlotStream._commit",
        "        raise self._broken(undecided.error, happened=None) from undecided",
        "        raise self._broken(undecided.error, happened=False) from undecided",
        needs=("lost_reply",),
    ),
    Mutant(
        "stalereads",
        "a read does not ask whether a newer owner has claimed",
        EVERYWHERE,
        (
            Patch(
                "chunkstore.operations.read:_plan_fenced",
                "    context.check()",
                "    pass",
            ),
            Patch(
                "chunkstore.operations.read:_fetch",
                "[context.check, *calls] if beside else calls",
                "calls",
            ),
        ),
        needs=("machines", "long_stall"),
    ),
    single(
        "stalereads-at-tail",
        "where reads inside a segment ask for no newer owner, one that ends at its end asks neither",
        EVERYWHERE,
        "chunkstore.operations.read:_goes_without",
        "context.tail_only and plan.inside",
        "context.tail_only",
        needs=("machines", "long_stall", "tail"),
    ),
    single(
        "nofsync",
        "a record is acknowledged before it is synced",
        APPEND,
        "chunkstore.chunks:LogAppender.write_durable",
        "self._storage.sync((self._handle.name,))",
        "pass",
    ),
    single(
        "nofsyncopen",
        "a claimant relies on an OPEN or a void of somebody else that is not durable",
        ("posix-slot", "posix-append"),
        f"{_CLAIM}:decide_below",
        "storage.harden(names.slot(epoch, 0))",
        "pass",
        needs=("stall_at_call", "power_cut"),
    ),
    single(
        "rnocheck",
        "a replica shows what is written and not yet committed",
        APPEND,
        "chunkstore_journal.committed:_end_of_log",
        "if durable and not storage.exists(streams.names.epoch(epoch + 1)):",
        "if durable:",
        needs=("replicas", "stall_at_call"),
    ),
    single(
        "rnofsync",
        "a replica shows records that are not durable",
        APPEND,
        "chunkstore_journal.committed:_is_durable",
        "streams.storage.harden(streams.names.log(last.epoch))",
        "pass",
        needs=("replicas", "stall_at_call", "power_cut"),
    ),
    single(
        "noembed",
        "a take-over forgets the last record of the stream, which no other record covers",
        APPEND,
        "chunkstore_journal.append_stream:read_tail",
        "return ClosedStream(_end(before), record, encode_record(record.header, record.payload)[0], tail_cut)",
        "return ClosedStream(_end(before), tail_cut=tail_cut)",
    ),
    Mutant(
        "replay-skips-notes",
        "recovery does not apply what stands behind a snapshot's note, and does not compare digests",
        EVERYWHERE,
        (
            Patch(
                "chunkstore_journal.recovery:_take",
                "    batch.append(commit_of(record, position, object=name, at=at))",
                "    batch.append(commit_of(record, position, object=name, at=at))\n"
                "        if progress.notes:\n"
                "            batch[-1] = batch[-1]._replace(rows=())",
            ),
            Patch("chunkstore_journal.recovery:_apply_all", "verify=True", "verify=False"),
        ),
    ),
    single(
        "trust-cache",
        "a local cache is taken for the end of history as it stands",
        EVERYWHERE,
        "chunkstore_journal.recovery:_Search.attempt",
        "if store.head().position[:2] != self.ahead:",
        "if link is not None and store.head().position[:2] != self.ahead:",
    ),
    single(
        "trust-latest",
        "the snapshot that LATEST names is taken for the end of history",
        EVERYWHERE,
        "chunkstore_journal.recovery:_Search.attempt",
        "if store.head().position[:2] != self.ahead:",
        "if link is None and store.head().position[:2] != self.ahead:",
    ),
    single(
        "cut-one-more",
        "a take-over counts the last committed slot as not written",
        SLOT,
        f"{_SLOT_STREAM}:_end_before",
        "if index == known.index:\n        return StreamEnd(index, 0, known.lsn, known.hash)",
        "if index > 2:\n"
        "        record = _read(streams, opened.epoch, index - 2, attempt)\n"
        "        return StreamEnd(index - 1, 0, record.header.lsn, record.hash)",
    ),
    single(
        "gcseal",
        "the collector deletes the SEAL with the records before it",
        SLOT,
        "chunkstore_journal.collect:_due_of",
        "records = stream.slots[:-1]",
        "records = stream.slots",
    ),
    Mutant(
        "gcown",
        "the collector trims the stream that it writes itself",
        SLOT,
        (
            Patch(
                "chunkstore_journal.collect:Collector._list_streams",
                "if epoch >= self._own.epoch:",
                "if epoch > self._own.epoch:",
            ),
            Patch(
                "chunkstore_journal.collect:Collector._due_records",
                "if waiting is not None:\n        due, whole = self._due_behind(*waiting, self._own, keep_from)",
                "if waiting is not None:\n        waiting[0].slots.append(waiting[0].slots[-1])\n"
                "        due, whole = self._due_behind(*waiting, self._own, keep_from)",
            ),
        ),
    ),
    single(
        "gc-beyond-snapshot",
        "the collector deletes records that no snapshot covers",
        SLOT,
        "chunkstore_journal.collect:_due_of",
        "if opened.header.lsn + index <= keep_from and",
        "if opened.header.lsn + index <= keep_from + 10_000 and",
    ),
)
