"""From ``hdfs://HOST:HTTPPORT/PATH?options`` to what the binding needs.

Promises: unknown or malformed options are refused by name; nothing of the query ever appears in a message (a token's file
is named, its content never). Leaves out: several name nodes in one root (high availability), Kerberos.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from chunkstore.errors import InvalidArgument, StorageUnavailable

__all__ = ["OPTIONS", "HdfsRoot", "TokenFile", "parse_root"]

OPTIONS = ("block_size_bytes", "concat", "guard", "replication", "tls", "token_file", "user")
_PORT = 9870
_TLS_PORT = 9871
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}\Z|[0-9a-fA-F:.]+(%[A-Za-z0-9._-]+)?\Z")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*[$]?\Z")
_TOKEN = re.compile(r"[A-Za-z0-9_-]+=*\Z")
_TOKEN_BYTES_MAX = 16 << 10
_WHOLE = re.compile(r"[0-9]{1,15}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsRoot:
    """A root, taken apart.

    Attributes: ``base_url``: the name node's HTTP address; ``path``: the folder, "" for the root of the file system;
    ``url``: the root without options; ``user``, ``token_file``: who asks; ``concat_consumes``: whether a concat may take its sources
    away; ``guarded``: whether containers are known by the numbers of their folders; ``file_parameters``: of every CREATE, where the
    root chooses ``replication`` and ``block_size_bytes``.
    """

    base_url: str
    path: str
    url: str
    user: str | None = None
    token_file: str | None = None
    concat_consumes: bool = False
    guarded: bool = True
    file_parameters: dict[str, object] = field(default_factory=dict)


def _bad(text: str) -> InvalidArgument:
    return InvalidArgument(f"{text}; write hdfs://HOST:HTTPPORT/PATH", argument="root")


def parse_root(root_url: str) -> HdfsRoot:
    """Take ``root_url`` apart. Raises ``InvalidArgument`` naming what is wrong, never a value of the query."""
    try:
        parts = urlsplit(root_url)
        port = parts.port
        path = unquote(parts.path, errors="strict").rstrip("/")
    except ValueError as error:
        raise _bad("this hdfs root is not a URL") from error
    host = parts.hostname
    if parts.scheme != "hdfs" or not host:
        raise _bad("an hdfs root names the name node's host")
    if _HOST.match(host) is None or port == 0:
        raise _bad("the host of an hdfs root is a name or an address, and its port is not 0")
    if parts.username is not None or parts.password is not None:
        raise _bad(
            "an hdfs root takes no credentials before the host; the account is an option (docs/guide-storages.md)"
        )
    if parts.fragment:
        raise _bad("an hdfs root has no fragment: write '#' as %23 in the path")
    if path and (not path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/")[1:])):
        raise _bad("the path of an hdfs root has no empty parts, '.' or '..'")
    if ":" in path or "\0" in path:
        raise _bad("HDFS takes no ':' in a path")
    options = _options(parts.query)
    tls = _choice(options, "tls", ("no", "yes")) == "yes"
    chosen = {
        "replication": _number(options, "replication", 1, 512),
        "blocksize": _number(options, "block_size_bytes", 512, 1 << 40),
    }
    shown_host = f"[{host}]" if ":" in host else host
    port = port if port is not None else (_TLS_PORT if tls else _PORT)
    return HdfsRoot(
        base_url=f"{'https' if tls else 'http'}://{shown_host}:{port}",
        path=path,
        url=f"hdfs://{shown_host}:{port}{quote(path)}",
        user=_user(options),
        token_file=options.get("token_file"),
        concat_consumes=_choice(options, "concat", ("copy", "consume")) == "consume",
        guarded=_choice(options, "guard", ("number", "none")) == "number",
        file_parameters={name: value for name, value in chosen.items() if value is not None},
    )


def _options(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=32)
    except ValueError as error:
        raise _bad("the options of this hdfs root are malformed (?user=NAME&replication=2)") from error
    for name, value in pairs:
        if name not in OPTIONS:
            raise _bad(f"an hdfs root has no option {name[:40]!r}; there are {', '.join(OPTIONS)}")
        if name in found:
            raise _bad(f"option {name!r} is given twice")
        if not value:
            raise _bad(f"option {name!r} has no value")
        found[name] = value
    return found


def _user(options: dict[str, str]) -> str | None:
    user = options.get("user")
    if user is not None and _USER.match(user) is None:
        raise _bad("option 'user' is not a valid user name in Hadoop")
    if user is not None and "token_file" in options:
        raise _bad("a delegation token names its user; leave out 'user' where 'token_file' is given")
    return user


def _choice(options: dict[str, str], name: str, allowed: tuple[str, str]) -> str:
    """One of two; the first is the default."""
    value = options.get(name, allowed[0])
    if value not in allowed:
        raise _bad(f"option {name!r} is {allowed[0]!r} or {allowed[1]!r}")
    return value


def _number(options: dict[str, str], name: str, smallest: int, largest: int) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if _WHOLE.match(value) is None or not smallest <= int(value) <= largest:
        raise _bad(f"option {name!r} is a whole number from {smallest} to {largest}")
    return int(value)


class TokenFile:
    """A delegation token in a file, as its URL-safe text; read again when the file changes, so that it can be renewed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._token = ""

    def __call__(self) -> str:
        """The token. Raises ``StorageUnavailable`` when the file cannot be read or holds something else."""
        try:
            info = os.stat(self._path)
            seen = (info.st_mtime_ns, info.st_size, info.st_ino)
            if seen != self._seen:
                with open(self._path, "rb") as file:
                    text = file.read(_TOKEN_BYTES_MAX + 1).decode("ascii", errors="replace").strip()
                if len(text) > _TOKEN_BYTES_MAX or _TOKEN.match(text) is None:
                    raise StorageUnavailable(
                        f"{self._path} does not hold a delegation token in its URL-safe text form", object=self._path
                    )
                self._token, self._seen = text, seen
        except OSError as error:
            raise StorageUnavailable(
                f"the delegation token's file {self._path} cannot be read: {error.strerror}", object=self._path
            ) from error
        return self._token
