"""All stored names, from one place: objects under a container, chunk ids, and the rules of users' names.

Layout of a container (protocol.md 3.1, A11), everything under ``<container>/``::

    FORMAT                      written once: uuid, version, journal mode, probe results
    epoch/<g>/<E>               claims, kept for ever; g = E // 4096; E, i, lsn are 16 hex digits
    j/<g>/<E>/<i>.s             slot i of stream E; slot 0 is OPEN or SEAL
    j/<g>/<E>/log.a             APPEND mode: the record file of stream E
    j/VOIDED                    hint (A10)
    snap/<lsn>-<E>-<token>.sn   snapshots, unique names
    snap/LATEST                 hint
    lease                       hint (A15)
    ask/<token>                 a request to the owner; ask/<token>.r its answer; ask/bell a hint that changes with each (3.19)
    tmp/<token>                 unique temporaries, swept by age and epoch
    d/<2 hex>/<rest>            chunks; rest = <segment>-<epoch>-<n>-<8 hex random>, or s<session>-<n>-<8 hex random>;
                                the 2 hex digits are the first byte of BLAKE2b of the rest

Layout of a container's backups (``chunkstore.backup``), under ``<container>/`` of another root::

    BACKUP                      put once: which container's
    NEWEST                      hint
    backups/<lsn>-<run>.sn      exports; run is 32 hex digits
    done/<run>                  what became of a run, put once
    running/<run>               runs that are under way
    d/<2 hex>/<rest>            copies of chunks, under their own names
    o/<2 hex>/<rest>.<length>   copies of chunks that were growing

Promises: no name built here can leave the root; ``parse_*`` invert the builders and answer ``None`` for strangers; a chunk's row leads
to the object that its id names, or of an extent to one of the journal, or is refused (``confined``): no stored text is ever used as a name.
Leaves out: keys inside the metadata store (``metadata.keys``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from struct import Struct
from typing import ClassVar, NamedTuple

from chunkstore.checksum import name_spread
from chunkstore.config import LIMITS
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.records.segments import CLOSED, KIND_INLINE, KIND_OBJECT, ChunkRecord

__all__ = [
    "CHUNK_ID_BYTES",
    "HEADERS_NAMESPACE",
    "NO_CHUNK",
    "SINKS_NAMESPACE",
    "Address",
    "BackupNames",
    "ContainerNames",
    "check_container_name",
    "check_object_name",
    "check_object_text",
    "check_segment_name",
    "chunk_epoch",
    "chunk_id",
    "chunk_rest",
    "chunk_segment",
    "chunk_session",
    "confined",
    "journal_place",
    "journal_position",
    "line_chunk_id",
    "named_chunks",
    "parse_chunk_rest",
    "parse_place",
    "parse_run",
    "session_chunk_id",
    "session_epoch",
    "utf8_bytes",
]

_CONTAINER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}\Z")
_CHUNK = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16})-([0-9a-f]{1,16})-([0-9a-f]{8})\Z")
_SESSION_CHUNK = re.compile(r"s([0-9a-f]{1,16})-([0-9a-f]{1,16})-([0-9a-f]{8})\Z")
_EPOCHS_PER_FOLDER = 4096

_PLACE = re.compile(r"([1-9a-f][0-9a-f]{0,15})(?:/(0|[1-9a-f][0-9a-f]{0,15}))?\Z")

_ID = Struct(">QQQI")
CHUNK_ID_BYTES = _ID.size
NO_CHUNK = b""
_SESSION_BIT = _LINE_BIT = 1 << 63
_NO_EPOCH = bytes(8)
"""In the id of a session's chunk, whose name has none: another one there would make two ids of one name."""
HEADERS_NAMESPACE = "!headers"
"""Reserved table namespace: a row for each segment that was imported from a header file at the root."""
SINKS_NAMESPACE = "!sinks"
"""Reserved table namespace: the progress of writers outside the owner. Only this reserved one may be named by commits: a writer puts its
row in the commit that the row speaks of."""


def utf8_bytes(text: str) -> int:
    """The length of ``text`` in UTF-8; -1 for text that UTF-8 cannot say (half a surrogate pair)."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return -1


def check_container_name(name: str) -> None:
    """Raise ``InvalidArgument`` unless ``name`` is 1 to 64 of letters, digits, ``.``, ``_``, ``-``, not beginning with ``.`` or ``-``."""
    if not isinstance(name, str) or _CONTAINER.match(name) is None:
        raise InvalidArgument(
            f"container name {name!r}: use 1 to 64 letters, digits, '.', '_' or '-', not beginning with '.' or '-'",
            argument="container",
        )


def check_segment_name(name: str, argument: str = "segment") -> None:
    """Raise ``InvalidArgument`` of ``argument`` unless ``name`` is 1 to 255 bytes of UTF-8 without NUL."""
    if type(name) is str and name.isascii() and 1 <= len(name) <= LIMITS.segment_name_bytes_max and "\0" not in name:
        return
    if not isinstance(name, str):
        raise InvalidArgument(f"a segment name must be a str, not {type(name).__name__}", argument=argument)
    size_bytes = utf8_bytes(name)
    if size_bytes < 0:
        raise InvalidArgument(f"segment name {name!r} is not valid UTF-8", argument=argument)
    if not 1 <= size_bytes <= LIMITS.segment_name_bytes_max or "\0" in name:
        raise InvalidArgument(
            f"a segment name must be 1 to {LIMITS.segment_name_bytes_max} bytes of UTF-8 without NUL; this one has {size_bytes}",
            argument=argument,
        )


def check_object_name(name: str) -> None:
    """Raise ``InvalidArgument`` unless ``name`` is a safe relative object name (no empty part, ``.``, ``..``, NUL, leading slash)."""
    if not isinstance(name, str):
        raise InvalidArgument(f"a chunk name must be a str, not {type(name).__name__}", argument="name")
    check_object_text(name)


@lru_cache(maxsize=4096)
def check_object_text(name: str) -> None:
    """As ``check_object_name``, for what is known to be a ``str``; costs no call of Python's for names that were met before."""
    # Remembered, because the same few names (fence, log, growing chunks) pass here several times in every commit. No pattern,
    # because every read passes here, too, and those who read thousands of chunks meet few names again.
    if not 1 <= len(name) <= 900 or name[0] == "/" or name[-1] == "/" or "//" in name or "\0" in name:
        raise InvalidArgument(f"chunk name {name!r} is not a relative path of non-empty parts", argument="name")
    if "/." in name or name[0] == ".":
        for part in name.split("/"):
            if part in (".", ".."):
                raise InvalidArgument(f"chunk name {name!r} may not contain {part!r} as a part", argument="name")


def chunk_id(segment_id: int, epoch: int, n: int, random: int) -> bytes:
    """The 28-byte id of a chunk: segment id, epoch, n (u64be each), random (u32be). Ids are never reused."""
    return _ID.pack(segment_id, epoch, n, random)


def line_chunk_id(segment_id: int, epoch: int, lsn: int, number: int) -> bytes:
    """The id of extent ``number`` of the record ``lsn`` of a log: no counter of the epoch reaches it."""
    return _ID.pack(segment_id, epoch, _LINE_BIT | lsn, number)


def session_chunk_id(session_id: int, n: int, random: int) -> bytes:
    """The id of a chunk written by a session outside the owner (protocol.md A9)."""
    return _ID.pack(_SESSION_BIT | session_id, 0, n, random)


def chunk_epoch(identity: bytes) -> int:
    """The epoch that created the chunk; 0 for a session's chunk."""
    return int(_ID.unpack(identity)[1])


def chunk_segment(identity: bytes) -> int | None:
    """The id of the segment that created the chunk; None for a session's chunk."""
    first = int(_ID.unpack(identity)[0])
    return None if first & _SESSION_BIT else first


def chunk_session(identity: bytes) -> int | None:
    """The id of the session that wrote the chunk; None for an owner's chunk."""
    first = int(_ID.unpack(identity)[0])
    return first & ~_SESSION_BIT if first & _SESSION_BIT else None


def chunk_rest(identity: bytes) -> str:
    """The part of a chunk's object name after ``d/<2 hex>/``."""
    first, epoch, n, random = _ID.unpack(identity)
    if first & _SESSION_BIT:
        return f"s{first & ~_SESSION_BIT:x}-{n:x}-{random:08x}"
    return f"{first:x}-{epoch:x}-{n:x}-{random:08x}"


@lru_cache(maxsize=4096)
def _chunk_path(identity: bytes) -> str:
    # Remembered: readers ask for the same few chunks again and again, and a name costs as much as all else of a lookup.
    rest = chunk_rest(identity)
    return f"{name_spread(rest)}/{rest}"


def session_epoch(session_id: int) -> int:
    """The epoch in which a session began, whose id is that of its record: epoch and a counter, so a position of history."""
    return session_id >> 32


def parse_chunk_rest(rest: str) -> bytes | None:
    """Inverse of ``chunk_rest``; None for a name that is not ours, or that says an id in other words than ours."""
    match = _CHUNK.match(rest) or _SESSION_CHUNK.match(rest)
    if match is None:
        return None
    first, *others = (int(group, 16) for group in match.groups())
    if first & _SESSION_BIT:
        return None
    identity = _ID.pack(first, *others) if len(others) == 3 else session_chunk_id(first, *others)
    return identity if chunk_rest(identity) == rest else None


class Address(NamedTuple):
    """Where the bytes of a chunk are: from byte ``offset`` of ``object`` on."""

    object: str
    offset: int


class ContainerNames:
    """The object names of one container. Built once per store; every method is pure."""

    __slots__ = ("_data", "backup", "bell", "container", "format", "latest", "lease", "reserve", "voided")
    has_journal: ClassVar[bool] = True
    """Whether chunks are read where they were written, in the journal too; else each has an object of its own."""

    def __init__(self, container: str) -> None:
        check_container_name(container)
        self.container: str = container
        self.backup: str = f"{container}/BACKUP"
        self.format: str = f"{container}/FORMAT"
        self.latest: str = f"{container}/snap/LATEST"
        self.voided: str = f"{container}/j/VOIDED"
        self.lease: str = f"{container}/lease"
        self.bell: str = f"{container}/ask/bell"
        self.reserve: str = f"{container}/reserve"
        self._data = f"{container}/d/"

    def epoch(self, epoch: int) -> str:
        """The claim of ``epoch``."""
        return f"{self.container}/epoch/{epoch // _EPOCHS_PER_FOLDER:016x}/{epoch:016x}"

    def stream(self, epoch: int) -> str:
        """The prefix of stream ``epoch`` (ends with a slash)."""
        return f"{self.container}/j/{epoch // _EPOCHS_PER_FOLDER:016x}/{epoch:016x}/"

    def slot(self, epoch: int, index: int) -> str:
        """Slot ``index`` of stream ``epoch``."""
        return f"{self.stream(epoch)}{index:016x}.s"

    def log(self, epoch: int) -> str:
        """The APPEND file of stream ``epoch``."""
        return f"{self.stream(epoch)}log.a"

    def place(self, text: str) -> str:
        """The journal's object that ``journal_place`` said in short. ``text`` is one."""
        epoch, index = parse_place(text) or (0, None)
        return self.log(epoch) if index is None else self.slot(epoch, index)

    def journal_prefix(self) -> str:
        """All streams."""
        return f"{self.container}/j/"

    def epoch_prefix(self) -> str:
        """All claims."""
        return f"{self.container}/epoch/"

    def snapshot_prefix(self) -> str:
        """All snapshots."""
        return f"{self.container}/snap/"

    def data_prefix(self) -> str:
        """All chunks."""
        return self._data

    def snapshot(self, lsn: int, epoch: int, token: str) -> str:
        """A snapshot object; ``token`` makes the name unique."""
        return f"{self.container}/snap/{lsn:016x}-{epoch:016x}-{token}.sn"

    def temporary(self, token: str) -> str:
        """A unique temporary."""
        return f"{self.container}/tmp/{token}"

    def ask_prefix(self) -> str:
        """All requests and answers."""
        return f"{self.container}/ask/"

    def request(self, token: str) -> str:
        """A request to the owner."""
        return f"{self.container}/ask/{token}"

    def answer(self, token: str) -> str:
        """The owner's answer to a request."""
        return f"{self.container}/ask/{token}.r"

    def parse_ask(self, name: str) -> tuple[str, bool] | None:
        """``(token, whether it is the answer)`` of a request's or an answer's name; None for a stranger, and for the bell."""
        match = re.fullmatch(r"([0-9a-f]{32})(\.r)?", name[len(self.ask_prefix()) :])
        return (match[1], match[2] is not None) if match and name.startswith(self.ask_prefix()) else None

    def chunk(self, identity: bytes) -> str:
        """The object name of a chunk."""
        return self._data + _chunk_path(identity)

    def address(self, identity: bytes, record: ChunkRecord) -> Address:
        """Where the bytes of a chunk are read, whose row is ``confined``: an object of its own, or of an extent one of the journal."""
        if record.kind == KIND_INLINE:
            return Address(self.place(record.object), record.object_offset)
        return Address(self.chunk(identity), 0)

    def kept(self, folder: str, identity: bytes) -> str:
        """Where a copy of a chunk is that was swept."""
        return f"{self.container}/{folder}/{_chunk_path(identity)}"

    def parse_chunk(self, name: str) -> bytes | None:
        """Inverse of ``chunk``; None for a name that is not one of this container's chunks."""
        if not name.startswith(self._data):
            return None
        spread, _, rest = name[len(self._data) :].partition("/")
        return parse_chunk_rest(rest) if spread == name_spread(rest) else None

    def parse_snapshot(self, name: str) -> tuple[int, int] | None:
        """``(lsn, epoch)`` of a snapshot name; None for a stranger."""
        match = re.fullmatch(r"([0-9a-f]{16})-([0-9a-f]{16})-[0-9a-f]+\.sn", name[len(self.snapshot_prefix()) :])
        return (int(match[1], 16), int(match[2], 16)) if match and name.startswith(self.snapshot_prefix()) else None

    def parse_slot(self, name: str) -> tuple[int, int] | None:
        """``(epoch, index)`` of a slot name; None for a stranger."""
        match = re.fullmatch(r"[0-9a-f]{16}/([0-9a-f]{16})/([0-9a-f]{16})\.s", name[len(self.journal_prefix()) :])
        return (int(match[1], 16), int(match[2], 16)) if match and name.startswith(self.journal_prefix()) else None

    def parse_log(self, name: str) -> int | None:
        """The epoch of a log name; None for a stranger."""
        match = re.fullmatch(r"[0-9a-f]{16}/([0-9a-f]{16})/log\.a", name[len(self.journal_prefix()) :])
        return int(match[1], 16) if match and name.startswith(self.journal_prefix()) else None

    def parse_epoch(self, name: str) -> int | None:
        """The epoch of a claim's name; None for a stranger."""
        match = re.fullmatch(r"[0-9a-f]{16}/([0-9a-f]{16})", name[len(self.epoch_prefix()) :])
        return int(match[1], 16) if match and name.startswith(self.epoch_prefix()) else None


class BackupNames(ContainerNames):
    """The object names of one container's backups, which are where a container of this name would be in another root.

    A copy of a chunk has the chunk's name; the copy of one that was still growing has its length in its name besides. ``growing``: those
    of the backup that is looked at, by their lengths.
    """

    __slots__ = ("growing", "newest")
    has_journal = False

    def __init__(self, container: str) -> None:
        super().__init__(container)
        self.newest: str = f"{container}/NEWEST"
        self.growing: Mapping[bytes, int] = {}

    def chunk(self, identity: bytes) -> str:
        length = self.growing.get(identity) if self.growing else None
        return super().chunk(identity) if length is None else self.copy(identity, length)

    def address(self, identity: bytes, record: ChunkRecord) -> Address:
        return Address(self.chunk(identity), 0)  # also of an extent, whose copy is an object of its own

    def copy(self, identity: bytes, growing: int | None) -> str:
        """The copy of a chunk; of one that was ``growing``, of its first so many bytes."""
        return (
            super().chunk(identity)
            if growing is None
            else f"{self.growing_prefix()}{_chunk_path(identity)}.{growing:x}"
        )

    def parse_copy(self, name: str) -> tuple[bytes, int | None] | None:
        """Inverse of ``copy``; None for a stranger."""
        if not name.startswith(self.growing_prefix()):
            identity = self.parse_chunk(name)
            return None if identity is None else (identity, None)
        path, _, length = name[len(self.growing_prefix()) :].rpartition(".")
        identity = self.parse_chunk(self._data + path)
        found = identity is not None and re.fullmatch(r"[0-9a-f]{1,16}", length)
        return (identity, int(length, 16)) if found and identity is not None else None

    def data_prefix(self) -> str:
        """Nothing is there: copies that one backup does not name are no orphans, for others do."""
        return f"{self.container}/none/"

    def copies_prefix(self) -> str:
        """All copies of chunks that do not grow."""
        return self._data

    def growing_prefix(self) -> str:
        """All copies of chunks that were growing."""
        return f"{self.container}/o/"

    def stored_prefix(self) -> str:
        """All exports."""
        return f"{self.container}/backups/"

    def stored(self, lsn: int, run: str) -> str:
        """The export of a run."""
        return f"{self.stored_prefix()}{lsn:016x}-{run}.sn"

    def parse_stored(self, name: str) -> tuple[int, str] | None:
        """``(lsn, run)`` of an export's name; None for a stranger, and for a part."""
        match = re.fullmatch(r"([0-9a-f]{16})-([0-9a-f]{32})\.sn", name[len(self.stored_prefix()) :])
        return (int(match[1], 16), match[2]) if match and name.startswith(self.stored_prefix()) else None

    def done(self, run: str) -> str:
        """What became of a run, put once; of ``""`` the prefix."""
        return f"{self.container}/done/{run}"

    def running(self, run: str) -> str:
        """A run that is under way; of ``""`` the prefix."""
        return f"{self.container}/running/{run}"


def parse_run(name: str, prefix: str) -> str | None:
    """The run in a name of ``done`` or ``running``; None for a stranger."""
    run = name[len(prefix) :]
    return run if name.startswith(prefix) and re.fullmatch(r"[0-9a-f]{32}", run) else None


def confined(names: ContainerNames, identity: bytes, record: ChunkRecord) -> ChunkRecord:
    """``record``, for which ``names.chunk(identity)`` is the object: a caller that decodes a chunk's row asks this before going by it.

    A row names no object, or that one; offset 0. Of an extent it names a place in the journal. Raises ``Damaged`` naming the row for
    anything else: other objects, keys that are no ids. What is not refused here and is no extent has an object of its own, which
    ``collect`` deletes before it drops the row; what is refused keeps both, and what its ``object`` names is no orphan (protocol 3.14.2).
    """
    own = len(identity) == CHUNK_ID_BYTES and (identity[0] < 0x80 or identity[8:16] == _NO_EPOCH)
    if own and not record.object and record.kind == KIND_OBJECT and not record.object_offset:
        return record
    if not own:
        raise Damaged("the row's key is not the id of a chunk", object=f"chunk row {identity!r}")
    verified = record.kind == KIND_INLINE and record.crc32c is not None  # others' bytes are next to its own
    if verified and record.state == CLOSED and record.object_offset and parse_place(record.object):
        return record
    name = names.chunk(identity)
    if record.object not in ("", name) or record.kind != KIND_OBJECT or record.object_offset:
        what = f"kind {record.kind}, object {record.object[:200]!r} from byte {record.object_offset}"
        raise Damaged(f"the chunk's row names another object: {what}; run check", object=name)
    return record


def journal_place(epoch: int, index: int | None) -> str:
    """The ``object`` of an extent in slot ``index`` of stream ``epoch``, or in its log (None): few characters, for there are many."""
    return f"{epoch:x}" if index is None else f"{epoch:x}/{index:x}"


@lru_cache(maxsize=4096)
def parse_place(text: str) -> tuple[int, int | None] | None:
    """Inverse of ``journal_place``; None for anything else."""
    match = _PLACE.match(text)
    return None if match is None else (int(match[1], 16), None if match[2] is None else int(match[2], 16))


def journal_position(record: ChunkRecord) -> tuple[int, int]:
    """Where the record of an extent is in history: epoch and index; of a log where its stream begins. What is unreadable is in front of
    everything."""
    epoch, index = parse_place(record.object) or (0, None)
    return epoch, index or 0


def named_chunks(names: ContainerNames, identity: bytes, record: ChunkRecord) -> tuple[bytes, ...]:
    """The ids that a chunk's row names, whatever is wrong with it: its own, its neighbours', that of the object it leads to."""
    return identity, record.previous, record.next, names.parse_chunk(record.object) or NO_CHUNK
