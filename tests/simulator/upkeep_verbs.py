"""Clients' verbs of upkeep: snapshots, collections, merges, pins, sweeps, retention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from random import Random
from typing import Any

from chunkstore.config import DefragPolicy, RetentionPolicy
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError
from chunkstore.metadata.keys import RETENTION_NAMESPACE
from chunkstore.metadata.reserved import encode_policy, pattern_key
from chunkstore.upkeep.retention import RetentionCut, RetentionStep, apply_all, apply_cut, plan_step
from tests.simulator.drawing import Plan
from tests.simulator.recorder import Recorder
from tests.simulator.world import World
from tests.support.merging import merge


class UpkeepVerbs:
    """Of ``Client``, which sets what is declared here."""

    _world: World
    _plan: Plan
    _recorder: Recorder
    _random: Random

    def segment(self) -> str:
        """Any of the run's segments."""
        raise NotImplementedError

    def _call(self, store: ChunkedSegmentStorage, kind: str, segment: str, args: tuple[Any, ...], call: Any) -> Any:
        raise NotImplementedError

    def _info(self, store: ChunkedSegmentStorage, segment: str) -> tuple[int, int, int, bool]:
        raise NotImplementedError

    @contextmanager
    def _judged(self, what: str) -> Iterator[None]:
        since = self._recorder.now()
        try:
            yield
        except ChunkstoreError as error:
            if not self._world.scheduler.killing:
                self._recorder.judge(what, "", error, since)
            raise

    def do_snapshot(self, store: ChunkedSegmentStorage) -> None:
        with self._judged("snapshot"):
            store.snapshot()

    def do_collect(self, store: ChunkedSegmentStorage) -> None:
        with self._judged("collect"):
            store.collect()

    def do_merge(self, store: ChunkedSegmentStorage) -> None:
        """Some chunks become one or two, if they are still there when those are written."""
        segment, random = self.segment(), self._random
        with self._judged("merge"):
            chunks = len([*store.layout(segment)])
            if chunks:
                first, count, parts = random.randrange(chunks), random.choice((1, 3, 100)), random.choice((1, 1, 2))
                if count == 100 and parts == 1:
                    store.defrag(segment, policy=DefragPolicy(fanout=2))
                else:
                    store.commit([merge(store, segment, first, count, parts=parts, leave_head=True)])

    def do_pin(self, store: ChunkedSegmentStorage) -> None:
        expires_s = self._random.choice((None, self._plan.latency_s * 30))
        with self._judged("pin"):
            store.pin(f"p{self._random.randrange(2)}", expires_s=expires_s)

    def do_unpin(self, store: ChunkedSegmentStorage) -> None:
        with self._judged("unpin"):
            store.unpin(f"p{self._random.randrange(2)}")

    def do_sweep(self, store: ChunkedSegmentStorage) -> None:
        keep_in = self._random.choice((None, None, "lost"))
        # Of its own chance, so that everything else about a seed is what it was before this was drawn.
        now = self._world.scheduler.now
        age_s_min = self._plan.timeout_s * Random(f"age {self._plan.seed} {now}").choice((0, 0, 1))
        with self._judged("sweep"):
            store.sweep(delete=True, keep_in=keep_in, age_s_min=age_s_min)

    def do_policy(self, store: ChunkedSegmentStorage) -> None:
        """A policy of one segment, or of some, comes, changes or goes."""
        random = self._random
        name = random.choice((self.segment(), self.segment(), "s*"))
        key = pattern_key(name)
        if random.random() < 0.3:
            args: tuple[Any, ...] = (RETENTION_NAMESPACE, key, None)
            self._call(store, "table_delete", "", args, partial(_set, store, name, None))
            return
        # One of the two asks for something, the other makes it a policy that nobody else sets: rows are told apart by their values.
        unique = random.getrandbits(40)
        policy = random.choice(
            (
                RetentionPolicy(size_bytes_max=random.choice((1, 20, 100)), age_s_max=1e8 + unique / 1000),
                RetentionPolicy(size_bytes_max=(1 << 60) + unique, age_s_max=max(0.001, self._plan.latency_s * 20)),
            )
        )
        args = (RETENTION_NAMESPACE, key, encode_policy(policy), None)
        self._call(store, "table_put", "", args, partial(_set, store, name, policy))

    def do_retention(self, store: ChunkedSegmentStorage) -> None:
        """What ``apply_retention`` does, cut by cut, for each is an event of its own: it says by which policy."""

        def step(after: str | None) -> RetentionStep:
            found = plan_step(store._context, after)
            for cut, policy in zip(found.cuts, found.policies, strict=True):
                args = (cut.offset, cut.segment_id, encode_policy(policy))
                with suppress(_NotDue):
                    self._call(store, "truncate", cut.segment, args, partial(_cut, store, cut, policy))
            return found

        with self._judged("retention"):
            apply_all(step)


class _NotDue(ChunkstoreError):
    """Nothing was cut off: there was nothing any more, or a pin or another policy has come in between."""


def _cut(store: ChunkedSegmentStorage, cut: RetentionCut, policy: RetentionPolicy) -> None:
    if not apply_cut(store._container, cut, policy):
        raise _NotDue("nothing was cut off")


def _set(store: ChunkedSegmentStorage, name: str, policy: RetentionPolicy | None) -> None:
    store.set_retention(name, policy)  # whether that changed anything is not what a table answers
