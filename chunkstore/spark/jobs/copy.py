"""``jobs.copy``: a container, or some of its segments, in a new container on another storage; executors bring the chunks (decision 0030).

Promises: as of ``chunkstore.backup.import_file``, which this is with the copying elsewhere: every chunk is compared with its CRCs while it
is read, what was written is durable before it is named, and the new container is there whole, with its first record, or opened by nobody.
The source is read at one position under a pin, so that it goes on being written, and collected, meanwhile; the pin is also what an
interrupted copy finds again: who resumes it takes what was copied for its own, once executors have read and compared it. What came to the
source behind the position is not copied, then or later, so nobody goes on at an old one without saying so. Leaves out: containers that
are there already (``import``, ``backup``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from chunkstore import runtime
from chunkstore.assembly import open_replica
from chunkstore.backup.founding import carry_here
from chunkstore.backup.imports import import_file
from chunkstore.backup.restore import RestoreReport
from chunkstore.backup.survey import Source
from chunkstore.backup.target import NewPlace
from chunkstore.config import MIB, Settings
from chunkstore.errors import ChunkExists, ChunksMissing, Conflict, InvalidArgument
from chunkstore.metadata.roots import known_roots
from chunkstore.names import ContainerNames
from chunkstore.operations.bring_chunks import Brought, ChunkToBring, Place, bring_chunk, side_by_side
from chunkstore.registry import uuid_at
from chunkstore.spark.jobs.running import Attempt, OnSpark, Progress, Runner, Site, grouped
from chunkstore.spark.owners import AskerDoor
from chunkstore.spark.write_options import parse_write_options
from chunkstore.storage import ChunkStorage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SCHEMA", "CopyReport", "copy", "copy_on"]

SCHEMA: Final = (
    "container string, lsn long, segments long, chunks long, size_bytes long, rows long, tasks long, copied boolean"
)
_TASK_BYTES: Final = 256 * MIB
_LOAD_BYTES: Final = 64 << 30
"""What is brought by one job of Spark."""
_PIN_S: Final = 7 * 86_400.0
"""How long a copy that was given up keeps what the source collects."""
_WORKERS: Final = 8
"""Of a task, where storages are far: each may hold 64 MiB."""
_RANDOM_BYTES: Final = 4
"""Of a chunk's id, at its end."""


class CopyReport(NamedTuple):
    """What the new container consists of, at the source's position ``lsn``; ``rows``: of tables. ``tasks``: of Spark, that brought chunks.
    ``copied``: False of a dry run."""

    container: str
    lsn: int
    segments: int
    chunks: int
    size_bytes: int
    rows: int
    tasks: int
    copied: bool


class _Task(NamedTuple):
    source: Site
    target: Site
    items: tuple[ChunkToBring, ...]


def copy(
    spark: SparkSession,
    root: str,
    new_root: str,
    *,
    container: str = "default",
    new_container: str | None = None,
    segments: Sequence[str] = (),
    resume: bool | None = None,
    no_pin: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    foreign_roots: Sequence[str] = (),
) -> DataFrame:
    """Copy the container, or these ``segments`` of it (names, or prefixes with ``*`` behind them), into a new one under ``new_root``, which
    may be on any storage. A frame with one row, a ``CopyReport``; the work is done here, once.

    What comes along: as of ``chunkstore.backup.import_file``. The pin is asked of the source's owner; where nobody answers, ``chunkstore
    serve`` is started, as sinks do. It ends with the copy, or after a week. ``resume``: where an earlier copy to there did not end, True
    goes on with it, as of when that began, False begins as of now; without either it is refused. ``no_pin``: without, for a source that
    nobody collects from, or a backup; then an interrupted copy goes on only where nothing came since. ``progress``: called with bytes,
    about. ``foreign_roots``: as in ``Settings``, of the container that is copied.

    Atomic, durable. Raises ``InvalidArgument`` (there is such a container already; a name), ``Conflict`` (an earlier copy did not end, and
    ``resume`` does not say), ``SegmentNotFound``, ``ChunksMissing``, ``Damaged`` (a chunk is not what its record says),
    ``RootUnavailable`` (an executor reaches something else under a root), ``OutcomeUnknown`` (no pin: nobody answered), ``NotOwner`` (a
    later copy took over), ``JobFailed``, and what opening raises. Retry: safe; with ``resume`` it goes on where it was.
    """
    run = OnSpark(spark, f"chunkstore copy {container}", progress)
    found = copy_on(
        run,
        root,
        new_root,
        container=container,
        new_container=new_container,
        segments=segments,
        resume=resume,
        no_pin=no_pin,
        dry_run=dry_run,
        width=run.width,
        settings=Settings(foreign_roots=tuple(foreign_roots)),
    )
    return spark.createDataFrame([found], SCHEMA)


def copy_on(
    run: Runner,
    root: str,
    new_root: str,
    *,
    container: str = "default",
    new_container: str | None = None,
    segments: Sequence[str] = (),
    resume: bool | None = None,
    no_pin: bool = False,
    dry_run: bool = False,
    width: int = 1,
    settings: Settings | None = None,
) -> CopyReport:
    """As ``copy``, by any runner, of which about ``width`` tasks run at one time."""
    for url, argument in ((root, "root"), (new_root, "new_root")):
        if url.lower().startswith("memory:"):
            raise InvalidArgument("a memory:// root lives in one process; Spark's tasks run in many", argument=argument)
    target = ContainerNames(container if new_container is None else new_container).container
    named = () if settings is None else settings.foreign_roots
    carrying = _Carrying(run, root, new_root, target, width, named)
    make = partial(
        import_file,
        new_root,
        root,
        segments,
        source_container=container,
        container=target,
        settings=settings,
        carry=carrying,
        carry_bytes=_LOAD_BYTES,
    )
    if dry_run or no_pin:
        return _report(make(dry_run=dry_run), carrying)
    with ExitStack() as stack:
        options = parse_write_options({"path": root, "container": container}, streaming=False)
        door = stack.enter_context(AskerDoor(options, stream=False))
        name = _pin_name(new_root, target, segments)
        with open_replica(root, container=container, settings=settings) as replica:
            there = next((pin for pin in replica.pins() if pin.name == name), None)
        if there is not None and resume is None:
            what = f"a copy to container {target!r} of this root, as of lsn {there.lsn}, did not end (pin {name}); earlier copies"
            remedy = "resume=True (--resume) goes on with it, and leaves out what came since; resume=False (--anew) begins as of now"
            raise Conflict(what, expected=0, found=1, remedy=remedy)
        if there is not None and not resume:
            door.unpin(name)
            there = None
        pin = there or door.pin(name, f"jobs.copy to container {target!r}", _PIN_S)
        try:
            report = make(lsn=pin.lsn)
        except (InvalidArgument, ChunksMissing):
            door.unpin(name)  # nothing was begun that could go on
            raise
        door.unpin(name)
        return _report(report, carrying)


def _pin_name(new_root: str, target: str, segments: Sequence[str]) -> str:
    """The same for the same copy."""
    text = "\0".join((new_root, target, *sorted(segments)))
    return f"spark-copy-{blake2b(text.encode(), digest_size=8).hexdigest()}"


def _report(found: RestoreReport, carrying: _Carrying) -> CopyReport:
    if found.missing:
        missing = [item._asdict() for item in found.missing]
        raise ChunksMissing(missing, count=found.missing_chunks, chunks=found.chunks)
    sums = found.lsn, found.segments, found.chunks, found.size_bytes, found.rows
    return CopyReport(found.container, *sums, carrying.tasks, not found.dry_run)


class _Carrying:
    """A ``Carry`` by a runner."""

    def __init__(
        self, run: Runner, root: str, new_root: str, container: str, width: int, foreign_roots: tuple[str, ...]
    ) -> None:
        self._run = run
        self._root = root
        self._new_root = new_root
        self._container = container
        self._width = width
        self._foreign_roots = foreign_roots
        self.tasks = 0

    def __call__(self, source: Source, place: Place, items: Sequence[ChunkToBring]) -> list[Brought]:
        size_bytes = sum(item.chunk.length for item in items)
        if size_bytes < MIB:
            return carry_here(source, place, items)  # nothing that a task would be worth
        roots = tuple(source.look(known_roots).items())
        here = Site(self._root, source.names.container, source.origin.container, roots, self._foreign_roots)
        there = Site(self._new_root, self._container, uuid_at(place.storage, self._container))
        groups = grouped(items, [item.chunk.length for item in items], self._width, _TASK_BYTES)
        tasks = [_Task(here, there, tuple(group)) for group, _ in groups]
        self.tasks += len(tasks)
        return list(chain.from_iterable(self._run(_bring, tasks, [size for _, size in groups])))


def _bring(task: _Task, _attempt: Attempt) -> list[Brought]:
    """On an executor. Raises as ``bring_chunk``, and what opening the roots raises."""
    with task.source.opened() as source, task.target.opened() as target:
        remote = source.capabilities.remote or target.capabilities.remote
        settings = Settings(io_workers=_WORKERS if remote else 1)
        with NewPlace(target, ContainerNames(task.target.container), settings) as place:
            size_bytes = sum(item.chunk.length for item in task.items)
            return side_by_side(place, partial(_bring_one, place, source), task.items, size_bytes)


def _bring_one(place: Place, source: ChunkStorage, item: ChunkToBring) -> Brought:
    try:
        return bring_chunk(place, source, item)
    except ChunkExists:
        # Another attempt of this task has written it, or is writing it yet: take it if it is whole, else another name.
        other = tuple(identity[:-_RANDOM_BYTES] + runtime.token(_RANDOM_BYTES) for identity in item.fresh)
        return bring_chunk(place, source, item._replace(former=item.fresh, fresh=other))
