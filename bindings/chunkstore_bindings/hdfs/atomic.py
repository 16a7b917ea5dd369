"""Files whose name and content appear together in HDFS: a temporary, looked at, then renamed (protocol 2.1, 2.3).

Promises
* WebHDFS turns a CREATE whose client dies into a complete, shorter file. So everything is written to a temporary, its
  length is checked after it was closed, and only then is it renamed: no name ever shows a part of its content.
* The name node gives every file a number that it never gives again and that a rename keeps. It is the token: after a lost
  reply the number under the target's name says whether our rename happened.
* ``place`` decides as long as the deadline allows. What stays undecided raises ``StorageUnavailable`` and may still happen.

Temporaries lie in the folder of their container, and writing one makes no folder: so nothing appears at a place that a container
has left (``held``). Those of the dead are swept after a day. Leaves out: gateways that know no file numbers (there contents are
compared).
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple, NoReturn

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.deadline import Backoff, Deadline
from chunkstore.errors import ChunkstoreError, InvalidArgument, StorageFull, StorageUnavailable
from chunkstore_bindings.hdfs.errors import NAME_TAKEN, is_absent, translate
from chunkstore_bindings.hdfs.held import HeldFolders, Place, moved
from chunkstore_bindings.hdfs.rest import Lost, Pieces, Refused, WebHdfs, content_size

__all__ = ["AtomicCreates", "Temporary", "backoff_until"]

_BLOCK_BYTES = 128 << 20
"""Hadoop's default."""
_STALE_MS = 24 * 3600 * 1000
_SWEEP_EVERY_S = 6 * 3600.0
_SWEEP_COUNT_MAX = 1000
_SWEEP_SHARE = 0.1
_CLEANUP_S = 5.0
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5


class Temporary(NamedTuple):
    """A closed file with all of its bytes: ``path``, the name node's number for it (0: unknown), its bytes, and the path from
    which it is renamed, which may lead elsewhere by then."""

    path: str
    number: int
    data: BytesLike | Pieces
    source: str


def backoff_until(deadline: Deadline) -> Backoff:
    """The pauses of an operation that waits for what the servers say, until its deadline."""
    return Backoff(deadline.left_s(), pause_s_first=_FIRST_PAUSE_S, pause_s_max=_LONGEST_PAUSE_S)


class AtomicCreates:
    """Atomic creation in folders that are ``held``. ``parameters``: of every CREATE (replication, block size)."""

    def __init__(self, rest: WebHdfs, held: HeldFolders, parameters: dict[str, object]) -> None:
        self._rest = rest
        self._held = held
        self._parameters = parameters
        block_bytes = parameters.get("blocksize")
        self._block_bytes = block_bytes if isinstance(block_bytes, int) else _BLOCK_BYTES
        self._sweep_at_s: dict[str, float] = {}

    def create(self, name: str, data: BytesLike | Pieces, deadline: Deadline) -> bool:
        """Create ``name`` with ``data`` unless it exists. Raises as ``ChunkStorage.create_if_absent``."""
        return self._write_and_place(name, data, deadline, replace=False)

    def put(self, name: str, data: BytesLike | Pieces, deadline: Deadline) -> None:
        """Make ``name`` hold ``data``, whatever it held."""
        self._write_and_place(name, data, deadline, replace=True)

    def _write_and_place(self, name: str, data: BytesLike | Pieces, deadline: Deadline, *, replace: bool) -> bool:
        where = self._held.place(name, deadline)
        for folder in sorted({where.temporaries, self._held.shared_temporaries}):
            self._sweep(folder, deadline)
        temporary = self._write(name, where, data, deadline)
        try:
            created = self.place(name, temporary, where.path, deadline, replace=replace)
        except Lost as lost:
            # The rename may still happen: the temporary stays, and is swept if it never does.
            raise translate(lost, name, "renaming the temporary of") from lost
        except BaseException:
            self.discard(temporary.path)
            raise
        if created:
            self._held.confirm(name, deadline)
        else:
            self.discard(temporary.path)
        return created

    def _write(self, name: str, where: Place, data: BytesLike | Pieces, deadline: Deadline) -> Temporary:
        """A temporary with ``data``, on behalf of chunk ``name``. Raises as ``ChunkStorage.create_if_absent``, and what making
        ``Pieces`` raises."""
        file = runtime.token(12).hex()
        path, source = f"{where.temporaries}/{file}", f"{where.by_name}/{file}"
        parameters = self._parameters if where.makes_folders else {**self._parameters, "createparent": "false"}
        try:
            return self._written(path, source, name, data, deadline, parameters)
        except BaseException as error:
            if isinstance(error, ChunkstoreError):
                # Its folder may be gone, which a data node tells who is still sending by hanging up.
                self._held.doubt(name)
            # Whatever it was (a quota that stops a file half-way, a source that cannot be read) leaves what was written so far.
            self.discard(path)
            raise

    def _written(
        self,
        path: str,
        source: str,
        name: str,
        data: BytesLike | Pieces,
        deadline: Deadline,
        parameters: dict[str, object],
    ) -> Temporary:
        size = content_size(data)
        try:
            self._rest.send("PUT", path, "CREATE", data, deadline, overwrite="false", **parameters)
            status = self._status(path, deadline)
        except Refused as refused:
            if "Failed to find datanode" in refused.message:
                why = self._rest.why_no_datanode(self._block_bytes, deadline)
                if why == "full":
                    raise StorageFull(
                        f"writing {name!r}: no data node has room for a block; free space", object=name
                    ) from refused
                if why:
                    refused = Refused("SafeModeException", why, refused.status)
            if refused.kind == "FileNotFoundException":
                raise StorageUnavailable(
                    f"writing {name!r}: the folder of temporaries disappeared ({refused.message}); retry", object=name
                ) from refused
            raise translate(refused, name, "writing") from refused
        except Lost as lost:
            raise translate(lost, name, "writing") from lost
        if status is None or status.get("length") != size:
            found = "nothing" if status is None else f"{status.get('length')} bytes"
            raise StorageUnavailable(f"writing {name!r}: {found} arrived instead of {size} bytes; retry", object=name)
        number = status.get("fileId")
        return Temporary(path, number if isinstance(number, int) else 0, data, source)

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
            missing = denied = False
            try:
                said = self._rest.command(
                    "PUT", temporary.source, "RENAME", deadline, destination=path, renameoptions=option
                )
                if said.get("boolean") is not False:
                    return True
                # HttpFS, which ignores the options. Its no has no reason: taken, no folder, or renamed before.
                missing = denied = True
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
                    self._explain(refused, name, path, deadline)
            answer = None
            try:
                if missing and not made_folder:
                    self._rest.question("PUT", path.rpartition("/")[0] or "/", "MKDIRS", deadline)
                if made_folder or not missing or denied or lost is not None:
                    answer = self._look(name, temporary, path, deadline, missing=missing, replace=replace)
                if answer is None and missing and made_folder and self._has_moved(temporary, deadline):
                    raise lost if lost is not None else moved(name, temporary.source.rpartition("/.")[0])
            except Refused as refused:
                if lost is not None:
                    raise _in_doubt(lost, refused) from refused
                raise translate(refused, name, "creating") from refused
            except Lost as failure:
                lost = failure
            if answer and denied and lost is None and not replace:
                # Nothing of ours was ever sent: equal bytes of another client, where files have no numbers.
                answer = False
            if answer is not None:
                return answer
            if denied and replace and made_folder:
                if lost is not None:
                    raise lost
                raise StorageUnavailable(
                    f"replacing {name!r}: this gateway renames without options, so it replaces nothing; name the name node",
                    object=name,
                )
            if missing and not made_folder:
                made_folder = True
            elif not backoff.pause():
                raise lost if lost is not None else Lost(f"{name!r} could not be decided in time", sent=True)

    def _explain(self, refused: Refused, name: str, path: str, deadline: Deadline) -> NoReturn:
        with contextlib.suppress(Refused, Lost):
            status = self._status(path, deadline)
            if status is not None and status.get("type") == "DIRECTORY":
                raise InvalidArgument(
                    f"{name!r} is a folder here, so it cannot be a chunk", argument="name"
                ) from refused
        raise translate(refused, name, "creating") from refused

    def _look(
        self, name: str, temporary: Temporary, path: str, deadline: Deadline, *, missing: bool, replace: bool
    ) -> bool | None:
        """After a rename without a clear answer: did it happen? None: not so far, and it may be asked for again.

        ``missing``: the name node misses the temporary (renamed before, or swept) or the folder.
        """
        ours = self._is_ours(temporary, path, deadline)
        if ours or (ours is False and not replace):
            return ours
        if missing and self._status(temporary.path, deadline) is None:
            if replace and ours is False:
                # Ours was there, and another one has replaced it since.
                return True
            raise StorageUnavailable(f"the temporary of {name!r} vanished; retry", object=name)
        return None

    def _has_moved(self, temporary: Temporary, deadline: Deadline) -> bool:
        """Whether the path from which a temporary is renamed leads elsewhere by now. (A look after a refusal; it decides nothing.)"""
        if temporary.source == temporary.path:
            return False
        status = self._status(temporary.source, deadline)
        return status is None or status.get("fileId") != temporary.number

    def _is_ours(self, temporary: Temporary, path: str, deadline: Deadline) -> bool | None:
        """Whether ``path`` is our temporary under its new name; None when there is nothing."""
        status = self._status(path, deadline)
        if status is None:
            return None
        if temporary.number and status.get("fileId"):
            return bool(status["fileId"] == temporary.number)
        size = content_size(temporary.data)
        if status.get("length") != size or isinstance(temporary.data, Pieces):
            return False
        with self._rest.open(path, deadline, size_max=size + 1, offset=0, length=size + 1) as stream:
            return b"".join(stream.pieces()) == bytes(temporary.data)

    def _status(self, path: str, deadline: Deadline) -> dict[str, Any] | None:
        try:
            found = self._rest.question("GET", path, "GETFILESTATUS", deadline).get("FileStatus")
        except Refused as refused:
            if is_absent(refused):
                return None
            raise
        if not isinstance(found, dict):
            # Not "there is none", which would be believed.
            raise Lost(f"the answer about {path} is not WebHDFS", sent=True)
        return found

    def discard(self, path: str) -> None:
        """Delete an unreferenced file; what cannot be deleted costs space and nothing else."""
        # Also without a token to ask with: what the caller has met is what counts.
        with contextlib.suppress(Refused, Lost, StorageUnavailable):
            self._rest.command("DELETE", path, "DELETE", Deadline(_CLEANUP_S), recursive="false")

    def _sweep(self, folder: str, deadline: Deadline) -> None:
        """Now and then, remove what the dead left more than a day ago, in a small share of the time of who comes by.

        A clock that is wrong costs a writer an error, never data: a temporary that is gone cannot be renamed.
        """
        now_s = runtime.monotonic_s()
        if now_s < self._sweep_at_s.get(folder, now_s):
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


def _in_doubt(lost: Lost, refused: Refused) -> Lost:
    """A refusal after an attempt whose answer was lost: that one may still happen."""
    return Lost(f"{lost}; asked again, it was refused ({refused})", sent=True)
