"""A way to HDFS that leads through fault proxies: one before the name node, one before the data node.

Data nodes are named by the name node, so their addresses are exchanged where the binding's session opens connections.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import requests
from requests.adapters import HTTPAdapter

from chunkstore.config import Settings
from chunkstore_bindings.hdfs import HdfsChunkStorage, open_hdfs
from tests.support.closing import Closing
from tests.support.servers.faultproxy import FaultProxy, Request, Rule

_NAMENODE = frozenset({"RENAME", "MKDIRS", "DELETE", "TRUNCATE", "SETPERMISSION"})
_DATANODE = frozenset({"CREATE", "APPEND"})


def op_of(request: Request) -> str:
    """The WebHDFS operation."""
    return parse_qs(urlsplit(request.target).query).get("op", [""])[0]


def changes(request: Request) -> bool:
    """Whether it changes anything. The first half of CREATE and APPEND, at the name node, does not."""
    op = op_of(request)
    return op in _NAMENODE or (op in _DATANODE and "namenoderpcaddress" in request.target)


class _ThroughProxy(HTTPAdapter):
    def __init__(self, port: int, **options: Any) -> None:
        self._port = port
        super().__init__(**options)

    def send(self, request: requests.PreparedRequest, *args: Any, **more: Any) -> requests.Response:
        request.url = re.sub(r"^http://[^/]+/", f"http://127.0.0.1:{self._port}/", request.url or "")
        return super().send(request, *args, **more)


class HdfsWire(Closing):
    """Both proxies. ``namenode_port``, ``datanode_port``: of the servers behind them."""

    def __init__(self, namenode_port: int, datanode_port: int) -> None:
        self.namenode = FaultProxy(namenode_port)
        self.datanode = FaultProxy(datanode_port)
        self._datanode_url = f"http://127.0.0.1:{datanode_port}/"

    def close(self) -> None:
        self.namenode.close()
        self.datanode.close()

    def root(self, path: str) -> str:
        """The root at the name node's proxy."""
        return f"hdfs://127.0.0.1:{self.namenode.port}{path}"

    def storage(self, path: str, settings: Settings) -> HdfsChunkStorage:
        """A binding whose every request goes through the proxies."""
        storage = open_hdfs(self.root(path), settings)
        adapter = _ThroughProxy(self.datanode.port, pool_maxsize=64, max_retries=0)
        storage._rest.session.mount(self._datanode_url, adapter)
        return storage

    def heal(self) -> None:
        self.namenode.heal()
        self.datanode.heal()

    def lose_reply(self, op: str, *, times: int = 1, at_datanode: bool = False) -> Rule:
        """The next request of this operation is carried out and not answered."""
        proxy = self.datanode if at_datanode else self.namenode
        return proxy.lose_reply(lambda request: op_of(request) == op, times=times)
