"""``jobs.scrub``: every chunk is read and compared with its CRCs, on executors.

Promises: what ``store.scrub`` finds, by the same code for one chunk: absent, too short, or blocks that do not have their CRCs; the last
chunk, that may still grow, is looked at as far as its record goes. Only read: nobody is fenced or asked, no position is kept, nothing is
repaired (``chunkstore scrub --repair-from`` does). What was truncated, deleted or replaced while it was read is not counted. The driver
holds a wave of plans at a time, 64 GiB of bytes each, and one short row for each chunk. Leaves out: garbage, journal and snapshots
(``check``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from chunkstore import runtime
from chunkstore.assembly import open_replica
from chunkstore.config import MIB, Settings
from chunkstore.errors import InvalidArgument, RootUnavailable, SegmentNotFound
from chunkstore.invariants import ABSENT
from chunkstore.metadata.roots import known_roots
from chunkstore.metadata.scrubbing import BEGINNING
from chunkstore.operations.check import Fault, is_still_wanted
from chunkstore.replica import Replica
from chunkstore.spark.jobs.running import Attempt, OnSpark, Progress, Runner, Site
from chunkstore.storage import ChunkStorage
from chunkstore.upkeep.scrub import ScrubPart, faults_of, finding_of, plan_step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SCHEMA", "ScrubTotals", "ScrubbedChunk", "scrub", "scrub_on"]

SCHEMA: Final = "segment string, chunk string, offset long, length long, state string, error string"
_TASK_BYTES: Final = 256 * MIB
_TASK_BYTES_MIN: Final = 8 * MIB
_TASK_PARTS: Final = 4_096
_WAVE_BYTES: Final = 64 << 30
_WAVE_PARTS: Final = 1 << 16
"""What is planned at one time: CRCs of a block travel with each 64 KiB."""


class ScrubbedChunk(NamedTuple):
    """A chunk, whose first byte is byte ``offset`` of the segment. ``state``: ok, damaged, missing; unreachable where it lies in a root
    that cannot be read (then nothing is known to be wrong). Rows of metadata that are damaged have no chunk."""

    segment: str
    chunk: str
    offset: int
    length: int
    state: str
    error: str


class ScrubTotals(NamedTuple):
    """``lsn``: the state that was looked at. ``size_bytes`` were read."""

    lsn: int
    chunks: Sequence[ScrubbedChunk]
    size_bytes: int
    tasks: int

    @property
    def bad(self) -> list[ScrubbedChunk]:
        """Those that are not ``ok``."""
        return [item for item in self.chunks if item.state != "ok"]


class _Task(NamedTuple):
    site: Site
    parts: tuple[ScrubPart, ...]


def scrub(
    spark: SparkSession,
    root: str,
    *,
    container: str = "default",
    segments: Sequence[str] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    foreign_roots: Sequence[str] = (),
) -> DataFrame:
    """Read every chunk of the container, or of these ``segments``, and compare its bytes with their CRCs. A frame of what was found, with a
    row (``ScrubbedChunk``) for each chunk, in their order; it is computed here, once. ``dry_run``: the chunks that would be read, with
    ``state`` planned. ``progress``: called with bytes, about. ``foreign_roots``: as in ``Settings``; all else is
    ``unreachable``.

    Changes nothing. Raises ``InvalidArgument``, ``SegmentNotFound``, ``ContainerNotFound``, ``RootUnavailable`` (an executor reaches
    another container there, or none), ``StorageUnavailable``, ``Damaged`` (the journal), ``JobFailed``. Damage that is found is a row, and
    no error. Retry: safe, from the beginning.
    """
    run = OnSpark(spark, f"chunkstore scrub {container}", progress)
    found = scrub_on(
        run,
        root,
        container=container,
        segments=segments,
        width=run.width,
        dry_run=dry_run,
        settings=Settings(foreign_roots=tuple(foreign_roots)),
    )
    return spark.createDataFrame(list(found.chunks), SCHEMA)


def scrub_on(
    run: Runner,
    root: str,
    *,
    container: str = "default",
    segments: Sequence[str] | None = None,
    width: int = 1,
    dry_run: bool = False,
    settings: Settings | None = None,
) -> ScrubTotals:
    """As ``scrub``, by any runner, of which about ``width`` tasks run at one time."""
    if segments is not None and (isinstance(segments, str) or not segments):
        raise InvalidArgument("segments are a list of names; leave them out for all", argument="segments")
    with open_replica(root, container=container, settings=settings) as replica:
        chosen = None if segments is None else frozenset(segments)
        for name in sorted(chosen or ()):
            if not replica.exists(name):
                raise SegmentNotFound(name)
        return _Scrub(replica, root, chosen, width).run(run, dry_run=dry_run)


class _Scrub:
    """One pass."""

    def __init__(self, replica: Replica, root: str, chosen: frozenset[str] | None, width: int) -> None:
        self._replica = replica
        self._chosen = chosen
        self._lsn = replica.lsn
        roots = tuple(replica.look(known_roots).items())
        named = replica.settings.foreign_roots
        self._site = Site(root, replica.container, replica.uuid, roots, named)
        each = replica.usage().live_bytes // (4 * width)
        self._task_bytes = max(_TASK_BYTES_MIN, min(_TASK_BYTES, each))
        self._position = BEGINNING
        self._found: list[ScrubbedChunk] = []
        self._tasks = self._size_bytes = 0
        self._begun: tuple[str, int] | None = None
        """The chunk whose parts are being told, and up to where it was."""
        self._told = 0

    def run(self, run: Runner, *, dry_run: bool) -> ScrubTotals:
        while True:
            tasks, is_last = self._wave()
            self._tasks += len(tasks)
            sizes = [sum(part.high - part.low for part in task.parts) for task in tasks]
            self._size_bytes += sum(sizes)
            results = None if dry_run else chain.from_iterable(run(_verify, tasks, sizes))
            for part in chain.from_iterable(task.parts for task in tasks):
                self._tell(part, None if results is None else next(results))
            if is_last:
                return ScrubTotals(self._lsn, self._found, self._size_bytes, self._tasks)

    def _wave(self) -> tuple[list[_Task], bool]:
        """The next tasks, and whether these are the last."""
        tasks: list[_Task] = []
        size_bytes = parts = 0
        names = self._replica.read_context.names
        while size_bytes < _WAVE_BYTES and parts < _WAVE_PARTS:
            plan = self._replica.look(
                partial(plan_step, names, 0, self._position, self._task_bytes, parts_max=_TASK_PARTS, takes=self._takes)
            )
            self._found += (ScrubbedChunk(item.segment, "", 0, 0, "damaged", item.message) for item in plan.findings)
            if plan.parts:
                # Neither attributes nor the like travel.
                slim = (part._replace(segment=part.segment._replace(attributes={})) for part in plan.parts)
                tasks.append(_Task(self._site, tuple(slim)))
                size_bytes += sum(part.high - part.low for part in plan.parts)
                parts += len(plan.parts)
            self._position = plan.position
            if plan.position == BEGINNING:
                return tasks, True
        return tasks, False

    def _takes(self, name: str) -> bool:
        return self._chosen is None or name in self._chosen

    def _tell(self, part: ScrubPart, faults: list[Fault] | RootUnavailable | None) -> None:
        """One row for each chunk, however many parts it was read in."""
        chunk = part.segment.name, part.offset
        if self._begun != chunk:
            self._begun, self._told = chunk, 0
            state = "planned" if faults is None else "ok"
            self._found.append(ScrubbedChunk(part.segment.name, part.name, part.offset, part.length, state, ""))
        if not faults or self._found[-1].state == "unreachable":
            return
        row = self._found[-1]
        if isinstance(faults, RootUnavailable):
            self._found[-1] = row._replace(state="unreachable", error=faults.message)
            return
        new = [fault for fault in faults if fault.high > self._told]
        if not new or not is_still_wanted(
            self._replica.read_context, part.segment, part.identity, part.offset + part.high
        ):
            return
        self._told = new[-1].high
        text = "; ".join(finding_of(part, fault).message for fault in new)
        is_missing = row.state == "missing" or any(fault.message == ABSENT for fault in new)
        state = "missing" if is_missing else "damaged"
        self._found[-1] = row._replace(state=state, error=f"{row.error}; {text}" if row.error else text)


def _verify(task: _Task, _attempt: Attempt) -> list[list[Fault] | RootUnavailable]:
    """On an executor. Raises what the storage raises."""
    with task.site.opened() as storage:
        return _faults(storage, task.parts)


def _faults(storage: ChunkStorage, parts: Sequence[ScrubPart]) -> list[list[Fault] | RootUnavailable]:
    if not storage.capabilities.remote:
        return [faults_of(storage, part) for part in parts]
    pool = runtime.pool("chunkstore-scrub", Settings().io_workers)
    try:
        return pool.run_all([partial(faults_of, storage, part) for part in parts])
    finally:
        pool.close()
