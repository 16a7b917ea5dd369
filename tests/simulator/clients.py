"""Clients: what they do to a store or a replica."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, partialmethod
from random import Random
from typing import Any, Final

from chunkstore.changes import Append, Change, Concat, Create, Delete, Seal, TablePut, Truncate
from chunkstore.config import DefragPolicy, RetentionPolicy, RollingPolicy
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.engine.writer import StorageWriter
from chunkstore.errors import (
    ChunkstoreError,
    Closed,
    NotOwner,
    SegmentNotFound,
    SegmentSealed,
)
from chunkstore.metadata.keys import RETENTION_NAMESPACE
from chunkstore.metadata.reserved import encode_policy, pattern_key
from chunkstore.records.segments import SegmentInfo
from chunkstore.upkeep.retention import RetentionCut, RetentionStep, apply_all, apply_cut, plan_step
from tests.simulator.drawing import Plan
from tests.simulator.recorder import Recorder
from tests.simulator.world import World
from tests.support.merging import merge

TABLE: Final = "facts"
KEYS: Final = tuple(b"k%d" % number for number in range(4))
"""The rows of the table that clients write."""
_REVIVES: Final = 0.5
"""Verbs that are no events of the history: they answer nothing about contents."""
_TRIES: Final = 3
"""How often appends of one writer are tried, by writers that go on where it broke."""
_RESTS_AFTER: Final = 2
"""Verbs, fewer than any client does."""


class EventWriter:
    """A client that outlives owners: it sends its event again, with the same number, until somebody has acknowledged it."""

    def __init__(self, name: str, segment: str) -> None:
        self.name = name
        self.segment = segment
        self.number = 1

    def data(self) -> bytes:
        """What its present event says."""
        return b"<%s#%d>" % (self.name.encode(), self.number)


class Client:
    """Random verbs on a store, one after the other, until told to stop or until the store is no longer ours."""

    def __init__(
        self,
        world: World,
        plan: Plan,
        recorder: Recorder,
        random: Random,
        name: str,
        writers: list[EventWriter],
        *,
        owner: str = "",
    ) -> None:
        self._world = world
        self._plan = plan
        self._recorder = recorder
        self._random = random
        self._writers = writers
        self.name = name
        self._owner = owner
        self._tags = 0
        self._ends: dict[str, int] = {}
        self._verbs = [verb for verb, _ in plan.mix]
        self._weights = [weight for _, weight in plan.mix]
        self._usual = [f"s{number}" for number in range(plan.segments)]

    def tag(self) -> bytes:
        """Bytes that nobody else appends."""
        self._tags += 1
        return b"<%s.%d%s>" % (self.name.encode(), self._tags, b"." * self._random.choice((0, 0, 3, 40)))

    def segment(self) -> str:
        """Any of the run's segments."""
        return f"s{self._random.randrange(self._plan.segments)}"

    def work(self, store: ChunkedSegmentStorage, should_stop: Callable[[int], bool]) -> None:
        """Do verbs until ``should_stop`` (told how many were done), or until the store is closed or fenced."""
        random = self._random
        done = 0
        while not should_stop(done):
            if done == _RESTS_AFTER:
                self._rest(lambda: should_stop(_RESTS_AFTER))
            verb = random.choices(self._verbs, self._weights)[0]
            done += 1
            try:
                getattr(self, "do_" + verb)(store)
            except NotOwner:
                return
            except Closed as error:
                if not store._container.closed:
                    self._world.fail(f"invariant 38: an owner that nobody closed answered {error!r}")
                return
            except (SegmentNotFound, SegmentSealed) as error:
                # A run in which most segments are gone or sealed tells little: they come back soon.
                if error.segment in self._usual and random.random() < _REVIVES:
                    with suppress(ChunkstoreError):
                        self._revive(store, error)
            except ChunkstoreError:
                # Recorded and judged; clients go on.
                pass
            if random.random() < 0.3:
                self._world.runtime.sleep_s(self._plan.latency_s * random.random() * 4)

    def _rest(self, should_stop: Callable[[], bool]) -> None:
        """Do nothing for a while, behind a network: as all clients of that owner do, or none of them."""
        lease_s = self._plan.settings.lease_s if self._plan.remote else 0.0
        # Of its own chance, so that everything else about a seed is what it was before this was drawn.
        for _ in range(Random(f"rest {self._plan.seed} {self._owner}").choice((0, 0, 0, 10, 50))):
            if not lease_s or should_stop():
                return
            self._world.runtime.sleep_s(lease_s)

    def look_at_all(self, store: ChunkedSegmentStorage, *, parts: bool = False) -> None:
        """Read every segment once: what somebody does who wakes and does not know yet that he was deposed."""
        for segment in self._usual * (3 if parts else 1):
            offset, length = 0, 1 << 16
            try:
                if parts:
                    _, start, end, _ = self._info(store, segment)
                    offset, length = self._random.randrange(start, end + 1), self._random.choice((1, 5, 20, 1 << 16))
                self._call(store, "read", segment, (offset, length), partial(store.read, segment, offset, length))
            except (NotOwner, Closed):
                return
            except ChunkstoreError:
                pass

    def _revive(self, store: ChunkedSegmentStorage, error: SegmentNotFound | SegmentSealed) -> None:
        if isinstance(error, SegmentNotFound):
            self._create_again(store, error.segment)
        else:
            self._call(store, "unseal", error.segment, (), partial(store.unseal, error.segment))

    def _create_again(self, store: ChunkedSegmentStorage, segment: str) -> None:
        size = self._random.choice((7, 30, 100, 1000))
        self._call(store, "create", segment, (size,), lambda: self._create(store, segment, size))

    def _call(self, store: ChunkedSegmentStorage, kind: str, segment: str, args: tuple[Any, ...], call: Any) -> Any:
        return self._recorder.call(self.name, kind, segment, args, lambda: store.epoch, call, owner=self._owner)

    # Verbs

    def do_create(self, store: ChunkedSegmentStorage) -> None:
        self._create_again(store, self.segment())

    def do_append(self, store: ChunkedSegmentStorage) -> None:
        segment, data = self.segment(), self.tag()
        expected = None
        if self._random.random() < 0.2:
            expected = self._info(store, segment)[2]
        append = partial(store.append, segment, data, expected_offset=expected)
        self._call(store, "append", segment, (data, expected, None, None), append)

    def do_append_many(self, store: ChunkedSegmentStorage) -> None:
        segment, buffers = self.segment(), tuple(self.tag() for _ in range(self._random.randrange(1, 4)))
        self._call(store, "append_many", segment, (buffers, None), lambda: store.append_many(segment, buffers))

    def do_event(self, store: ChunkedSegmentStorage) -> None:
        writer = self._random.choice(self._writers)
        number, data, name = writer.number, writer.data(), writer.name
        append = partial(store.append, writer.segment, data, writer_id=name, event_number=number)
        self._call(store, "append", writer.segment, (data, None, name, number), append)
        if writer.number == number:
            writer.number += 1

    def do_read(self, store: ChunkedSegmentStorage) -> None:
        segment = self.segment()
        offset, length = 0, 1 << 16
        dice = self._random.random()
        if dice < 0.4:
            _, start, end, _ = self._info(store, segment)
            offset = self._random.randrange(start, end + 1)
            if self._random.random() < 0.3:
                length = self._random.randrange(1, 64)
        elif dice < 0.8:
            # On from where it knows of, as a consumer does, without a question before.
            offset = self._ends.get(segment, 0)
        data = self._call(store, "read", segment, (offset, length), lambda: store.read(segment, offset, length))
        self._ends[segment] = offset + len(data)

    def do_info(self, store: ChunkedSegmentStorage) -> None:
        self._info(store, self.segment())

    def _info(self, store: ChunkedSegmentStorage, segment: str) -> tuple[int, int, int, bool]:
        """(id, start offset, length, sealed), as the history has it: also what a verb only asks to prepare itself is an answer."""

        told: tuple[int, int, int, bool] = self._call(store, "info", segment, (), lambda: _told(store.info(segment)))
        return told

    def do_list(self, store: ChunkedSegmentStorage) -> None:
        look = lambda: tuple((info.name, *_told(info)) for info in store.segments(prefix="s"))  # noqa: E731
        self._call(store, "list", "", ("s",), look)

    def do_truncate(self, store: ChunkedSegmentStorage) -> None:
        segment = self.segment()
        _, start, end, _ = self._info(store, segment)
        offset = self._random.randrange(start, end + 1)
        self._call(store, "truncate", segment, (offset,), lambda: store.truncate(segment, offset))

    def _do_one(self, store: ChunkedSegmentStorage, kind: str) -> None:
        segment = self.segment()
        self._call(store, kind, segment, (), partial(getattr(store, kind), segment))

    do_exists = partialmethod(_do_one, kind="exists")
    do_seal = partialmethod(_do_one, kind="seal")
    do_unseal = partialmethod(_do_one, kind="unseal")
    do_delete = partialmethod(_do_one, kind="delete")

    def do_concat(self, store: ChunkedSegmentStorage) -> None:
        """A fresh source, filled and sealed, spliced behind a target: what a transaction does."""
        target, random = self.segment(), self._random
        self._tags += 1
        source, size = f"s{self.name}-{self._tags}", random.choice((30, 1000))
        self._call(store, "create", source, (size,), lambda: self._create(store, source, size))
        for _ in range(random.randrange(4)):
            data = self.tag()
            self._call(store, "append", source, (data, None, None, None), lambda data=data: store.append(source, data))
            if size > 30 and random.random() < 0.5:
                self._spill(store, source)
        if random.random() < 0.5:
            self._call(store, "seal", source, (), lambda: store.seal(source))
            offset = self._info(store, target)[2]
            self._call(store, "concat", target, (offset, source), lambda: store.concat(target, offset, source))
        else:
            args = (("seal", source, ()), ("concat", target, (None, source)))
            changes: list[Change] = [Seal(source), Concat(target, source)]
            self._call(store, "commit", "", (args,), lambda: tuple(store.commit(changes)))
        if size > 30 and random.random() < 0.5:
            self._spill(store, target)

    def _spill(self, store: ChunkedSegmentStorage, segment: str) -> None:
        with self._judged("spill"):
            store.spill([segment])

    def _create(self, store: ChunkedSegmentStorage, name: str, size: int) -> int:
        return store.create(name, rolling=RollingPolicy(chunk_size_bytes_max=size)).segment_id

    def do_commit(self, store: ChunkedSegmentStorage) -> None:
        first, second, data = self.segment(), self.segment(), self.tag()
        key = b"k%d" % self._random.randrange(4)
        changes: list[Change] = [Append(first, data), TablePut(TABLE, key, data)]
        args: list[tuple[str, str, tuple[Any, ...]]] = [
            ("append", first, (data, None, None, None)),
            ("table_put", "", (TABLE, key, data, None)),
        ]
        dice = self._random.random()
        if dice < 0.3:
            more = self.tag()
            changes.append(Append(second, more))
            args.append(("append", second, (more, None, None, None)))
        elif dice < 0.4:
            changes.append(Seal(second))
            args.append(("seal", second, ()))
        elif dice < 0.5:
            self._tags += 1
            fresh = f"s{self.name}-{self._tags}"
            rolling = RollingPolicy(chunk_size_bytes_max=30)
            changes[:0] = [Create(fresh, rolling), Append(fresh, more := self.tag()), Seal(fresh)]
            changes.append(Concat(first, fresh))
            args[:0] = [("create", fresh, (30,)), ("append", fresh, (more, None, None, None)), ("seal", fresh, ())]
            args.append(("concat", first, (None, fresh)))
        elif dice < 0.55:
            changes.append(Delete(second))
            args.append(("delete", second, ()))
        elif dice < 0.65:
            _, _, end, _ = self._info(store, first)
            changes.append(Truncate(first, end))
            args.append(("truncate", first, (end,)))
        elif dice < 0.75 and first != second:
            # What was appended, spilled and perhaps taken over before goes on in another segment.
            changes += [Seal(second), Concat(first, second)]
            args += [("seal", second, ()), ("concat", first, (None, second))]
        self._call(store, "commit", "", (tuple(args),), lambda: tuple(store.commit(changes)))

    # Tables

    def do_table_put(self, store: ChunkedSegmentStorage) -> None:
        key, value = b"k%d" % self._random.randrange(4), self.tag()
        table = store.table(TABLE)
        expected = None
        if self._random.random() < 0.4:
            row = self._get(store, key)
            expected = 0 if row is None else row[1]
        put = partial(table.put, key, value, expected_version=expected)
        self._call(store, "table_put", "", (TABLE, key, value, expected), put)

    def do_table_delete(self, store: ChunkedSegmentStorage) -> None:
        key = b"k%d" % self._random.randrange(4)
        self._call(store, "table_delete", "", (TABLE, key, None), lambda: store.table(TABLE).delete(key))

    def do_table_get(self, store: ChunkedSegmentStorage) -> None:
        self._get(store, b"k%d" % self._random.randrange(4))

    def _get(self, store: ChunkedSegmentStorage, key: bytes) -> tuple[bytes, int] | None:
        def look() -> tuple[bytes, int] | None:
            row = store.table(TABLE).get(key)
            return None if row is None else (row.value, row.version)

        told: tuple[bytes, int] | None = self._call(store, "table_get", "", (TABLE, key), look)
        return told

    def do_writer(self, store: ChunkedSegmentStorage) -> None:
        """A few appends through the asynchronous writer; each is an event of its own, answered by its future."""
        segment, random = self.segment(), self._random
        window, least = random.choice((1, 2, 4, 8)), random.choice((1, 60))
        flush_s = random.choice((0.0, self._plan.latency_s))
        # Where histories go back, what was committed is gone. Of its own chance, so that everything else about a seed is what it was.
        now = self._world.scheduler.now
        ids = not self._plan.distrust and Random(f"ids {self.name} {now}").random() < 0.5
        writer_id = f"{self.name}.{now}" if ids else None
        writer: StorageWriter | None = store.writer(
            segment, flush_s=flush_s, flush_bytes=least, window=window, writer_id=writer_id
        )
        tags, tries = random.randrange(1, 8), _TRIES if ids else 1
        while writer is not None:
            tries -= 1
            committed, writer = self._write(store, writer, segment, [self.tag() for _ in range(tags)], again=tries > 0)
            tags -= committed

    def _write(
        self, store: ChunkedSegmentStorage, writer: StorageWriter, segment: str, tags: list[bytes], *, again: bool
    ) -> tuple[int, StorageWriter | None]:
        """Append through a writer until it breaks. ``again``: returns the writer that goes on, and how many it goes on behind."""
        settled: list[tuple[Callable[..., None], Any]] = []
        last, identity, resumed = writer.event_number, writer._handle.segment_id, None
        replaced = False
        try:
            with self._judged("writer"):
                for data in tags:
                    args = (data, identity)
                    settle = self._recorder.future(
                        self.name, "write", segment, args, lambda: store.epoch, owner=self._owner
                    )
                    settled.append((settle, writer.append(data)))
            if again:
                hasty = Random(f"hasty {writer.writer_id!r} {last}")
                late, patience_s = False, self._plan.latency_s * hasty.random() if hasty.random() < 0.4 else None
                try:
                    writer.flush(patience_s)
                except ChunkstoreError:
                    late = hasty.random() < 0.7
                # What is only late goes on, or a newer one takes its place.
                if late or writer._error is not None:
                    replaced = True
                    with self._judged("resuming a writer"):
                        resumed = writer.resume(store)
        finally:
            if resumed is not None and resumed._handle.segment_id != identity:
                resumed.close()
                resumed = None
            committed = writer.event_number - last if resumed is None else resumed.event_number - last
            try:
                with suppress(*(ChunkstoreError,) if replaced else ()), self._judged("closing a writer"):
                    writer.close()
            finally:
                for number, (settle, future) in enumerate(settled, 1):
                    settle(future, never=number > committed)
                told = [future.done() and future.exception() is None for _, future in settled]
                if told != sorted(told, reverse=True) or any(told[committed:]):
                    what = f"a writer's appends to {segment!r} were told {told}, and then {committed}"
                    self._world.fail(f"history hole: {self.name}: {what}")
        return committed, resumed

    # Upkeep

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


def _told(info: SegmentInfo) -> tuple[int, int, int, bool]:
    return info.id, info.start_offset, info.length, info.sealed


def look_at(recorder: Recorder, random: Random, name: str, replica: Replica, segment: str) -> None:
    """Read some of what a replica shows. Raises what reading raises."""
    lsn = replica.lsn
    if not replica.exists(segment):
        return
    info = replica.info(segment)
    offset = random.randrange(info.start_offset, info.length + 1)
    if replica.lsn != lsn:
        return
    args = (offset, 1 << 16, info.id, lsn)

    def look() -> bytes | None:
        data = replica.read(segment, offset, 1 << 16)
        # A read whose chunks were collected under it looks anew: then it may show more than stood there at this lsn.
        return data if replica.lsn == lsn else None

    recorder.call(name, "replica_read", segment, args, lambda: replica.epoch, look)
