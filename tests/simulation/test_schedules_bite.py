"""The named schedules can fail: with the planted bug that each is there for, what must hold does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chunkstore.errors import Damaged, SegmentNotFound
from tests.simulation import test_schedules_asks as asks
from tests.simulation import test_schedules_cache as cache
from tests.simulation import test_schedules_claims as claims
from tests.simulation import test_schedules_ends as ends
from tests.simulation import test_schedules_fence as fence
from tests.simulation import test_schedules_garbage as garbage
from tests.simulation import test_schedules_replicas as replicas
from tests.simulation import test_schedules_slots as slots
from tests.simulation import test_schedules_snapshots as snapshots
from tests.simulation import test_schedules_storage as storage
from tests.simulation import test_schedules_tail as tail
from tests.simulation import test_schedules_upkeep as upkeep
from tests.simulation.scene import APPEND, scene_of
from tests.simulator.mutant import EVERYWHERE, S3, single
from tests.simulator.mutants import MUTANTS, Mutant, Patch, planted

OWN = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "rot-as-tail",
            "whatever is invalid is taken for the torn end of a file",
            APPEND,
            (Patch("chunkstore_journal.append_stream:judge_tail", "if later is not None:", "if False:"),),
        ),
        Mutant(
            "no-own-claim",
            "a look that finds no newer claim counts, whatever tree it looks at",
            ("posix-slot", "posix-append"),
            (
                Patch(
                    "chunkstore_journal.stream:OwnedStream.sees_own_claim",
                    "return not self._claim or is_seen(self._storage, self._claim_name, self._claim)",
                    "return True",
                ),
            ),
        ),
        Mutant(
            "end-unknown",
            "what a clean close says of its end is not compared",
            EVERYWHERE,
            (
                Patch(
                    "chunkstore_journal.ends:contradicts",
                    "return lease.lsn > end.lsn or (lease.lsn == end.lsn and lease.hash != end.hash)",
                    "return False",
                ),
            ),
        ),
        Mutant(
            "memory-unasked",
            "what this machine has seen of the root is not compared with its claims",
            EVERYWHERE,
            (Patch("chunkstore_journal.ends:SeenEnds._check_epochs", "self.epoch >= lost", "False"),),
        ),
        Mutant(
            "sync-goes-on",
            "an epoch goes on with a chunk whose sync has failed",
            ("posix-slot", "posix-append"),
            (
                Patch(
                    "chunkstore.operations.recovery:Recovery._decide",
                    'elif failure.step == "sync" or (isinstance(error, JournalBroken)',
                    'elif failure.step == "sync":\n        queue.fail(failure.batch, reason)\n'
                    "    elif (isinstance(error, JournalBroken)",
                ),
            ),
        ),
        Mutant(
            "sweep-above",
            "a sweeper deletes what its state does not refer to, of any epoch, and does not look at the fence",
            EVERYWHERE,
            (
                Patch(
                    "chunkstore.operations.orphans:_standing",
                    "if own < 1 or (own > epoch and session is None):",
                    "if False:",
                ),
                Patch(
                    "chunkstore.operations.orphans:_standing", '"orphan" if own < epoch else "under way"', '"orphan"'
                ),
                Patch("chunkstore.upkeep.sweep:find_orphans", "context.recheck()", "pass"),
                Patch("chunkstore.upkeep.sweep:_delete_step", "container.check_fence()", "pass"),
            ),
        ),
        single(
            "gc-pinned-records",
            "the collector of the journal does not look at pins",
            EVERYWHERE,
            "chunkstore_journal.collect:Collector.run",
            "if pinned_lsn is not None and pinned_lsn < keep_from:",
            "if False:",
        ),
        single(
            "gc-pinned-snapshot",
            "the collector of the journal keeps the oldest snapshot behind a pin for it, not the newest one in front",
            EVERYWHERE,
            "chunkstore_journal.collect:Collector._pinned_from",
            "    for snapshot in reversed(stored):\n        if snapshot.lsn <= lsn and",
            "    for snapshot in stored:\n        if snapshot.lsn >= lsn and",
        ),
        single(
            "gc-pin-off-by-one",
            "what the record right behind a pin has removed counts as removed in front of it",
            EVERYWHERE,
            "chunkstore.operations.collect:_find",
            "garbage.lsn > lowest:",
            "garbage.lsn > lowest + 1:",
        ),
        single(
            "ask-refused-by-zombie",
            "an owner refuses without a look at the fence",
            EVERYWHERE,
            "chunkstore.upkeep.asked:Asked._respond",
            "container.check_fence()",
            "pass",
        ),
        single(
            "ask-kept-when-refused",
            "a request stays where it is when it is answered",
            EVERYWHERE,
            "chunkstore_journal.asks:StoredAsks.respond",
            "self._delete(self._names.request(token))",
            "pass",
        ),
        single(
            "ask-replaced-unasked",
            "an asker that was refused does not look for a newer claim",
            EVERYWHERE,
            "chunkstore.owner:Asker.run",
            "self._box.is_succeeded(answer.epoch)",
            "False",
        ),
        single(
            "ask-refusal-withdrawn",
            "an asker deletes the answer that keeps a refused request from being carried out when it comes again",
            S3,
            "chunkstore.owner:Asker.run",
            "keep_answer=final",
            "keep_answer=False",
        ),
        single(
            "ask-repeated",
            "a request that comes again is carried out again, whatever it was answered",
            S3,
            "chunkstore_journal.asks:StoredAsks.request",
            "data is not None and self._storage.exists(self._names.answer(token))",
            "False",
        ),
    )
}
"""Bugs that these schedules are there for and that no random run needs to find."""

Bite = tuple[str, str, Callable[..., None], dict[str, Any]]
BITES: tuple[Bite, ...] = (
    ("nocheck", "posix-append", fence.test_01_zombie_append_after_tail, {"held": "record"}),
    ("checkbefore", "posix-append", fence.test_01_zombie_append_after_tail, {"held": "record"}),
    ("nocheck", "posix-append", fence.test_02_zombie_append_during_tail, {"kept": 0.5}),
    ("early-ack", "s3-slot", fence.test_01_zombie_append_after_tail, {"held": "record"}),
    ("nextslot", "s3-slot", fence.test_01_zombie_append_after_tail, {"held": "record"}),
    ("noseal", "s3-slot", fence.test_01_zombie_append_after_tail, {"held": "record"}),
    ("noembed", "posix-append", fence.test_03_check_then_claim, {}),
    ("noembed", "posix-append", fence.test_04_third_owner_longer_tail, {}),
    ("stalereads", "s3-slot", fence.test_42_stale_owner_reads, {"trusted": True, "remote": False}),
    ("stalereads", "s3-slot", fence.test_42_stale_owner_reads, {"trusted": True, "remote": True}),
    ("end-unknown", "s3-slot", ends.test_53_end_lost_after_close, {}),
    ("end-unknown", "posix-append", ends.test_53_end_lost_after_close, {}),
    ("memory-unasked", "s3-slot", ends.test_54_restored_backup, {}),
    ("no-own-claim", "posix-append", fence.test_52_root_moved_under_owner, {"held": "record"}),
    ("no-own-claim", "posix-slot", fence.test_52_root_moved_under_owner, {"held": "nothing"}),
    (
        "no-expected-offset",
        "s3-slot",
        fence.test_45_client_retry_across_failover,
        {"by": "expected offset", "adopted": True},
    ),
    (
        "no-event-number",
        "posix-append",
        fence.test_45_client_retry_across_failover,
        {"by": "event number", "adopted": True},
    ),
    (
        "unknown-as-failed",
        "posix-append",
        fence.test_45_client_retry_across_failover,
        {"by": "event number", "adopted": True},
    ),
    ("novoid", "s3-slot", claims.test_05_open_race_void, {}),
    ("novoid", "posix-slot", claims.test_06_delayed_open, {}),
    ("novoid", "posix-append", claims.test_06_delayed_open, {}),
    ("reclaim", "posix-append", claims.test_48_self_takeover_versus_claim, {"opened": True}),
    ("reclaim", "s3-slot", claims.test_48_self_takeover_versus_claim, {"opened": True}),
    ("nextslot", "s3-slot", slots.test_08_delayed_seal_on_live_stream, {"first": "seal"}),
    ("lostwins", "s3-slot", slots.test_09_put_reply_lost, {}),
    ("lostwins", "posix-append", slots.test_09_put_reply_lost_in_a_take_over, {"what": "claim"}),
    ("lostwins", "s3-slot", slots.test_10_put_delayed_404, {"first": "late"}),
    ("notthere", "s3-slot", slots.test_10_put_delayed_404, {"first": "late"}),
    ("self-believes", "s3-slot", slots.test_10_put_delayed_404_until_the_owner_gives_up, {"lands": "after the seal"}),
    ("self-forgets", "s3-slot", slots.test_10_put_delayed_404_until_the_owner_gives_up, {"lands": "before the seal"}),
    ("rebatch", "s3-slot", slots.test_10_put_delayed_404_until_the_owner_gives_up, {"lands": "before the seal"}),
    ("noseal", "s3-slot", slots.test_11_late_duplicate_put_after_seal_of_an_undecided_record, {}),
    ("gcseal", "s3-slot", slots.test_11_late_duplicate_put_after_seal, {"collected": True}),
    ("409-as-exists", "s3-slot", slots.test_40_409_storm, {}),
    ("noembed", "posix-append", tail.test_18_power_cut_after_adopt, {}),
    ("nofsync", "posix-append", tail.test_19_power_cut_dir_entry_that_was_acknowledged, {}),
    ("journal-before-data", "posix-slot", tail.test_19_power_cut_dir_entry_that_was_acknowledged, {}),
    ("self-forgets", "posix-append", tail.test_20_fsync_eio_then_ok, {"where": "record"}),
    ("noembed", "posix-append", tail.test_20_fsync_eio_then_ok, {"where": "record"}),
    ("sync-goes-on", "posix-append", tail.test_20_fsync_eio_then_ok, {"where": "data"}),
    ("gcseal", "s3-slot", garbage.test_12_gc_then_zombie_put, {}),
    ("gcown", "s3-slot", garbage.test_13_gc_own_stream, {}),
    ("gc-pinned-chunks", "s3-slot", garbage.test_34_pin_vs_old_delete, {}),
    ("gc-pin-off-by-one", "posix-slot", garbage.test_34_pin_vs_old_delete, {}),
    ("gc-pinned-records", "posix-append", garbage.test_34_pin_vs_old_delete, {}),
    ("gc-pinned-snapshot", "s3-slot", garbage.test_34_pin_vs_old_delete, {}),
    ("sweep-above", "posix-append", garbage.test_30_orphan_sweep_by_zombie, {"late": "list"}),
    ("sweep-own-epoch", "s3-slot", garbage.test_31_sweep_vs_inflight, {}),
    ("cleanup-on-unknown", "s3-slot", garbage.test_32_cleanup_on_unknown, {"lands": True}),
    ("trust-latest", "s3-slot", snapshots.test_15_bootstrap_vs_gc, {"told": True}),
    ("trust-latest", "posix-append", snapshots.test_16_zombie_overwrites_latest, {"collected": False}),
    ("trust-latest", "s3-slot", snapshots.test_17_zombie_snapshot_of_uncommitted, {}),
    ("rnocheck", "posix-append", replicas.test_24_replica_ahead, {}),
    ("rnofsync", "posix-append", replicas.test_24_replica_ahead_of_what_is_durable, {}),
    ("lmdb-before-journal", "s3-slot", cache.test_35_two_processes_one_lmdb, {"cache": "memory"}),
    ("trust-cache", "posix-append", cache.test_36_lmdb_ahead_of_a_history_that_went_on, {}),
    ("reuse-chunk-after-failed-write", "posix-append", storage.test_49_late_data_write, {"lands": "behind the next"}),
    ("gcseal", "s3-slot", garbage.test_14_doomed_claimant_seals_collected_slot, {}),
    ("rot-as-tail", "posix-append", tail.test_21_torn_mid_file, {}),
    ("noseal", "s3-slot", claims.test_38_claim_storm, {"seed": 0}),
    ("early-ack", "posix-append", claims.test_38_claim_storm, {"seed": 0}),
    ("delete-before-commit", "posix-append", upkeep.test_43_concat_crash_points, {}),
    ("ask-row-unasked", "s3-slot", asks.test_55_ask_carried_out_twice, {}),
    ("ask-refused-by-zombie", "posix-append", asks.test_56_ask_by_zombie, {"refused": True}),
    ("ask-replaced-unasked", "s3-slot", asks.test_58_ask_refused_in_between, {}),
    ("ask-kept-when-refused", "posix-slot", asks.test_58_ask_refused_in_between, {}),
    ("ask-repeated", "s3-slot", asks.test_59_ask_repeated_after_refusal, {"listed": False}),
    ("ask-refusal-withdrawn", "s3-slot", asks.test_59_ask_repeated_after_refusal, {"listed": True}),
)


@pytest.mark.parametrize(
    ("mutant", "kind", "schedule", "arguments"), BITES, ids=[f"{bite[2].__name__[5:]}-{bite[0]}" for bite in BITES]
)
def test_with_a_planted_bug_the_schedule_fails(
    mutant: str, kind: str, schedule: Callable[..., None], arguments: dict[str, Any], tmp_path: Path
) -> None:
    if "tmp_path" in schedule.__annotations__:
        arguments = {**arguments, "tmp_path": tmp_path}
    bug = {**MUTANTS, **OWN}[mutant]
    assert kind in bug.kinds
    # Damage that recovery itself finds is as good a verdict as the judge's, and so is a segment that is gone.
    with planted(bug), pytest.raises((AssertionError, pytest.fail.Exception, Damaged, SegmentNotFound)):
        if "kind" in schedule.__annotations__:
            schedule(kind, **arguments)
        else:
            with scene_of(kind) as scene:
                schedule(scene, **arguments)
