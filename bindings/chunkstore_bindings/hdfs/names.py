"""Chunk names as HDFS paths, and pages of a folder of HDFS as names in order.

Promises: a path is the root, a slash and the name. HDFS takes no colon, and sorts letters beyond ASCII before all others,
so a few characters are written differently (table below); the names that the engine makes are not concerned. The rule
keeps the order of names, so that listings follow the name node's own pages. Files whose names do not come from this rule
are not listed.

    :  ;0        ;  ;1        ~  ~0        DEL  ~1        beyond ASCII  ~2 and six hex digits of the code point

In a bucket a key is the path itself (``plain``), also of files that other programs made; its listings sort each folder.

Temporaries are in a hidden folder directly below a container's folder, and below the root.

Leaves out: what the name node says of them (``files``).
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from chunkstore.errors import InvalidArgument
from chunkstore.records.names import utf8_bytes
from chunkstore_bindings.filesystem.folders import TEMPORARY_FOLDER

__all__ = ["Page", "begin_after", "escape", "in_order", "to_path", "unescape"]

_PART_BYTES_MAX = 255
"""Hadoop's default (dfs.namenode.fs-limits.max-component-length); a site that raised it loses nothing the engine uses."""
_SPECIAL = re.compile(r"[:;~\x7f]|[^\x00-\x7f]")
_ESCAPED = re.compile(r";([01])|~(?:([01])|2([0-9a-f]{6}))")
_WRITTEN = {":": ";0", ";": ";1", "~": "~0", "\x7f": "~1"}


def escape(name: str) -> str:
    """``name`` as it is written in HDFS. Keeps the order: "9" < ";0" < ";1" < "<", and "}" < "~0" < "~1" < "~2..."."""
    return _SPECIAL.sub(lambda match: _WRITTEN.get(match[0]) or f"~2{ord(match[0]):06x}", name)


def unescape(text: str) -> str | None:
    """The inverse of ``escape``; None for what it never makes."""

    def plain(match: re.Match[str]) -> str:
        if match[1] is not None:
            return ":;"[int(match[1])]
        if match[2] is not None:
            return "~\x7f"[int(match[2])]
        return chr(min(int(match[3], 16), 0x10FFFF))

    if ";" not in text and "~" not in text:
        return text if _SPECIAL.search(text) is None else None
    found = _ESCAPED.sub(plain, text)
    return found if escape(found) == text else None


def to_path(root: str, name: str, *, plain: bool = False) -> str:
    """The HDFS path of chunk ``name`` under ``root`` ("" or beginning with a slash). Raises ``InvalidArgument``."""
    if TEMPORARY_FOLDER in name.split("/", 2)[:2]:
        raise InvalidArgument(f"{TEMPORARY_FOLDER!r} holds temporaries; choose another name", argument="name")
    if utf8_bytes(name) < 0:
        raise InvalidArgument(f"chunk name {name!r} is not valid UTF-8", argument="name")
    path = f"{root}/{name if plain else escape(name)}"
    longest = max(map(utf8_bytes, path.split("/")))
    if longest > _PART_BYTES_MAX:
        raise InvalidArgument(
            f"chunk name {name!r} has a part of {longest} bytes as HDFS sees it; {_PART_BYTES_MAX} is its limit",
            argument="name",
        )
    return path


class Page(NamedTuple):
    """One page of a folder: the statuses of its entries in the order of their names, and whether there are more."""

    statuses: list[dict[str, Any]]
    more: bool


def in_order(
    fetch: Callable[[str], Page], begin: str, name_of: Callable[[str], str | None] = unescape
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of a folder above ``begin``, in the order of the paths below them; a folder's name ends in a slash, its status is empty.

    ``fetch``: the page after an escaped name; ``name_of``: its inverse, None for what is left out. The name node sorts "a" (a folder)
    before "a-b", but what is in it comes after: "a-b" < "a/x". So a folder waits until nothing can come that belongs before it.
    """
    folders: list[str] = []
    more = True
    while more:
        statuses, more = fetch(begin)
        for status in statuses:
            begin = str(status.get("pathSuffix", ""))
            name, kind = name_of(begin), status.get("type")
            if not name or kind not in ("FILE", "DIRECTORY"):
                continue
            while folders and folders[0] < name:
                yield heapq.heappop(folders), {}
            if kind == "DIRECTORY":
                heapq.heappush(folders, name + "/")
            else:
                yield name, status
    while folders:
        yield heapq.heappop(folders), {}


def begin_after(folder: str, prefix: str, after: str | None) -> str:
    """An escaped name below everything wanted in ``folder``; "" where nothing can be left out."""
    lowest = ""
    if prefix.startswith(folder):
        lowest = prefix[len(folder) :].partition("/")[0]
    if after is not None and after.startswith(folder):
        part = after[len(folder) :].partition("/")[0]
        # A folder "a" holds names above "a-b": wherever a character sorts before the slash, begin earlier.
        cut = next((index for index, letter in enumerate(part) if letter < "/"), len(part))
        lowest = max(lowest, part[:cut])
    # The name node begins after the name it is given, so give it a shorter one.
    return escape(lowest[:-1])
