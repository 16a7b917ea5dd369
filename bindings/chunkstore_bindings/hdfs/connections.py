"""Connections of ``requests`` whose answers end in time (``chunkstore_bindings.in_time``)."""

from __future__ import annotations

from typing import Any, ClassVar

import urllib3
from requests.adapters import HTTPAdapter

from chunkstore_bindings.in_time import AnswerInTime

__all__ = ["InTimeAdapter"]


class _Connection(urllib3.connection.HTTPConnection):
    response_class = AnswerInTime


class _TlsConnection(urllib3.connection.HTTPSConnection):
    response_class = AnswerInTime


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
