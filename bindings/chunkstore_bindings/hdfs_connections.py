"""Connections whose answers, heads included, end by the deadline of their request.

Promises: a server that answers a byte at a time is given up at the deadline; a socket's own timeout begins anew with every byte.
Leaves out: what is asked (``hdfs_rest``).
"""

from __future__ import annotations

import http.client
import io
from contextvars import ContextVar
from typing import Any, ClassVar, cast

import urllib3
from requests.adapters import HTTPAdapter

from chunkstore import runtime

__all__ = ["ENDS", "Deadline", "InTimeAdapter"]


class Deadline:
    """A moment on the monotonic clock by which something must have ended."""

    __slots__ = ("_end_s",)

    def __init__(self, seconds: float) -> None:
        self._end_s = runtime.monotonic_s() + seconds

    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end_s - runtime.monotonic_s())

    def passed(self) -> bool:
        return self.left_s() <= 0.0


ENDS: ContextVar[Deadline | None] = ContextVar("chunkstore-hdfs-request-ends", default=None)
"""By when the request that this thread sends must be answered."""


class _InTime(io.RawIOBase):
    """What comes from a socket, up to a deadline: a timeout of the socket alone begins anew with every byte."""

    def __init__(self, raw: io.RawIOBase, deadline: Deadline) -> None:
        self._raw = raw
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._deadline.passed():
            raise TimeoutError("the deadline passed while the answer was read")
        return cast("int | None", self._raw.readinto(buffer))

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Answer(http.client.HTTPResponse):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if (deadline := ENDS.get()) is not None:
            self.fp = io.BufferedReader(_InTime(self.fp.detach(), deadline))


class _Connection(urllib3.connection.HTTPConnection):
    response_class = _Answer


class _TlsConnection(urllib3.connection.HTTPSConnection):
    response_class = _Answer


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class InTimeAdapter(HTTPAdapter):
    """Connections whose answers, heads included, end by the deadline of the request."""

    _POOLS: ClassVar[dict[str, type]] = {"http": _Pool, "https": _TlsPool}

    def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
        super().init_poolmanager(*arguments, **named)
        self.poolmanager.pool_classes_by_scheme = self._POOLS

    def proxy_manager_for(self, *arguments: Any, **named: Any) -> Any:
        manager = super().proxy_manager_for(*arguments, **named)
        manager.pool_classes_by_scheme = self._POOLS
        return manager
