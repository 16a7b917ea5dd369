"""Chunk names as HDFS paths, and a tree of HDFS folders as an ordered listing of chunk names.

Promises: a path is the root, a slash and the name. HDFS takes no colon, and sorts letters beyond ASCII before all others,
so a few characters are written differently (table below); the names that the engine makes are not concerned. The rule
keeps the order of names, so that listings follow the name node's own pages. Files whose names do not come from this rule
are not listed.

    :  ;0        ;  ;1        ~  ~0        DEL  ~1        beyond ASCII  ~2 and six hex digits of the code point

Leaves out: temporaries, which are in a hidden folder directly below the root.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from chunkstore.errors import InvalidArgument

__all__ = ["TEMPORARY_FOLDER", "Entry", "Page", "escape", "to_path", "unescape", "walk"]

TEMPORARY_FOLDER = ".chunkstore-tmp"
"""Directly under the root; no chunk's name may begin with it, and it is never listed."""

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


def to_path(root: str, name: str) -> str:
    """The HDFS path of chunk ``name`` under ``root`` ("" or beginning with a slash). Raises ``InvalidArgument``."""
    if name.partition("/")[0] == TEMPORARY_FOLDER:
        raise InvalidArgument(f"{TEMPORARY_FOLDER!r} holds temporaries; choose another name", argument="name")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"chunk name {name!r} is not valid UTF-8", argument="name") from error
    path = f"{root}/{escape(name)}"
    longest = max(map(len, path.split("/")))
    if longest > _PART_BYTES_MAX:
        raise InvalidArgument(
            f"chunk name {name!r} has a part of {longest} bytes as HDFS sees it; {_PART_BYTES_MAX} is its limit",
            argument="name",
        )
    return path


class Entry(NamedTuple):
    """One chunk of a listing, and what the name node says of it."""

    name: str
    status: dict[str, Any]


class Page(NamedTuple):
    """One page of a folder: the statuses of its entries in the order of their names, and whether there are more."""

    statuses: list[dict[str, Any]]
    more: bool


Fetch = Callable[[str, str], Page]
"""Called with a folder's name ("" or ending in a slash, not escaped) and the escaped entry to begin after ("" for the first)."""


def walk(fetch: Fetch, *, prefix: str, after: str | None) -> Iterator[Entry]:
    """Files whose names begin with ``prefix`` and lie above ``after``, in order of their whole names.

    At any time one page per level is in memory. What vanishes meanwhile may be left out.
    """
    start = prefix.rpartition("/")[0]
    parts = start.split("/") if start else []
    if "" in parts or "." in parts or ".." in parts or parts[:1] == [TEMPORARY_FOLDER]:
        return
    top = start + "/" if start else ""
    stack = [(top, _children(fetch, top, prefix, after))]
    while stack:
        folder, children = stack[-1]
        found = next(children, None)
        if found is None:
            stack.pop()
            continue
        key, status = found
        path = folder + key
        if not path.startswith(prefix):
            if path > prefix:
                # Everything that follows follows the prefix, too.
                stack.pop()
            continue
        if key.endswith("/"):
            # Below a folder that sorts before ``after`` without containing it, everything sorts before it too.
            if after is None or path > after or after.startswith(path):
                stack.append((path, _children(fetch, path, prefix, after)))
        elif after is None or path > after:
            yield Entry(path, status)


def _children(fetch: Fetch, folder: str, prefix: str, after: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of ``folder`` in the order of the paths below them; a folder's key ends in a slash.

    The name node sorts "a" (a folder) before "a-b", but what is in it comes after: "a-b" < "a/x". So a folder waits
    until nothing can come that belongs before it.
    """
    waiting: list[tuple[str, int, dict[str, Any]]] = []
    count = 0
    following = _begin_after(folder, prefix, after)
    while True:
        page = fetch(folder, following)
        for status in page.statuses:
            raw = str(status.get("pathSuffix", ""))
            following = raw
            plain = unescape(raw)
            if not plain or (plain == TEMPORARY_FOLDER and not folder):
                continue
            while waiting and waiting[0][0] < plain:
                key, _, earlier = heapq.heappop(waiting)
                yield key, earlier
            kind = status.get("type")
            if kind in ("FILE", "DIRECTORY"):
                count += 1
                heapq.heappush(waiting, (plain + "/" if kind == "DIRECTORY" else plain, count, status))
        if not page.more or not page.statuses:
            break
    while waiting:
        key, _, earlier = heapq.heappop(waiting)
        yield key, earlier


def _begin_after(folder: str, prefix: str, after: str | None) -> str:
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
