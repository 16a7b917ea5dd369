"""Files whose name and content appear together in HDFS: a temporary, looked at, then renamed (protocol 2.1, 2.3).

Promises
* WebHDFS turns a CREATE whose client dies into a complete, shorter file. So everything is written to a temporary, its
  length is checked after it was closed, and only then is it renamed: no name ever shows a part of its content.
* The name node gives every file a number that it never gives again and that a rename keeps. It is the token: after a lost
  reply the number under the target's name says whether our rename happened.
* ``place`` decides as long as the deadline allows. What stays undecided raises ``StorageUnavailable`` and may still happen.
* A root, or a container's folder, that this object has used is never made again, and another that takes its place gets no name:
  a temporary is in its container's folder, whose number is looked at between writing and renaming. A rename looks up both ends at once, so
  it succeeds only where the temporary is.

Temporaries of the dead are swept after a day. Leaves out: gateways that know no file numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import NamedTuple, NoReturn

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.deadline import Backoff, Deadline, left_s
from chunkstore.errors import ChunkstoreError, InvalidArgument, StorageFull, StorageUnavailable
from chunkstore_bindings.filesystem.folders import TEMPORARY_FOLDER
from chunkstore_bindings.hdfs.errors import NAME_TAKEN, translate
from chunkstore_bindings.hdfs.files import Files
from chunkstore_bindings.hdfs.rest import Lost, Pieces, Refused, WebHdfs, content_size

__all__ = ["AtomicCreates", "Temporary", "backoff_until"]

_BLOCK_BYTES = 128 << 20
"""Hadoop's default."""
_STALE_MS = 24 * 3600 * 1000
_SWEEP_EVERY_S = 6 * 3600.0
_SWEEP_COUNT_MAX = 1000
_SWEEP_SHARE = 0.1
_CLEANUP_S = 5.0
_REQUEST_S = 60.0
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5


class Temporary(NamedTuple):
    """A closed file with all of its bytes: its path, and the name node's number for it."""

    path: str
    number: int


def backoff_until(deadline: Deadline) -> Backoff:
    """The pauses of an operation that waits for what the servers say, until its deadline."""
    return Backoff(deadline.left_s(), pause_s_first=_FIRST_PAUSE_S, pause_s_max=_LONGEST_PAUSE_S)


class AtomicCreates:
    """Atomic creation below the root of ``files``. ``parameters``: of every CREATE (replication, block size)."""

    def __init__(self, rest: WebHdfs, files: Files, parameters: dict[str, object]) -> None:
        self._rest = rest
        self._files = files
        self._parameters = parameters
        block_bytes = parameters.get("blocksize")
        self._block_bytes = block_bytes if isinstance(block_bytes, int) else _BLOCK_BYTES
        self._ready: set[str] = set()
        """Folders of temporaries that were made."""
        self._sweep_at_s: dict[str, float] = {}

    def create(self, name: str, data: BytesLike | Pieces, deadline: Deadline) -> bool:
        """Create ``name`` with ``data`` unless it exists. Raises as ``ChunkStorage.create_if_absent``."""
        return self._write_and_place(name, [data], deadline, replace=False) is not None

    def put(self, name: str, parts: Iterable[BytesLike | Pieces], deadline: Deadline | None) -> int:
        """Make ``name`` hold these parts, whatever it held; their length in bytes. ``deadline``: None gives each part's request its own."""
        length = self._write_and_place(name, parts, deadline, replace=True)
        assert length is not None
        return length

    def _write_and_place(
        self, name: str, parts: Iterable[BytesLike | Pieces], deadline: Deadline | None, *, replace: bool
    ) -> int | None:
        path = self._files.path(name)
        temporaries = f"{self._files.container(path)}/{TEMPORARY_FOLDER}"
        self._sweep(temporaries, deadline or _own())
        temporary, length = self._write(name, path, temporaries, parts, deadline)
        try:
            # It may be in what has taken the folder's place by now.
            self._files.confirm(name, path, deadline or _own(), "writing")
            created = self.place(name, temporary, path, deadline or _own(), replace=replace)
        except Lost as lost:
            # The rename may still happen: the temporary stays, and is swept if it never does.
            raise translate(lost, name, "renaming the temporary of") from lost
        except BaseException:
            self.discard(temporary.path)
            raise
        if not created:
            self.discard(temporary.path)
        return length if created else None

    def _write(
        self, name: str, target: str, folder: str, parts: Iterable[BytesLike | Pieces], deadline: Deadline | None
    ) -> tuple[Temporary, int]:
        """A temporary in ``folder`` with these parts, to become ``target``, and its length. Raises also what making them raises."""
        path = f"{folder}/{runtime.token(12).hex()}"
        size = 0
        try:
            if folder not in self._ready:
                # Only the folder of a new container is made with it.
                self._files.confirm(name, target, deadline or _own(), "writing")
                self._rest.question("PUT", folder, "MKDIRS", deadline or _own())
                self._ready.add(folder)
            coming = iter(parts)
            first = next(coming, b"")
            given = {"overwrite": "false", "createparent": "false", **self._parameters}
            self._rest.send("PUT", path, "CREATE", first, deadline or _own(), **given)
            size = content_size(first)
            del first  # before the next one is made: one is in memory
            for part in coming:
                # Nothing reads a temporary, so opening it again harms no replica.
                self._rest.send("POST", path, "APPEND", part, deadline or _own())
                size += content_size(part)
                del part
            status = self._files.status(name, deadline or _own(), path)
            if status is None or status["length"] != size:
                found = "nothing" if status is None else f"{status['length']} bytes"
                raise StorageUnavailable(
                    f"writing {name!r}: {found} arrived instead of {size} bytes; retry", object=name
                )
            return Temporary(path, status["fileId"]), size
        except BaseException as error:
            # Whatever it was (a quota that stops a file half-way, a source that cannot be read) leaves what was written so far.
            self.discard(path)
            if isinstance(error, (Refused, Lost)):
                asking = deadline or _own()
                with contextlib.suppress(Refused, Lost):
                    # The folder of temporaries is made again where it has gone, but not where the root has.
                    if self._files.has_root(asking):
                        self._ready.discard(folder)
                raise self._unwritten(error, name, target, asking) from error
            raise

    def _unwritten(self, error: Refused | Lost, name: str, target: str, deadline: Deadline) -> ChunkstoreError:
        if isinstance(error, Refused) and "Failed to find datanode" in error.message:
            why = self._rest.why_no_datanode(self._block_bytes, deadline)
            if why == "full":
                return StorageFull(f"writing {name!r}: no data node has room for a block; free space", object=name)
            if why:
                error = Refused("SafeModeException", why, error.status)
        if isinstance(error, Refused) and error.kind == "FileNotFoundException":
            return self._files.moved(name, target, "writing")
        return translate(error, name, "writing")

    def place(self, name: str, temporary: Temporary, path: str, deadline: Deadline, *, replace: bool) -> bool:
        """Rename ``temporary`` to ``path``; False when the name was taken (never with ``replace``).

        Raises ``Lost`` while it may still happen, and chunkstore's errors when it certainly did not and will not. A refusal says
        what became of its own attempt: after one whose answer was lost, that one may still happen.
        """
        option = "OVERWRITE" if replace else "NONE"
        backoff = backoff_until(deadline)
        lost: Lost | None = None
        made_folder = False
        while True:
            missing = False
            try:
                said = self._rest.command(
                    "PUT", temporary.path, "RENAME", deadline, destination=path, renameoptions=option
                )
                if said.get("boolean") is not False:
                    return True
                raise StorageUnavailable(
                    f"creating {name!r}: this gateway renames without options; name the name node", object=name
                )
            except Lost as failure:
                lost = failure
            except Refused as refused:
                if refused.kind in NAME_TAKEN and not replace:
                    if lost is None:
                        return False
                elif refused.kind == "FileNotFoundException":
                    missing = True
                elif lost is not None:
                    raise _in_doubt(lost, refused) from refused
                else:
                    self._explain_unplaced(refused, name, path, deadline)
            answer = None
            try:
                if missing and not made_folder:
                    if self._files.has_moved(path, deadline):
                        raise lost if lost is not None else self._files.moved(name, path, "creating")
                    self._rest.question("PUT", path.rpartition("/")[0] or "/", "MKDIRS", deadline)
                if made_folder or lost is not None:
                    answer = self._has_landed(name, temporary, path, deadline, missing=missing, replace=replace)
            except Refused as refused:
                if lost is not None:
                    raise _in_doubt(lost, refused) from refused
                raise translate(refused, name, "creating") from refused
            except Lost as failure:
                lost = failure
            if answer is not None:
                return answer
            if missing and not made_folder:
                made_folder = True
            elif not backoff.pause():
                raise lost if lost is not None else Lost(f"{name!r} could not be decided in time", sent=True)

    def _explain_unplaced(self, refused: Refused, name: str, path: str, deadline: Deadline) -> NoReturn:
        with contextlib.suppress(Refused, Lost):
            if self._files.is_folder(path, deadline):
                raise InvalidArgument(
                    f"{name!r} is a folder here, so it cannot be a chunk", argument="name"
                ) from refused
        raise translate(refused, name, "creating") from refused

    def _has_landed(
        self, name: str, temporary: Temporary, path: str, deadline: Deadline, *, missing: bool, replace: bool
    ) -> bool | None:
        """After a rename without a clear answer: did it happen? None: not so far, and it may be asked for again.

        ``missing``: the name node misses the temporary (renamed before, or swept) or the folder.
        """
        found = self._files.look(path, deadline)
        ours = found is not None and found.get("fileId") == temporary.number
        if ours or (found is not None and not replace):
            return ours
        if missing and self._files.look(temporary.path, deadline) is None:
            if found is not None:
                # Ours was there, and another one has replaced it since.
                return True
            raise StorageUnavailable(f"the temporary of {name!r} vanished; retry", object=name)
        return None

    def discard(self, path: str) -> None:
        """Delete an unreferenced file; what cannot be deleted costs space and nothing else."""
        # Also without a token to ask with: what the caller has met is what counts.
        with contextlib.suppress(Refused, Lost, StorageUnavailable):
            self._rest.command("DELETE", path, "DELETE", Deadline(_CLEANUP_S), recursive="false")

    def _sweep(self, folder: str, deadline: Deadline) -> None:
        """Now and then, remove what the dead left more than a day ago, in a small share of a writer's time.

        A clock that is wrong costs a writer an error, never data: a temporary that is gone cannot be renamed.
        """
        now_s = runtime.monotonic_s()
        if now_s < self._sweep_at_s.get(folder, 0.0):
            return
        self._sweep_at_s[folder] = now_s + _SWEEP_EVERY_S
        limit_ms = runtime.now_ms() - _STALE_MS
        share = Deadline(min(_CLEANUP_S, deadline.left_s() * _SWEEP_SHARE))
        try:
            answer = self._rest.question("GET", folder, "LISTSTATUS_BATCH", share)
            statuses = answer["DirectoryListing"]["partialListing"]["FileStatuses"]["FileStatus"]
            for status in statuses[:_SWEEP_COUNT_MAX]:
                if status["type"] == "FILE" and status["modificationTime"] < limit_ms:
                    path = f"{folder}/{status['pathSuffix']}"
                    with contextlib.suppress(Refused):
                        self._rest.command("DELETE", path, "DELETE", share, recursive="false")
        except (Refused, Lost, LookupError, TypeError, AttributeError):
            # Nothing there yet, no time left, or the next call will meet the same trouble and say so.
            return


def _own() -> Deadline:
    """The end of one request of several that have no common one."""
    return Deadline(left_s(_REQUEST_S))


def _in_doubt(lost: Lost, refused: Refused) -> Lost:
    """A refusal after an attempt whose answer was lost: that one may still happen."""
    return Lost(f"{lost}; asked again, it was refused ({refused})", sent=True)
