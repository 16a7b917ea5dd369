"""Storages whose chunks are files of a tree, and listing a tree as chunk names, in the order of the names.

Promises: regular files only, by code point of the whole relative path, never a symbolic link, never anything under the
folder of temporaries; at any time one sorted directory per level is in memory. What vanishes meanwhile is left out.
Leaves out: names that are not UTF-8 (the port cannot name them).
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from chunkstore.checksum import BytesLike
from chunkstore.storage import BaseChunkStorage, ChunkInfo, ListPage
from chunkstore_bindings.filesystem.folders import TEMPORARY_FOLDER

__all__ = ["TreeStorage", "names_in", "walk_names"]


class TreeStorage(BaseChunkStorage):
    """What storages of files have in common, and what buckets ask of them."""

    @abstractmethod
    def walk(self, prefix: str, after: str | None) -> Iterator[ChunkInfo]:
        """As ``list``, without pages. Raises what ``list`` raises."""

    @abstractmethod
    def has_root(self) -> bool:
        """Whether the root is there."""

    @abstractmethod
    def _put_parts(self, name: str, parts: Iterable[BytesLike]) -> int: ...

    def put_parts(self, name: str, parts: Iterable[BytesLike]) -> int:
        """As ``put``, of parts of which one is in memory at a time; their length in bytes. An error of theirs leaves nothing."""
        self._check(name)
        return self._put_parts(name, parts)

    def do_list(self, prefix: str, after: str | None, limit: int) -> ListPage:
        items = tuple(islice(self.walk(prefix, after), limit + 1))
        return ListPage(items[:limit], items[limit - 1].name if len(items) > limit else None)


def names_in(open_folder: Callable[[str], int], folder: str) -> list[str]:
    """Names under ``folder`` ("" or ending in a slash), sorted; a directory's name ends in a slash.

    The slash makes the order of siblings that of the paths below them: "a-b" < "a/" < "a0". ``open_folder``: a new descriptor of a folder
    to read ("" is the root), or ``OSError``. Raises ``OSError`` when it cannot be read.
    """
    found = []
    try:
        fd = open_folder(folder[:-1])
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: what no path can be
        return []
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                name = entry.name
                if not name.isascii():
                    try:
                        name.encode()
                    except UnicodeEncodeError:
                        continue
                if entry.is_dir(follow_symlinks=False):
                    found.append(name + "/")
                elif entry.is_file(follow_symlinks=False):
                    found.append(name)
    finally:
        os.close(fd)
    found.sort()
    return found


def walk_names(look: Callable[[str], list[str]], *, prefix: str, after: str | None) -> Iterator[str]:
    """Names of the files under a root that begin with ``prefix`` and lie above ``after``, in order.

    ``look``: the names in a folder, as ``names_in`` has them. Raises what it raises.
    """
    start = prefix.rpartition("/")[0]
    parts = start.split("/") if start else []
    if not {"", ".", ".."}.isdisjoint(parts) or parts[:1] == [TEMPORARY_FOLDER]:
        return
    stack = [(folder := start + "/" if start else "", iter(look(folder)))]
    while stack:
        folder, children = stack[-1]
        child = next(children, None)
        if child is None:
            stack.pop()
            continue
        path = folder + child
        if path.rstrip("/") == TEMPORARY_FOLDER:
            continue
        if child.endswith("/"):
            wanted = path.startswith(prefix) or prefix.startswith(path)
            # Below a folder that sorts before ``after`` without containing it, everything sorts before it too.
            passed = after is not None and path < after and not after.startswith(path)
            if wanted and not passed:
                stack.append((path, iter(look(path))))
        elif path.startswith(prefix) and (after is None or path > after):
            yield path
