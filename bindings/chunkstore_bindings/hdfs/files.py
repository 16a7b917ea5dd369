"""What the name node says of one chunk's file, asked in the chunk's name, and how it says no.

Promises: answers are checked before anybody relies on them; refusals arrive as chunkstore's errors. A file that was closed is
never opened again, not even to end a dead writer's lease. Leaves out: bytes (``storage``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from chunkstore.deadline import Deadline
from chunkstore.errors import ChunkNotFound, StorageUnavailable
from chunkstore_bindings.hdfs.errors import is_absent, translate
from chunkstore_bindings.hdfs.names import Page, to_path
from chunkstore_bindings.hdfs.rest import Lost, Refused, WebHdfs

__all__ = ["WRITABLE", "Files", "is_writable"]

WRITABLE: Final = "644"


class Files:
    """Files below ``root``, an HDFS path ("" or beginning with a slash)."""

    def __init__(self, rest: WebHdfs, root: str) -> None:
        self._rest = rest
        self.root = root

    def path(self, name: str) -> str:
        """The path of a chunk, or of a folder. Raises ``InvalidArgument``."""
        return to_path(self.root, name)

    def fail(self, error: Refused | Lost, name: str, doing: str) -> NoReturn:
        raise translate(error, name, doing) from error

    def status(self, name: str, deadline: Deadline, path: str = "") -> dict[str, Any] | None:
        """What the name node says of a chunk (of what is at ``path``, if given); None if there is none, or a folder."""
        try:
            found = self._rest.question("GET", path or self.path(name), "GETFILESTATUS", deadline).get("FileStatus")
        except (Refused, Lost) as error:
            if is_absent(error):
                return None
            self.fail(error, name, "looking for")
        if isinstance(found, dict) and found.get("type") == "DIRECTORY":
            return None
        if not isinstance(found, dict) or found.get("type") != "FILE" or not _is_size(found.get("length")):
            # Taken for an absent one, it would be written anew, or be called damaged.
            raise StorageUnavailable(f"the name node's answer about {name!r} is invalid", object=name)
        if not _is_size(found.get("fileId")) or not found["fileId"]:
            raise StorageUnavailable(
                f"the answer about {name!r} has no fileId; name the name node itself, not a gateway", object=name
            )
        return found

    def must_have(self, name: str, deadline: Deadline, path: str = "") -> dict[str, Any]:
        if (status := self.status(name, deadline, path)) is None:
            raise ChunkNotFound(name)
        return status

    def page(self, deadline: Deadline, folder: str, following: str) -> Page:
        path = self.path(folder.rstrip("/")) if folder else self.root or "/"
        try:
            answer = self._rest.question("GET", path, "LISTSTATUS_BATCH", deadline, startAfter=following)
            listing = answer["DirectoryListing"]
            found = Page(listing["partialListing"]["FileStatuses"]["FileStatus"], int(listing["remainingEntries"]) > 0)
            # A page that ends where the last one did would never lead anywhere.
            if found.statuses and str(found.statuses[-1].get("pathSuffix", "")) == following != "":
                raise ValueError("the page does not continue")
            if all(isinstance(status, dict) for status in found.statuses):
                return found
            raise ValueError("an entry is not an object")
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
        try:
            # One byte is asked for: the whole file's length comes with it, and not the list of all its blocks.
            answer = self._rest.question("GET", self.path(name), "GET_BLOCK_LOCATIONS", deadline, offset=0, length=1)
        except Refused as refused:
            if is_absent(refused):
                raise ChunkNotFound(name) from refused
            self.fail(refused, name, "looking for")
        except Lost as lost:
            self.fail(lost, name, "looking for")
        blocks = answer.get("LocatedBlocks")
        if not isinstance(blocks, dict) or not _is_size(blocks.get("fileLength")):
            raise StorageUnavailable(f"the name node's answer about {name!r} is invalid", object=name)
        return None if blocks.get("isUnderConstruction") is True else int(blocks["fileLength"])


def _is_size(found: object) -> bool:
    return type(found) is int and found >= 0


def is_writable(status: dict[str, Any]) -> bool:
    """Whether the owner's write bit is set; where a server says nothing, it is."""
    permission = str(status.get("permission", WRITABLE)).zfill(3)
    return permission[-3] not in "0145"
