"""``jobs.offload``: files, or a frame's rows, as ledgers of a topic (PIP-76 offload segments), written by executors.

Files go in parts of some GiB, each a commit: a job that was killed continues after the last stored part. What a job has done is compared
with what it is asked for; anything but more files after those is refused. A frame is one commit."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypedDict, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from chunkstore import runtime
from chunkstore.config import MIB
from chunkstore.engine.owner import Owner, end_session
from chunkstore.errors import ChunkstoreError, Conflict, Damaged, InvalidArgument
from chunkstore.registry import Root, root_url
from chunkstore.spark.chunks_out import Content, Offloaded, Output, WritePlan, write_task
from chunkstore.spark.committing import NOTHING, Job, Version, commit, done_so_far, session_of, something_else, was_done
from chunkstore.spark.job_files import SourceFile, find_files, foreign, open_system
from chunkstore.spark.job_runner import OnSpark, this_task
from chunkstore.spark.owners import OwnerClient
from chunkstore.spark.runs import share
from chunkstore.spark.write_options import LEDGER_KINDS, Columns, WriteOptions, check_columns, parse_write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "PART_BYTES",
    "SCHEMA",
    "SEGMENT_BYTES",
    "FrameJob",
    "OffloadJob",
    "OffloadOptions",
    "OffloadedPart",
    "offload",
]

_LOG: Final = logging.getLogger("chunkstore.spark")
SCHEMA: Final = "part long, state string, files long, first_ledger long, last_ledger long, entries long, size_bytes long, segments long"
PART_BYTES: Final = 16 << 30
SEGMENT_BYTES: Final = 64 * MIB
_TASK_BYTES: Final = 256 * MIB
_READ_BYTES: Final = 8 * MIB
_FILE_BYTES_MAX: Final = 128 * MIB
"""An entry's limit."""
_KINDS: Final = ("lines", "files")
_NUMBER_MAX: Final = (1 << 63) - 1


class OffloadedPart(NamedTuple):
    """What one commit made visible. ``state``: done; before, all that earlier runs have done, up to this part; planned, of a dry run, which
    knows no entries of lines. ``size_bytes``: of the files, or of a planned frame. ``segments``: offload segments (planned: at least)."""

    part: int
    state: str
    files: int
    first_ledger: int | None
    last_ledger: int | None
    entries: int | None
    size_bytes: int | None
    segments: int | None


class OffloadOptions(TypedDict, total=False):
    """The keyword arguments of ``offload``. ``entries``: what an entry is, ``lines`` (each file is a ledger) or ``files`` (all are one
    ledger). ``ledger``: the number of the first one. ``chunk_bytes``: of an offload segment; ``part_bytes``: of files that go into one
    commit, about. ``job``: the name under which the container remembers what is done; without one it is made of the files' names, lengths
    and times, and of these arguments; a frame without one is not remembered."""

    container: str
    entries: str
    ledger: int
    job: str | None
    chunk_bytes: int
    part_bytes: int


_Written: TypeAlias = tuple[Output | Offloaded | Content, ...]
"""What a task returns."""


class _Item(NamedTuple):
    """A file, and where its entries go."""

    file: SourceFile
    ledger: int
    entry: int


class _Task(NamedTuple):
    plan: WritePlan
    kind: str
    items: Sequence[_Item]


def offload(
    spark: SparkSession,
    source: DataFrame | str | Sequence[str],
    root: Root,
    topic: str,
    *,
    order_by: str | None = None,
    dry_run: bool = False,
    progress: Callable[[int], object] | None = None,
    **options: Unpack[OffloadOptions],
) -> DataFrame:
    """Write files, or a frame's rows, to ledgers of ``topic``. A frame with a row (``OffloadedPart``) for each commit.

    ``source``: paths and URLs of files and directories; or a frame: with columns ``ledger``, ``entry``, ``payload`` as the sink takes
    them, or with ``value`` (and no other column but ``order_by``), where each partition that has rows becomes a ledger. ``order_by``: sort
    by that column; then ledgers and entries are in its order. ``options``: see ``OffloadOptions``. ``dry_run``: how much there is; nothing
    is asked or written. ``progress``: is told of bytes of files. Under a ``job`` name of your own, files that come after those that are
    done are gone on with; other files, lengths and times are refused; of a frame, whose rows no one compares, another topic or ``ledger``.

    Each part is atomic and durable. Raises ``InvalidArgument``, ``Conflict`` (a ledger is there already; a file changed; ``job`` has done
    something else; somebody else writes the topic), ``ContainerNotFound``, ``RootUnavailable``, ``OutcomeUnknown`` (no one answered),
    ``StorageUnavailable`` (a file, too), ``StorageFull``, ``JobFailed``. Retry: safe with files or a ``job``, and goes on after the last
    part.
    """
    job: OffloadJob | FrameJob
    if not isinstance(source, str | Sequence):
        job = FrameJob(source, root, topic, order_by, **options)
    elif order_by is not None:
        raise InvalidArgument("files are in the order of their names; order_by is for frames", argument="order_by")
    else:
        job = OffloadJob(source, root, topic, **options)
    parts = job.plan() if dry_run else job.run(OnSpark(spark, f"chunkstore offload {topic}", progress))
    return spark.createDataFrame(parts, SCHEMA)


class OffloadJob:
    """Files that are to be offloaded, and how. Raises ``InvalidArgument``, and as ``find_files``."""

    def __init__(self, source: str | Sequence[str], root: Root, topic: str, **options: Unpack[OffloadOptions]) -> None:
        self._kind = options.get("entries", "lines")
        self._options, ledger = _parsed(root, topic, options)
        part_bytes = options.get("part_bytes", PART_BYTES)
        if self._kind not in _KINDS:
            raise InvalidArgument(f"entries are lines or files, not {self._kind!r}", argument="entries")
        if type(part_bytes) is not int or part_bytes < 1:
            text = f"part_bytes must be a number of bytes above 0, not {part_bytes!r}"
            raise InvalidArgument(text, argument="part_bytes")
        self._part_bytes = part_bytes
        self._items: list[_Item] = []
        place = blake2b(repr((topic, self._kind, ledger)).encode(), digest_size=len(NOTHING))
        self._digests = [place.digest()]
        """Of where entries go and of none of the files, of the first one, of the first two, and so on."""
        for number, file in enumerate(find_files([source] if isinstance(source, str) else source)):
            if self._kind == "files" and file.size_bytes > _FILE_BYTES_MAX:
                text = (
                    f"{file.url} has {file.size_bytes} bytes; an entry has at most {_FILE_BYTES_MAX}: offload its lines"
                )
                raise InvalidArgument(text, argument="source")
            each = (ledger + number, 0) if self._kind == "lines" else (ledger, number)
            self._items.append(_Item(file, *each))
            place.update(repr(tuple(file)).encode())
            self._digests.append(place.digest())
        job = options.get("job")
        self._name = job if job is not None else f"offload {self._digests[-1].hex()} {part_bytes}"

    def plan(self) -> list[OffloadedPart]:
        """The parts of a dry run."""
        parts = self._parts(self._items)
        return [self._planned(number, part) for number, part in enumerate(parts)]

    def run(self, on: OnSpark) -> list[OffloadedPart]:
        """Offload what is not stored yet. Raises as ``offload``."""
        done: list[OffloadedPart] = []
        with OwnerClient(self._options, claims=True) as owner:
            last, count = self._done_before(owner)
            if count:
                there = self._planned(last, self._items[:count])
                done.append(there._replace(state="before", segments=None))
            for number, part in enumerate(self._parts(self._items[count:]), last + 1):
                before = self._digests[count] if count else NOTHING
                count += len(part)
                version = Version(self._name, number, owner.uuid, before, self._digests[count])
                done.append(_done(number, self._write(on, owner, version, part), len(part), _size(part)))
        return done

    def _parts(self, items: Sequence[_Item]) -> list[Sequence[_Item]]:
        sizes = [item.file.size_bytes for item in items]
        return [items[begin:end] for begin, end in share(sizes, max(1, -(-sum(sizes) // self._part_bytes)))]

    def _done_before(self, owner: Owner) -> tuple[int, int]:
        """The last part that earlier runs have committed, and how many of these files that was. Raises ``Conflict``: others."""
        row = done_so_far(owner, Version(self._name, 0, owner.uuid))
        if row is None:
            return -1, 0
        if row.run in self._digests:
            return row.number, self._digests.index(row.run)
        raise something_else(self._name, self._digests[-1], row.run)

    def _planned(self, number: int, items: Sequence[_Item]) -> OffloadedPart:
        size_bytes = _size(items)
        entries = len(items) if self._kind == "files" else None
        count = -(-size_bytes // self._options.chunk_bytes)
        ends = items[0].ledger, items[-1].ledger
        return OffloadedPart(number, "planned", len(items), *ends, entries, size_bytes, count)

    def _write(self, on: OnSpark, owner: Owner, version: Version, part: Sequence[_Item]) -> list[_Written]:
        """One part: the tasks, and the commit of what they wrote."""
        sizes = [item.file.size_bytes for item in part]
        groups = [part[begin:end] for begin, end in share(sizes, max(4 * on.width, -(-sum(sizes) // _TASK_BYTES)))]
        with _session(owner, self._options, repr((self._name, version.version)).encode()) as plan:
            tasks = [_Task(plan, self._kind, group) for group in groups]
            written = on(_write_files, tasks, [_size(group) for group in groups])
            commit(owner, version, Job(plan.session_id, tuple(written)))
        return written


class FrameJob:
    """A frame's rows that are to be offloaded, and how; see ``offload``. Raises ``InvalidArgument``."""

    def __init__(
        self, frame: DataFrame, root: Root, topic: str, order_by: str | None, **options: Unpack[OffloadOptions]
    ) -> None:
        self._options, ledger = _parsed(root, topic, options)
        self._name = options.get("job")
        plain = "value" in frame.columns
        chosen = ["value"] if plain else list(LEDGER_KINDS)
        ordered = [] if order_by is None else [order_by]
        if set(frame.columns) != {*chosen, *ordered} or (ordered and not plain):
            text = (
                f"the frame has columns {', '.join(frame.columns)}: wanted are value (and what order_by names), or ledger, entry and "
                "payload, in their order; drop the other columns"
            )
            raise InvalidArgument(text, argument="source")
        kinds = dict(frame.dtypes)
        if plain:
            kinds = {"ledger": "bigint", "entry": "bigint", "payload": kinds["value"]}
        check_columns(list(kinds.items()), self._options)
        if ordered:
            frame = frame.repartitionByRange(*ordered).sortWithinPartitions(*ordered)
        self._frame = frame.select(*chosen)
        self._first = ledger if plain else None
        """The ledger of the first partition, where rows do not name theirs."""

    def plan(self) -> list[OffloadedPart]:
        """The parts of a dry run, which reads the frame."""
        sums = f"coalesce(sum(octet_length({self._frame.columns[-1]})), 0) AS size"
        row = self._frame.selectExpr("count(1) AS entries", sums).collect()[0]
        count = -(-row.size // self._options.chunk_bytes)
        return [OffloadedPart(0, "planned", 0, None, None, row.entries, row.size, count)]

    def run(self, on: OnSpark) -> list[OffloadedPart]:
        """Offload all of it, unless the job was done before. Raises as ``offload``."""
        place = repr((self._options.target, "frame", self._first)).encode()
        after = blake2b(place, digest_size=len(NOTHING)).digest()
        with OwnerClient(self._options, claims=True) as owner:
            version = Version(self._name, 0, owner.uuid, NOTHING, after)
            if was_done(owner, version):
                return [OffloadedPart(0, "before", 0, None, None, None, None, None)]
            known = runtime.token(16) if self._name is None else repr((self._name, 0)).encode()
            with _session(owner, self._options, known) as plan:
                if self._name is None:
                    version = version._replace(version=plan.session_id)
                frame = self._frame.mapInArrow(partial(_write_rows, plan, self._first), "message binary")
                written: list[_Written] = [pickle.loads(row.message) for row in on.collect(frame)]  # noqa: S301  (of our own tasks)
                commit(owner, version, Job(plan.session_id, tuple(written)))
        return [_done(0, written, 0, None)]


def _parsed(root: Root, topic: str, options: OffloadOptions) -> tuple[WriteOptions, int]:
    """Where to, and the number of the first ledger. Raises ``InvalidArgument``."""
    given = {"path": root_url(root), "container": options.get("container", "default"), "topic": topic}
    given["chunkBytes"] = str(options.get("chunk_bytes", SEGMENT_BYTES))
    ledger = options.get("ledger", 0)
    if type(ledger) is not int or not 0 <= ledger <= _NUMBER_MAX - (1 << 32):
        raise InvalidArgument(f"ledger must be a whole number from 0 on, not {ledger!r}", argument="ledger")
    return parse_write_options(given, streaming=False), ledger


@contextmanager
def _session(owner: Owner, options: WriteOptions, known: bytes) -> Iterator[WritePlan]:
    """A session whose commit ends it. Whatever fails or is interrupted before, it is ended."""
    session_id = session_of(owner, f"spark {blake2b(known, digest_size=16).hexdigest()}")
    try:
        yield WritePlan(options, Columns(None, ledgers=True), owner.uuid, session_id)
    except BaseException:
        try:
            end_session(owner, session_id)
        except ChunkstoreError as error:
            text = f"session {session_id} could not be ended ({error.message}): run the same job again to continue"
            _LOG.warning(text)
        raise


def _size(items: Sequence[_Item]) -> int:
    return sum(item.file.size_bytes for item in items)


def _done(number: int, written: Sequence[_Written], files: int, size_bytes: int | None) -> OffloadedPart:
    outputs = [item for one in written for item in one if isinstance(item, Offloaded)]
    ledgers = sorted(entries.ledger for item in outputs for entries in item.context.ranges)
    first, last = (ledgers[0], ledgers[-1]) if ledgers else (None, None)
    count = sum(item.rows for one in written for item in one if isinstance(item, Content))
    return OffloadedPart(number, "done", files, first, last, count, size_bytes, len(outputs))


# ---- on executors


def _write_files(task: _Task, attempt_id: int) -> _Written:
    """Raises as ``write_task``, and what reading a file raises."""
    batches = (batch for item in task.items for batch in _entries_of(item, task.kind))
    return tuple(write_task(batches, task.plan, attempt_id))


def _entries_of(item: _Item, kind: str) -> Iterator[pa.RecordBatch]:
    file, entry = item.file, item.entry
    with foreign(file.url):
        system, inner = open_system(file.url)
        with system.open_input_stream(inner, compression=None) as stream:
            for payload in _lines_of(stream, file) if kind == "lines" else _whole(stream, file):
                yield _batch(item.ledger, entry, payload)
                entry += len(payload)


def _batch(ledger: int, entry: int, payload: pa.Array) -> pa.RecordBatch:
    count = len(payload)
    ledgers = pa.repeat(pa.scalar(ledger, pa.int64()), count)
    entries = pa.array(range(entry, entry + count), pa.int64())
    return pa.record_batch([ledgers, entries, payload], names=["ledger", "entry", "payload"])


def _write_rows(plan: WritePlan, first: int | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One task of a frame; what it wrote is its one row. ``first``: the ledger of the first partition. Raises as ``write_task``."""
    task = this_task()
    rows = batches if first is None else _numbered(batches, first + task.partitionId())
    message = pickle.dumps(tuple(write_task(rows, plan, task.taskAttemptId())))
    yield pa.record_batch([pa.array([message], pa.binary())], names=["message"])


def _numbered(batches: Iterable[pa.RecordBatch], ledger: int) -> Iterator[pa.RecordBatch]:
    entry = 0
    for batch in batches:
        yield _batch(ledger, entry, batch.column("value"))
        entry += batch.num_rows


def _whole(stream: Any, file: SourceFile) -> Iterator[pa.Array]:
    data: bytes = stream.read(file.size_bytes + 1)
    _check_size(file, len(data))
    yield pa.array([data], pa.binary())


def _lines_of(stream: Any, file: SourceFile) -> Iterator[pa.Array]:
    """The lines without their newlines, in arrays of what is read at one time. Raises ``Damaged``: one is longer than an entry may be."""
    held, size_bytes = list[bytes](), 0
    held_bytes = 0
    while data := stream.read(_READ_BYTES):
        size_bytes += len(data)
        end = data.rfind(b"\n") + 1
        if not end:
            held.append(data)
            held_bytes += len(data)
            if held_bytes > _FILE_BYTES_MAX:
                text = f"a line of more than {_FILE_BYTES_MAX} bytes"
                raise Damaged(text, object=file.url, position=size_bytes - held_bytes)
            continue
        text_ = b"".join([*held, memoryview(data)[: end - 1]])
        yield _split(text_)
        held, held_bytes = ([data[end:]], len(data) - end) if end < len(data) else ([], 0)
    if held:
        yield _split(b"".join(held))
    _check_size(file, size_bytes)


def _split(text: bytes) -> pa.Array:
    return pc.split_pattern(pa.array([text], pa.binary()), b"\n").values


def _check_size(file: SourceFile, size_bytes: int) -> None:
    if size_bytes != file.size_bytes:
        remedy = "files must not change while they are offloaded; run it again"
        raise Conflict(f"the length of {file.url}", expected=file.size_bytes, found=size_bytes, remedy=remedy)
