"""The files of ``jobs.offload``, found by the driver and opened by executors: paths, and URLs (``file``, ``s3``, ``hdfs``, ``gs``)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs as pafs

from chunkstore.errors import ChunkstoreError, InvalidArgument, StorageUnavailable
from chunkstore.records.logs import without_credentials

__all__ = ["SourceFile", "find_files", "foreign", "open_system"]


class SourceFile(NamedTuple):
    """A file, as pyarrow opens it. ``modified_ns``: a label, 0 where there is none."""

    url: str
    size_bytes: int
    modified_ns: int


def find_files(paths: Sequence[str]) -> list[SourceFile]:
    """The files that these are, or that are in them, in the order of their names. Hidden ones (``.`` and ``_`` in front) in directories are
    left out. Raises ``InvalidArgument`` (there is none), ``StorageUnavailable``."""
    found: dict[str, SourceFile] = {}
    for given in paths:
        path = given if "://" in given else os.path.abspath(given)
        with foreign(path):
            system, inner = open_system(path)
            info = system.get_file_info(inner)
            several = info.type == pafs.FileType.Directory
            items = system.get_file_info(pafs.FileSelector(inner, recursive=True)) if several else [info]
            for item in items:
                below = item.path[len(inner.rstrip("/")) :] if several else ""
                if item.type != pafs.FileType.File or _is_hidden(below):
                    continue
                url = _child(path, below)
                found[url] = SourceFile(url, item.size, item.mtime_ns or 0)
    if not found:
        raise InvalidArgument(f"no file exists at {', '.join(map(_shown, paths)) or 'no path'}", argument="source")
    return [found[url] for url in sorted(found, key=lambda url: (_name_in(url), url))]


def open_system(url: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a URL or a path, and its name there. Raises what pyarrow raises."""
    if "://" in url:
        found: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(url)
        return found
    return pafs.LocalFileSystem(), url


@contextmanager
def foreign(url: str) -> Iterator[None]:
    """What pyarrow raises about a file becomes an error of ours."""
    try:
        yield
    except ChunkstoreError:
        raise
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise InvalidArgument(f"cannot open {_shown(url)}: {error}", argument="source") from error
    except (OSError, pa.ArrowException) as error:
        raise StorageUnavailable(f"cannot read {_shown(url)}: {error}", object=_shown(url)) from error


def _child(path: str, below: str) -> str:
    """The name of what is ``below`` a directory: in a URL it is quoted, and goes before the query."""
    if not below:
        return path
    if "://" not in path:
        return path.rstrip("/") + below
    folder, mark, query = path.partition("?")
    return folder.rstrip("/") + quote(below) + mark + query


def _name_in(url: str) -> str:
    return unquote(url.partition("?")[0]) if "://" in url else url


def _shown(url: str) -> str:
    return without_credentials(url) if "://" in url else url


def _is_hidden(path: str) -> bool:
    return any(part[:1] in "._" for part in path.split("/") if part)
