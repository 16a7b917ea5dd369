"""WebHDFS as a model in this process: one name node, data nodes, exact faults. The truth stays with the real server.

What is modelled is what the binding depends on, as a real Hadoop 3.3.6 was seen to behave (``tests/hdfs/test_semantics.py``
asks both the same questions): exclusive but not atomic CREATE (a client that dies leaves a complete, shorter file), leases,
RENAME with options, CONCAT, paged listing in order of signed bytes, offsets at the
end of a file being errors.

    with FakeWebHdfs() as fake:
        fake.lose_reply("RENAME")                     # carried out, never answered
        fake.refuse("CREATE", "DSQuotaExceededException", "...")
        ...
        assert fake.asked("RENAME") == 2

Leaves out: blocks, users, permissions but the owner's write bit, chunked bodies.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from tests.support.closing import Closing

__all__ = ["FakeWebHdfs", "Fault"]

_PREFIX = "/webhdfs/v1"
_INODES = "/.reserved/.inodes/"
_BLOCK_BYTES = 128 << 20


class _No(Exception):
    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message


@dataclass
class _File:
    number: int
    data: bytes = b""
    open: bool = False
    """Somebody writes it, or died doing so: closed at ``closes_at``, where that is set."""
    closes_at: float | None = None
    permission: str = "644"
    modified_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)


@dataclass
class Fault:
    """What happens to the next ``times`` requests of an operation at one kind of server."""

    op: str
    where: str
    action: str
    times: int
    answer: tuple[int, str, str] | None = None
    about: str = ""
    """Only requests about a path with this in it; of a rename, the new path."""
    body: bytes = b"<html>Bad gateway</html>"
    """What ``garble`` and ``say`` send."""
    seconds: float = 0.0
    """Waited before anything else is done."""
    fired: int = 0


@dataclass(frozen=True)
class Asked:
    """One request that arrived."""

    where: str
    method: str
    op: str
    path: str
    params: dict[str, str]


def _signed(name: str) -> bytes:
    """A key that sorts as Hadoop does: by signed bytes, so that everything beyond ASCII comes first."""
    return bytes(byte ^ 0x80 for byte in name.encode())


def _is_within(path: str, folder: str) -> bool:
    return (path + "/").startswith(folder + "/")


def _moved(path: str, source: str, target: str) -> str:
    return target + path[len(source) :] if _is_within(path, source) else path


class FakeWebHdfs(Closing):
    """The servers. ``page``: entries of a listing's page; ``numbers``: False makes it a gateway that gives files none;
    ``inodes``: whether ``/.reserved/.inodes`` leads anywhere; ``datanodes``: how many."""

    def __init__(self, *, page: int = 1000, numbers: bool = True, inodes: bool = True, datanodes: int = 1) -> None:
        self.lock = threading.RLock()
        self.files: dict[str, _File] = {}
        self.folders: dict[str, int] = {"/": 16_385}
        """Their numbers."""
        self.log: list[Asked] = []
        self.faults: list[Fault] = []
        self.page = page
        self.numbers = numbers
        self.inodes = inodes
        self._next_number = 16_385
        self._servers = [_serve(self, "namenode", "127.0.0.1")]
        # Each on an address of its own: the name node leaves data nodes out by address.
        self._servers += [_serve(self, "datanode", f"127.0.0.{index + 1}") for index in range(datanodes)]
        self.safe_mode = ""
        """What the name node tells of its safe mode at /jmx, and ``live_nodes`` of its data nodes."""
        self.live_nodes: dict[str, dict[str, int]] = {}
        self.too_much = 0
        """So many bytes more than were asked for are sent with every OPEN."""
        self._holders: list[socket.socket] = []
        self._grows: dict[str, bytes] = {}
        self._cuts: dict[str, tuple[int, int]] = {}

    @property
    def port(self) -> int:
        return self._servers[0].server_port

    @property
    def datanode_port(self) -> int:
        """The first data node's."""
        return self._servers[1].server_port

    def root(self, path: str = "/root", query: str = "") -> str:
        return f"hdfs://127.0.0.1:{self.port}{path}{query}"

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for holder in self._holders:
            holder.close()

    # Faults and looking

    def lose_reply(self, op: str, *, where: str = "namenode", times: int = 1, about: str = "") -> Fault:
        """The operation is carried out; its answer never arrives."""
        return self._add(Fault(op, where, "lose_reply", times, about=about))

    def lose_request(self, op: str, *, where: str = "namenode", times: int = 1, about: str = "") -> Fault:
        """The connection breaks before anything is done."""
        return self._add(Fault(op, where, "lose_request", times, about=about))

    def cut_body(self, op: str, *, times: int = 1) -> Fault:
        """The connection breaks in the middle of the body: a data node then closes the file with what it got."""
        return self._add(Fault(op, "datanode", "cut_body", times))

    def refuse(
        self, op: str, kind: str, message: str = "", *, status: int = 403, where: str = "namenode", times: int = 1
    ) -> Fault:
        """Answer with this exception instead of doing anything."""
        return self._add(Fault(op, where, "refuse", times, (status, kind, message)))

    def garble(self, op: str, status: int, *, where: str = "namenode", times: int = 1) -> Fault:
        """Answer with some gateway's page, and do nothing."""
        return self._add(Fault(op, where, "garble", times, (status, "", "")))

    def shorten_reads(self, path: str, size: int, *, times: int) -> Fault:
        """A data node that does not know yet what was added last: only the file's first ``size`` bytes are there for it."""
        return self._add(Fault("OPEN", "datanode", "shorten", times, (size, "", ""), about=path))

    def grow_after_reads(self, path: str, data: bytes) -> None:
        """Each time a data node has read the file, somebody has added ``data``."""
        self._grows[path] = data

    def cut_after(self, path: str, length: int, *, reads: int) -> None:
        """After so many reads of the file by a data node somebody cuts it to ``length``."""
        self._cuts[path] = (reads, length)

    def after_read(self, path: str) -> None:
        """What happens once a data node has read ``path``; called with the lock held."""
        file = self.files[path]
        file.data += self._grows.get(path, b"")
        reads, length = self._cuts.get(path, (0, 0))
        if reads:
            self._cuts[path] = (reads - 1, length)
            if reads == 1:
                file.data = file.data[:length]

    def say(self, op: str, body: bytes, *, status: int = 200, where: str = "namenode", times: int = 1) -> Fault:
        """Answer with exactly this, and do nothing."""
        return self._add(Fault(op, where, "say", times, (status, "", ""), body=body))

    def _add(self, fault: Fault) -> Fault:
        with self.lock:
            self.faults.append(fault)
        return fault

    def asked(self, op: str, where: str = "namenode") -> int:
        """How often an operation was asked for."""
        with self.lock:
            return sum(item.op == op and item.where == where for item in self.log)

    def stop_datanode(self, index: int = 0) -> None:
        """Refuse connections from now on, while the name node still names it."""
        server = self._servers[1 + index]
        server.shutdown()
        server.server_close()
        # Whoever asks the kernel for a port is not given this one, and nobody listens on it.
        holder = socket.socket()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((str(server.server_name), int(server.server_port)))
        self._holders.append(holder)

    def die_while_writing(self, path: str, *, closes_after_s: float | None) -> None:
        """As if a data node had died that appended to the file: nobody can read it until the lease ends."""
        with self.lock:
            file = self.files[path]
            file.open = True
            file.closes_at = None if closes_after_s is None else time.monotonic() + closes_after_s

    def fault_for(self, asked: Asked) -> Fault | None:
        """The fault that hits this request, counted."""
        path = asked.params.get("destination", asked.path)
        with self.lock:
            for fault in self.faults:
                meant = fault.op == asked.op and fault.where == asked.where and fault.about in path
                if meant and fault.fired < fault.times:
                    fault.fired += 1
                    return fault
        return None

    # The name space

    def resolve(self, path: str) -> str:
        """The path that ``path``, which may begin with a number, stands for now."""
        if not self.inodes or not path.startswith(_INODES):
            return path
        number, slash, rest = path[len(_INODES) :].partition("/")
        with self.lock:
            for found, known in self.folders.items():
                if str(known) == number:
                    return (found + slash + rest).replace("//", "/")
            for found, file in self.files.items():
                if str(file.number) == number:
                    return found + slash + rest
        raise _No(404, "FileNotFoundException", f"File for given inode path does not exist: {path}")

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

    def entry(self, path: str) -> _File | None:
        """A file, its lease brought up to now. Raises for a path below a file."""
        for index in range(1, len(path)):
            if path[index] == "/" and path[:index] in self.files:
                raise _No(403, "AccessControlException", f"{path[:index]} (is not a directory)")
        file = self.files.get(path)
        if file is not None and file.closes_at is not None and time.monotonic() >= file.closes_at:
            file.open, file.closes_at = False, None
        return file

    def file(self, path: str) -> _File:
        found = self.entry(path)
        if found is None:
            raise _No(404, "FileNotFoundException", f"File does not exist: {path}")
        return found

    def make_folders(self, path: str) -> None:
        while path not in self.folders:
            if path in self.files:
                raise _No(403, "ParentNotDirectoryException", f"{path} (is not a directory)")
            self._next_number += 1
            self.folders[path] = self._next_number
            path = path.rpartition("/")[0] or "/"

    def new_file(self, path: str) -> _File:
        self._next_number += 1
        file = self.files[path] = _File(self._next_number, open=True)
        return file

    def status(self, path: str, suffix: str = "") -> dict[str, Any]:
        if path in self.folders:
            number = self.folders[path] if self.numbers else 0
            return {"type": "DIRECTORY", "pathSuffix": suffix, "length": 0, "fileId": number, "permission": "755"}
        file = self.file(path)
        return {
            "type": "FILE",
            "pathSuffix": suffix,
            "length": len(file.data),
            "fileId": file.number if self.numbers else 0,
            "permission": file.permission,
            "modificationTime": file.modified_ms,
            "blockSize": _BLOCK_BYTES,
        }

    def locate(self, path: str, params: dict[str, str]) -> dict[str, Any]:
        excluded = set(filter(None, params.get("excludedatanodes", "").split(",")))
        for server in self._servers[1:]:
            host, port = str(server.server_name), int(server.server_port)
            if host not in excluded:
                query = "&".join(f"{key}={quote(value)}" for key, value in params.items() if key != "noredirect")
                query += f"&namenoderpcaddress={self._servers[0].server_name}:1"
                return {"Location": f"http://{host}:{port}{_PREFIX}{quote(path)}?{query}"}
        raise _No(403, "IOException", "Failed to find datanode, suggest to check cluster health.")


# What the name node does: one function for each operation, called with the lock held.


def _get_file_status(fake: FakeWebHdfs, path: str, params: dict[str, str]) -> dict[str, Any]:
    fake.entry(path)
    return {"FileStatus": fake.status(path)}


def _blocks(fake: FakeWebHdfs, path: str, params: dict[str, str]) -> dict[str, Any]:
    file = fake.file(path)
    return {"LocatedBlocks": {"fileLength": 0 if file.open else len(file.data), "isUnderConstruction": file.open}}


def _mkdirs(fake: FakeWebHdfs, path: str, params: dict[str, str]) -> dict[str, Any]:
    fake.entry(path)
    fake.make_folders(path)
    return {"boolean": True}


def _create(fake: FakeWebHdfs, path: str, params: dict[str, str]) -> dict[str, Any]:
    # Whether the name is free is decided when the data node begins.
    return fake.locate(path, params)


def _open(fake: FakeWebHdfs, path: str, params: dict[str, str]) -> dict[str, Any]:
    if path in fake.folders:
        raise _No(404, "FileNotFoundException", f"Path is not a file: {path}")
    size, offset = len(fake.file(path).data), int(params.get("offset", "0"))
    if offset >= size > 0:
        raise _No(403, "IOException", f"Offset={offset} out of the range [0, {size}); OPEN, path={path}")
    return fake.locate(path, params)


def _delete(fake: FakeWebHdfs, path: str, params: dict[str, str]) -> dict[str, Any]:
    if path in fake.folders:
        if params.get("recursive") == "true":
            fake.remove(path)
            return {"boolean": True}
        if any(name.startswith(path + "/") for name in (*fake.files, *fake.folders)):
            raise _No(403, "PathIsNotEmptyDirectoryException", f"`{path} is non empty': Directory is not empty")
        del fake.folders[path]
        return {"boolean": True}
    return {"boolean": fake.files.pop(path, None) is not None}


def _rename(fake: FakeWebHdfs, path: str, params: dict[str, str]) -> dict[str, Any]:
    target, replace = params["destination"], params.get("renameoptions") == "OVERWRITE"
    if path not in fake.files:
        raise _No(404, "FileNotFoundException", f"rename source {path} is not found.")
    parent = target.rpartition("/")[0] or "/"
    if any(target[:index] in fake.files for index in range(1, len(target)) if target[index] == "/"):
        raise _No(403, "ParentNotDirectoryException", f"{parent} (is not a directory)")
    if target in fake.folders:
        raise _No(403, "IOException", f"Source {path} and destination {target} must both be directories")
    if target in fake.files and not replace:
        raise _No(403, "FileAlreadyExistsException", f"rename destination {target} already exists")
    if parent not in fake.folders:
        raise _No(404, "FileNotFoundException", f"rename destination parent {target} not found.")
    fake.files[target] = fake.files.pop(path)
    return {}


def _list(fake: FakeWebHdfs, path: str, params: dict[str, str]) -> dict[str, Any]:
    fake.entry(path)
    if path in fake.files:
        return _listing([fake.status(path)], 0)
    if path not in fake.folders:
        raise _No(404, "FileNotFoundException", f"File {path} does not exist.")
    stem = path if path == "/" else path + "/"
    names = {
        name[len(stem) :]
        for name in (*fake.files, *fake.folders)
        if name.startswith(stem) and name != stem and "/" not in name[len(stem) :]
    }
    after = _signed(params.get("startAfter", ""))
    wanted = sorted((name for name in names if _signed(name) > after), key=_signed)
    shown = wanted[: fake.page]
    return _listing([fake.status(stem + name, name) for name in shown], len(wanted) - len(shown))


def _listing(statuses: list[dict[str, Any]], remaining: int) -> dict[str, Any]:
    partial = {"FileStatuses": {"FileStatus": statuses}}
    return {"DirectoryListing": {"partialListing": partial, "remainingEntries": remaining}}


def _jmx(fake: FakeWebHdfs, path: str, params: dict[str, str]) -> dict[str, Any]:
    return {"beans": [{"Safemode": fake.safe_mode, "LiveNodes": json.dumps(fake.live_nodes)}]}


def _set_permission(fake: FakeWebHdfs, path: str, params: dict[str, str]) -> dict[str, Any]:
    fake.file(path).permission = params["permission"]
    return {}


def _concat(fake: FakeWebHdfs, path: str, params: dict[str, str]) -> dict[str, Any]:
    if path.startswith(_INODES):
        raise _No(403, "IOException", f"Concat operation doesn't support .reserved relative path : {path}")
    target, sources = fake.file(path), params["sources"].split(",")
    illegal = partial(_No, 400, "HadoopIllegalArgumentException")
    if len(set(sources)) != len(sources):
        raise illegal("concat: at least two of the source files are the same")
    for source in sources:
        file = fake.file(source)
        if source.rpartition("/")[0] != path.rpartition("/")[0]:
            raise illegal(f"Source file {source} is not in the same directory with the target {path}")
        if not file.data or file.open:
            raise illegal(f"concat: source file {source} is invalid or empty or underConstruction")
    target.data += b"".join(fake.files.pop(source).data for source in sources)
    return {}


_NAMENODE: dict[tuple[str, str], Callable[[FakeWebHdfs, str, dict[str, str]], dict[str, Any]]] = {
    ("GET", ""): _jmx,
    ("GET", "GETFILESTATUS"): _get_file_status,
    ("GET", "GET_BLOCK_LOCATIONS"): _blocks,
    ("GET", "LISTSTATUS_BATCH"): _list,
    ("GET", "OPEN"): _open,
    ("PUT", "CREATE"): _create,
    ("PUT", "MKDIRS"): _mkdirs,
    ("PUT", "RENAME"): _rename,
    ("PUT", "SETPERMISSION"): _set_permission,
    ("POST", "CONCAT"): _concat,
    ("DELETE", "DELETE"): _delete,
}


# What a data node does.


def _begin_create(fake: FakeWebHdfs, path: str, params: dict[str, str]) -> _File:
    with fake.lock:
        path = fake.resolve(path)
        if path in fake.folders:
            raise _No(403, "FileAlreadyExistsException", f"{path} already exists as a directory")
        if any(path[:index] in fake.files for index in range(1, len(path)) if path[index] == "/"):
            raise _No(403, "ParentNotDirectoryException", f"{path} (is not a directory)")
        there = fake.entry(path)
        if there is not None and params.get("overwrite") != "true":
            if there.open:
                raise _No(403, "AlreadyBeingCreatedException", f"Failed to CREATE_FILE {path}: the lease is held")
            raise _No(403, "FileAlreadyExistsException", f"{path} for client 127.0.0.1 already exists")
        parent = path.rpartition("/")[0] or "/"
        if params.get("createparent") == "false" and parent not in fake.folders:
            raise _No(404, "FileNotFoundException", f"Parent directory doesn't exist: {parent}")
        fake.make_folders(parent)
        return fake.new_file(path)


def _end_write(fake: FakeWebHdfs, file: _File, data: bytes) -> None:
    with fake.lock:
        file.data += data
        file.open = False
        file.modified_ms = time.time_ns() // 1_000_000


def _read(fake: FakeWebHdfs, path: str, params: dict[str, str], known_bytes: int | None) -> bytes:
    with fake.lock:
        path = fake.resolve(path)
        file = fake.file(path)
        if file.open and file.data:
            raise _No(403, "CannotObtainBlockLengthException", "Cannot obtain block length for LocatedBlock")
        offset = int(params.get("offset", "0"))
        if offset > len(file.data):
            raise _No(403, "EOFException", "Cannot seek after EOF")
        known = file.data if known_bytes is None else file.data[:known_bytes]
        data = known[offset : offset + int(params.get("length", str(1 << 62)))]
        fake.after_read(path)
        return data + bytes(fake.too_much)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    fake: FakeWebHdfs
    where: str

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self._handle()

    do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815  (the base class calls them so)

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        path, params = unquote(parts.path)[len(_PREFIX) :] or "/", dict(parse_qsl(parts.query, keep_blank_values=True))
        op = params.get("op", "")
        asked = Asked(self.where, self.command, op, self._shown(path), self._shown_in(params))
        with self.fake.lock:
            self.fake.log.append(asked)
        fault = self.fake.fault_for(asked)
        if fault is not None:
            time.sleep(fault.seconds)
        if fault is not None and fault.action in ("refuse", "garble", "say") and fault.answer is not None:
            self._drain()
            status, kind, message = fault.answer
            self._answer(status, fault.body if not kind else _remote(_No(status, kind, message)))
            return
        if fault is not None and fault.action == "lose_request":
            self.close_connection = True
            return
        try:
            if self.where == "datanode":
                status, body = self._datanode(op, path, params, fault)
            else:
                status, body = 200, self._namenode(op, path, params)
        except _No as no:
            self._drain()
            status, body = no.status, _remote(no)
        if fault is not None and fault.action != "shorten":
            # Carried out; the answer is lost.
            self.close_connection = True
            return
        self._answer(status, body)

    def _shown(self, path: str) -> str:
        """For the log and the faults: by name, where there is one."""
        with contextlib.suppress(_No):
            return self.fake.resolve(path)
        return path

    def _shown_in(self, params: dict[str, str]) -> dict[str, str]:
        return {key: self._shown(value) if key == "destination" else value for key, value in params.items()}

    def _namenode(self, op: str, path: str, params: dict[str, str]) -> bytes:
        known = _NAMENODE.get((self.command, op))
        if known is None:
            raise _No(400, "IllegalArgumentException", f'Invalid value for webhdfs parameter "op": {op}')
        with self.fake.lock:
            if op not in ("CONCAT", "CREATE"):
                path = self.fake.resolve(path)
            if "destination" in params:
                params = {**params, "destination": self.fake.resolve(params["destination"])}
            answer = known(self.fake, path, params)
        return json.dumps(answer).encode() if answer else b""

    def _datanode(self, op: str, path: str, params: dict[str, str], fault: Fault | None) -> tuple[int, bytes]:
        if op == "OPEN":
            known_bytes = None
            if fault is not None and fault.action == "shorten" and fault.answer is not None:
                known_bytes = fault.answer[0]
            return 200, _read(self.fake, path, params, known_bytes)
        file = _begin_create(self.fake, path, params)
        # Unasked, as the real ones do.
        self.send_response_only(100)
        self.end_headers()
        self.wfile.flush()
        size = int(self.headers.get("Content-Length") or 0)
        # A client that dies: the file is closed with what has arrived, and nobody says anything.
        cut = fault is not None and fault.action == "cut_body"
        data = self._body(size // 2 if cut else size)
        _end_write(self.fake, file, data)
        return 201, b""

    def _body(self, size: int) -> bytes:
        """So many bytes, or what arrived of them before the client broke off, politely or not."""
        parts: list[bytes] = []
        with contextlib.suppress(OSError):
            while size > 0 and (part := self.rfile.read1(size)):
                parts.append(part)
                size -= len(part)
        return b"".join(parts)

    def _drain(self) -> None:
        if self.where == "datanode":
            self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if self.where == "datanode":
            # As the real ones do.
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def _remote(no: _No) -> bytes:
    return json.dumps({"RemoteException": {"exception": no.kind, "message": no.message}}).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def server_bind(self) -> None:
        """Without the look-up of names that HTTPServer does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients of a fake may break off."""


def _serve(fake: FakeWebHdfs, where: str, host: str) -> _Server:
    handler = type("Handler", (_Handler,), {"fake": fake, "where": where})
    server = _Server((host, 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return server
