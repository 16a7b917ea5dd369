"""The HDFS binding itself over a simulated name node and data nodes: its requests are the steps that are scheduled, and that fail.

The name space is the one that ``tests.support.fake_webhdfs`` serves over sockets.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import requests

from chunkstore.errors import StorageUnavailable
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.hdfs.names import escape, unescape
from chunkstore_bindings.hdfs.rest import Lost, Refused
from chunkstore_bindings.hdfs.storage import HdfsChunkStorage
from tests.simulator.bound import Port
from tests.simulator.request_faults import RequestFaults
from tests.simulator.scheduler import NS
from tests.simulator.virtual import EPOCH_MS
from tests.simulator.wire import Call, Surroundings, Wire, WiredProcess
from tests.support.hdfs_names import PREFIX, NameSpace, No, remote_exception

_ROOT: Final = "/root"
_NAMENODE: Final = "http://127.0.0.1:9870"
_DATANODE: Final = ("127.0.0.2", 9864)
_ASKING: Final = frozenset(("GETFILESTATUS", "GET_BLOCK_LOCATIONS", "LISTSTATUS_BATCH", "OPEN", "CREATE", ""))
"""What changes nothing when a name node is asked for it."""


class _Cut(NamedTuple):
    """A body that ends too early; ``share`` of it comes."""

    body: bytes
    share: float


class _Down(Exception):
    """A server in distress: it says so with a status that tells nothing, or takes no connection."""


class _Answer:
    """What ``requests`` would give: a body that comes as far as ``came``."""

    def __init__(self, status: int, body: bytes, came: int | None = None) -> None:
        self.status_code = status
        self.headers = {"Content-Length": str(len(body))}
        self.raw: Any = _Raw(body if came is None else body[:came])

    def close(self) -> None:
        """As ``requests`` has it."""


class _Raw(BytesIO):
    """The body as urllib3 has it."""


class _Session:
    """In place of the binding's session."""

    def __init__(self, backend: BoundHdfsBackend) -> None:
        self._backend = backend

    def request(
        self,
        method: str,
        url: str,
        *,
        proxies: object,
        timeout: object,
        allow_redirects: bool,
        stream: bool,
        params: dict[str, object] | None = None,
        data: Any = b"",
        headers: object = None,
    ) -> _Answer:
        parts = urlsplit(url)
        path = unquote(parts.path).removeprefix(PREFIX) or "/"
        asked = dict(parse_qsl(parts.query, keep_blank_values=True))
        asked |= {name: str(value) for name, value in (params or {}).items()}
        try:
            if parts.hostname == _DATANODE[0]:
                return self._backend.ask_datanode(path, asked, b"".join(map(bytes, data)) if data else b"")
            return self._backend.ask_namenode(method, path, asked)
        except No as no:
            return _Answer(no.status, remote_exception(no))
        except _Down:
            return _Answer(503, b"<html>Service Unavailable</html>")
        except StorageUnavailable as error:
            raise requests.ReadTimeout("timed out") from error

    def close(self) -> None:
        """As ``requests`` has it."""


class BoundHdfsBackend(RequestFaults):
    """The cluster, and the binding's door to it."""

    causes = (Refused, Lost, OSError)

    def __init__(self, world: Surroundings) -> None:
        super().__init__(world)
        now = world.scheduler
        self.space = NameSpace(lambda: EPOCH_MS + now.now // 1_000_000, lambda: now.now / NS)
        self.space.datanodes = [_DATANODE]
        self._port = Port(world, self, {})
        # A listing asks for every folder.
        self._deadline_s = (4 * world.timeout_ns + 1000 * world.latency_ns) / NS
        self.capabilities = self._storage().capabilities

    def _storage(self) -> HdfsChunkStorage:
        made = HdfsChunkStorage(f"hdfs://127.0.0.1:9870{_ROOT}", deadline_s=self._deadline_s)
        session: Any = _Session(self)
        made._rest.session = session
        made._rest._proxies = {f"http://{host}": {} for host in ("127.0.0.1:9870", f"{_DATANODE[0]}:{_DATANODE[1]}")}
        return made

    def client(self, process: WiredProcess) -> ChunkStorage:
        """A storage of one process: the binding's own."""
        return self._port.bind(process, self._storage)

    # What it holds, for observers

    def content(self, name: str) -> bytes | None:
        """What is stored under a name now."""
        found = self.space.files.get(_path(name))
        return None if found is None else found.data

    def names(self) -> list[str]:
        """All names, in order; temporaries too."""
        return sorted(map(_name, self.space.files))

    def overwrite(self, name: str, data: bytes) -> None:
        """Damage: bytes change behind everybody's back. For negative tests."""
        path = _path(name)
        self.space.make_folders(path.rpartition("/")[0])
        self.space.files.pop(path, None)
        self.space.end_write(self.space.new_file(path), data)

    def remove(self, name: str) -> None:
        """Loss: a file is gone behind everybody's back. For negative tests."""
        del self.space.files[_path(name)]

    def power_cut(self) -> None:
        """A machine of a client loses power: nothing of the cluster is lost."""

    # Requests

    def ask_namenode(self, method: str, path: str, params: dict[str, str]) -> _Answer:
        """One request to the name node. Raises ``No``, ``_Down``, ``StorageUnavailable`` (no answer)."""
        op = params.get("op", "")
        if op == "RENAME":
            return self._rename(path, params)

        def carry_out() -> bytes | No:
            try:
                return self.space.command(method, op, path, params)
            except No as no:
                return no

        changes = op not in _ASKING
        found = self._port.step(op or "jmx", _name(path), carry_out, changes=changes, remote=True)
        if isinstance(found, No):
            raise found
        return _Answer(200, found)

    def _rename(self, path: str, params: dict[str, str]) -> _Answer:
        source = _name(path)

        def carry_out() -> bytes | No | bool:
            try:
                return self.space.command("PUT", "RENAME", path, params)
            except No as no:
                # As those who look on may see it: the name is taken.
                return False if no.kind == "FileAlreadyExistsException" else no

        name = _name(params["destination"])
        found = self._port.step("RENAME", name, carry_out, data=self.content(source), remote=True)
        if found is False:
            raise No(403, "FileAlreadyExistsException", f"rename destination {name} already exists")
        if isinstance(found, No):
            raise found
        return _Answer(200, found)

    def ask_datanode(self, path: str, params: dict[str, str], data: bytes) -> _Answer:
        """One request to the data node. Raises as ``ask_namenode``."""

        def create() -> No | None:
            try:
                self.space.end_write(self.space.begin_create(path, params), data)
            except No as no:
                return no
            return None

        def read() -> bytes | No:
            try:
                return self.space.read(path, params)
            except No as no:
                return no

        name = _name(path)
        found: Any
        if params["op"] == "CREATE":
            found = self._port.step("send", name, create, data=data, remote=True)
        else:
            found = self._port.step("fetch", name, read, changes=False, remote=True)
        if isinstance(found, No):
            raise found
        if isinstance(found, _Cut):
            return _Answer(200, found.body, int(found.share * len(found.body)))
        return _Answer(201 if found is None else 200, found or b"")

    # Faults

    def refusal(self, call: Call, status: int) -> Exception:
        return _Down()

    def applies(self, fault: str, call: Call) -> bool:
        return fault != "conflict" and super().applies(fault, call)

    def suffer(self, wire: Wire, call: Call, fault: str) -> Any:
        random = self._world.faults.random
        if fault == "lost_reply" and call.step == "fetch" and random.random() < 0.5:
            found = wire.apply_after(call)
            wire.pause()
            return _Cut(found, random.random()) if isinstance(found, bytes) else found
        return super().suffer(wire, call, fault)


def _path(name: str) -> str:
    return f"{_ROOT}/{escape(name)}"


def _name(path: str) -> str:
    below = path.removeprefix(f"{_ROOT}/")
    return unescape(below) or below
