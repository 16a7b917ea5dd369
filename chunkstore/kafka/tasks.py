"""``RemoteLogManager``: what a broker does with the tier of the partitions that it leads or follows, over its log directory.

Promises: a local segment may be deleted only when the tier has it and all before it; the log's start is recorded before anything below it
is deleted; what fails is undone at once, or listed and tried again. Files of the directory are never changed. Leaves out: deleting local
segments, retention by topic (use a manager for each), quotas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Self

from chunkstore import runtime
from chunkstore.codec.kafka.names import parse_partition_folder, parse_uuid
from chunkstore.codec.kafka.records import Isolation
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, InvalidArgument, SegmentNotFound
from chunkstore.kafka import model
from chunkstore.kafka.container import ContainerSource
from chunkstore.kafka.lineage import first_open
from chunkstore.kafka.metadata import RemoteLogMetadataReader
from chunkstore.kafka.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, check_int, require
from chunkstore.kafka.retention import (
    Expiry,
    LogState,
    RemoteLogManagerConfig,
    choose,
    filtered_epochs,
    find_copied_offset,
)
from chunkstore.kafka.sources import LogDirectory
from chunkstore.kafka.storage import RemoteStorageReader
from chunkstore.kafka.tier import Planned, delete_segment, move_segment, opened_segment, plan
from chunkstore.kafka.tiered import Fetched, Log, Reason, TieredDirectory, explain_tier

__all__ = ["RemoteLogManager", "RemoteLogManagerConfig", "why"]

_STARTED, _FINISHED, _DELETING, _DELETED = model.RemoteLogSegmentState
_MARKED, _BEGUN, _ENDED = model.RemotePartitionDeleteState
_Several = Collection[TopicIdPartition]
_CLOSE_S: Final = 60.0
_TOTALS: Final = (
    *(f"Remote{verb}{what}" for verb in ("Copy", "Fetch", "Delete") for what in ("Requests", "Errors")),
    "RemoteCopyBytes", "RemoteFetchBytes",
)  # fmt: skip
_DEFAULTS: Final = RemoteLogManagerConfig()


@dataclass(slots=True)
class _Task:
    """A partition here. ``epoch``: the leader's, None: a follower; ``newest``: that was announced, -1: none. ``lost``: served no more.
    ``stopped``: why it copies no more. ``lags``: bytes of each segment that is to be copied or deleted."""

    epoch: int | None = None
    token: int | None = None
    newest: int = -1
    lost: bool = False
    stopped: str = ""
    error: str = ""
    failures: int = 0
    not_before_s: float = 0.0
    copying: runtime.Lock = field(default_factory=runtime.lock)
    lags: dict[str, list[int]] = field(default_factory=dict)


class RemoteLogManager:
    """Over ``log_dir``, with managers of metadata and storage, which the caller closes. Thread-safe; a context manager, which closes it.

    All calls raise ``InvalidArgument``, ``RemoteResourceNotFoundException`` (not led here, no such partition), ``ChunkNotFound`` (a file
    deleted meanwhile), ``Damaged``, ``Unsupported``, and what the managers raise. Retry: safe. What a pass did is durable.
    """

    def __init__(self, log_dir: str, metadata: Any, storage: Any, config: RemoteLogManagerConfig = _DEFAULTS) -> None:
        self._source = TieredDirectory(log_dir, metadata, storage)
        self._metadata, self._storage, self._config = metadata, storage, config
        self._remove = partial(delete_segment, storage, metadata, broker_id=config.broker_id)
        self._tasks: dict[TopicIdPartition, _Task] = {}
        self._copying: set[RemoteLogSegmentId] = set()
        self._counts = Counter(dict.fromkeys(_TOTALS, 0))
        self._lock, self._stop = runtime.lock(), runtime.event()
        self._thread: runtime.Task | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def on_leadership_change(self, leaders: Mapping[TopicIdPartition, int], followers: _Several = ()) -> None:
        """Lead ``leaders``, with their leader epochs, and follow ``followers``. An epoch that is not newer changes nothing."""
        led = {}
        for partition, epoch in leaders.items():
            check_int(epoch, "leaders", model.EPOCH_MAX)
            if self._tasks.get(partition, _Task()).newest < epoch:
                led[partition] = epoch
        tokens = self._metadata.on_partition_leadership_changes(set(led), followers) or {}
        with self._lock:
            for partition in (*led, *followers):
                old = self._tasks.get(partition, _Task())
                old.lost = True
                newest = led.get(partition, old.newest)
                self._tasks[partition] = _Task(led.get(partition), tokens.get(partition), newest)

    def stop_partitions(self, partitions: _Several, *, delete: bool = False) -> None:
        """Serve them no more. ``delete``: delete all of their tier, too, as their topic is deleted; of the first failure the rest stays,
        and another call goes on. A deposed leader's deletes nothing (``LeaderFenced``)."""
        for partition in partitions:
            task = self._tasks.get(partition, _Task())
            task.lost = True
            if delete:
                led = self._metadata.on_partition_leadership_changes([partition]) if task.epoch is None else {}
                token, stored = led.get(partition, task.token), self._metadata.deletion(partition)
                self._partition_event(partition, token, *(state for state in (_MARKED, _BEGUN) if state > stored))
                for item in list(self._metadata.list_remote_log_segments(partition)):
                    self._remove(item, token)
                self._partition_event(partition, token, _ENDED)
            with self._lock:
                if self._tasks.get(partition) is task:
                    del self._tasks[partition]
        self._metadata.on_stop_partitions(partitions)

    def copied_offset(self, partition: TopicIdPartition) -> int:
        """The last offset of the log's lineage that was copied; -1: none."""
        log = self._source.view(partition)
        return find_copied_offset(log.epochs, log.end, partial(self._metadata.highest_offset_for_epoch, partition))[0]

    def deletable_end(self, partition: TopicIdPartition) -> int:
        """Local segments that end below it may be deleted: the tier has them, and all between the log's start and them."""
        return self._source.copied_to(self._source.view(partition))

    def copy(self, partition: TopicIdPartition) -> int:
        """Copy the segments that may be copied, earliest first, up to the first that fails; returns how many. 0 if it goes on already."""
        task, copied = self._leader(partition), 0
        if not task.copying.acquire(blocking=False):
            return 0
        try:
            log = self._source.view(partition)
            end, stable = self._source.copied_to(log), first_open(self._source, log.segments, log.high)
            rolled = [each for each in log.segments if each.state == "ROLLED"]
            planned = (each for each in plan(rolled, log.epochs, stable) if each.segment.end_offset >= end)
            left = [each for each in planned if not self._source.has(log, each.segment)]
            lags = task.lags["Copy"] = [each.segment.bytes for each in left]
            while lags and not (task.lost or task.stopped or self._stop.is_set()):
                self._copy(task, partition, left[copied])
                lags.pop(0)
                copied += 1
        finally:
            task.copying.release()
        return copied

    def expire(self, partition: TopicIdPartition) -> int:
        """Delete what retention does not keep, and what failed before; returns how many segments.

        A deletion that fails is in ``failed_deletions``; the others are done, and its error is raised at the end. Without leader epochs
        it raises ``RemoteStorageException``.
        """
        task, failure, deleted = self._leader(partition), None, 0
        items = list(self._metadata.list_remote_log_segments(partition))
        log = self._source.view(partition)
        if not log.epochs:
            text = "leader epochs are missing; call again when its broker has written leader-epoch-checkpoint"
            raise model.RemoteStorageException(f"{partition}: nothing is deleted: {text}")
        chosen = self._expiry(log, items, fenced=task.token is not None)
        if chosen.log_start > self._metadata.log_start(partition):
            self._metadata.record_log_start(partition, chosen.log_start, token=task.token).result()
        lags = task.lags["Delete"] = [each.segment_size_in_bytes for each in chosen.deletions]
        for item in chosen.deletions:
            now = self._metadata.remote_log_segment(item.remote_log_segment_id)
            if task.lost or self._stop.is_set() or now is None or now.state != item.state:
                continue  # such as a copy that finished since it was listed
            try:
                with self._counted("Delete"):
                    self._remove(item, task.token)
                lags.remove(item.segment_size_in_bytes)
                deleted += 1
            except ChunkstoreError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return deleted

    def delete_records(self, partition: TopicIdPartition, offset: int) -> None:
        """Record that the log starts at ``offset`` or later: what is below is read no more, and ``expire`` deletes segments below it.

        Raises ``OffsetOutOfRange`` above the high watermark, too.
        """
        check_int(offset, "offset", model.OFFSET_MAX)
        task, log = self._leader(partition), self._source.view(partition)
        if offset > log.high:
            raise model.OffsetOutOfRange(str(partition), offset, log.start, log.high)
        self._metadata.record_log_start(partition, offset, token=task.token).result()

    def failed_deletions(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        """Segments whose deletion began and did not end: each ``expire`` tries them again."""
        return [item for item in self._metadata.list_remote_log_segments(partition) if item.state == _DELETING]

    def read(
        self, partition: TopicIdPartition, offset: int, max_bytes: int, isolation: Isolation = "read_uncommitted",
        *, for_follower: bool = False,
    ) -> Fetched:  # fmt: skip
        """Records from ``offset`` on, of one segment: whole batches of at most ``max_bytes``, or one that is larger.

        Local ones where they are, else the tier's; up to the high watermark, or with "read_committed" to the first transaction that is
        not decided, without aborted ones. ``for_follower``: local ones only, to the end. The partition's folder is listed each time.
        Raises ``OffsetOutOfRange``, too.
        """
        check_int(offset, "offset", model.OFFSET_MAX)
        log = self._source.view(partition)
        remote = not for_follower and log.start <= offset < log.local_start
        with self._counted("Fetch") if remote else nullcontext():
            found = self._source.read(log, offset, max_bytes, isolation, for_follower=for_follower)
        self._count("RemoteFetchBytes", found.batch_bytes if remote else 0)
        return found

    def follow(self, partition: TopicIdPartition) -> int:
        """The first offset of the log, as its leader recorded it, or the tier or the local log has it."""
        return self._source.view(partition).start

    def run_once(self) -> dict[TopicIdPartition, Exception]:
        """Copy and expire all partitions that are led here, are ready, and did not just fail; returns the errors."""
        errors = {}
        for partition, task in list(self._tasks.items()):
            if task.epoch is None or task.lost or runtime.monotonic_s() < task.not_before_s:
                continue
            try:
                if self._metadata.is_ready(partition):
                    self.copy(partition)
                    self.expire(partition)
                task.failures, task.error = 0, ""
            except Exception as error:  # noqa: BLE001  (a fault of one partition, or of a manager, must not end the thread)
                errors[partition], task.error = error, str(error)
                pause_s = min(self._config.backoff_max_s, self._config.backoff_s * 2 ** min(task.failures, 32))
                task.failures, task.not_before_s = task.failures + 1, runtime.monotonic_s() + pause_s
        return errors

    def start(self) -> None:
        """Call ``run_once`` every ``interval_s`` in a thread, until ``close``."""

        def run() -> None:
            while not self._stop.wait(self._config.interval_s):
                self.run_once()

        require(self._thread is None, "start", "called once")
        self._thread = runtime.spawn(run, "chunkstore-remote-log")

    def close(self) -> None:
        """End passes after the segment that they are at; waits for the thread for at most 60 s. The managers stay open. Safe to repeat."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def why(self, partition: TopicIdPartition) -> list[Reason]:
        """For each segment, local and of the tier: why it is not copied, may not be deleted, or is kept."""
        log, task, items = self._source.view(partition), self._tasks.get(partition, _Task()), []
        with suppress(model.RemoteResourceNotFoundException):  # nothing of it was ever copied
            items = list(self._metadata.list_remote_log_segments(partition))
        chosen = self._expiry(log, items, fenced=task.token is not None)
        return list(self._source.explain(log, items, chosen, task.stopped or task.error))

    def metrics(self) -> dict[str, int]:
        """Totals since the start, and the lags of partitions led here, under Kafka's names."""
        found = dict(self._counts)
        for verb in ("Copy", "Delete"):
            lags = [size for task in list(self._tasks.values()) for size in task.lags.get(verb, ())]
            found |= {f"Remote{verb}LagSegments": len(lags), f"Remote{verb}LagBytes": sum(lags)}
        return found

    @contextmanager
    def _counted(self, verb: str) -> Iterator[None]:
        self._count(f"Remote{verb}Requests")
        try:
            yield
        except BaseException:
            self._count(f"Remote{verb}Errors")
            raise

    def _count(self, name: str, more: int = 1) -> None:
        with self._lock:
            self._counts[name] += more

    def _leader(self, partition: TopicIdPartition) -> _Task:
        task = self._tasks.get(partition)
        if task is None or task.epoch is None or task.lost:
            raise model.RemoteResourceNotFoundException(f"leadership of {partition}")
        return task

    def _expiry(self, log: Log, items: Collection[RemoteLogSegmentMetadata], *, fenced: bool) -> Expiry:
        copied = self._source.copied_to(log)
        local_bytes = sum(each.bytes for each in log.segments if each.end_offset >= copied)
        start = self._metadata.log_start(log.partition)
        state = LogState(filtered_epochs(log.epochs, start), start, log.end, local_bytes)
        return choose(items, state, self._config, runtime.now_ms(), frozenset(self._copying), fenced=fenced)

    def _copy(self, task: _Task, partition: TopicIdPartition, planned: Planned) -> None:
        identity, limit = RemoteLogSegmentId(partition, runtime.token(16)), self._config.custom_metadata_bytes_max
        source = opened_segment(self._source, identity, planned, self._config.broker_id)
        with self._counted("Copy"), source as (item, data):
            self._copying.add(identity)
            try:
                self._metadata.add_remote_log_segment_metadata(item, token=task.token).result()
                item = replace(item, custom_metadata=self._storage.copy_log_segment_data(item, data))
                if (size := len(item.custom_metadata or b"")) > limit:
                    task.stopped = f"the storage manager gave custom metadata of {size} bytes, {limit} are allowed"
                    raise model.RemoteStorageException(f"{identity}: {task.stopped}; {partition} is copied no more")
                if task.lost and self._config.on_leadership_lost == "cancel":
                    raise model.RemoteStorageException(f"{identity}: {partition} is not led here any more: not copied")
                move_segment(self._metadata, item, _FINISHED, task.token, self._config.broker_id)
            except Exception:
                with suppress(ChunkstoreError):  # the copy's own error counts; ``expire`` deletes what is left
                    self._remove(item, task.token)
                raise
            finally:
                self._copying.discard(identity)
        self._count("RemoteCopyBytes", planned.segment.bytes)

    def _partition_event(
        self, partition: TopicIdPartition, token: int | None, *states: model.RemotePartitionDeleteState
    ) -> None:
        for state in states:
            event = model.RemotePartitionDeleteMetadata(partition, state, runtime.now_ms(), self._config.broker_id)
            self._metadata.put_remote_partition_delete_metadata(event, token=token).result()


def why(store: ChunkedSegmentStorage | Replica, name: str, log_dir: str | None = None) -> list[Reason]:
    """Reasons of the partition ``name`` (``TOPIC-PARTITION``) of a container, or of a log directory that is copied into it.

    Raises ``InvalidArgument`` (no such name), ``SegmentNotFound`` (no such partition), and what reads raise. Retry: safe.
    """
    if (place := parse_partition_folder(name)) is None:
        raise InvalidArgument(f"{name!r} is not a TOPIC-PARTITION such as orders-3", argument="partition")
    metadata, storage = RemoteLogMetadataReader(store), RemoteStorageReader(store)
    source = ContainerSource(store, "the container") if log_dir is None else LogDirectory(log_dir)
    ids = {each.topic_id for each in source.listing(*place).segments}
    if not ids:
        raise SegmentNotFound(name, f"no partition {name!r} in {source.url}: 'chunkstore kafka ls' lists all")
    partitions = [TopicIdPartition(parse_uuid(each, object=name), *place) for each in sorted(ids)]
    if log_dir is None:
        return [row for each in partitions for row in explain_tier(metadata.list_remote_log_segments(each))]
    with RemoteLogManager(log_dir, metadata, storage) as manager:
        return manager.why(partitions[0])
