"""Folders and files of a simulated kernel: what is visible, what is durable, and what a power cut leaves of the difference."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import TypeAlias

from tests.simulator.posix_faults import Inode


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


class File(Inode):
    """A regular file: ``links`` names lead to it."""

    __slots__ = ("links", "mode")

    def __init__(self, number: int, now: int) -> None:
        super().__init__(number, now)
        self.links = 0
        self.mode = stat.S_IFREG | 0o644

    def write(self, offset: int, data: bytes, now: int) -> int:
        """Put bytes at ``offset``; what was synced of the bytes they replace is not any more."""
        if offset > len(self.data):
            self.data += bytes(offset - len(self.data))
        self.synced = min(self.synced, offset)
        self.data[offset : offset + len(data)] = data
        self.modified_ns = now
        return len(data)

    def cut(self, length: int, now: int) -> None:
        """Make it ``length`` bytes long."""
        del self.data[length:]
        self.data += bytes(length - len(self.data))
        self.synced = min(self.synced, length)
        self.modified_ns = now


class Directory:
    """A folder. ``dirty``: by name, what the disk has for an entry that was changed since the last sync."""

    __slots__ = ("dirty", "entries", "links", "modified_ns", "number", "parent")

    mode = stat.S_IFDIR | 0o755

    def __init__(self, number: int, parent: Directory | None, now: int) -> None:
        self.number = number
        self.parent = parent
        self.entries: dict[str, Node] = {}
        self.dirty: dict[str, Node | None] = {}
        self.links = 2
        self.modified_ns = now

    def set(self, name: str, node: Node | None) -> None:
        """Change an entry, visibly and not yet durably."""
        before = self.entries.get(name)
        self.dirty.setdefault(name, before)
        if node is None:
            del self.entries[name]
        else:
            self.entries[name] = node
            node.links += isinstance(node, File)
            if isinstance(node, Directory):
                node.parent, node.links = self, 2
        if isinstance(before, File):
            before.links -= 1
        elif before is not None and before is not node:
            before.links = 0

    def sync(self) -> None:
        """The entries are durable as they are."""
        self.dirty.clear()

    def durable(self, name: str) -> Node | None:
        """What the disk has under a name."""
        return self.dirty[name] if name in self.dirty else self.entries.get(name)


Node: TypeAlias = File | Directory


class Status:
    """What stat(2) says, as far as anybody asks."""

    __slots__ = ("st_dev", "st_ino", "st_mode", "st_mtime_ns", "st_nlink", "st_size")

    def __init__(self, node: Node, epoch_ns: int) -> None:
        self.st_dev = 1
        self.st_ino = node.number
        self.st_mode = node.mode
        self.st_mtime_ns = epoch_ns + node.modified_ns
        self.st_nlink = node.links
        self.st_size = len(node.data) if isinstance(node, File) else 0


class Kernel:
    """One tree. ``now`` gives the time in nanoseconds."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.now = now
        self._numbers = 1
        self.root = Directory(1, None, now())

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    # Paths

    def place(self, path: str, at: Directory | None) -> tuple[Directory, str]:
        """The folder that holds the last part of ``path``, and that part; ``at``: where a relative path begins."""
        place = self.root if at is None or path.startswith("/") else at
        *parts, last = [part for part in path.split("/") if part] or ["."]
        for part in parts:
            place = self._folder(place, part, path)
        return place, last

    def _folder(self, place: Directory, part: str, path: str) -> Directory:
        found = self.entry(place, part)
        if found is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(found, Directory):
            raise _error(errno.ENOTDIR, path)
        return found

    @staticmethod
    def entry(place: Directory, part: str) -> Node | None:
        """What has a name in a folder."""
        if part == ".":
            return place
        return (place.parent or place) if part == ".." else place.entries.get(part)

    def find(self, path: str, at: Directory | None = None) -> Node:
        """What a path leads to. Raises ``OSError``."""
        place, last = self.place(path, at)
        found = self.entry(place, last)
        if found is None:
            raise _error(errno.ENOENT, path)
        return found

    def file(self, path: str, at: Directory | None = None) -> File:
        """The file that a path leads to. Raises ``OSError``."""
        found = self.find(path, at)
        if isinstance(found, Directory):
            raise _error(errno.EISDIR, path)
        return found

    def files(self, under: Directory, stem: str = "") -> Iterator[tuple[str, File]]:
        """All files below a folder, by path."""
        for name, node in under.entries.items():
            if isinstance(node, File):
                yield stem + name, node
            else:
                yield from self.files(node, f"{stem}{name}/")

    # Changes. Each raises ``OSError`` and has no effect then.

    def create(self, path: str, at: Directory | None) -> File:
        """A new, empty file."""
        place, last = self._free(path, at)
        file = File(self._number(), self.now())
        place.set(last, file)
        return file

    def make(self, path: str, at: Directory | None = None) -> Directory:
        """A new folder."""
        place, last = self._free(path, at)
        made = Directory(self._number(), place, self.now())
        place.set(last, made)
        return made

    def _free(self, path: str, at: Directory | None) -> tuple[Directory, str]:
        place, last = self.place(path, at)
        if self.entry(place, last) is not None:
            raise _error(errno.EEXIST, path)
        if not place.links:
            raise _error(errno.ENOENT, path)
        return place, last

    def link(self, source: str, source_at: Directory | None, target: str, target_at: Directory | None) -> None:
        """A second name for a file."""
        file = self.file(source, source_at)
        place, last = self._free(target, target_at)
        place.set(last, file)

    def rename(self, source: str, source_at: Directory | None, target: str, target_at: Directory | None) -> None:
        """Another name for a file or folder, in place of what has it."""
        node = self.find(source, source_at)
        place, last = self.place(target, target_at)
        replaced = self.entry(place, last)
        if isinstance(replaced, Directory) and (isinstance(node, File) or replaced.entries):
            raise _error(errno.EISDIR if isinstance(node, File) else errno.ENOTEMPTY, target)
        if not place.links:
            raise _error(errno.ENOENT, target)
        old_place, old_last = self.place(source, source_at)
        place.set(last, node)
        old_place.set(old_last, None)
        if isinstance(node, Directory):
            node.parent, node.links = place, 2

    def unlink(self, path: str, at: Directory | None = None) -> None:
        """Take a file's name away."""
        self.file(path, at)
        place, last = self.place(path, at)
        place.set(last, None)

    # Power

    def power_cut(self, random: Callable[[], float]) -> None:
        """Each entry that was not synced is the old or the new one, and bytes that were not are kept, lost or torn, by chance."""
        files: dict[int, File] = {}
        self._lose_names(self.root, random, files)
        for file in files.values():
            file.tear(random)

    def _lose_names(self, folder: Directory, random: Callable[[], float], files: dict[int, File]) -> None:
        for name, before in folder.dirty.items():
            if random() < 0.5:
                if before is None:
                    folder.entries.pop(name, None)
                else:
                    folder.entries[name] = before
        folder.dirty.clear()
        for node in folder.entries.values():
            if isinstance(node, Directory):
                node.parent, node.links = folder, 2
                self._lose_names(node, random, files)
            else:
                node.links = node.links + 1 if node.number in files else 1
                files[node.number] = node
