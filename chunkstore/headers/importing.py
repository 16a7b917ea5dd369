"""Segments from header files into a container: their bytes are copied into chunks of a session, which one commit attaches.

What the files do not bear out is ``Damaged``, before anything is changed. Header files have no CRCs: bytes are taken as they are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.changes import Change, Create, Seal, TablePut
from chunkstore.codec.rolling_header import (
    HEADER_BYTES_MAX,
    HEADER_SUFFIX,
    NUMBER_MAX,
    ChunkEntry,
    Header,
    HeaderEntry,
    MaxSizeEntry,
    decode_header,
)
from chunkstore.config import MIB, RollingPolicy, Settings
from chunkstore.engine.owner import Written, attach_written, end_session, find_session
from chunkstore.engine.reading import context_of, read_view
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunkNotFound,
    ChunkstoreError,
    Conflict,
    Damaged,
    DeadlineExceeded,
    InvalidArgument,
    SegmentNotFound,
)
from chunkstore.metadata.keys import segment_key, table_key
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.container import OwnedContainer
from chunkstore.records.invariants import Finding
from chunkstore.records.names import HEADERS_NAMESPACE, check_object_name, check_segment_name
from chunkstore.records.segments import LayoutChunk, SegmentInfo
from chunkstore.registry import Root, open_storage, root_url
from chunkstore.storage import ChunkHandle, ChunkStorage, iter_listing

__all__ = [
    "NO_LIMIT",
    "PIECE_BYTES",
    "HeaderImport",
    "HeaderImporter",
    "HeaderPlan",
    "HeaderSource",
    "ImportPlan",
    "PlannedChunk",
    "check_file_name",
    "check_names",
    "import_headers",
    "is_copy",
    "plan_export",
    "plan_import",
    "read_header",
    "rolling_of",
    "survey_headers",
]

PIECE_BYTES: Final = 16 * MIB


class HeaderImport(NamedTuple):
    """``segments`` of ``length`` bytes were imported, ``there`` were there already; ``findings``: what is remarkable about the files."""

    segments: tuple[str, ...]
    there: tuple[str, ...]
    length: int
    findings: tuple[Finding, ...]


def survey_headers(directory: Root, segments: Sequence[str] = (), *, settings: Settings | None = None) -> HeaderImport:
    """What ``import_headers`` would import into an empty container. Read-only. Damage is in the findings, the first of each segment; such
    segments are not among ``segments``. Raises as ``import_headers``."""
    with _source(directory, settings or Settings()) as source:
        plans, findings = _survey(source, check_names(segments))
    return HeaderImport(tuple(plans), (), sum(plans.values()), tuple(findings))


def import_headers(store: ChunkedSegmentStorage, directory: Root, segments: Sequence[str] = ()) -> HeaderImport:
    """Copy segments into a container, which continues to serve.

    ``directory``: where the header files and their chunk files are, a path or a URL. ``segments``: their names, also of segments without
    a header, which are one file of that name; none: all that have a header. A segment that is there is compared, byte for byte, so that
    an interrupted import is repeated to continue. Writers of the header files must have stopped.

    Atomic and durable: each segment for itself. Before any change ``Damaged`` (a header, or files that do not bear it out; the message
    counts the segments), ``SegmentNotFound`` (no header and no file), ``InvalidArgument``; then also ``Conflict`` (the files changed
    meanwhile, or the segment that is there is another one), and what reading and ``attach_written`` raise. Retry: safe.
    """
    wanted = check_names(segments)
    with _source(directory, store.settings) as source:
        plans, findings = _survey(source, wanted)
        damage = [item for item in findings if item.severity == "damage"]
        if damage:
            text = f"{damage[0].message} (segment {damage[0].segment!r}; {len(damage)} cannot be imported)"
            raise Damaged(text, object=damage[0].object, position=damage[0].position)
        done: dict[str, int] = {}
        for name, length in plans.items():
            plan = source.plan_again(name)
            if read_view(store, _is_there(name)):
                _compare(store, source, plan)
            else:
                row = store.table(HEADERS_NAMESPACE).get(name.encode())
                _import(store, source, plan, 0 if row is None else row.version)
                done[name] = length
    there = tuple(name for name in plans if name not in done)
    return HeaderImport(tuple(done), there, sum(done.values()), tuple(findings))


def check_names(segments: Sequence[str]) -> list[str]:
    """The names of segments, each once. Raises ``InvalidArgument``."""
    if isinstance(segments, str) or not all(isinstance(name, str) for name in segments):
        raise InvalidArgument("segments is a sequence of names", argument="segments")
    for name in segments:
        check_segment_name(name, "segments")
    return list(dict.fromkeys(segments))


def read_header(storage: ChunkStorage, segment: str) -> bytes | None:
    """The bytes of a segment's header; None: there is none. Raises ``Damaged`` where it is too long."""
    name = segment + HEADER_SUFFIX
    try:
        length = storage.stat(name).length
        if length > HEADER_BYTES_MAX:
            text = f"{length} bytes; a header has at most {HEADER_BYTES_MAX}"
            raise Damaged(text, object=name, position=HEADER_BYTES_MAX)
        return storage.read(ChunkHandle(name, False), 0, length) if length else b""
    except ChunkNotFound:
        return None


def _is_ours(storage: ChunkStorage, folder: str) -> bool:
    """Whether a folder at the root is a container's, or holds backups. Raises what the storage raises."""
    return any(storage.exists(f"{folder}/{name}") for name in ("FORMAT", "BACKUP"))


class HeaderSource:
    """Header files in a folder, and the chunk files that they list there."""

    def __init__(self, storage: ChunkStorage) -> None:
        self.storage = storage

    def names(self) -> list[str]:
        """The segments that have a header, but for files of containers and backups. Raises ``InvalidArgument`` where its name is none of a
        segment, or there is none."""
        found: list[str] = []
        folder, is_ours = "", False
        for item in iter_listing(self.storage):
            part, slash, _ = item.name.partition("/")
            if slash and part != folder:
                folder = part
                is_ours = _is_ours(self.storage, folder)
            if item.name.endswith(HEADER_SUFFIX) and not (slash and is_ours):
                found.append(item.name[: -len(HEADER_SUFFIX)])
                check_segment_name(found[-1], "directory")
        if not found:
            text = f"no file in {self.storage.url} has a name that ends with {HEADER_SUFFIX!r}: name segments that have no header"
            raise InvalidArgument(text, argument="directory")
        return found

    def plan(self, segment: str, *, named: bool) -> ImportPlan | None:
        """What is to be imported of a segment, without damage; None where its creation did not finish, unless it is ``named``.

        Raises ``SegmentNotFound``, ``Damaged``.
        """
        name, data = segment + HEADER_SUFFIX, read_header(self.storage, segment)
        if data == b"" and not named:
            return None
        if data == b"":
            raise SegmentNotFound(segment, f"the creation of segment {segment!r} did not finish: {name!r} is empty")
        if data is None:
            name, header = segment, Header(None, (ChunkEntry(0, segment),))
        else:
            header = decode_header(data, object=name)
        lengths: dict[str, int] = {}
        for entry in header.chunks:
            with suppress(ChunkNotFound):
                lengths[entry.name] = self.storage.stat(entry.name).length
        if data is None and not lengths:
            text = f"neither {segment + HEADER_SUFFIX!r} nor {segment!r} is in {self.storage.url}"
            raise SegmentNotFound(segment, text)
        plan = plan_import(segment, header, lengths, sealed=not self.storage.open_write(name).writable)
        if plan.damage is not None:
            raise Damaged(plan.damage.message, object=plan.damage.object, position=plan.damage.position)
        return plan

    def plan_again(self, name: str, *former: ImportPlan) -> ImportPlan:
        """The plan of a segment that had one. Raises ``Conflict`` where it changes, ``Damaged``."""
        plan = self.plan(name, named=False)
        if plan is None or (former and plan != former[0]):
            expected, found = "no change while it is imported", "another state"
            raise Conflict(f"the files of segment {name!r}", expected=expected, found=found)
        return plan

    def read(self, plan: ImportPlan) -> Iterator[tuple[int, bytes]]:
        """The bytes of a segment: offsets, and up to ``PIECE_BYTES`` from there. Raises ``Damaged``, ``ChunkNotFound``."""
        held: list[bytes] = []
        size, offset = 0, plan.start_offset
        for chunk in plan.chunks:
            handle, done = ChunkHandle(chunk.name, False), 0
            while done < chunk.length:
                wanted = min(PIECE_BYTES - size, chunk.length - done)
                data = self.storage.read(handle, done, wanted)
                done += len(data)
                if len(data) != wanted:
                    raise Damaged(f"it ends here; {chunk.length} bytes belong to it", object=chunk.name, position=done)
                held.append(data)
                size += wanted
                if size == PIECE_BYTES:
                    yield offset, b"".join(held)
                    offset, held, size = offset + size, [], 0
        if held:
            yield offset, b"".join(held)


@contextmanager
def _source(directory: Root, settings: Settings) -> Iterator[HeaderSource]:
    storage = open_storage(root_url(directory, "directory"), settings)
    try:
        yield HeaderSource(storage)
    finally:
        storage.close()


def _survey(source: HeaderSource, segments: list[str]) -> tuple[dict[str, int], list[Finding]]:
    """The segments that can be imported and how many bytes they have, and all findings. One plan at a time is held."""
    plans: dict[str, int] = {}
    findings: list[Finding] = []
    for name in segments or source.names():
        try:
            plan = source.plan(name, named=bool(segments))
        except Damaged as error:
            text = error.message.partition(": ")[2]
            findings.append(Finding(0, "damage", name, "", error.object, error.position, text))
            continue
        if plan is None:
            text = "it is empty: the segment's creation did not finish"
            findings.append(Finding(0, "info", name, "", name + HEADER_SUFFIX, 0, text))
            continue
        plans[name] = plan.length - plan.start_offset
        findings.extend(plan.findings)
    return plans, findings


def _is_there(name: str) -> Callable[[MetadataView], bool]:
    """Whether there is such a segment; asking by other methods may import it."""
    return lambda view: view.get(segment_key(name)) is not None


def _compare(store: ChunkedSegmentStorage, source: HeaderSource, plan: ImportPlan) -> None:
    """Raise ``Conflict`` unless the segment that is there is the one that would be imported."""
    info = store.info(plan.segment)
    wanted = (plan.start_offset, plan.length, plan.sealed)
    found: tuple[object, ...] = (info.start_offset, info.length, info.sealed)
    if found != wanted:
        raise Conflict(f"start, length and seal of segment {plan.segment!r}", expected=wanted, found=found)
    for offset, data in source.read(plan):
        if store.read(plan.segment, offset, len(data)) != data:
            what = f"bytes {offset} to {offset + len(data)} of segment {plan.segment!r}"
            raise Conflict(what, expected="those of its chunk files", found="others")


def _import(store: ChunkedSegmentStorage, source: HeaderSource, plan: ImportPlan, version: int) -> None:
    """Bring one segment in. ``version``: of the row that says that a header of this name was imported before; 0: none was.

    Raises ``SegmentExists``, ``Conflict`` (its files changed, or another import was first), ``Damaged``, and as ``attach_written``.
    """
    create = Create(plan.segment, rolling_of(plan.size_bytes_max), start_offset=plan.start_offset)
    sealing: list[Change] = [Seal(plan.segment)] if plan.sealed else []
    # Found again after a kill: what was written then is an orphan when the session ends.
    holder = "header file of " + plan.segment.encode()[:200].decode(errors="ignore")
    writer = find_session(store, holder)
    try:
        write = partial(writer.write_chunk, context_of(store).storage)
        chunks = tuple(write(number, data) for number, (_, data) in enumerate(source.read(plan)))
        source.plan_again(plan.segment, plan)
        once = TablePut(HEADERS_NAMESPACE, plan.segment.encode(), runtime.token(16), version)
        written = Written(plan.segment, chunks, create)
        attach_written(store, writer.session_id, [written], once, also=sealing, end_session=True)
    except BaseException:
        with suppress(ChunkstoreError):
            end_session(store, writer.session_id)
        raise


class HeaderImporter:
    """``Settings.headers`` "import": an unknown segment whose header is at the root is imported when it is first named; once, so that a
    deleted segment does not come back. Headers that ``export_headers`` wrote are not imported so. Thread-safe."""

    def __init__(self, store: ChunkedSegmentStorage, container: OwnedContainer) -> None:
        self._store = store
        self._container = container
        self._lock = runtime.lock()
        """Held by the one import that is under way."""

    def __call__(self, name: str) -> bool:
        """Whether segment ``name`` is there now. Never called with a lock of a segment held.

        Raises ``Damaged`` (header, or files), and ``DeadlineExceeded``: the import continues.
        """
        try:
            check_file_name(name)
        except InvalidArgument:
            return False
        if self._container.look(_is_there(name)):
            return True
        if self._is_imported(name) or not self._container.storage.exists(name + HEADER_SUFFIX):
            return False
        limit_s = self._container.settings.op_deadline_s
        run = partial(self._container.alone, self._lock, "import of a header file", partial(self._import, name))
        ended = runtime.run_with_timeout(run, "chunkstore-import", limit_s)
        if not ended:
            what = f"importing segment {name!r} from its header file, which continues"
            raise DeadlineExceeded(what, deadline_s=limit_s)
        return ended[0]

    def _import(self, name: str) -> bool:
        if self._container.look(_is_there(name)):
            return True
        storage, names = self._container.storage, self._container.names
        data = None if self._is_imported(name) else read_header(storage, name)
        if not data:
            return False
        files = [entry.name for entry in decode_header(data, object=name + HEADER_SUFFIX).chunks]
        if any(names.parse_chunk(file) is not None or is_copy(name, file) for file in files):
            return False  # an export wrote it
        folders = {file.partition("/")[0] for file in files if "/" in file}
        if any(_is_ours(storage, folder) for folder in folders):
            return False  # what is stored names nothing of another container, of backups, or of our journal
        source = HeaderSource(storage)
        _import(self._store, source, source.plan_again(name), 0)
        return True

    def _is_imported(self, name: str) -> bool:
        key = table_key(HEADERS_NAMESPACE, name.encode())
        return self._container.look(lambda view: view.get(key) is not None)


NO_LIMIT: Final = 1 << 53
"""What ``RollingPolicy`` has for chunks that grow without end."""
_FILE_NAME_BYTES_MAX: Final = 255
_OFFSET: Final = "$offset."


class PlannedChunk(NamedTuple):
    """A file whose first ``length`` bytes are the segment's from ``offset`` on."""

    name: str
    offset: int
    length: int


class ImportPlan(NamedTuple):
    """A segment of header files: ``chunks`` cover ``[start_offset, length)`` without holes, if no finding is damage."""

    segment: str
    chunks: tuple[PlannedChunk, ...]
    start_offset: int
    length: int
    sealed: bool
    size_bytes_max: int | None
    findings: tuple[Finding, ...]

    @property
    def damage(self) -> Finding | None:
        """The first finding because of which this cannot be imported."""
        return next((item for item in self.findings if item.severity == "damage"), None)


class HeaderPlan(NamedTuple):
    """The header that says what a segment is, and what has to be copied into files of its own for it."""

    entries: tuple[HeaderEntry, ...]
    copies: tuple[PlannedChunk, ...]


def plan_import(segment: str, header: Header, lengths: Mapping[str, int], *, sealed: bool = False) -> ImportPlan:
    """What a header and the lengths of its files (in bytes; those that are gone are left out) make of a segment.

    A file ends where the next one begins, the last one at its own end. Files at the beginning that are gone were truncated away: the
    segment starts with the first one that is there. Findings, each with the file and a position in it: "damage", a file that is gone
    after that, or is too short; "warning", one that is longer than what is the segment's; "info", what was truncated away.
    """
    entries = header.chunks
    gone = 0
    while gone < len(entries) - 1 and (not _own(entries, gone) or entries[gone].name not in lengths):
        gone += 1
    findings: list[Finding] = []
    if missing := sum(1 for at in range(gone) if _own(entries, at)):
        text = f"{missing} files at the beginning are missing: the segment starts at {entries[gone].offset}"
        findings.append(Finding(0, "info", segment, "", segment + HEADER_SUFFIX, 0, text))
    chunks: list[PlannedChunk] = []
    end = start = entries[gone].offset if entries else 0
    for at in range(gone, len(entries)):
        last = at == len(entries) - 1
        length, fault = _judge(entries[at], None if last else _own(entries, at), lengths.get(entries[at].name))
        end = entries[at].offset + length
        if fault is not None:
            severity, position, text = fault
            findings.append(Finding(0, severity, segment, "", entries[at].name, position, text))
        if length:
            chunks.append(PlannedChunk(entries[at].name, entries[at].offset, length))
    return ImportPlan(segment, tuple(chunks), start, end, sealed, header.size_bytes_max, tuple(findings))


def _judge(entry: ChunkEntry, own: int | None, have: int | None) -> tuple[int, tuple[str, int, str] | None]:
    """How many bytes of a file are the segment's, and what is wrong: severity, position, text. ``own`` None: it is the last."""
    if have is None and own == 0:
        return 0, None
    if have is None:
        ends = "; the end of the segment is unknown without it" if own is None else ""
        return 0, ("damage", 0, f"the file with the bytes from {entry.offset} is missing{ends}")
    length = have if own is None else own
    if entry.offset + length > NUMBER_MAX:
        return 0, ("damage", have, "with it the segment would end beyond 2^63 - 1")
    if have < length:
        return 0, ("damage", have, f"{have} bytes long, and the next file begins {length} bytes after its beginning")
    if have > length:
        return length, ("warning", length, f"{have} bytes long, of which {length} are the segment's")
    return length, None


def _own(entries: tuple[ChunkEntry, ...], at: int) -> int:
    """How many bytes the header gives to a file that is not the last."""
    return entries[at + 1].offset - entries[at].offset


def rolling_of(size_bytes_max: int | None) -> RollingPolicy:
    """How long chunks of a segment grow whose header says this; None: without end."""
    return RollingPolicy(chunk_size_bytes_max=min(size_bytes_max or NO_LIMIT, NO_LIMIT))


def plan_export(
    info: SegmentInfo, size_bytes_max: int, chunks: Sequence[LayoutChunk], last_length: int, token: str
) -> HeaderPlan:
    """The header of a segment of ours, which lists its chunks by their own names. ``last_length``: how long the last one's object is.

    Copied is only what a header cannot say: the live part of a first chunk that begins below the start offset, a last chunk whose object
    is longer than its record, bytes in records of the journal, and no bytes at all where nothing else would say the start
    offset. Copies are named by ``token``.
    """
    entries: list[HeaderEntry] = [MaxSizeEntry(NUMBER_MAX if size_bytes_max >= NO_LIMIT else size_bytes_max)]
    copies: list[PlannedChunk] = []
    own = [chunk.name if chunk.kind == "object" else "" for chunk in chunks]
    ranges = [(name, chunk.offset, chunk.offset + chunk.length) for name, chunk in zip(own, chunks, strict=True)]
    if not ranges and info.start_offset:
        ranges = [("", info.start_offset, info.start_offset)]
    for at, (name, offset, end) in enumerate(ranges):
        begin = max(offset, info.start_offset)
        if begin > offset or not name or (at == len(chunks) - 1 and last_length > end - offset):
            name = f"{info.name}{_OFFSET}{begin}.{token}"
            copies.append(PlannedChunk(name, begin, end - begin))
        entries.append(ChunkEntry(begin, name))
    return HeaderPlan(tuple(entries), tuple(copies))


_COPY = re.compile(r"[0-9]{1,19}\.[0-9a-f]{8}")


def is_copy(segment: str, name: str) -> bool:
    """Whether only exports of this segment name files so."""
    prefix = segment + _OFFSET
    return name.startswith(prefix) and _COPY.fullmatch(name, len(prefix)) is not None


def check_file_name(segment: str) -> None:
    """Raise ``InvalidArgument`` unless a header of this segment's name can be stored next to others, and be found by its name alone.

    Slashes make folders. Refused are names with empty parts, with ``.`` or ``..`` as a part, with ``&``, and those that leave no room for
    the names of chunk files: nothing is escaped, because what reads header files would find another name.
    """
    longest = f"{segment}{_OFFSET}{NUMBER_MAX}.00000000"
    try:
        check_object_name(longest)
        good = "&" not in segment and len(segment.rpartition("/")[2]) > 0
    except InvalidArgument:
        good = False
    if not good or max(len(part.encode()) for part in longest.split("/")) > _FILE_NAME_BYTES_MAX:
        text = (
            f"segment {segment!r} has no name that header files can have (a relative path without '&', whose last part has at most "
            f"{_FILE_NAME_BYTES_MAX - len(longest.encode()) + len(segment.encode())} bytes); export the other segments by name"
        )
        raise InvalidArgument(text, argument="segments")
