"""The SDK's own client, wired so that the promises of ``client`` can be kept.

Promises: it repeats nothing; no request is silent longer than the operation that it is sent for, and no answer, heads
included, outlasts the bounds it is asked in (``chunkstore_bindings.in_time``); it follows a bucket to its region at most once;
its debugging log shows no session token, no signature and no access key id. Credentials come from its own chain.
Leaves out: requests and what answers mean (``client``, ``refusals``).
"""

from __future__ import annotations

import logging
import re
from datetime import datetime
from typing import Any, Final

import boto3
import botocore.session
from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)
from botocore.config import Config
from botocore.handlers import add_expect_header
from botocore.utils import parse_timestamp
from urllib3.util import Timeout

from chunkstore.deadline import left_s
from chunkstore.errors import InvalidArgument
from chunkstore_bindings.in_time import AnswerInTime
from chunkstore_bindings.s3.options import S3Options
from chunkstore_bindings.s3.refusals import SDK_ERRORS

__all__ = ["LEAST_WAIT_S", "sdk_client"]

LEAST_WAIT_S: Final = 0.05
"""What a request gets even when its operation has no time left."""

_TALKERS: Final = ("boto3", "botocore", "urllib3")
_SECRET: Final = re.compile(
    r"(?i)(x-amz-security-token['\"]?[:=] *b?['\"]?|signature[=:]\s*|credential=|x-amz-credential['\"]?[:=] *b?['\"]?"
    r"|<(?:AWSAccessKeyId|SignatureProvided|StringToSign|CanonicalRequest)>)[^'\"\s,}&<]+"
)
"""In heads, in URLs, and in what an answer repeats of a refused request."""


class _Patient(Timeout):
    """How long one request may be silent: never longer than what is left to the operation that it is sent for."""

    def __init__(self, connect_s: float, read_s: float) -> None:
        super().__init__(connect=connect_s, read=read_s)
        self._connect_s = connect_s
        self._read_s = read_s

    def clone(self) -> Timeout:
        return Timeout(connect=max(LEAST_WAIT_S, left_s(self._connect_s)), read=max(LEAST_WAIT_S, left_s(self._read_s)))


class _Connection(AWSHTTPConnection):  # type: ignore[misc]
    response_class = AnswerInTime


class _TlsConnection(AWSHTTPSConnection):  # type: ignore[misc]
    response_class = AnswerInTime


class _Pool(AWSHTTPConnectionPool):  # type: ignore[misc]
    ConnectionCls = _Connection


class _TlsPool(AWSHTTPSConnectionPool):  # type: ignore[misc]
    ConnectionCls = _TlsConnection


class _Discreet(logging.Filter):
    """The SDK writes whole requests and answers to its debugging log: what says who asks is struck out."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if _SECRET.search(text) is not None:
            record.msg, record.args = _SECRET.sub(r"\1(struck out)", text), None
        return True


def _make_discreet() -> None:
    # A filter holds for one logger, not for those below it.
    for name in [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in _TALKERS]:
        logger = logging.getLogger(name)
        if not any(isinstance(item, _Discreet) for item in logger.filters):
            logger.addFilter(_Discreet())


def _timestamp(value: Any) -> Any:
    """The SDK's own parser takes most of the time of a listing."""
    return datetime.fromisoformat(value) if str(value).endswith("Z") else parse_timestamp(value)


_loaders: list[Any] = []


def _session(profile: str | None) -> boto3.session.Session:
    """A session with credentials of its own, over descriptions of the service that are read once for all: they are large."""
    _make_discreet()
    core = botocore.session.Session(profile=profile)
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_timestamp)
    if _loaders:
        core.register_component("data_loader", _loaders[0])
    else:
        _loaders.append(core.get_component("data_loader"))
    session = boto3.session.Session(botocore_session=core)
    # Each session adds its own path to the shared list.
    _loaders[0].search_paths[:] = dict.fromkeys(_loaders[0].search_paths)
    return session


def _never_redirected(context: dict[str, Any], **_: object) -> None:
    """The SDK asks for a bucket's region when it is redirected; were that redirected, it would ask about it again, for ever."""
    context["s3_redirect"]["redirected"] = True


def sdk_client(options: S3Options, connections: int) -> Any:
    """The SDK's client for ``options`` with a pool of ``connections``. Raises ``InvalidArgument`` where the SDK refuses
    profile, region or endpoint. Makes no request."""
    config = Config(
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.read_timeout_s,
        max_pool_connections=connections,
        # Small answers must not wait for acknowledgements, and a dead peer must be noticed.
        tcp_keepalive=True,
        retries={"mode": "standard", "total_max_attempts": 1},
        s3={"addressing_style": "path" if options.use_path_style else "auto"},
        # Checksums are ours to choose: many look-alikes refuse the SDK's own default.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        session = _session(options.profile)
        made: Any = session.client(
            "s3",
            endpoint_url=options.endpoint_url,
            region_name=options.region or session.region_name or "us-east-1",
            config=config,
        )
    except (*SDK_ERRORS, ValueError) as error:
        raise InvalidArgument(f"the SDK refuses this s3:// root ({type(error).__name__})", argument="root") from error
    events = made.meta.events
    # Asking for leave before each body would cost a round trip, and look-alikes answer late or not at all.
    events.unregister("before-call.s3", add_expect_header)
    events.register("before-call.s3.HeadBucket", _never_redirected)
    # The SDK has no door to its connections, and one time limit for all requests of a client: urllib3 copies it for each.
    http = made._endpoint.http_session  # noqa: SLF001
    http._timeout = _Patient(options.connect_timeout_s, options.read_timeout_s)  # noqa: SLF001
    http._manager.connection_pool_kw["timeout"] = http._timeout  # noqa: SLF001
    # Shared with the managers of proxies, present and future.
    http._pool_classes_by_scheme.update(http=_Pool, https=_TlsPool)  # noqa: SLF001
    return made
