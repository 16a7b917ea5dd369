"""Which file system a path is on, and whether a journal may be appended to there (protocol A13).

Promises: ``parse_mountinfo`` reads the text of ``/proc/self/mountinfo`` and skips lines it does not understand;
``is_local`` answers True only for file systems on the allow-list. What cannot be found out is "unknown", and unknown is
not allowed. Leaves out: systems without ``/proc`` (there every path is "unknown").
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from typing import NamedTuple

from chunkstore.errors import InvalidArgument, StorageUnavailable

__all__ = [
    "LOCAL_TYPES",
    "UNKNOWN",
    "Mount",
    "file_system_of",
    "file_system_of_root",
    "find_mount",
    "free_bytes",
    "is_local",
    "parse_mountinfo",
]

LOCAL_TYPES = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay", "apfs"})
"""One kernel, coherent names and fsync that means it: the fence of an appended journal holds there."""
UNKNOWN = "unknown"
_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of mountinfo. ``device`` is ``major:minor``, ``upper`` the upper directory of an overlay or ""."""

    device: str
    point: str
    kind: str
    upper: str = ""


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def parse_mountinfo(text: str) -> list[Mount]:
    """All mounts, in the order of the file (later ones lie on top)."""
    mounts = []
    for line in text.splitlines():
        head, separator, tail = line.partition(" - ")
        fields, rest = head.split(" "), tail.split(" ")
        if not separator or len(fields) < 6 or not rest[0]:
            continue
        options = rest[2].split(",") if rest[0] == "overlay" and len(rest) > 2 else []
        upper = next((_plain(option[9:]) for option in options if option.startswith("upperdir=")), "")
        mounts.append(Mount(device=fields[2], point=_plain(fields[4]), kind=rest[0], upper=upper))
    return mounts


def find_mount(mounts: Sequence[Mount], path: str, device: str) -> Mount | None:
    """The mount that holds the absolute ``path``, whose device is ``device`` ("major:minor").

    The longest mount point wins, among equals the latest. A mount of the same device goes first: a mount point may be
    hidden under a later mount of one of its parents. (On btrfs a file's device is not the mount's; then length decides.)
    """
    covering = [mount for mount in mounts if f"{path}/".startswith(mount.point.rstrip("/") + "/")]
    same = [mount for mount in covering if mount.device == device]
    # Of the longest ones the last.
    return max(reversed(same or covering), key=lambda mount: len(mount.point), default=None)


def is_local(mounts: Sequence[Mount], mount: Mount | None) -> bool:
    """Whether ``mount`` is on the allow-list; an overlay only if its upper directory is, as far as that can be found out."""
    if mount is None or mount.kind not in LOCAL_TYPES:
        return False
    if mount.kind != "overlay" or not mount.upper or not os.path.isdir(mount.upper):
        return True
    under = find_mount(mounts, os.path.realpath(mount.upper), _device_of(mount.upper))
    return under is None or under == mount or under.kind in LOCAL_TYPES


def _device_of(path: str) -> str:
    device = os.stat(path).st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def file_system_of(path: str) -> tuple[str, bool]:
    """``(type, local)`` of an existing path: "ext4", True; ("unknown", False) where it cannot be found out."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mounts = parse_mountinfo(file.read())
        mount = find_mount(mounts, os.path.realpath(path), _device_of(path))
        return (mount.kind if mount is not None else UNKNOWN), is_local(mounts, mount)
    except OSError:
        return UNKNOWN, False


def free_bytes(path: str) -> int | None:
    """What anybody may still write on the file system of a path; None where it is not there, or does not know."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize if found.f_blocks else None


def file_system_of_root(root: str, *, may_be_missing: bool) -> tuple[str, bool]:
    """As ``file_system_of``, of the directory ``root`` (absolute), or of the parent that it would be made in.

    Raises ``InvalidArgument`` if it is no directory, ``StorageUnavailable`` if it is missing or cannot be looked at.
    """
    place = root
    try:
        while may_be_missing and not os.path.lexists(place):
            place = os.path.dirname(place)
        if not stat.S_ISDIR(os.stat(place).st_mode):
            raise InvalidArgument(f"{place} is not a directory; give the path of one", argument="path")
    except OSError as error:
        raise StorageUnavailable(
            f"the root {root} cannot be used: {error.strerror}; mount or create it", object=root
        ) from error
    return file_system_of(place)
