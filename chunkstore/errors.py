"""The errors of chunkstore: one small tree, picklable, each with fields.

A class exists only where a caller would act differently::

    ChunkstoreError
      InvalidArgument        fix the call
      SegmentExists          fix the call
      SegmentNotFound        fix the call (a handle of a deleted segment, too)
      SegmentSealed          fix the call
      SegmentNotSealed       fix the call
      SegmentTruncated       read from ``start_offset`` on
      BadOffset              re-read the length, then decide
      Conflict               an expected attribute, version or session did not match
      NotOwner               a newer owner exists: open again, or stop
      OutcomeUnknown         may or may not have happened: retry with an expected offset or event number
      StorageFull            free space, then retry; nothing was lost
      StorageUnavailable     retry later; it did not happen
        AccessDenied         correct the root or its permissions, then retry; it did not happen
        CacheDamaged         the same: the metadata cache is made anew meanwhile
        RootUnavailable      a root or a folder is not there, or not what it was: bring it back, then retry
      DeadlineExceeded       retry with more time; it did not happen
      ContainerNotFound      create it, or correct the root
      ContainerBusy          a live owner exists: wait, or take over
      ChunksMissing          a state cannot be copied whole: choose another one, or bring the chunks back
      PastCollected          choose a later moment; pins and pitr_horizon_s keep more
      Unsupported            this storage cannot do it safely
      Damaged                stored bytes are not what was written: restore them from a copy
        RolledBack           this root is older than what was seen here: put it right, or accept it
      Closed                 the store (or storage) was closed
      ChunkNotFound          storage port: no such chunk
      ChunkExists            storage port: the name is taken
      InvalidOffset          storage port: not the chunk's length

Promises: every field survives pickling (Spark workers send errors home); foreign exceptions are chained as
``__cause__`` and never raised as such. Leaves out: texts are for people and are not part of the contract.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

__all__ = [
    "AccessDenied",
    "BadOffset",
    "CacheDamaged",
    "ChunkExists",
    "ChunkNotFound",
    "ChunksMissing",
    "ChunkstoreError",
    "Closed",
    "Conflict",
    "ContainerBusy",
    "ContainerNotFound",
    "Damaged",
    "DeadlineExceeded",
    "InvalidArgument",
    "InvalidOffset",
    "NotOwner",
    "OutcomeUnknown",
    "PastCollected",
    "RolledBack",
    "RootUnavailable",
    "SegmentExists",
    "SegmentNotFound",
    "SegmentNotSealed",
    "SegmentSealed",
    "SegmentTruncated",
    "StorageFull",
    "StorageUnavailable",
    "Unsupported",
]


def _restore(cls: type[ChunkstoreError], message: str, fields: dict[str, object]) -> ChunkstoreError:
    error = cls.__new__(cls, message)
    Exception.__init__(error, message)
    for key, value in fields.items():
        setattr(error, key, value)
    return error


class ChunkstoreError(Exception):
    """Base of every error chunkstore raises. ``fields`` names what each class carries."""

    fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str) -> None:
        super().__init__(message)

    @property
    def message(self) -> str:
        """The text for people: names the thing and the remedy."""
        return str(self.args[0]) if self.args else ""

    def to_fields(self) -> dict[str, object]:
        """The error's fields by name, for JSON and for pickling."""
        return {name: getattr(self, name, None) for name in self.fields}

    def copy(self) -> Self:
        """A fresh instance with the same fields: one failure may be raised in many threads."""
        twin = _restore(type(self), self.message, self.to_fields())
        twin.__cause__ = self.__cause__
        assert isinstance(twin, type(self))
        return twin

    @staticmethod
    def from_fields(name: str, message: str, fields: Mapping[str, object]) -> ChunkstoreError:
        """An error that another process tells: of the class of this name, of the base where this program has none."""
        cls = globals()[name] if name in __all__ else ChunkstoreError
        return _restore(cls, message, {field: fields.get(field) for field in cls.fields})

    def __reduce__(self) -> tuple[object, ...]:
        return (_restore, (type(self), self.message, self.to_fields()))


class InvalidArgument(ChunkstoreError):
    """The call itself is wrong; nothing was done. ``argument`` names the parameter."""

    fields: ClassVar[tuple[str, ...]] = ("argument",)

    def __init__(self, message: str, *, argument: str = "") -> None:
        super().__init__(message)
        self.argument = argument


class _OfSegment(ChunkstoreError):
    fields: ClassVar[tuple[str, ...]] = ("segment",)
    _text: ClassVar[str] = "{}"

    def __init__(self, segment: str, message: str | None = None) -> None:
        super().__init__(message if message is not None else self._text.format(segment))
        self.segment = segment


class SegmentExists(_OfSegment):
    """A segment of this name exists already."""

    _text = "segment {!r} exists already"


class SegmentNotFound(_OfSegment):
    """No segment of this name, or the handle's segment was deleted (a new one of the name may exist)."""

    _text = "segment {!r} does not exist (or the handle's segment was deleted)"


class SegmentSealed(_OfSegment):
    """The segment is sealed and takes no more bytes."""

    _text = "segment {!r} is sealed; unseal it to append"


class SegmentNotSealed(_OfSegment):
    """The operation needs a sealed segment (concat source, unseal)."""

    _text = "segment {!r} is not sealed; seal it first"


class SegmentTruncated(ChunkstoreError):
    """The offset is below the segment's start; ``start_offset`` is the first readable byte."""

    fields: ClassVar[tuple[str, ...]] = ("segment", "start_offset", "offset")

    def __init__(self, segment: str, *, start_offset: int, offset: int) -> None:
        super().__init__(f"segment {segment!r} starts at offset {start_offset}; offset {offset} was truncated away")
        self.segment = segment
        self.start_offset = start_offset
        self.offset = offset


class BadOffset(ChunkstoreError):
    """The given offset is not the one the operation needs (for a write: the segment's length)."""

    fields: ClassVar[tuple[str, ...]] = ("segment", "expected", "given")

    def __init__(self, segment: str, *, expected: int, given: int) -> None:
        super().__init__(f"segment {segment!r}: offset {given} given, {expected} expected")
        self.segment = segment
        self.expected = expected
        self.given = given


class Conflict(ChunkstoreError):
    """A conditional change did not find what it expected; nothing was changed."""

    fields: ClassVar[tuple[str, ...]] = ("subject", "expected", "found")

    def __init__(
        self, subject: str, *, expected: object, found: object, remedy: str = "read it again and decide"
    ) -> None:
        super().__init__(f"{subject}: expected {expected!r}, found {found!r}; {remedy}")
        self.subject = subject
        self.expected = expected
        self.found = found


class NotOwner(ChunkstoreError):
    """A newer epoch owns the container (or has claimed it). The operation did not happen.

    ``epoch`` is ours, ``owner`` the newer one that was seen.
    """

    fields: ClassVar[tuple[str, ...]] = ("epoch", "owner")

    def __init__(self, *, epoch: int, owner: int) -> None:
        super().__init__(
            f"epoch {epoch} no longer owns this container: epoch {owner} was claimed; open it again to take over"
        )
        self.epoch = epoch
        self.owner = owner


class OutcomeUnknown(ChunkstoreError):
    """The operation may or may not be part of history; retry with an expected offset or an event number."""

    fields: ClassVar[tuple[str, ...]] = ("subject",)

    def __init__(self, message: str, *, subject: str = "") -> None:
        super().__init__(message)
        self.subject = subject


class StorageFull(ChunkstoreError):
    """No space (or quota) left. Nothing acknowledged is lost; the operation did not happen."""

    fields: ClassVar[tuple[str, ...]] = ("object",)

    def __init__(self, message: str, *, object: str = "") -> None:
        super().__init__(message)
        self.object = object


class StorageUnavailable(ChunkstoreError):
    """The storage failed or did not answer. The operation did not happen; retry later."""

    fields: ClassVar[tuple[str, ...]] = ("object",)
    retry_after_s: float = 0.0
    """When the server wants to be asked again, for the layer that repeats; 0: it does not say. Not kept by pickling."""

    def __init__(self, message: str, *, object: str = "") -> None:
        super().__init__(message)
        self.object = object


class AccessDenied(StorageUnavailable):
    """The root takes no changes from this process: it lacks the permission, the file system is mounted read-only, or the object is locked.

    The operation certainly did not happen, and waiting mends nothing, but where ``until_ms`` (since 1970) is known: a lock's end.
    """

    fields: ClassVar[tuple[str, ...]] = ("object", "until_ms")

    def __init__(self, message: str, *, object: str = "", until_ms: int | None = None) -> None:
        super().__init__(message, object=object)
        self.until_ms = until_ms


class CacheDamaged(StorageUnavailable):
    """The local metadata cache does not hold what was written to it; ``object`` is its directory. The operation did not happen.

    An owner and a replica make it anew and plan again, so that callers hear of it only where that fails.
    """


class RootUnavailable(StorageUnavailable):
    """A root that a task of Spark was sent to, or the folder of a bucket, is missing where it is wanted, or holds something else; ``root``
    is its URL. Nothing is damaged. Bring the root back as it was, with what this process needs to read it.
    """

    fields: ClassVar[tuple[str, ...]] = ("object", "root")

    def __init__(self, root: str, reason: str, *, object: str = "", remedy: str = "") -> None:
        what = f"{object}: " if object else ""
        remedy = remedy or "bring it back where it was, and give this process what it needs to read it"
        super().__init__(f"{what}the root {root} cannot be read ({reason}); {remedy}", object=object)
        self.root = root


class DeadlineExceeded(ChunkstoreError):
    """The time allowed ran out before anything was done; the operation did not happen. (``flush`` of a writer only waits: what was appended
    is still on its way, says the message.)"""

    fields: ClassVar[tuple[str, ...]] = ("operation", "deadline_s")

    def __init__(self, operation: str, *, deadline_s: float, became: str = "nothing was changed") -> None:
        super().__init__(f"{operation} did not finish within {deadline_s:g} s; {became}")
        self.operation = operation
        self.deadline_s = deadline_s


class ContainerNotFound(ChunkstoreError):
    """No such container under this root. ``containers``: some of those that are there; None: the root's folder is missing."""

    fields: ClassVar[tuple[str, ...]] = ("container", "root", "containers")

    def __init__(
        self,
        container: str,
        *,
        root: str = "",
        containers: Sequence[str] | None = (),
        remedy: str = "open it with create=True to make one",
    ) -> None:
        where = f" under {root}" if root else ""
        there = (
            "; the folder is missing"
            if containers is None
            else f"; containers there include {', '.join(containers)}"
            if containers
            else ""
        )
        super().__init__(f"no container {container!r}{where}{there}; {remedy}")
        self.container = container
        self.root = root
        self.containers: tuple[str, ...] | None = None if containers is None else tuple(containers)


class ContainerBusy(ChunkstoreError):
    """A live owner was seen (lease hint). Ask it, wait, or take over. ``here``: this process is the owner."""

    fields: ClassVar[tuple[str, ...]] = ("container", "host", "pid")

    def __init__(
        self,
        container: str,
        *,
        host: str,
        pid: int,
        here: bool = False,
        remedy: str = "ask it with open_asker, wait for it with wait_s, or fence it with take_over=True",
    ) -> None:
        owner = "this process has it open" if here else "it is owned by a live process"
        super().__init__(f"container {container!r} is busy: {owner} (pid {pid} on {host}); {remedy}")
        self.container = container
        self.host = host
        self.pid = pid


class ChunksMissing(ChunkstoreError):
    """A state cannot be copied whole, because some of its chunks are absent or too short. Nothing was begun.

    ``missing``: the first thousand, each with ``segment``, ``chunk``, ``start``, ``stop`` (bytes of the segment) and ``reason``; ``count``:
    all of them, of ``chunks``.
    """

    fields: ClassVar[tuple[str, ...]] = ("missing", "count", "chunks")

    def __init__(self, missing: Sequence[Mapping[str, object]], *, count: int, chunks: int) -> None:
        first = missing[0]
        text = (
            f"{count} of {chunks} chunks are missing, the first of them {first['chunk']} ({first['reason']}), bytes {first['start']} to "
            f"{first['stop']} of segment {first['segment']!r}"
        )
        super().__init__(f"{text}. Nothing was begun; put them back, or choose another moment")
        self.missing: list[dict[str, object]] = [dict(item) for item in missing]
        self.count = count
        self.chunks = chunks


class PastCollected(ChunkstoreError):
    """What a moment of the past needs was removed after it, and collected since. Nothing is damaged.

    ``lsn``: the moment; 0 where it is not known to which record its time leads. ``oldest_lsn``: the oldest one that is still there;
    None where there is none, or where it is a ``chunk`` that is missing.
    """

    fields: ClassVar[tuple[str, ...]] = ("lsn", "oldest_lsn", "chunk")

    def __init__(self, message: str, *, lsn: int, oldest_lsn: int | None = None, chunk: str = "") -> None:
        super().__init__(f"{message}. Choose a later moment; a pin or Settings(pitr_horizon_s=...) keeps future ones")
        self.lsn = lsn
        self.oldest_lsn = oldest_lsn
        self.chunk = chunk


class Unsupported(ChunkstoreError):
    """This storage cannot do what was asked safely, so it is refused instead of imitated."""

    fields: ClassVar[tuple[str, ...]] = ("feature",)

    def __init__(self, message: str, *, feature: str = "") -> None:
        super().__init__(message)
        self.feature = feature


class Damaged(ChunkstoreError):
    """Stored bytes are not what was written. ``object`` is the stored name, ``position`` the byte offset in it.

    Where bytes of a segment cannot be read for it, they are ``[start, stop)`` of ``segment``: what is around can be.
    """

    fields: ClassVar[tuple[str, ...]] = ("object", "position", "segment", "start", "stop")

    def __init__(
        self, message: str, *, object: str, position: int = 0, segment: str = "", start: int = 0, stop: int = 0
    ) -> None:
        where = f" (bytes {start} to {stop} of segment {segment!r})" if stop else ""
        super().__init__(f"{object} at byte {position}: {message}{where}")
        self.object = object
        self.position = position
        self.segment = segment
        self.start = start
        self.stop = stop


class RolledBack(Damaged):
    """The root is older than what the local cache has seen of it: a restored backup, a copy in its place, or lost records.

    ``lsn_seen`` is the last record that was seen, ``lsn_now`` where the journal ends. Nothing was changed that putting the newer state
    back would not heal. ``chunkstore.open(..., accept_rollback=True)`` goes on with what is here.
    """

    fields: ClassVar[tuple[str, ...]] = (*Damaged.fields, "lsn_seen", "lsn_now")

    def __init__(self, message: str, *, object: str, position: int = 0, lsn_seen: int, lsn_now: int) -> None:
        super().__init__(message, object=object, position=position)
        self.lsn_seen = lsn_seen
        self.lsn_now = lsn_now


class Closed(ChunkstoreError):
    """The store, storage, reader or writer was closed before the call."""

    fields: ClassVar[tuple[str, ...]] = ("what",)

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is closed; open it again")
        self.what = what


class _OfChunk(ChunkstoreError):
    fields: ClassVar[tuple[str, ...]] = ("chunk",)
    _text: ClassVar[str] = "{}"

    def __init__(self, chunk: str) -> None:
        super().__init__(self._text.format(chunk))
        self.chunk = chunk


class ChunkNotFound(_OfChunk):
    """Storage port: no chunk of this name."""

    _text = "no chunk {!r} in this storage"


class ChunkExists(_OfChunk):
    """Storage port: a chunk of this name exists already."""

    _text = "chunk {!r} exists already; names are never reused"


class InvalidOffset(ChunkstoreError):
    """Storage port: a write must begin at the chunk's length (``expected``)."""

    fields: ClassVar[tuple[str, ...]] = ("chunk", "expected", "given")

    def __init__(self, chunk: str, *, expected: int, given: int) -> None:
        super().__init__(f"chunk {chunk!r}: write at {given}, but its length is {expected}")
        self.chunk = chunk
        self.expected = expected
        self.given = given
