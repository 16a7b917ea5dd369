"""What the name node says of files below a root, asked by their names, and how it says no.

Promises: the path of a name is the root, a slash and the name, in which a colon is U+F03A. Answers are checked before anybody
relies on them; refusals arrive as chunkstore's errors. A file that was closed is never opened again, not even to end a dead writer's lease.
Leaves out: bytes (``storage``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from chunkstore.deadline import Deadline, left_s
from chunkstore.errors import ChunkNotFound, InvalidArgument, StorageUnavailable
from chunkstore.records.names import utf8_bytes
from chunkstore_bindings.filesystem.folders import TEMPORARY_FOLDER
from chunkstore_bindings.filesystem.tree import walk_names
from chunkstore_bindings.hdfs.errors import is_absent, translate
from chunkstore_bindings.hdfs.rest import Lost, Refused, WebHdfs

__all__ = ["WRITABLE", "Files", "is_writable"]

WRITABLE: Final = "644"
_PART_BYTES_MAX: Final = 255
"""Hadoop's default (dfs.namenode.fs-limits.max-component-length); a site that raised it loses nothing the engine uses."""
_PAGE_S: Final = 60.0
_COLON: Final = "\uf03a"
"""HDFS takes no colon in a path; this is what stands for it on Windows' file systems, too."""


class Files:
    """Files below ``root``, an HDFS path ("" or beginning with a slash)."""

    def __init__(self, rest: WebHdfs, root: str) -> None:
        self._rest = rest
        self.root = root
        self.temporaries = f"{root}/{TEMPORARY_FOLDER}"

    def path(self, name: str) -> str:
        """The path of a chunk. Raises ``InvalidArgument``."""
        if name.partition("/")[0] == TEMPORARY_FOLDER:
            raise InvalidArgument(f"{TEMPORARY_FOLDER!r} holds temporaries; choose another name", argument="name")
        if _COLON in name or utf8_bytes(name) < 0:
            raise InvalidArgument(
                f"name {name!r} is not valid UTF-8, or has the character that a ':' is written as", argument="name"
            )
        name = name.replace(":", _COLON)
        longest = max(map(utf8_bytes, name.split("/")))
        if longest > _PART_BYTES_MAX:
            text = f"name {name!r} has a part of {longest} bytes; HDFS has {_PART_BYTES_MAX} at most"
            raise InvalidArgument(text, argument="name")
        return f"{self.root}/{name}"

    def fail(self, error: Refused | Lost, name: str, doing: str) -> NoReturn:
        raise translate(error, name, doing) from error

    def status(self, name: str, deadline: Deadline, path: str = "") -> dict[str, Any] | None:
        """What the name node says of a chunk (of what is at ``path``, if given); None if there is none, or a folder."""
        try:
            found = self.look(path or self.path(name), deadline)
        except (Refused, Lost) as error:
            self.fail(error, name, "looking for")
        if found is None or found.get("type") == "DIRECTORY":
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

        One sorted folder per level is in memory. What vanishes meanwhile may be left out. Raises ``Refused``, ``Lost``.
        """
        statuses: dict[str, dict[str, Any]] = {}

        def names_in(folder: str) -> list[str]:
            names = []
            for status in self._entries(folder):
                name, kind = str(status.get("pathSuffix", "")).replace(_COLON, ":"), status.get("type")
                if utf8_bytes(name) > 0 and kind in ("FILE", "DIRECTORY"):
                    names.append(name + "/" if kind == "DIRECTORY" else name)
                    statuses[folder + name] = status
            return sorted(names)

        for name in walk_names(names_in, prefix=prefix, after=after):
            yield name, statuses.pop(name)

    def _entries(self, folder: str) -> Iterator[dict[str, Any]]:
        """The statuses in a folder ("" or ending in a slash), in pages; none where there is no such folder."""
        if "\0" in folder or utf8_bytes(folder) < 0:
            return
        path = f"{self.root}/{folder.replace(':', _COLON)}".rstrip("/") or "/"
        last, more = "", True
        while more:
            try:
                answer = self._rest.question(
                    "GET", path, "LISTSTATUS_BATCH", Deadline(left_s(_PAGE_S)), startAfter=last
                )
                listing = answer["DirectoryListing"]
                found = listing["partialListing"]["FileStatuses"]["FileStatus"]
                before, last = last, str(found[-1].get("pathSuffix", "")) if found else ""
                more = int(listing["remainingEntries"]) > 0 and bool(found)
                if not all(isinstance(status, dict) for status in found):
                    raise ValueError("an entry is not an object")
                # A page that ends where the last one did would never lead anywhere.
                if last == before != "":
                    raise ValueError("the page does not continue")
            except Refused as refused:
                if is_absent(refused):
                    return
                raise
            except (LookupError, TypeError, AttributeError, ValueError) as error:
                raise Refused("NoListing", f"the listing of {folder!r} is invalid", 200) from error
            yield from found

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
