"""From a root to its chunk storage.

Paths, ``memory://NAME``, ``file:///PATH`` and ``s3://BUCKET/PREFIX?...`` are built in; a relative path is resolved
once, against the working directory. Other installed packages add schemes through the entry-point group
``chunkstore.bindings`` (name: the scheme; object: called with the URL and the settings, returns a ``ChunkStorage``).
A binding is imported when a root needs it, never before. Credentials in a URL never
reach a message. Remote storages are wrapped in ``retrying``, and every storage wrapped in ``throttled`` where the settings name a
limit (docs/decisions/0011).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TypeAlias, cast
from urllib.parse import quote, unquote, urlsplit

from chunkstore.config import Settings
from chunkstore.errors import InvalidArgument, Unsupported
from chunkstore.records.logs import without_credentials
from chunkstore.storage import ChunkStorage

__all__ = [
    "ENTRY_POINT_GROUP",
    "SCHEME",
    "Root",
    "open_storage",
    "path_of",
    "require_known_place",
    "root_url",
    "without_extra",
]

ENTRY_POINT_GROUP = "chunkstore.bindings"
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_REMOTE = frozenset(("s3", "hdfs"))
_ONE_SLASH = re.compile(r"(file|memory|s3|hdfs):", re.IGNORECASE)
_EXAMPLES = "write a path, file:///absolute/path or memory://NAME"
_KNOWN = frozenset(("file", "memory", "s3"))
_CONTROL = re.compile(r"[\0-\x1f\x7f]")

Root: TypeAlias = str | os.PathLike[str]
"""A URL, or the path of a folder on this machine."""


def root_url(root: Root, argument: str = "root") -> str:
    """The URL of a root. A path, also a relative one, becomes that of the folder it names now; ``~`` is not expanded.

    Raises ``InvalidArgument``. Opens nothing.
    """
    text = os.fspath(root) if isinstance(root, os.PathLike) else root
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidArgument(f"{argument} must be a path or a URL, not {text!r}; {_EXAMPLES}", argument=argument)
    if isinstance(root, str) and SCHEME.match(text):
        return text
    if found := _ONE_SLASH.match(text):
        hint = "a URL has two slashes after the colon, and is given as text, not as a Path"
        raise InvalidArgument(f"{argument} begins with {found[0]!r}: {hint}; {_EXAMPLES}", argument=argument)
    try:
        return "file://" + quote(os.fsencode(os.path.abspath(text)))
    except (OSError, ValueError) as error:  # no working directory; a name that no file has
        raise InvalidArgument(f"{argument} {text!r} is not a path here: {error}", argument=argument) from error


def open_storage(root: Root, settings: Settings) -> ChunkStorage:
    """The chunk storage of a root.

    Raises: ``InvalidArgument`` for an unknown scheme, a malformed URL or no path; ``Unsupported`` for a scheme whose
    binding is not in this version; what the binding's constructor raises. Changes nothing; retry: safe.
    """
    url = root_url(root)
    scheme = url.partition("://")[0].lower()
    return _wrapped(_open_binding(scheme, url, settings), scheme, settings)


def _open_binding(scheme: str, root_url: str, settings: Settings) -> ChunkStorage:
    if scheme == "file":
        return _open_file(root_url, settings)
    if scheme == "memory":
        return _open_memory(root_url)
    if scheme == "hdfs":
        return _open_hdfs(root_url, settings)
    if scheme == "s3":
        return _open_s3(root_url, settings)
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINT_GROUP, name=scheme):
        maker = cast("Callable[[str, Settings], ChunkStorage]", entry.load())
        return maker(root_url, settings)
    raise InvalidArgument(
        f"no binding for {scheme}:// roots ({without_credentials(root_url)!r}); {_EXAMPLES}", argument="root"
    )


def _wrapped(storage: ChunkStorage, scheme: str, settings: Settings) -> ChunkStorage:
    """What the settings ask for, around a binding. A retry is a request like any other, so the throttle is the inner one."""
    from chunkstore_bindings.wrappers.wrapping import guarded

    storage = guarded(storage)
    limits = (
        settings.read_bytes_per_s_max,
        settings.write_bytes_per_s_max,
        settings.read_requests_per_s_max,
        settings.write_requests_per_s_max,
    )
    if any(limits):
        from chunkstore_bindings.wrappers.throttled import ThrottledChunkStorage, ThrottleLimits

        storage = ThrottledChunkStorage(storage, ThrottleLimits(*limits), wait_s_max=settings.op_deadline_s)
    if scheme in _REMOTE and settings.retry_s_max:
        from chunkstore_bindings.wrappers.retrying import RetryingChunkStorage, RetryPolicy

        policy = RetryPolicy(tries_max=settings.tuning.retry_tries_max, budget_s=settings.retry_s_max)
        storage = RetryingChunkStorage(storage, policy)
    return storage


def require_known_place(root_url: str) -> None:
    """Raise ``InvalidArgument`` unless the root that an export says it is of may be opened: it is compared by its uuid once it is open.

    A plain path on this machine, a root in memory, and a bucket at the reader's own S3 endpoint may: no other host is asked.
    """
    scheme, _, rest = root_url.partition("://")
    host = rest.partition("/")[0]
    if scheme.lower() not in _KNOWN or "?" in rest or "@" in host or _CONTROL.search(root_url):
        shown = without_credentials(root_url)
        text = f"the export says it is of {shown}, which is not opened for that: say where the container is (--from)"
        raise InvalidArgument(text, argument="root")


def _open_file(root_url: str, settings: Settings) -> ChunkStorage:
    path = path_of(root_url)

    from chunkstore_bindings.filesystem import FilesystemChunkStorage

    return FilesystemChunkStorage(path, open_files_max=settings.open_files_max)


def path_of(root_url: str) -> str:
    """The path of a ``file://`` URL. Raises ``InvalidArgument``."""
    try:
        parts = urlsplit(root_url)
    except ValueError as error:
        raise InvalidArgument(
            f"root {without_credentials(root_url)!r} is not a URL: {error}", argument="root"
        ) from error
    if parts.netloc not in ("", "localhost"):
        raise InvalidArgument(
            f"root {without_credentials(root_url)!r} names the host {parts.netloc.rpartition('@')[2]!r}; a path on this machine has "
            "three slashes: file:///absolute/path",
            argument="root",
        )
    if parts.query or parts.fragment or root_url[-1] in "?#":
        raise InvalidArgument(
            f"root {without_credentials(root_url)!r}: write '?' as %3F and '#' as %23 in the path; a file root takes no options",
            argument="root",
        )
    path = unquote(parts.path, errors="surrogateescape")
    if not path.startswith("/") or "\0" in path:
        raise InvalidArgument(
            f"root {without_credentials(root_url)!r} needs an absolute path: file:///absolute/path", argument="root"
        )
    return path


def _open_memory(root_url: str) -> ChunkStorage:
    name = root_url.partition("://")[2]
    if not name or "?" in name or "#" in name or "@" in name:
        raise InvalidArgument(
            f"root {without_credentials(root_url)!r}: write memory://NAME, without options", argument="root"
        )

    from chunkstore_bindings.memory import MemoryChunkStorage

    return MemoryChunkStorage(f"memory://{name}")


def _open_hdfs(root_url: str, settings: Settings) -> ChunkStorage:
    try:
        from chunkstore_bindings.hdfs import open_hdfs
    except ImportError as error:
        raise without_extra("hdfs", error) from error

    return open_hdfs(root_url, settings)


def without_extra(extra: str, error: ImportError) -> Unsupported:
    """What is said where a package of an extra is missing."""
    return Unsupported(
        f"{extra}:// roots need the extra {extra!r}: pip install 'chunkstore-engine[{extra}]' ({error.name} is missing)",
        feature=extra,
    )


def _open_s3(root_url: str, settings: Settings) -> ChunkStorage:
    try:
        from chunkstore_bindings.s3.options import parse_root
        from chunkstore_bindings.s3.storage import S3ChunkStorage
    except ModuleNotFoundError as error:
        if error.name not in ("boto3", "botocore"):
            raise
        raise without_extra("s3", error) from error
    return S3ChunkStorage(parse_root(root_url), callers=settings.tuning.io_workers)
