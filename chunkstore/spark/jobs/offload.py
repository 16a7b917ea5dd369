"""``jobs.offload``: files, or the rows of a frame, as ledgers of a topic (PIP-76 offload segments); executors write them.

Files go in parts of some GiB, each a commit: a job that was killed continues after the last stored part. What a job has done is compared
with what it is asked for; anything but more files after those is refused.
* ``lines``: each file is a ledger, each line an entry; ``files``: all files are one ledger, each an entry.
* A frame with ``ledger``, ``entry`` and ``payload`` is written as it is; one with ``value`` has a ledger for each of its partitions."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from chunkstore import runtime
from chunkstore.config import MIB
from chunkstore.engine.owner import Owner, end_session
from chunkstore.errors import ChunkstoreError, Conflict, Damaged, InvalidArgument
from chunkstore.registry import Root, root_url
from chunkstore.spark.chunks_out import Offloaded, Output, WritePlan, write_task
from chunkstore.spark.committing import Job, commit_job, done_so_far, session_of, was_done
from chunkstore.spark.jobs.running import Attempt, OnSpark, Progress, Runner, grouped, run_frame, this_attempt
from chunkstore.spark.jobs.source_files import SourceFile, find_files, foreign, open_system
from chunkstore.spark.mapping import TOLD, telling
from chunkstore.spark.once import NOTHING, Content, something_else
from chunkstore.spark.owners import OwnerClient
from chunkstore.spark.write_options import Columns, WriteOptions, check_columns, parse_write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SCHEMA", "OffloadedPart", "offload", "offload_files"]

_LOG: Final = logging.getLogger("chunkstore.spark")
SCHEMA: Final = "part long, state string, files long, first_ledger long, last_ledger long, entries long, size_bytes long, segments long"
_PART_BYTES: Final = 16 << 30
_TASK_BYTES: Final = 256 * MIB
_READ_BYTES: Final = 8 * MIB
_FILE_BYTES_MAX: Final = 128 * MIB
"""An entry's limit."""
_KINDS: Final = ("lines", "files")
_NUMBER_MAX: Final = (1 << 63) - 1


class OffloadedPart(NamedTuple):
    """What one commit made visible. ``state``: done; before, all that earlier runs have done, up to this part; planned, of a dry run, which
    knows no entries of lines. ``size_bytes``: of the source. ``segments``: offload segments (planned: at least)."""

    part: int
    state: str
    files: int
    first_ledger: int | None
    last_ledger: int | None
    entries: int | None
    size_bytes: int | None
    segments: int | None


_Written: TypeAlias = tuple[Output | Offloaded | Content, ...]
"""What a task returns."""


class _Item(NamedTuple):
    """A file, and where its entries go."""

    file: SourceFile
    ledger: int
    entry: int


class _Step(NamedTuple):
    """What one commit says of its job. ``before``, ``after``: as of ``judge_job``."""

    name: str | None
    number: int
    before: bytes
    after: bytes


class _Task(NamedTuple):
    plan: WritePlan
    kind: str
    items: tuple[_Item, ...]


def offload(
    spark: SparkSession,
    source: DataFrame | str | Sequence[str],
    root: Root,
    topic: str,
    *,
    container: str = "default",
    entries: str = "lines",
    ledger: int = 0,
    order_by: str | None = None,
    job: str | None = None,
    chunk_bytes: int = 64 * MIB,
    part_bytes: int = _PART_BYTES,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> DataFrame:
    """Write files, or a frame's rows, to ledgers of ``topic``, from number ``ledger`` on. A frame with a row (``OffloadedPart``) for each
    commit.

    ``source``: paths and URLs of files and directories (``entries``: what an entry is, ``lines`` or ``files``), or a frame: with columns
    ``ledger``, ``entry``, ``payload`` as the sink takes them, or with ``value`` (and no other column but ``order_by``), where each
    partition that has rows becomes a ledger. ``order_by``: sort by that column; then ledgers and entries are in its order. ``chunk_bytes``:
    of an offload segment; ``part_bytes``: of files that go into one commit. ``job``: the name under which the container remembers what is
    done; of files it is made of their names, lengths and times, and of how they are to be written, unless it is given; a frame that has
    none is written once more, or refused because its ledgers are there. Under a name of your own, files that come after those that are
    done are gone on with; other files, lengths and times are refused; of a frame, whose rows no one compares, another topic or
    ``ledger``. ``dry_run``: how much there is; nothing is asked or written.

    Each part is atomic and durable. Raises ``InvalidArgument``, ``Conflict`` (a ledger is there already; a file changed; ``job`` has done
    something else; somebody else writes the topic), ``ContainerNotFound``, ``RootUnavailable``, ``OutcomeUnknown`` (no one answered),
    ``StorageUnavailable`` (a file, too), ``StorageFull``, ``JobFailed``. Retry: safe, and goes on after the last part, with a ``job`` or
    files.
    """
    run = OnSpark(spark, f"chunkstore offload {topic}", progress)
    given = {"path": root_url(root), "container": container, "topic": topic, "chunkBytes": str(chunk_bytes)}
    options = parse_write_options(given, streaming=False)
    if not isinstance(source, str | Sequence):
        parts = [_offload_frame(source, options, ledger, order_by, job, dry_run=dry_run)]
    else:
        paths = [source] if isinstance(source, str) else list(source)
        if order_by is not None:
            raise InvalidArgument("files are in the order of their names; order_by is for frames", argument="order_by")
        found = find_files(paths)
        parts = offload_files(
            run, found, options, kind=entries, ledger=ledger, job=job, part_bytes=part_bytes, width=run.width, dry_run=dry_run
        )  # fmt: skip
    return spark.createDataFrame(parts, SCHEMA)


# ---- files


def offload_files(
    run: Runner,
    files: Sequence[SourceFile],
    options: WriteOptions,
    *,
    kind: str = "lines",
    ledger: int = 0,
    job: str | None = None,
    part_bytes: int = _PART_BYTES,
    width: int = 1,
    dry_run: bool = False,
) -> list[OffloadedPart]:
    """As ``offload``, of files, by any runner, of which about ``width`` tasks run at one time."""
    items = _place(files, kind, ledger)
    if type(part_bytes) is not int or part_bytes < 1:
        text = f"part_bytes must be a number of bytes above 0, not {part_bytes!r}"
        raise InvalidArgument(text, argument="part_bytes")
    if dry_run:
        parts = enumerate(_cut(items, part_bytes))
        return [_planned(number, kind, part, options.chunk_bytes) for number, part in parts]
    digests = _digests(files, options, kind, ledger)
    name = job if job is not None else _name_of(files, options, kind, ledger, part_bytes)
    done: list[OffloadedPart] = []
    with OwnerClient(options, claims=True) as owner:
        last, count, before = _done_before(owner, name, digests)
        if count:
            there = _planned(last, kind, items[:count], options.chunk_bytes)
            done.append(there._replace(state="before", segments=None))
        for number, part in enumerate(_cut(items[count:], part_bytes), last + 1):

            def write(plan: WritePlan, part: Sequence[_Item] = part) -> list[_Written]:
                sizes = [item.file.size_bytes for item in part]
                groups = grouped(part, sizes, width, _TASK_BYTES)
                tasks = [_Task(plan, kind, tuple(group)) for group, _ in groups]
                return run(_write_files, tasks, [size for _, size in groups])

            count += len(part)
            step = _Step(name, number, before, digests[count])
            size_bytes = sum(item.file.size_bytes for item in part)
            done.append(_done(number, _commit(owner, options, step, write), len(part), size_bytes))
            before = step.after
    return done


def _place(files: Sequence[SourceFile], kind: str, ledger: int) -> list[_Item]:
    if kind not in _KINDS:
        raise InvalidArgument(f"entries are lines or files, not {kind!r}", argument="entries")
    _check_ledger(ledger)
    items = []
    for number, file in enumerate(files):
        if kind == "files" and file.size_bytes > _FILE_BYTES_MAX:
            text = f"{file.url} has {file.size_bytes} bytes; an entry has at most {_FILE_BYTES_MAX}: offload its lines"
            raise InvalidArgument(text, argument="source")
        items.append(_Item(file, ledger + number, 0) if kind == "lines" else _Item(file, ledger, number))
    return items


def _cut(items: Sequence[_Item], part_bytes: int) -> list[list[_Item]]:
    return [part for part, _ in grouped(items, [item.file.size_bytes for item in items], 0, part_bytes)]


def _done_before(owner: Owner, name: str, digests: Sequence[bytes]) -> tuple[int, int, bytes]:
    """The last part that earlier runs have committed under this name, how many of these files that was, and the digest of them.

    Raises ``Conflict``: others."""
    row = done_so_far(owner, name)
    if row is None:
        return -1, 0, NOTHING
    if row.run in digests:
        return row.number, digests.index(row.run), row.run
    raise something_else(name, digests[-1], row.run)


def _check_ledger(ledger: object) -> None:
    if type(ledger) is not int or not 0 <= ledger <= _NUMBER_MAX - (1 << 32):
        raise InvalidArgument(f"ledger must be a whole number from 0 on, not {ledger!r}", argument="ledger")


def _digests(files: Sequence[SourceFile], options: WriteOptions, kind: str, ledger: int) -> list[bytes]:
    """Of none of the files, of the first, of the first two, and so on; and of where their entries go."""
    digest = blake2b(repr((options.target, kind, ledger)).encode(), digest_size=len(NOTHING))
    found = [digest.digest()]
    for file in files:
        digest.update(repr(tuple(file)).encode())
        found.append(digest.digest())
    return found


def _name_of(files: Sequence[SourceFile], options: WriteOptions, kind: str, ledger: int, part_bytes: int) -> str:
    """The same for the same files, written the same way."""
    digest = blake2b(repr((options.target, kind, ledger, part_bytes)).encode(), digest_size=16)
    for file in files:
        digest.update(repr(tuple(file)).encode())
    return f"offload {digest.hexdigest()}"


def _planned(number: int, kind: str, items: Sequence[_Item], chunk_bytes: int) -> OffloadedPart:
    size_bytes = sum(item.file.size_bytes for item in items)
    entries = len(items) if kind == "files" else None
    ends = items[0].ledger, items[-1].ledger
    count = -(-size_bytes // chunk_bytes)
    return OffloadedPart(number, "planned", len(items), ends[0], ends[1], entries, size_bytes, count)


def _done(number: int, written: Sequence[_Written], files: int, size_bytes: int | None) -> OffloadedPart:
    outputs = [item for one in written for item in one if isinstance(item, Offloaded)]
    ledgers = sorted(entries.ledger for item in outputs for entries in item.context.ranges)
    first, last = (ledgers[0], ledgers[-1]) if ledgers else (None, None)
    count = sum(item.rows for one in written for item in one if isinstance(item, Content))
    return OffloadedPart(number, "done", files, first, last, count, size_bytes, len(outputs))


def _commit(
    owner: Owner,
    options: WriteOptions,
    step: _Step,
    write: Callable[[WritePlan], list[_Written]],
) -> list[_Written]:
    """One part: a session, the tasks, and the commit that ends it. Whatever fails or is interrupted before, the session is ended."""
    name, number, before, after = step
    known = runtime.token(16) if name is None else repr((name, number)).encode()
    session_id = session_of(owner, f"spark {blake2b(known, digest_size=16).hexdigest()}")
    try:
        written = write(WritePlan(options, Columns(None, ledgers=True), owner.uuid, session_id))
        commit_job(owner, name, number, Job(session_id, tuple(written)), before=before, after=after)
    except BaseException:
        _give_up(owner, session_id)
        raise
    return written


def _give_up(owner: Owner, session_id: int) -> None:
    try:
        end_session(owner, session_id)
    except ChunkstoreError as error:
        text = f"session {session_id} could not be ended ({error.message}): run the same job again to continue"
        _LOG.warning(text)


def _write_files(task: _Task, attempt: Attempt) -> _Written:
    """On an executor. Raises as ``write_task``, and what reading a file raises."""
    batches = (batch for item in task.items for batch in _entries_of(item, task.kind))
    return tuple(write_task(batches, task.plan, attempt.id))


def _entries_of(item: _Item, kind: str) -> Iterator[pa.RecordBatch]:
    file, entry = item.file, item.entry
    with foreign(file.url):
        system, inner = open_system(file.url)
        with system.open_input_stream(inner, compression=None) as stream:
            payloads = (
                _lines_of(stream, file) if kind == "lines" else iter([pa.array([_whole(stream, file)], pa.binary())])
            )
            for payload in payloads:
                yield _batch(item.ledger, entry, payload)
                entry += len(payload)


def _whole(stream: Any, file: SourceFile) -> bytes:
    data: bytes = stream.read(file.size_bytes + 1)
    _check_size(file, len(data))
    return data


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


def _batch(ledger: int, entry: int, payload: pa.Array) -> pa.RecordBatch:
    count = len(payload)
    ledgers = pa.repeat(pa.scalar(ledger, pa.int64()), count)
    entries = pa.array(range(entry, entry + count), pa.int64())
    return pa.record_batch([ledgers, entries, payload], names=["ledger", "entry", "payload"])


# ---- frames


def _offload_frame(
    frame: DataFrame,
    options: WriteOptions,
    ledger: int,
    order_by: str | None,
    job: str | None,
    *,
    dry_run: bool,
) -> OffloadedPart:
    _check_ledger(ledger)
    plain = "value" in frame.columns
    chosen = ["value"] if plain else ["ledger", "entry", "payload"]
    ordered = [] if order_by is None else [order_by]
    if set(frame.columns) != {*chosen, *ordered} or (ordered and not plain):
        text = (
            f"the frame has columns {', '.join(frame.columns)}: wanted are value (and what order_by names), or ledger, entry and payload, "
            "in their order; drop the other columns"
        )
        raise InvalidArgument(text, argument="source")
    kinds = dict(frame.dtypes)
    given = {"ledger": "bigint", "entry": "bigint", "payload": kinds["value"]} if plain else kinds
    check_columns(list(given.items()), options)
    if dry_run:
        sums = frame.selectExpr(
            "count(1) AS entries", f"coalesce(sum(octet_length({chosen[-1]})), 0) AS size"
        ).collect()[0]
        count = -(-sums.size // options.chunk_bytes)
        return OffloadedPart(0, "planned", 0, None, None, sums.entries, sums.size, count)
    if order_by is not None:
        frame = frame.repartitionByRange(order_by).sortWithinPartitions(order_by)
    place = repr((options.target, "frame", ledger if plain else None))
    step = _Step(job, 0, NOTHING, blake2b(place.encode(), digest_size=len(NOTHING)).digest())
    with OwnerClient(options, claims=True) as owner:
        if was_done(owner, job, 0, after=step.after):
            return OffloadedPart(0, "before", 0, None, None, None, None, None)

        def write(plan: WritePlan) -> list[_Written]:
            made = frame.select(*chosen).mapInArrow(
                telling(partial(_write_rows, plan, ledger if plain else None)), TOLD
            )
            rows = run_frame(made, f"chunkstore offload {options.target}")
            return [pickle.loads(row.message) for row in rows]  # noqa: S301  (of our own tasks)

        return _done(0, _commit(owner, options, step, write), 0, None)


def _write_rows(plan: WritePlan, first_ledger: int | None, batches: Iterator[pa.RecordBatch]) -> _Written:
    """On an executor. Raises as ``write_task``."""
    attempt = this_attempt()
    rows = batches if first_ledger is None else _numbered(batches, first_ledger + attempt.partition)
    return tuple(write_task(rows, plan, attempt.id))


def _numbered(batches: Iterable[pa.RecordBatch], ledger: int) -> Iterator[pa.RecordBatch]:
    entry = 0
    for batch in batches:
        yield _batch(ledger, entry, batch.column("value"))
        entry += batch.num_rows
