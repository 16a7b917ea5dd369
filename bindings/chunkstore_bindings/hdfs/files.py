"""What the name node says of files below a root, asked by their names, and how it says no.

Promises
* Answers are checked before anybody relies on them; refusals arrive as chunkstore's errors.
* A file that was closed is never opened again, not even to end a dead writer's lease.
* A container's folder is known by its number from its first use on. Where it was removed or replaced, no name in it is absent: that is
  an error (protocol 3.6, P10).

Leaves out: bytes (``storage``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any, Final, NoReturn

from chunkstore.deadline import Deadline, left_s
from chunkstore.errors import ChunkNotFound, StorageUnavailable
from chunkstore.records.names import utf8_bytes
from chunkstore_bindings.filesystem.folders import TEMPORARY_FOLDER
from chunkstore_bindings.filesystem.tree import walk_names
from chunkstore_bindings.hdfs.errors import is_absent, translate
from chunkstore_bindings.hdfs.names import Page, begin_after, escape, in_order, to_path
from chunkstore_bindings.hdfs.rest import Lost, Refused, WebHdfs

__all__ = ["WRITABLE", "Files", "is_writable"]

WRITABLE: Final = "644"
_PAGE_S: Final = 60.0


class Files:
    """Files below ``root``, an HDFS path ("" or beginning with a slash). ``plain``: names are written as they are. ``guarded``: False
    knows no folder by its number."""

    def __init__(self, rest: WebHdfs, root: str, *, plain: bool = False, guarded: bool = True) -> None:
        self._rest = rest
        self._plain = plain
        self._guarded = guarded
        self._numbers: dict[str, int] = {}
        """Of containers' folders, by path, since they were first seen."""
        self.root = root

    def path(self, name: str) -> str:
        """The path of a chunk. Raises ``InvalidArgument``."""
        return to_path(self.root, name, plain=self._plain)

    def fail(self, error: Refused | Lost, name: str, doing: str) -> NoReturn:
        raise translate(error, name, doing) from error

    def container(self, path: str) -> str:
        """The path of the container's folder that ``path`` is in; of the root, where it is in none, or none is guarded."""
        first, slash, _ = path.removeprefix(self.root + "/").partition("/")
        return f"{self.root}/{first}" if slash and self._guarded and first != ".snapshot" else self.root

    def has_moved(self, path: str, deadline: Deadline) -> bool:
        """Whether the container's folder of ``path`` is no longer the one that was first seen. Raises ``Refused``, ``Lost``."""
        folder = self.container(path)
        if folder == self.root:
            return False
        found = self.look(folder, deadline)
        number = found.get("fileId", 0) if found is not None and found.get("type") == "DIRECTORY" else None
        known = self._numbers.get(folder)
        if known is None and number is not None:
            known = self._numbers.setdefault(folder, number)
        return known != number

    def confirm(self, name: str, path: str, deadline: Deadline, doing: str = "looking for") -> None:
        """Raise ``StorageUnavailable`` if ``has_moved``."""
        try:
            has_moved = self.has_moved(path, deadline)
        except (Refused, Lost) as error:
            self.fail(error, name, doing)
        if has_moved:
            raise self.moved(name, path, doing)

    def hold(self, name: str, path: str, deadline: Deadline) -> None:
        """From now on the container's folder is known: asks only for its first name."""
        if self.container(path) not in self._numbers:
            self.confirm(name, path, deadline)

    def moved(self, name: str, path: str, doing: str) -> StorageUnavailable:
        return StorageUnavailable(
            f"{doing} {name!r}: {self.container(path) or '/'} or its {TEMPORARY_FOLDER} is no longer there (renamed, removed or "
            "replaced while it was in use). Nothing was changed; open the root at its new place, or put it back",
            object=name,
        )

    def status(self, name: str, deadline: Deadline, path: str = "") -> dict[str, Any] | None:
        """What the name node says of a chunk (of what is at ``path``, if given); None if there is none, or a folder.

        Raises ``StorageUnavailable`` where its container's folder was removed or replaced (not asked where ``path`` is given).
        """
        place = path or self.path(name)
        try:
            found = self.look(place, deadline)
        except (Refused, Lost) as error:
            self.fail(error, name, "looking for")
        is_file = found is not None and found.get("type") != "DIRECTORY"
        if not path:
            (self.hold if is_file else self.confirm)(name, place, deadline)
        if found is None or not is_file:
            return None
        if found.get("type") != "FILE" or not _is_size(found.get("length")):
            # Taken for an absent one, it would be written anew, or be called damaged.
            raise StorageUnavailable(f"the name node's answer about {name!r} is invalid", object=name)
        if not _is_size(found.get("fileId")) or not found["fileId"]:
            raise StorageUnavailable(
                f"the answer about {name!r} has no fileId; name the name node itself, not a gateway", object=name
            )
        return found

    def look(self, path: str, deadline: Deadline) -> dict[str, Any] | None:
        """What the name node says of what is at ``path``, unchecked; None if there is nothing. Raises ``Refused``, ``Lost``."""
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

    def is_folder(self, path: str, deadline: Deadline) -> bool:
        """Whether there is a folder at ``path``. Raises ``Refused``, ``Lost``."""
        status = self.look(path, deadline)
        return status is not None and status.get("type") == "DIRECTORY"

    def has_root(self, deadline: Deadline) -> bool:
        """Whether the root is there. Raises ``Refused``, ``Lost``."""
        return self.is_folder(self.root or "/", deadline)

    def must_have(self, name: str, deadline: Deadline, path: str = "") -> dict[str, Any]:
        if (status := self.status(name, deadline, path)) is None:
            raise ChunkNotFound(name)
        return status

    def walk(self, prefix: str, after: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Files whose names begin with ``prefix`` and are above ``after``, in order, and what the name node says of each.

        One page per level is in memory; where names are plain, one sorted folder. What vanishes meanwhile may be left out.
        Raises ``Refused``, ``Lost``.
        """
        status: dict[str, Any] = {}
        if TEMPORARY_FOLDER in prefix.split("/")[:-1][:2]:
            return

        def names_in(folder: str) -> Iterator[str]:
            nonlocal status
            fetch = partial(self._page, folder)
            if self._plain:
                entries = iter(sorted(in_order(fetch, "", _as_it_is), key=itemgetter(0)))
            else:
                entries = in_order(fetch, begin_after(folder, prefix, after))
            for entry in entries:
                name, status = entry
                if name != TEMPORARY_FOLDER + "/" or folder.count("/") > 1:
                    yield name

        for name in walk_names(names_in, prefix=prefix, after=after):
            yield name, status

    def confirm_listing(self, prefix: str, deadline: Deadline) -> None:
        """As ``confirm``, of the container whose names were listed, where ``prefix`` names one."""
        first, slash, _ = prefix.partition("/")
        if slash and first not in ("", ".", "..") and "\0" not in first and utf8_bytes(first) > 0:
            self.confirm(prefix, f"{self.root}/{first if self._plain else escape(first)}/", deadline, "listing")

    def _page(self, folder: str, following: str) -> Page:
        """The statuses in a folder ("" or ending in a slash) after an escaped name; none where there is no such folder."""
        if "\0" in folder or utf8_bytes(folder) < 0:
            return Page([], more=False)
        path = f"{self.root}/{folder if self._plain else escape(folder)}".rstrip("/") or "/"
        deadline = Deadline(left_s(_PAGE_S))
        try:
            answer = self._rest.question("GET", path, "LISTSTATUS_BATCH", deadline, startAfter=following)
            listing = answer["DirectoryListing"]
            found = listing["partialListing"]["FileStatuses"]["FileStatus"]
            # A page that ends where the last one did would never lead anywhere.
            if found and str(found[-1].get("pathSuffix", "")) == following != "":
                raise ValueError("the page does not continue")
            if not all(isinstance(status, dict) for status in found):
                raise ValueError("an entry is not an object")
            return Page(found, more=int(listing["remainingEntries"]) > 0 and bool(found))
        except Refused as refused:
            if is_absent(refused):
                return Page([], more=False)
            raise
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise Refused("NoListing", f"the listing of {folder!r} is invalid", 200) from error

    @contextmanager
    def waiting(self, name: str, doing: str, deadline: Deadline) -> Iterator[list[Refused | Lost]]:
        """At the deadline, the error is the last of what was waited for, and not that no time was left to look again."""
        met: list[Refused | Lost] = []
        try:
            yield met
        except StorageUnavailable:
            if met and not deadline.left_s():
                self.fail(met[-1], name, doing)
            raise

    def closed_length(self, name: str, deadline: Deadline) -> int | None:
        """The chunk's length in bytes, or None while it is being written, or if its writer died. Raises ``ChunkNotFound``."""
        path = self.path(name)
        try:
            # One byte is asked for: the whole file's length comes with it, and not the list of all its blocks.
            answer = self._rest.question("GET", path, "GET_BLOCK_LOCATIONS", deadline, offset=0, length=1)
        except Refused as refused:
            if is_absent(refused):
                self.confirm(name, path, deadline)
                raise ChunkNotFound(name) from refused
            self.fail(refused, name, "looking for")
        except Lost as lost:
            self.fail(lost, name, "looking for")
        blocks = answer.get("LocatedBlocks")
        if not isinstance(blocks, dict) or not _is_size(blocks.get("fileLength")):
            raise StorageUnavailable(f"the name node's answer about {name!r} is invalid", object=name)
        return None if blocks.get("isUnderConstruction") is True else int(blocks["fileLength"])


def _as_it_is(name: str) -> str | None:
    return name if utf8_bytes(name) > 0 else None


def _is_size(found: object) -> bool:
    return type(found) is int and found >= 0


def is_writable(status: dict[str, Any]) -> bool:
    """Whether the owner's write bit is set; where a server says nothing, it is."""
    permission = str(status.get("permission", WRITABLE)).zfill(3)
    return permission[-3] not in "0145"
