"""The name space of HDFS as a name node keeps it and data nodes see it: a model without servers or clocks of its own.

What is modelled is what the binding depends on, as a real Hadoop 3.3.6 was seen to behave (``tests/hdfs/test_semantics.py``
asks both the same questions): exclusive but not atomic CREATE (a client that dies leaves a complete, shorter file), leases,
RENAME with options, paged listing in order of signed bytes, offsets at the end of a file being errors.
``fake_webhdfs`` serves it to real clients, ``tests.simulator.bound_hdfs`` to simulated ones.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

PREFIX = "/webhdfs/v1"
_BLOCK_BYTES = 128 << 20


class No(Exception):
    """A refusal: HTTP status, the Java exception's simple name, its message."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message


@dataclass
class HdfsFile:
    """A file. ``open``: somebody writes it, or died doing so: closed at ``closes_at`` (of the monotonic clock), where that is set."""

    number: int
    modified_ms: int
    data: bytes = b""
    open: bool = False
    closes_at: float | None = None
    permission: str = "644"


def _signed(name: str) -> bytes:
    """A key that sorts as Hadoop does: by signed bytes, so that everything beyond ASCII comes first."""
    return bytes(byte ^ 0x80 for byte in name.encode())


def _is_within(path: str, folder: str) -> bool:
    return (path + "/").startswith(folder + "/")


def _moved(path: str, source: str, target: str) -> str:
    return target + path[len(source) :] if _is_within(path, source) else path


class NameSpace:
    """The tree. ``page``: entries of a listing's page; ``now_ms``, ``monotonic_s``: its clocks; ``datanodes``: their hosts and ports."""

    def __init__(self, now_ms: Callable[[], int], monotonic_s: Callable[[], float], *, page: int = 1000) -> None:
        self.lock = threading.RLock()
        self.files: dict[str, HdfsFile] = {}
        self.folders: dict[str, int] = {"/": 16_385}
        """Their numbers."""
        self.page = page
        self.now_ms = now_ms
        self.monotonic_s = monotonic_s
        self.datanodes: list[tuple[str, int]] = []
        self.safe_mode = ""
        """What the name node tells of its safe mode at /jmx, and ``live_nodes`` of its data nodes."""
        self.live_nodes: dict[str, dict[str, int]] = {}
        self._next_number = 16_385

    # Requests

    def command(self, method: str, op: str, path: str, params: dict[str, str]) -> bytes:
        """What the name node answers: JSON, or nothing. Raises ``No``."""
        known = _NAMENODE.get((method, op))
        if known is None:
            raise No(400, "IllegalArgumentException", f'Invalid value for webhdfs parameter "op": {op}')
        with self.lock:
            answer = known(self, path, params)
        return json.dumps(answer).encode() if answer else b""

    # The name space

    def move(self, source: str, target: str) -> None:
        """Rename a folder, as somebody else would."""
        with self.lock:
            self.make_folders(target.rpartition("/")[0] or "/")
            self.files = {_moved(path, source, target): file for path, file in self.files.items()}
            self.folders = {_moved(path, source, target): number for path, number in self.folders.items()}

    def copy(self, source: str, target: str) -> None:
        """Copy a folder, as somebody else would: the same names and bytes under other numbers."""
        with self.lock:
            for path in [path for path in self.folders if _is_within(path, source)]:
                self.make_folders(target + path[len(source) :])
            for path, file in [item for item in self.files.items() if _is_within(item[0], source)]:
                copied = self.new_file(target + path[len(source) :])
                copied.data, copied.open = file.data, False

    def remove(self, folder: str) -> None:
        """Remove a folder with all that is in it."""
        with self.lock:
            self.files = {path: file for path, file in self.files.items() if not _is_within(path, folder)}
            self.folders = {path: number for path, number in self.folders.items() if not _is_within(path, folder)}

    def entry(self, path: str) -> HdfsFile | None:
        """A file, its lease brought up to now. Raises for a path below a file."""
        for index in range(1, len(path)):
            if path[index] == "/" and path[:index] in self.files:
                raise No(403, "AccessControlException", f"{path[:index]} (is not a directory)")
        file = self.files.get(path)
        if file is not None and file.closes_at is not None and self.monotonic_s() >= file.closes_at:
            file.open, file.closes_at = False, None
        return file

    def file(self, path: str) -> HdfsFile:
        found = self.entry(path)
        if found is None:
            raise No(404, "FileNotFoundException", f"File does not exist: {path}")
        return found

    def make_folders(self, path: str) -> None:
        while path not in self.folders:
            if path in self.files:
                raise No(403, "ParentNotDirectoryException", f"{path} (is not a directory)")
            self._next_number += 1
            self.folders[path] = self._next_number
            path = path.rpartition("/")[0] or "/"

    def new_file(self, path: str) -> HdfsFile:
        self._next_number += 1
        file = self.files[path] = HdfsFile(self._next_number, self.now_ms(), open=True)
        return file

    def status(self, path: str, suffix: str = "") -> dict[str, Any]:
        if path in self.folders:
            number = self.folders[path]
            return {"type": "DIRECTORY", "pathSuffix": suffix, "length": 0, "fileId": number, "permission": "755"}
        file = self.file(path)
        return {
            "type": "FILE",
            "pathSuffix": suffix,
            "length": len(file.data),
            "fileId": file.number,
            "permission": file.permission,
            "modificationTime": file.modified_ms,
            "blockSize": _BLOCK_BYTES,
        }

    def locate(self, path: str, params: dict[str, str]) -> dict[str, Any]:
        """A data node for an operation, but for those that are excluded."""
        excluded = set(filter(None, params.get("excludedatanodes", "").split(",")))
        for host, port in self.datanodes:
            if host not in excluded:
                query = "&".join(f"{key}={quote(value)}" for key, value in params.items() if key != "noredirect")
                query += "&namenoderpcaddress=127.0.0.1:1"
                return {"Location": f"http://{host}:{port}{PREFIX}{quote(path)}?{query}"}
        raise No(403, "IOException", "Failed to find datanode, suggest to check cluster health.")

    def begin_create(self, path: str, params: dict[str, str]) -> HdfsFile:
        """A data node begins to write a file. Raises ``No``."""
        with self.lock:
            if path in self.folders:
                raise No(403, "FileAlreadyExistsException", f"{path} already exists as a directory")
            if any(path[:index] in self.files for index in range(1, len(path)) if path[index] == "/"):
                raise No(403, "ParentNotDirectoryException", f"{path} (is not a directory)")
            there = self.entry(path)
            if there is not None and params.get("overwrite") != "true":
                if there.open:
                    raise No(403, "AlreadyBeingCreatedException", f"Failed to CREATE_FILE {path}: the lease is held")
                raise No(403, "FileAlreadyExistsException", f"{path} for client 127.0.0.1 already exists")
            parent = path.rpartition("/")[0] or "/"
            if params.get("createparent") == "false" and parent not in self.folders:
                raise No(404, "FileNotFoundException", f"Parent directory doesn't exist: {parent}")
            self.make_folders(parent)
            return self.new_file(path)

    def end_write(self, file: HdfsFile, data: bytes) -> None:
        """A data node has written, and closes the file."""
        with self.lock:
            file.data += data
            file.open = False
            file.modified_ms = self.now_ms()

    def read(self, path: str, params: dict[str, str], known_bytes: int | None = None) -> bytes:
        """What a data node gives out; it knows the file's first ``known_bytes``, or all of it. Raises ``No``."""
        with self.lock:
            file = self.file(path)
            if file.open and file.data:
                raise No(403, "CannotObtainBlockLengthException", "Cannot obtain block length for LocatedBlock")
            offset = int(params.get("offset", "0"))
            if offset > len(file.data):
                raise No(403, "EOFException", "Cannot seek after EOF")
            known = file.data if known_bytes is None else file.data[:known_bytes]
            return known[offset : offset + int(params.get("length", str(1 << 62)))]


# What the name node does: one function for each operation, called with the lock held.


def _get_file_status(space: NameSpace, path: str, params: dict[str, str]) -> dict[str, Any]:
    space.entry(path)
    return {"FileStatus": space.status(path)}


def _blocks(space: NameSpace, path: str, params: dict[str, str]) -> dict[str, Any]:
    file = space.file(path)
    return {"LocatedBlocks": {"fileLength": 0 if file.open else len(file.data), "isUnderConstruction": file.open}}


def _mkdirs(space: NameSpace, path: str, params: dict[str, str]) -> dict[str, Any]:
    space.entry(path)
    space.make_folders(path)
    return {"boolean": True}


def _create(space: NameSpace, path: str, params: dict[str, str]) -> dict[str, Any]:
    # Whether the name is free is decided when the data node begins.
    return space.locate(path, params)


def _open(space: NameSpace, path: str, params: dict[str, str]) -> dict[str, Any]:
    if path in space.folders:
        raise No(404, "FileNotFoundException", f"Path is not a file: {path}")
    size, offset = len(space.file(path).data), int(params.get("offset", "0"))
    if offset >= size > 0:
        raise No(403, "IOException", f"Offset={offset} out of the range [0, {size}); OPEN, path={path}")
    return space.locate(path, params)


def _delete(space: NameSpace, path: str, params: dict[str, str]) -> dict[str, Any]:
    if path in space.folders:
        if params.get("recursive") == "true":
            space.remove(path)
            return {"boolean": True}
        if any(name.startswith(path + "/") for name in (*space.files, *space.folders)):
            raise No(403, "PathIsNotEmptyDirectoryException", f"`{path} is non empty': Directory is not empty")
        del space.folders[path]
        return {"boolean": True}
    return {"boolean": space.files.pop(path, None) is not None}


def _rename(space: NameSpace, path: str, params: dict[str, str]) -> dict[str, Any]:
    target, replace = params["destination"], params.get("renameoptions") == "OVERWRITE"
    if path not in space.files:
        raise No(404, "FileNotFoundException", f"rename source {path} is not found.")
    parent = target.rpartition("/")[0] or "/"
    if any(target[:index] in space.files for index in range(1, len(target)) if target[index] == "/"):
        raise No(403, "ParentNotDirectoryException", f"{parent} (is not a directory)")
    if target in space.folders:
        raise No(403, "IOException", f"Source {path} and destination {target} must both be directories")
    if target in space.files and not replace:
        raise No(403, "FileAlreadyExistsException", f"rename destination {target} already exists")
    if parent not in space.folders:
        raise No(404, "FileNotFoundException", f"rename destination parent {target} not found.")
    space.files[target] = space.files.pop(path)
    return {}


def _list(space: NameSpace, path: str, params: dict[str, str]) -> dict[str, Any]:
    space.entry(path)
    if path in space.files:
        return _listing([space.status(path)], 0)
    if path not in space.folders:
        raise No(404, "FileNotFoundException", f"File {path} does not exist.")
    stem = path if path == "/" else path + "/"
    names = {
        name[len(stem) :]
        for name in (*space.files, *space.folders)
        if name.startswith(stem) and name != stem and "/" not in name[len(stem) :]
    }
    after = _signed(params.get("startAfter", ""))
    wanted = sorted((name for name in names if _signed(name) > after), key=_signed)
    shown = wanted[: space.page]
    return _listing([space.status(stem + name, name) for name in shown], len(wanted) - len(shown))


def _listing(statuses: list[dict[str, Any]], remaining: int) -> dict[str, Any]:
    partial = {"FileStatuses": {"FileStatus": statuses}}
    return {"DirectoryListing": {"partialListing": partial, "remainingEntries": remaining}}


def _jmx(space: NameSpace, path: str, params: dict[str, str]) -> dict[str, Any]:
    return {"beans": [{"Safemode": space.safe_mode, "LiveNodes": json.dumps(space.live_nodes)}]}


def _set_permission(space: NameSpace, path: str, params: dict[str, str]) -> dict[str, Any]:
    space.file(path).permission = params["permission"]
    return {}


_NAMENODE: dict[tuple[str, str], Callable[[NameSpace, str, dict[str, str]], dict[str, Any]]] = {
    ("GET", ""): _jmx,
    ("GET", "GETFILESTATUS"): _get_file_status,
    ("GET", "GET_BLOCK_LOCATIONS"): _blocks,
    ("GET", "LISTSTATUS_BATCH"): _list,
    ("GET", "OPEN"): _open,
    ("PUT", "CREATE"): _create,
    ("PUT", "MKDIRS"): _mkdirs,
    ("PUT", "RENAME"): _rename,
    ("PUT", "SETPERMISSION"): _set_permission,
    ("DELETE", "DELETE"): _delete,
}


def remote_exception(no: No) -> bytes:
    """A refusal as the body of an answer."""
    return json.dumps({"RemoteException": {"exception": no.kind, "message": no.message}}).encode()
