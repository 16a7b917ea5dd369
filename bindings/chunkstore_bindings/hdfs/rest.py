"""WebHDFS, one request at a time: what was answered, what was refused, and what may or may not have happened.

Promises
* Every call ends by its deadline, also against servers that accept and never answer, or answer a byte at a time.
* Three outcomes and no fourth: an answer; ``Refused`` (the cluster says it did not do it, and why); ``Lost`` (no whole
  answer: it may have happened, or happen later, unless ``sent`` is false).
* Nothing changes the name space twice: only questions are asked again, and a data node is contacted once.
* A delegation token never reaches a message, a chained exception or a log line of the libraries below.

The session comes from the ``hdfs`` package (simple user names, delegation tokens); the requests are made here, because
that package retries, follows redirects and discards answers that the rules above depend on.
Leaves out: what the outcomes mean for a chunk (``storage``).
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import requests
import urllib3
from hdfs.client import InsecureClient, TokenClient
from requests.adapters import HTTPAdapter

from chunkstore.checksum import BytesLike
from chunkstore.deadline import Deadline
from chunkstore_bindings.in_time import AnswerInTime, bounded

__all__ = ["Body", "Lost", "Pieces", "Refused", "Stream", "WebHdfs", "content_size", "redacted"]

T = TypeVar("T")

_PREFIX: Final = "/webhdfs/v1"
_CONNECT_S: Final = 5.0
_ANSWER_BYTES_MAX: Final = 64 << 20
"""The longest answer of a name node that is taken in: a page of a listing has at most a few megabytes."""
_PIECE_BYTES: Final = 1 << 20
_SENT_BYTES: Final = 1 << 20
"""Sent by one call, which has as long as a connection may take to come about (urllib3 gives a socket its longer time only when
all is sent): slower than 0.2 MB/s is taken for silence."""
_DATANODES_TRIED_MAX: Final = 3
_SECRET = re.compile(r"\b((?:delegation|token)=)[^&\s\"')>]+")
_RPC_PORT: Final = b"HTTP request to a Hadoop IPC port"
_FAILURES = (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException, OSError)


def redacted(text: str) -> str:
    """``text`` without delegation tokens."""
    return _SECRET.sub(r"\1...", text)


class _NoSecrets(logging.Filter):
    """Takes delegation tokens out of what urllib3 logs about its requests."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if "delegation=" in text:
            record.msg, record.args = redacted(text), ()
        return True


_NO_SECRETS: Final = _NoSecrets()


class _Connection(urllib3.connection.HTTPConnection):
    response_class = AnswerInTime


class _TlsConnection(urllib3.connection.HTTPSConnection):
    response_class = AnswerInTime


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class _Adapter(HTTPAdapter):
    """Connections whose answers, heads included, end by the deadline of the request."""

    _POOLS: ClassVar[dict[str, type]] = {"http": _Pool, "https": _TlsPool}

    def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
        super().init_poolmanager(*arguments, **named)
        self.poolmanager.pool_classes_by_scheme = self._POOLS

    def proxy_manager_for(self, *arguments: Any, **named: Any) -> Any:
        manager = super().proxy_manager_for(*arguments, **named)
        manager.pool_classes_by_scheme = self._POOLS
        return manager


class Refused(Exception):
    """The cluster's definite no. ``kind`` is the Java exception's simple name, ``status`` the HTTP status."""

    def __init__(self, kind: str, message: str, status: int) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.message = message
        self.status = status


class Lost(Exception):
    """No whole answer. ``sent`` is false when no byte of the request, or of the data that it was to bring, can have reached a server."""

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(redacted(text))
        self.sent = sent


class Pieces(NamedTuple):
    """Content that is made while it is sent: ``size`` bytes, in the pieces that each call of ``make`` begins anew."""

    size: int
    make: Callable[[], Iterator[bytes]]


class Body:
    """Content on its way to a data node, in pieces, so that time is looked at between them."""

    def __init__(self, content: BytesLike | Pieces, deadline: Deadline) -> None:
        self._content = content
        self._size = content_size(content)
        self._deadline = deadline

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for piece in self._pieces():
            if not self._deadline.left_s():
                raise OSError("the deadline passed while the body was sent")
            yield piece

    def _pieces(self) -> Iterator[bytes | memoryview]:
        for made in self._content.make() if isinstance(self._content, Pieces) else (self._content,):
            view = memoryview(made).cast("B")
            for start in range(0, len(view), _SENT_BYTES):
                yield view[start : start + _SENT_BYTES]


def content_size(content: BytesLike | Pieces) -> int:
    """Its length in bytes."""
    return content.size if isinstance(content, Pieces) else memoryview(content).nbytes


class _Place(NamedTuple):
    """A data node's answer to "where": its URL and ``host:port``."""

    url: str
    node: str


class Stream:
    """The body of an OPEN. ``length`` is what the data node announced, None where it did not; ``size_max``: more than so many
    bytes are no answer."""

    def __init__(self, response: requests.Response, deadline: Deadline, size_max: int | None = None) -> None:
        self._raw = response.raw
        self._deadline = deadline
        self._size_max = size_max
        announced = response.headers.get("Content-Length")
        self.length = int(announced) if announced is not None and announced.isdigit() else None
        self.taken = 0

    def pieces(self, piece_bytes: int = _PIECE_BYTES) -> Iterator[bytes]:
        """The body, as it comes. Raises ``Lost`` when it ends early or goes on too long, or the deadline passes."""
        try:
            while piece := self._raw.read1(piece_bytes):
                self.taken += len(piece)
                if self._size_max is not None and self.taken > self._size_max:
                    raise OSError(f"the answer is longer than {self._size_max} bytes")
                yield piece
                if not self._deadline.left_s():
                    raise OSError("the deadline passed while the body was read")
            # Only this tells the library that the body is complete and the connection can be used again.
            self._raw.read(1)
        except _FAILURES as error:
            failure = Lost(_in_words(error), sent=True)
        else:
            if self.length is None or self.taken == self.length:
                return
            failure = Lost(f"the body ended after {self.taken} of {self.length} bytes", sent=True)
        raise failure


class WebHdfs:
    """The WebHDFS of one name node, at ``base_url`` (``http://host:port``).

    Arguments: ``user``: who we say we are (default: the process's user); ``token``: asked before each request for a
    delegation token, which then takes the user's place; ``connections``: kept for each server; ``answer_s``: how long a
    server may be silent.
    """

    def __init__(
        self,
        base_url: str,
        *,
        user: str | None = None,
        token: Callable[[], str] | None = None,
        connections: int = 32,
        answer_s: float = 15.0,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._base = self.base_url + _PREFIX
        self._answer_s = answer_s
        self._token = token
        self.session = requests.Session()
        adapter = _Adapter(pool_connections=16, pool_maxsize=connections, max_retries=0)
        self.session.mount("http://", adapter)
        self.session.mount("https://", adapter)
        # A body that a gateway compressed would not be unpacked.
        self.session.headers["Accept-Encoding"] = "identity"
        # What the environment says is asked once for each server: requests would go through all of it each time.
        self.session.trust_env = False
        self.session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
        self._proxies: dict[str, dict[str, str]] = {}
        if token is None:
            InsecureClient(base_url, user=user, session=self.session)
        else:
            TokenClient(base_url, token(), session=self.session)
            logging.getLogger("urllib3.connectionpool").addFilter(_NO_SECRETS)

    # The name node

    def question(self, method: str, path: str, op: str, deadline: Deadline, **params: object) -> dict[str, Any]:
        """Something that may be asked again: its JSON answer. Raises ``Refused``, ``Lost``."""
        return _asked_again(lambda: self.command(method, path, op, deadline, **params), deadline)

    def command(self, method: str, path: str, op: str, deadline: Deadline, **params: object) -> dict[str, Any]:
        """Something that is sent once: its JSON answer, ``{}`` where it has none. Raises ``Refused``, ``Lost``."""
        with self._exchange(method, self._url(path), deadline, params={"op": op, **params}) as response:
            return _document(response, deadline)

    def _url(self, path: str) -> str:
        return self._base + quote(path, safe="/")

    def why_no_datanode(self, block_bytes: int, deadline: Deadline) -> Literal["full", "safe mode", ""]:
        """Why the name node names no data node for a new file, as far as it tells; "" where nothing is known.

        It says the same when all are dead, when none has room for a block, and while it is in safe mode.
        """
        query = {"qry": "Hadoop:service=NameNode,name=NameNodeInfo"}
        try:
            with self._exchange("GET", f"{self.base_url}/jmx", deadline, params=query) as response:
                bean = _document(response, deadline)["beans"][0]
            if bean.get("Safemode"):
                return "safe mode"
            nodes = json.loads(bean["LiveNodes"]).values()
            # A node that has just registered has not reported its disks: no capacity, no room.
            reported = all(int(node["capacity"]) > 0 for node in nodes)
            rooms = [int(node["remaining"]) for node in nodes]
        except (Refused, Lost, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return ""
        return "full" if reported and rooms and max(rooms) < block_bytes else ""

    # Data nodes

    def send(
        self, method: str, path: str, op: str, data: BytesLike | Pieces, deadline: Deadline, **params: object
    ) -> None:
        """CREATE with ``data``. Raises ``Refused``, ``Lost`` (whose ``sent`` speaks of the data).

        A data node that cannot be reached is left out when the name node is asked once more.
        """
        for place in self._places(method, path, op, deadline, params):
            try:
                headers = {"Content-Type": "application/octet-stream"}
                body = Body(data, deadline) if content_size(data) else b""
                with self._exchange(method, place.url, deadline, data=body, headers=headers) as response:
                    _document(response, deadline)
                return
            except Lost as lost:
                if lost.sent:
                    raise
                failure = lost
        raise failure

    @contextmanager
    def open(self, path: str, deadline: Deadline, *, size_max: int, **params: object) -> Iterator[Stream]:
        """The bytes of a file, ``size_max`` at most. Raises ``Refused``, ``Lost`` (``sent`` says nothing here: reading changes nothing)."""
        for place in self._places("GET", path, "OPEN", deadline, params):
            try:
                with self._exchange("GET", place.url, deadline) as response:
                    _raise_refusal(response, deadline)
                    yield Stream(response, deadline, size_max)
                return
            except Lost as lost:
                if lost.sent:
                    raise
                failure = lost
        raise failure

    def _places(
        self, method: str, path: str, op: str, deadline: Deadline, params: Mapping[str, object]
    ) -> Iterator[_Place]:
        """Data nodes to try, each named by the name node; those that were tried before are left out."""
        tried: dict[str, str] = {}
        for _ in range(_DATANODES_TRIED_MAX):
            chosen = {**params, "excludedatanodes": ",".join(tried.values())} if tried else params
            try:
                place = self._locate(method, path, op, deadline, chosen)
            except Refused:
                if not tried:
                    raise
                # No data node is left, which the name node says in many ways; the failure to reach them says it better.
                return
            if place.node not in tried:
                yield place
                tried[place.node] = _address(place.node)

    def _locate(self, method: str, path: str, op: str, deadline: Deadline, params: Mapping[str, object]) -> _Place:
        asked = {"op": op, "noredirect": "true", **params}

        def ask() -> str | None:
            with self._exchange(method, self._url(path), deadline, params=asked) as response:
                if response.status_code in (301, 302, 303, 307):
                    # Hadoop 2 does not know noredirect.
                    return response.headers.get("Location")
                return _document(response, deadline).get("Location")

        try:
            url = _asked_again(ask, deadline)
        except Lost as lost:
            # Only the question, which changes nothing: no byte of the data can have left.
            lost.sent = False
            raise
        try:
            parts = urlsplit(url if isinstance(url, str) else "")
            if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
                return _Place(parts.geturl(), parts.netloc)
        except ValueError:
            pass
        raise Refused("NoLocation", f"the name node named no data node for {op}", 200)

    # One exchange

    @contextmanager
    def _exchange(self, method: str, url: str, deadline: Deadline, **more: Any) -> Iterator[requests.Response]:
        left_s = deadline.left_s()
        if left_s <= 0.0:
            raise Lost("the deadline passed before the request was sent", sent=False)
        if self._token is not None:
            # A file that is renewed while we run.
            self.session.params["delegation"] = self._token()  # type: ignore[index]
        failure: Lost | None = None
        server = url[: url.find("/", 8)]
        try:
            proxies = self._proxies.get(server)
            if proxies is None:
                proxies = self._proxies[server] = dict(requests.utils.get_environ_proxies(server))
            with bounded(deadline):
                response = self.session.request(
                    method,
                    url,
                    proxies=proxies,
                    timeout=(min(_CONNECT_S, left_s), min(self._answer_s, left_s)),
                    allow_redirects=False,
                    stream=True,
                    **more,
                )
        except _FAILURES as error:
            failure = Lost(f"{urlsplit(url).netloc}: {_in_words(error)}", sent=not _never_sent(error))
        if failure is not None:
            # Outside the handler, so that the library's error, which may name a token, is not chained as its context.
            raise failure
        try:
            yield response
        finally:
            response.close()

    def close(self) -> None:
        """Close all connections."""
        self.session.close()


def _asked_again(ask: Callable[[], T], deadline: Deadline) -> T:
    """``ask()``, and once more when its answer was lost: the server may have closed a connection that we had kept."""
    try:
        return ask()
    except Lost as lost:
        # One that cannot be opened will not open now either.
        if not lost.sent or not deadline.left_s():
            raise
    return ask()


def _address(node: str) -> str:
    """What the name node knows the data node ``host:port`` by: its IP address."""
    host = node.rpartition(":")[0].strip("[]")
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError):
        return host


def _in_words(error: BaseException) -> str:
    """What went wrong, from the innermost of the libraries' wrappings: their outer ones repeat the whole URL."""
    inner = error.args[0] if error.args else None
    if isinstance(error, requests.RequestException) and isinstance(inner, BaseException):
        error = inner
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        error = reason
    return f"{type(error).__name__}: {str(error).rpartition('): ')[2]}"


def _never_sent(error: BaseException) -> bool:
    """Whether no connection came about at all."""
    if isinstance(error, requests.ConnectTimeout):
        return True
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return isinstance(reason, (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError))


def _document(response: requests.Response, deadline: Deadline) -> dict[str, Any]:
    _raise_refusal(response, deadline)
    body = _whole(response, deadline)
    if not body:
        return {}
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        # Some gateway's page, with a friendly status: nothing is known.
        raise Lost(f"the answer to {response.status_code} is not WebHDFS", sent=True)
    return found


def _raise_refusal(response: requests.Response, deadline: Deadline) -> None:
    status = response.status_code
    if 200 <= status < 300:
        return
    body = _whole(response, deadline)
    kind, message = _remote_exception(body)
    if _RPC_PORT in body:
        raise Refused("WrongPort", "this is the name node's RPC port", status)
    if status == 401 or (kind == "" and status == 403):
        raise Refused(kind or "Unauthorized", message or "the cluster requires authentication", status)
    if kind == "" or status >= 500:
        # Not the name node's own words, or words of distress: whether it did anything is unknown.
        raise Lost(f"HTTP status {status}{': ' + kind if kind else ''}{' ' + message if message else ''}", sent=True)
    raise Refused(kind, redacted(message), status)


def _remote_exception(body: bytes) -> tuple[str, str]:
    """The Java exception's simple name and the first line of its message; empty where the body is something else."""
    try:
        remote = json.loads(body)["RemoteException"]
        kind, text = remote["exception"], remote.get("message") or ""
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "", ""
    if not isinstance(kind, str) or not isinstance(text, str):
        return "", ""
    return kind[:100], text.partition("\n")[0][:500]


def _whole(response: requests.Response, deadline: Deadline) -> bytes:
    return b"".join(Stream(response, deadline, _ANSWER_BYTES_MAX).pieces())
