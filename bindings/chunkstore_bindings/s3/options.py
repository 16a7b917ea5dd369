"""What an ``s3://`` root says: bucket, prefix and options. Pure; no SDK, no network.

Promises: every option has a name, a range and a default; unknown ones are refused by name, never by value, because people
paste secrets into URLs; so are user names and passwords. Credentials come from the SDK's own chain (environment, profile,
instance) and are nowhere in an ``S3Options``, so its ``repr`` may be logged.
Leaves out: checking that the bucket exists (the first request does).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from chunkstore.config import GIB, MIB
from chunkstore.errors import InvalidArgument
from chunkstore.records.names import check_object_name, utf8_bytes

__all__ = ["COPY_BYTES_MAX", "PARTS_MAX", "PART_BYTES_MIN", "S3Options", "parse_root"]

PART_BYTES_MIN: Final = 5 * MIB
"""S3's limit: every part but the last has at least so many bytes."""
COPY_BYTES_MAX: Final = 5 * GIB
"""S3's limit: one part, one copy and one PUT have at most so many bytes."""
PARTS_MAX: Final = 10_000
"""S3's limit for the parts of one upload."""
_KEY_BYTES_MAX: Final = 1024
"""S3's limit for a key."""
_PREFIX_BYTES_MAX: Final = 800
"""Leaves room for every name that a container makes."""

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}\Z")
_WORD = re.compile(r"[A-Za-z0-9:/_.@+=-]{1,2048}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """One root and how to reach it.

    Attributes:
      bucket, prefix: where objects are; the prefix has no slash at its ends and may be empty.
      endpoint_url: another server than AWS; its look-alikes want ``path_style`` (the default with an endpoint).
      region, profile: as the SDK knows them; None leaves them to its own configuration.
      storage_class, sse ("AES256", "aws:kms", "aws:kms:dsse"), sse_kms_key_id: for every object that is written.
      request_payer: "requester" pays for requests and transfer.
      concurrency: connections for the parts of one upload or of one large read.
      part_size_bytes: of uploads and of split reads. multipart_bytes_min: chunks from here on are uploaded in parts.
      connect_timeout_s, read_timeout_s: of one request's silence; deadline_s: of one call with all its requests.
      tries_max: how often one request is sent that may be repeated; twice as often where the server asks to slow down.
      stale_upload_s: unfinished uploads older than this are aborted.
    """

    bucket: str
    prefix: str = ""
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    path_style: bool | None = None
    storage_class: str | None = None
    sse: str | None = None
    sse_kms_key_id: str | None = None
    request_payer: str | None = None
    concurrency: int = 4
    part_size_bytes: int = 16 * MIB
    multipart_bytes_min: int = 32 * MIB
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    deadline_s: float = 120.0
    tries_max: int = 4
    stale_upload_s: float = 86_400.0

    def __post_init__(self) -> None:
        if _BUCKET.match(self.bucket) is None:
            raise _refused("bucket", "must be 2 to 255 letters, digits, '.', '_' or '-'")
        if self.prefix:
            check_object_name(self.prefix)
            if not 0 <= utf8_bytes(self.prefix) <= _PREFIX_BYTES_MAX:
                raise _refused("prefix", f"must have at most {_PREFIX_BYTES_MAX} bytes of UTF-8")
        if self.endpoint_url is not None:
            _check_endpoint(self.endpoint_url)
        for name in ("region", "profile", "storage_class", "sse_kms_key_id"):
            value = getattr(self, name)
            if value is not None and _WORD.match(value) is None:
                raise _refused(name, "must be a plain word")
        if self.sse not in (None, "AES256", "aws:kms", "aws:kms:dsse"):
            raise _refused("sse", "must be AES256, aws:kms or aws:kms:dsse")
        if self.sse_kms_key_id is not None and self.sse not in ("aws:kms", "aws:kms:dsse"):
            raise _refused("sse_kms_key_id", "needs sse=aws:kms")
        if self.request_payer not in (None, "requester"):
            raise _refused("request_payer", "must be requester")
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise _refused(name, f"must be a number from {low:g} to {high:g}")

    @property
    def use_path_style(self) -> bool:
        """Whether the bucket is in the path of a request; look-alikes rarely have a name for every bucket."""
        return self.path_style if self.path_style is not None else self.endpoint_url is not None

    @property
    def url(self) -> str:
        """The root again, in one spelling, with the options that say where and as whom; no credentials, no tuning."""
        query = "&".join(
            f"{name}={quote(str(getattr(self, name)).lower() if name == 'path_style' else getattr(self, name), safe=':/')}"
            for name in _IDENTITY
            if getattr(self, name) is not None
        )
        path = f"/{quote(self.prefix)}" if self.prefix else ""
        return f"s3://{self.bucket}{path}{'?' + query if query else ''}"

    def key(self, name: str) -> str:
        """The key of the object ``name``. Raises ``InvalidArgument`` where S3 can have none."""
        key = f"{self.prefix}/{name}" if self.prefix else name
        size_bytes = utf8_bytes(key)
        if size_bytes < 0:
            raise InvalidArgument(f"chunk name {name!r} is not valid UTF-8", argument="name")
        if size_bytes > _KEY_BYTES_MAX:
            raise InvalidArgument(
                f"chunk name {name!r} makes a key of {size_bytes} bytes with the root's prefix; S3 has {_KEY_BYTES_MAX} at most",
                argument="name",
            )
        return key


_IDENTITY: Final = ("endpoint_url", "region", "profile", "path_style", "request_payer")
_RANGES: Final[tuple[tuple[str, float, float], ...]] = (
    ("concurrency", 1, 256),
    ("part_size_bytes", PART_BYTES_MIN, COPY_BYTES_MAX),
    ("multipart_bytes_min", PART_BYTES_MIN, COPY_BYTES_MAX),
    ("connect_timeout_s", 0.05, 600),
    ("read_timeout_s", 0.05, 3600),
    ("deadline_s", 0.1, 86_400),
    ("tries_max", 1, 100),
    ("stale_upload_s", 60, 366 * 86_400),
)


def _refused(name: str, rule: str) -> InvalidArgument:
    # The value stays out: what was put into the wrong place may be a secret.
    return InvalidArgument(f"option {name} of an s3:// root {rule}", argument=name)


def _check_endpoint(url: str) -> None:
    try:
        parts = urlsplit(url)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError:
        port_is_good = False
    if not port_is_good or parts.scheme not in ("http", "https") or not parts.hostname:
        raise _refused("endpoint_url", "must be http://HOST[:PORT] or https://HOST[:PORT]")
    if "@" in parts.netloc:
        raise _refused("endpoint_url", "must hold no user and no password; credentials come from the SDK's own chain")
    if parts.query or parts.fragment:
        raise _refused("endpoint_url", "must have neither query nor fragment")


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError(text)
    return text.lower() in ("true", "1")


_READERS: Final[dict[str, Callable[[str], object]]] = {
    "path_style": _truth,
    "concurrency": int,
    "part_size_bytes": int,
    "multipart_bytes_min": int,
    "connect_timeout_s": float,
    "read_timeout_s": float,
    "deadline_s": float,
    "tries_max": int,
    "stale_upload_s": float,
}


def parse_root(root_url: str) -> S3Options:
    """The options of ``s3://BUCKET[/PREFIX][?name=value&...]``. Raises ``InvalidArgument``; changes nothing."""
    scheme, separator, _ = root_url.partition("://")
    if scheme.lower() != "s3" or not separator:
        raise InvalidArgument("write s3://BUCKET/PREFIX?endpoint_url=...", argument="root")
    try:
        parts = urlsplit(root_url)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query), max_num_fields=64)
    except ValueError:
        raise InvalidArgument(
            "the s3:// root is not a URL of the form s3://BUCKET/PREFIX?name=value&name=value", argument="root"
        ) from None
    if "@" in parts.netloc:
        raise InvalidArgument(
            "an s3:// root names a bucket only: credentials come from the SDK's own chain (environment, profile, instance)",
            argument="root",
        )
    if parts.fragment:
        raise InvalidArgument("write '#' as %23 in an s3:// root", argument="root")
    known = [item.name for item in fields(S3Options) if item.name not in ("bucket", "prefix")]
    values: dict[str, object] = {}
    for number, (name, text) in enumerate(pairs):
        if name not in known:
            shown = repr(name) if name.isidentifier() and len(name) <= 32 else f"number {number + 1}"
            raise InvalidArgument(
                f"an s3:// root has no option {shown}; it has {', '.join(known)}. Credentials come from the SDK's own chain",
                argument="root",
            )
        if name in values:
            raise _refused(name, "is given twice")
        try:
            values[name] = _READERS.get(name, str)(text)
        except ValueError:
            raise _refused(name, "cannot be read") from None
    return S3Options(bucket=parts.netloc, prefix=unquote(parts.path).strip("/"), **values)  # type: ignore[arg-type]
