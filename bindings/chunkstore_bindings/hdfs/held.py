"""Containers' folders by number: what was opened is what is written to, wherever it is renamed to (protocol 3.6).

Names below a container's folder are asked for through the number that the name node gave that folder:
``/.reserved/.inodes/<number>/...``. A rename keeps the number, so an owner whose folder was moved meets the claims and SEALs of its
successor. No number is given twice, so a folder that was removed is an error, and is not made anew.

Promises
* The number is asked for when a name of the container is first used, and kept for this object's life.
* A temporary is *written* by number and *renamed* from its path. A rename looks up both ends at once, so it succeeds only while
  the path leads to the folder that was opened: not where that one is in the trash, and a copy has its place.
* A container's folder is made for its first names only, and never once it was seen.
* Whether the name node does all this is tried, with every operation that is used, before anything is written; whether numbers lead
  to their folders, before anything is read. Where it does not, paths are used, and the folder's number is looked at before and after
  every write: two requests more.

Leaves out: a server that stops knowing numbers while this object is used; a copy of the folder, with the temporary in it, that takes
the folder's place between the writing and the renaming of that temporary; where paths are used, a folder that is away while one write
is under way, and then is back. The number of a removed folder that a snapshot keeps leads to what is at its old path; nothing is made
there, but what somebody else has put there is found.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final, NamedTuple

from chunkstore import runtime
from chunkstore.deadline import Deadline
from chunkstore.errors import StorageFull, StorageUnavailable, Unsupported
from chunkstore_bindings.hdfs.errors import is_absent, translate
from chunkstore_bindings.hdfs.names import TEMPORARY_FOLDER, to_path
from chunkstore_bindings.hdfs.rest import GONE, INODES, Lost, Refused, WebHdfs

__all__ = ["HeldFolders", "Place", "moved"]

_NEVER_GIVEN: Final = 1 << 62
_CHUNK: Final = re.compile(r"d/[0-9a-f]{2}/[^/]+\Z")
"""Of a container, and never its first name (``names.ContainerNames.chunk``): sessions write such without reading anything before."""
_LATER: Final = frozenset(("RetriableException", "SafeModeException", "StandbyException"))
"""Refusals that say nothing of what is asked."""
_PROBE: Final = b"probe"

_proven: set[str] = set()
"""Addresses of name nodes that did all of it once: no more is tried there, but whether a number leads to its folder is asked by each
object, because a server that knows no numbers, in the place of one that did, would say that every chunk is absent."""


class Place(NamedTuple):
    """Where a chunk is written: ``path``, the folder of its temporaries, and that folder by name (for renames).

    ``makes_folders``: a CREATE may make the temporaries' folder; it is directly in the root.
    """

    path: str
    temporaries: str
    by_name: str
    makes_folders: bool


def moved(name: str, path: str) -> StorageUnavailable:
    """The error of a container whose folder is not at ``path`` any more."""
    return StorageUnavailable(
        f"writing {name!r}: {path} is no longer the folder in which its container was opened (it was renamed, "
        "removed or replaced). Nothing was written; open it at its new place, or put it back",
        object=name,
    )


class HeldFolders:
    """The folders of the containers below ``root`` (an HDFS path). ``guarded``: False uses paths only, and holds nothing."""

    def __init__(self, rest: WebHdfs, root: str, *, guarded: bool) -> None:
        self._rest = rest
        self._root = root
        # What is in a snapshot has the number of what lives, and never changes.
        parts = root.split("/")
        self.shared_temporaries = f"{root}/{TEMPORARY_FOLDER}"
        """Of names that are in no container; former versions used it for all."""
        self._guarded = guarded and ".snapshot" not in parts and parts[1:3] != [".reserved", "raw"]
        self._lock = runtime.lock()
        self._numbers: dict[str, int] = {}
        self._ready: set[str] = set()
        self._works: bool | None = None
        self._tried = rest.base_url in _proven

    def path(self, name: str, deadline: Deadline) -> str:
        """What to ask for, for an existing chunk. Raises ``InvalidArgument``, ``StorageUnavailable``."""
        path = to_path(self._root, name)
        first = self._first(path)
        if first is None or not self._hold(first, name, deadline):
            return path
        return self._prefix(first) + self._below(path, first)

    def folder(self, name: str) -> str:
        """What to list, for a folder's name ("" or ending in a slash): by number where its container is held."""
        if not name:
            return self._root or "/"
        path = to_path(self._root, name.rstrip("/"))
        first = path[len(self._root) + 1 :].partition("/")[0]
        return self._prefix(first) + self._below(path, first) if first in self._numbers else path

    def place(self, name: str, deadline: Deadline) -> Place:
        """Where to write ``name``. Makes the container's folder for its first names. Raises as ``path``."""
        path = to_path(self._root, name)
        first = self._first(path)
        in_root = Place(path, self.shared_temporaries, self.shared_temporaries, True)
        if first is None:
            return in_root
        held = self._hold(first, name, deadline)
        if held is None:
            self._make(first, path, name, deadline)
            held = self._hold(first, name, deadline)
        if not held:
            # A file of that name, which the rename will meet; or a gateway that numbers nothing.
            return in_root
        if not self._tried:
            self._try(first, name, deadline)
        prefix = self._prefix(first)
        if first not in self._ready:
            self._make_ready(first, prefix, name, deadline)
        else:
            self.confirm(name, deadline)
        by_name = f"{self._root}/{first}/{TEMPORARY_FOLDER}"
        return Place(prefix + self._below(path, first), f"{prefix}/{TEMPORARY_FOLDER}", by_name, False)

    def confirm(self, name: str, deadline: Deadline) -> None:
        """Where paths are used: raise ``StorageUnavailable`` unless they still lead to the folder that is held."""
        first = None if self._works else self._first(to_path(self._root, name))
        if first in self._numbers:
            self._check(first, name, deadline)

    def _check(self, first: str, name: str, deadline: Deadline) -> None:
        if _number(self._status(self._prefix(first), name, deadline)) != self._numbers[first]:
            raise moved(name, f"{self._root}/{first}")

    def doubt(self, name: str) -> None:
        """A temporary could not be written: see that their folder is there before the next one."""
        first = self._first(to_path(self._root, name))
        if first is not None:
            self._ready.discard(first)

    def check_server(self, deadline: Deadline) -> None:
        """Raise ``Unsupported`` where files and folders have no numbers, so that no folder can be distinguished from a copy of it."""
        if not self._guarded:
            return
        if not _number(self._status("/", "/", deadline)):
            raise Unsupported(
                f"{self._rest.base_url} returns no fileId of folders, so a renamed container could not be detected. "
                "Name the name node itself, or set guard=none in the root if no one renames containers",
                feature="guard",
            )

    # Holding

    def _first(self, path: str) -> str | None:
        """The container's folder, as it is written in HDFS; None for names that are in none or are not held."""
        first, slash, _ = path[len(self._root) + 1 :].partition("/")
        return first if slash and self._guarded and first != ".snapshot" else None

    def _prefix(self, first: str) -> str:
        return f"{INODES}{self._numbers[first]}" if self._works else f"{self._root}/{first}"

    def _below(self, path: str, first: str) -> str:
        return path[len(self._root) + 1 + len(first) :]

    def _hold(self, first: str, name: str, deadline: Deadline) -> bool | None:
        """Whether the folder is held; it is from the first time that it is there. None: it is not there."""
        if first in self._numbers:
            return True
        real = f"{self._root}/{first}"
        status = self._status(real, name, deadline)
        if status is None:
            return None
        number = _number(status) if status["type"] == "DIRECTORY" else 0
        if not number:
            return False
        if self._works is None:
            self._works = self._leads_by_number(number, name, deadline)
        with self._lock:
            number = self._numbers.setdefault(first, number)
            self._rest.numbered[number] = real
        return True

    def _make(self, first: str, path: str, name: str, deadline: Deadline) -> None:
        if _CHUNK.match(self._below(path, first)[1:]):
            raise StorageUnavailable(
                f"writing {name!r}: there is no folder {self._root}/{first}; if its container was renamed, open it at its new place",
                object=name,
            )
        try:
            self._rest.question("PUT", f"{self._root}/{first}", "MKDIRS", deadline)
        except (Refused, Lost) as error:
            raise translate(error, name, "creating") from error

    def _make_ready(self, first: str, prefix: str, name: str, deadline: Deadline) -> None:
        """Make the folder of temporaries. Looked at first, because MKDIRS by path, or by the number of a folder that only a
        snapshot keeps, would make the container's folder anew."""
        self._check(first, name, deadline)
        try:
            self._rest.question("PUT", f"{prefix}/{TEMPORARY_FOLDER}", "MKDIRS", deadline)
        except (Refused, Lost) as error:
            raise translate(error, name, "creating") from error
        self._ready.add(first)

    def _status(self, path: str, name: str, deadline: Deadline) -> dict[str, Any] | None:
        """What the name node says of a path; None where there is nothing."""
        try:
            found = self._rest.question("GET", path, "GETFILESTATUS", deadline).get("FileStatus")
        except (Refused, Lost) as error:
            if is_absent(error):
                return None
            raise translate(error, name, "looking for") from error
        if not isinstance(found, dict) or found.get("type") not in ("DIRECTORY", "FILE"):
            # Taken for an absent one, it would be made anew.
            raise StorageUnavailable(f"the name node's answer about {path!r} is invalid", object=name)
        return found

    # Trying

    def _try(self, first: str, name: str, deadline: Deadline) -> None:
        # Not under the lock, where others would wait longer than they have time.
        works = self._does_all(first, name, deadline)
        with self._lock:
            if not self._tried:
                self._works, self._tried = works, True
        if works:
            _proven.add(self._rest.base_url)

    def _leads_by_number(self, number: int, name: str, deadline: Deadline) -> bool:
        """Whether the folder is found by its number, and a number that was never given is called that."""
        try:
            by_number = self._rest.question("GET", f"{INODES}{number}", "GETFILESTATUS", deadline).get("FileStatus")
            if not isinstance(by_number, dict) or _number(by_number) != number:
                return False
            self._rest.question("GET", f"{INODES}{_NEVER_GIVEN}/x", "GETFILESTATUS", deadline)
        except Refused as refused:
            return refused.kind == GONE
        except Lost as lost:
            raise translate(lost, name, "looking for") from lost
        return False

    def _does_all(self, first: str, name: str, deadline: Deadline) -> bool:
        """Whether everything that is used works by number, and below a number that was never given nothing is made."""
        if not self._works:
            return False
        folder = f"/{TEMPORARY_FOLDER}/probe-{runtime.token(8).hex()}"
        base, real = f"{INODES}{self._numbers[first]}{folder}", f"{self._root}/{first}{folder}"
        ask = partial(self._rest.question, deadline=deadline)
        try:
            ask("PUT", base, "MKDIRS")
            try:
                return self._does(base, real, deadline) and self._refuses(deadline)
            finally:
                ask("DELETE", base, "DELETE", recursive="true")
        except Refused as refused:
            if refused.kind == GONE:
                raise moved(name, f"{self._root}/{first}") from refused
            error = translate(refused, name, "trying numbers for")
            if isinstance(error, StorageFull) or refused.kind in _LATER or "Failed to find datanode" in refused.message:
                raise error from refused
            return False
        except (LookupError, TypeError):
            return False
        except Lost as lost:
            raise translate(lost, name, "trying numbers for") from lost

    def _does(self, base: str, real: str, deadline: Deadline) -> bool:
        rest = self._rest
        where = {"offset": 0, "length": len(_PROBE)}
        for option in ("NONE", "OVERWRITE"):
            rest.send("PUT", f"{base}/a", "CREATE", _PROBE, deadline, overwrite="false", createparent="false")
            status = rest.question("GET", f"{base}/a", "GETFILESTATUS", deadline).get("FileStatus")
            rest.command("PUT", f"{real}/a", "RENAME", deadline, destination=f"{base}/b", renameoptions=option)
            found = rest.question("GET", f"{real}/b", "GETFILESTATUS", deadline).get("FileStatus")
            if not _number(status) or _number(status) != _number(found):
                return False
        with rest.open(f"{base}/b", deadline, size_max=len(_PROBE), **where) as stream:
            read = b"".join(stream.pieces())
        rest.question("GET", f"{base}/b", "GET_BLOCK_LOCATIONS", deadline, **where)
        listing = rest.question("GET", base, "LISTSTATUS_BATCH", deadline, startAfter="a")["DirectoryListing"]
        listed = listing["partialListing"]["FileStatuses"]["FileStatus"]
        rest.question("PUT", f"{base}/b", "SETPERMISSION", deadline, permission="644")
        rest.question("DELETE", f"{base}/b", "DELETE", deadline, recursive="false")
        return read == _PROBE and [status["pathSuffix"] for status in listed] == ["b"]

    def _refuses(self, deadline: Deadline) -> bool:
        nowhere = f"{INODES}{_NEVER_GIVEN}/x"
        try:
            self._rest.question("PUT", nowhere, "MKDIRS", deadline)
        except Refused as refused:
            if refused.kind != GONE:
                raise
        else:
            return False
        try:
            self._rest.send("PUT", nowhere, "CREATE", _PROBE, deadline, overwrite="false", createparent="false")
        except Refused as refused:
            return refused.kind == GONE
        return False


def _number(status: object) -> int:
    """The number that the name node gave; 0 where it tells none."""
    number = status.get("fileId") if isinstance(status, dict) else None
    return number if type(number) is int and number > 0 else 0
