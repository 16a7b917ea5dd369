"""A run of ``to_parquet``: what is new since the last one becomes files of a lake, once (decision 0029). Plain Python, without Spark.

Promises: a row of the container says which files count, and up to which positions they reach, by one commit that expects the row as the
run has found it. So of two runs at once one is refused, and whatever is killed, no row of the container is in two files that count, or in
none. Leaves out: reading and writing rows, which ``write`` does (``lake_tasks``); Spark (``jobs.parquet``).

Assumes: nobody but this changes files that count, or the row; and where a row is, the bytes below its positions are that history's: they
were committed before it, which is looked at before the commit. A restore in place between that look at history and the commit breaks
that; ``Stream`` refuses to go on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from chunkstore import runtime
from chunkstore.changes import TablePut
from chunkstore.config import GIB, MIB, Settings
from chunkstore.errors import ChunkstoreError, Conflict, InvalidArgument, RolledBack, Unsupported
from chunkstore.metadata.keys import SINKS_NAMESPACE
from chunkstore.metadata.sinks import LAKE_URL_BYTES_MAX, LakeRow, decode_lake, encode_lake
from chunkstore.names import ContainerNames, utf8_bytes
from chunkstore.registry import open_storage
from chunkstore.replica import Replica
from chunkstore.spark.lake_files import (
    Commit,
    FileTask,
    LakeFile,
    LakeFolder,
    Manifest,
    Pointer,
    check_container,
    check_lake_name,
    lake_key,
    pointer_of,
)
from chunkstore.spark.options import STREAM_OPTIONS, ReadOptions, known_values, parse_options, whole_number
from chunkstore.spark.owners import AskerDoor
from chunkstore.spark.positions import StreamOffset
from chunkstore.spark.runs import ReadTask
from chunkstore.spark.sharing import Limit
from chunkstore.spark.stream import Stream
from chunkstore.spark.write_options import WriteOptions, parse_write_options
from chunkstore.storage import ChunkStorage

__all__ = ["LakeJob", "Write", "new_bytes", "parse_job", "reader_options", "run_job"]

_LOG: Final = logging.getLogger("chunkstore.spark")
_FILE_BYTES: Final = 128 * MIB
_FILE_BYTES_MAX: Final = GIB
_COMMIT_BYTES: Final = 16 * GIB
_TOKEN_BYTES: Final = 8
_OWNERS: Final = ("takeOver", "ownerIdleS")
_OPTIONS: Final = (
    *(name for name in STREAM_OPTIONS if name not in ("path", "container")),
    *_OWNERS,
    "fileBytes",
)
_OF_A_RUN: Final = (
    *("minPartitions", "maxBytesPerPartition", "startingOffsets", "startingTimestamp", "failOnDataLoss"),
    *("maxBytesPerTrigger", "maxOffsetsPerTrigger", "pinProgress", "foreignRoots", *_OWNERS, "fileBytes"),
)
"""These may differ from run to run; all others say what the rows are."""

Write: TypeAlias = Callable[[dict[str, Any], dict[str, Any], FileTask], Sequence[LakeFile]]
"""Writes the rows between two offsets of the lake's stream, and tells the files."""


class LakeJob(NamedTuple):
    """What a run is about. ``source``: the reader's options that say what the rows are; ``reader``: those for planning, ``writer`` those
    for asking; ``url``: where the files go, as it was given."""

    name: str
    url: str
    source: Mapping[str, str]
    reader: ReadOptions
    writer: WriteOptions
    file_bytes: int


def parse_job(root: str, container: str, name: str, url: str, given: Mapping[str, object]) -> LakeJob:
    """Check what is given for a run; ``given``: options by their names. Raises ``InvalidArgument``, ``Unsupported``."""
    check_lake_name(name)
    if not isinstance(url, str) or not url:
        raise InvalidArgument("where do the files go? Give a URL, such as file:///srv/lakes", argument="path")
    if url.lower().startswith("memory:"):
        raise Unsupported("files in memory:// are seen by one process; Spark reads from many", feature="memory")
    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in given.items()}
    values = known_values(texts, _OPTIONS)
    where = {"path": root, "container": container}
    planning = {key: value for key, value in values.items() if key not in (*_OWNERS, "fileBytes")}
    if "startingTimestamp" not in planning:
        planning.setdefault("startingOffsets", "earliest")
    asking = {key: value for key, value in values.items() if key in _OWNERS}
    return LakeJob(
        name,
        url,
        {key: value for key, value in values.items() if key not in _OF_A_RUN},
        parse_options({**planning, **where}, stream=True),
        parse_write_options({**asking, **where}, streaming=False),
        whole_number(values, "fileBytes", 1, _FILE_BYTES_MAX) or _FILE_BYTES,
    )


def reader_options(job: LakeJob) -> dict[str, str]:
    """Of the batch reader that reads this job's rows."""
    options = {"path": job.reader.path, "container": job.reader.container, **job.source}
    options["failOnDataLoss"] = str(job.reader.fail_on_data_loss).lower()
    options["minPartitions"] = str(job.reader.min_partitions)
    options["foreignRoots"] = " ".join(job.reader.foreign_roots)
    if job.reader.partition_bytes is not None:
        options["maxBytesPerPartition"] = str(job.reader.partition_bytes)
    return options


def new_bytes(job: LakeJob, schema: str) -> dict[str, int]:
    """What a run would take now: bytes of the container, by segment or topic. Raises as ``run_job``; changes nothing."""
    with closing(_Run(job._replace(reader=replace(job.reader, pin_progress=False)), schema)) as run:
        begin, _ = run.begin()
        end = run.stream.latest(begin, Limit())
        return _sizes(run.stream.tasks(begin, end))


def run_job(job: LakeJob, schema: str, write: Write, *, clean: bool = False) -> list[LakeFile]:
    """Write what is new, as of now, and commit it: 16 GiB at a time, or ``maxBytesPerTrigger``. Returns the files.

    Raises ``Conflict`` (another run came first; the lake has other rows, columns or another place), ``RolledBack`` (see the module), what
    planning a stream raises (``SegmentTruncated``, ``SegmentNotFound``: rows were gone before they were written), what ``write`` raises,
    ``Damaged`` (a manifest; files that are not where this machine looks), ``OutcomeUnknown`` (the last commit may have happened, or may
    yet), and what storages raise. Each commit is atomic and durable. Retry: safe, it goes on from the last commit.
    """
    with closing(_Run(job, schema)) as run:
        run.take_over()
        written: list[LakeFile] = []
        while commit := run.step(write):
            written += commit.files
        if clean:
            run.clean()
        return written


class _Run:
    """One run. Everything is opened when it is made."""

    def __init__(self, job: LakeJob, schema: str) -> None:
        self._job = job
        self._schema = schema
        self._key = lake_key(job.name)
        self._storage = open_storage(job.url, Settings())
        self.stream = Stream(job.reader)
        try:
            self._door = AskerDoor(job.writer, stream=False)
        except BaseException:
            self._storage.close()
            raise
        self._container = self._door.uuid.hex()
        self._folder = LakeFolder(self._storage, job.name, self._container)
        self._seen: bytes | None = None
        """The token of the row that the stream's end was chosen for."""
        self._limit = Limit(job.reader.trigger_bytes or _COMMIT_BYTES, job.reader.trigger_rows)

    def close(self) -> None:
        self.stream.close()
        self._door.close()
        self._storage.close()

    def take_over(self) -> None:
        if self._job.writer.take_over:
            self._door.depose()

    def begin(self) -> tuple[dict[str, Any], _State | None]:
        """Where this run, or its next commit, begins; and what is there. It goes on to what was there at first; another run may have come
        further meanwhile."""
        state = self._state()
        token = b"" if state is None else state.row.token
        if token != self._seen:
            self.stream.freeze()
            self._seen = token
        if state is None:
            _check_place(self._storage, self._door.replica, self._job)
            return self.stream.initial(), None
        self._check_same(state)
        return state.manifest.offsets.to_json(), state

    def step(self, write: Write) -> Commit | None:
        """One commit; None: there is nothing new."""
        begin, state = self.begin()
        end = self.stream.latest(begin, self._limit)
        if state is not None and end == begin:
            return None
        number = 1 if state is None else state.row.number + 1
        token = runtime.token(_TOKEN_BYTES)
        task = FileTask(self._job.url, self._job.name, self._container, number, token.hex(), self._job.file_bytes)
        try:
            files = () if end == begin else tuple(write(begin, end, task))
            commit = Commit(number, token.hex(), files)
            self._folder.require([commit])
            newest = None if state is None else (state.manifest, pointer_of(state.row))
            manifest = self._folder.manifest_behind(newest, commit, StreamOffset.from_json(end))
            manifest = manifest._replace(source=self._job.source, schema=self._schema)
            self._require_history(manifest.offsets)
            pointer = self._folder.put(token.hex(), manifest)
        except BaseException:
            with suppress(ChunkstoreError):  # the next run that cleans takes what is left
                self._folder.drop(number, token.hex())
            raise
        self._commit(state, pointer)
        self._seen = token
        self.stream.commit(end)
        _LOG.info(
            "lake %r: commit %d, %d files, %d rows",
            self._job.name,
            number,
            len(files),
            sum(file.rows for file in files),
        )
        return commit

    def clean(self) -> None:
        state = self._state()
        if state is not None:
            count = self._folder.clean(self._folder.commits(state.manifest))
            _LOG.info("lake %r: %d leftovers deleted", self._job.name, count)

    def _state(self) -> _State | None:
        entry = self._door.row(self._key)
        if entry is None:
            return None
        row = decode_lake(entry.key, entry.value)
        check_container(self._job.name, row, self._door.uuid)
        return _State(entry.version, row, self._folder.manifest(pointer_of(row)))

    def _check_same(self, state: _State) -> None:
        job = self._job
        for what, expected, found in (
            ("the place of its files", state.row.url, self._storage.url),
            ("what its rows are", state.manifest.source, job.source),
            ("its columns", state.manifest.schema, self._schema),
        ):
            if expected != found:
                remedy = "a lake stays as it began: give the same, or another name"
                raise Conflict(f"lake {job.name!r}: {what}", expected=expected, found=found, remedy=remedy)

    def _require_history(self, reached: StreamOffset) -> None:
        """Raise ``RolledBack`` where what was written is of a history that the container has left since."""
        self._door.row(self._key)
        replica = self._door.replica
        if not replica.passes(reached.epoch, reached.lsn):
            text = f"container {replica.container!r} was restored to before what this run has written: run it again"
            lsn = replica.lsn
            raise RolledBack(text, object=f"lake {self._job.name}", lsn_seen=reached.lsn, lsn_now=lsn)

    def _commit(self, state: _State | None, pointer: Pointer) -> None:
        row = LakeRow(
            pointer.number,
            self._door.uuid,
            bytes.fromhex(pointer.token),
            bytes.fromhex(pointer.digest),
            pointer.size_bytes,
            self._storage.url,
        )
        version = 0 if state is None else state.version
        try:
            self._door.put(TablePut(SINKS_NAMESPACE, self._key, encode_lake(row), version))
        except Conflict as error:
            # It is refused; but where asking was repeated, it may have happened before, and another run's commit behind it.
            now = self._state()
            if now is not None and now.row.number >= pointer.number:
                (ours, *_) = self._folder.commits(now.manifest, pointer.number - 1)
                if ours.token == pointer.token:
                    return
                with suppress(ChunkstoreError):
                    self._folder.drop(pointer.number, pointer.token)
            what, remedy = f"lake {self._job.name!r}: version of its row", "another run was faster: run it again"
            found = 0 if now is None else now.version
            raise Conflict(what, expected=version, found=found, remedy=remedy) from error


class _State(NamedTuple):
    """A lake as its row has it."""

    version: int
    row: LakeRow
    manifest: Manifest


def _check_place(storage: ChunkStorage, replica: Replica, job: LakeJob) -> None:
    """Before the first commit: the folder is nobody's. Raises ``InvalidArgument``."""
    base, root = (url.partition("?")[0] for url in (storage.url, replica.storage.url))
    folder, own = f"{base}/{job.name}", f"{root}/{replica.container}"
    if f"{folder}/".startswith(f"{own}/") or storage.exists(ContainerNames(job.name).format):
        raise InvalidArgument(f"{folder} is a container's own folder: choose another path or name", argument="path")
    if utf8_bytes(storage.url) > LAKE_URL_BYTES_MAX:
        raise InvalidArgument(f"a lake's URL has at most {LAKE_URL_BYTES_MAX} bytes", argument="path")


def _sizes(tasks: Sequence[ReadTask]) -> dict[str, int]:
    found: dict[str, int] = {}
    for task in tasks:
        for run in task.runs:
            name = getattr(run, "topic", "") or run.segment
            found[name] = found.get(name, 0) + sum(piece.stop - piece.start for piece in run.pieces)
    return found
