"""Directories of the metadata cache: whose a store is, who may write to it, which can be trusted (docs/decisions/0004).

::

    <cache_dir>/<container uuid, 32 hex digits>/<owner, replica or past>/
        END-<address, hashed>       of owners: the end of history that was seen of that root (``seen_end``)
        <token>/                one store, made once under a name that is never used again
            data.mdb, lock.mdb  LMDB's own
            STATE               the address it belongs to, the boot it was opened in last, and what data.mdb was when closed cleanly
            USERS               every process that has it open holds a shared lock on it
            WRITER              the one cache object that writes to it holds an exclusive lock, from opening to closing

Promises: a store is found by the container's uuid, the role and the address of its root, never by the uuid alone, for copies of a
root have the same. Without STATE it is no store: half made, or thrown away. A directory in use by any living process is never
deleted; an unused one is, when it is no store, or one of many. A store is trusted only if no restart of the machine can have torn
it: it was opened last in this very boot (the page cache survives a process), or it was closed cleanly and every byte is what it
was then.

flock is used here and nowhere in containers: a cache directory is on a local file system, or it is not used at all.
Leaves out: what is in a store (``lmdb``), and the end that was seen (``seen_end``).
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from chunkstore.errors import ChunkstoreError, InvalidArgument, StorageFull, StorageUnavailable
from chunkstore.metadata.port import ROLES
from chunkstore.processes import this_process
from chunkstore.runtime import identity, token

__all__ = [
    "CacheDirectory",
    "FileMark",
    "StoreState",
    "UsersLock",
    "WriterLock",
    "delete_unused",
    "forget",
    "is_local",
    "is_this_boot",
    "read_state",
    "role_path",
    "stores_of",
    "sync_folder",
    "this_boot",
    "translate_os",
    "write_state",
]

LOCAL_FILE_SYSTEMS = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs", "tmpfs", "ramfs", "overlay")
)
_TOKEN = re.compile(r"[0-9a-f]{32}")
_STATE = re.compile(r"chunkstore-cache 2 (\S{1,200}) (?:open|clean ([0-9]{1,20}) ([0-9a-f]{8})) (\S*)\n")
_SMALL_BYTES: Final = 65_536
_BOOT_UNKNOWN = "unknown"
_ADDRESSES_KEPT: Final = 8
"""Of these the store that was opened or closed last is kept, besides those in use."""


def translate_os(error: OSError, path: str) -> ChunkstoreError:
    """The error that says what an ``OSError`` on the cache means to the caller."""
    if error.errno in (ENOSPC, EDQUOT):
        return StorageFull(f"no space left for the metadata cache {path}; free some, or set cache_dir", object=path)
    return StorageUnavailable(
        f"the metadata cache {path} cannot be used: {error}; set cache_dir to a folder of local disk that can be written",
        object=path,
    )


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def is_local(path: str) -> bool:
    """Whether ``path`` lies on a file system of this machine. Where the system does not say (no /proc), True."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return True
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in lines:
        left, _, right = line.partition(" - ")
        place = _unescape(left.split(" ")[4])
        inside = real == place or real.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, right.split(" ")[0]
    return kind in LOCAL_FILE_SYSTEMS


def _write_atomically(path: str, text: str) -> None:
    """Replace a small file: after a crash it is the old one or the new one."""
    temporary = f"{path}.{token(8).hex()}.new"
    with open(temporary, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """Make the names in a folder durable. Raises ``OSError``."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read_small(path: str) -> str:
    """A small file's text, or nothing if it is missing or no such file of ours."""
    try:
        with open(path, "rb") as file:
            return file.read(_SMALL_BYTES).decode("ascii")
    except (OSError, UnicodeDecodeError):
        return ""


class FileMark(NamedTuple):
    """Length and CRC32C of a store's data file."""

    length: int
    crc32c: int


class StoreState(NamedTuple):
    """STATE of a store: ``clean`` is what the data file was when it was closed cleanly."""

    address: str
    boot_id: str
    clean: FileMark | None


def read_state(path: str) -> StoreState | None:
    """STATE in the store directory ``path``; None if it is missing or damaged (then the store is not to be trusted)."""
    match = _STATE.fullmatch(_read_small(os.path.join(path, "STATE")))
    if match is None:
        return None
    clean = None if match[2] is None else FileMark(int(match[2]), int(match[3], 16))
    return StoreState(unquote(match[4]), match[1], clean)


def write_state(path: str, state: StoreState) -> None:
    """Write STATE durably. Raises ``OSError``."""
    mark = "open" if state.clean is None else f"clean {state.clean.length} {state.clean.crc32c:08x}"
    text = f"chunkstore-cache 2 {state.boot_id} {mark} {quote(state.address)}\n"
    _write_atomically(os.path.join(path, "STATE"), text)


def forget(path: str) -> None:
    """Remove STATE: the store is never opened again, and deleted when it is not in use any more."""
    with suppress(OSError):
        os.unlink(os.path.join(path, "STATE"))


class UsersLock:
    """A shared lock on a store's USERS file: while it is held, the directory is not deleted."""

    def __init__(self, path: str, *, create: bool) -> None:
        """Take it. Raises ``OSError``, also when the directory has just been deleted or is being deleted."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._file = os.open(os.path.join(path, "USERS"), flags, 0o600)
        self._process = this_process()
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.fstat(self._file).st_nlink == 0:
                raise FileNotFoundError(f"{path} was deleted")
        except OSError:
            os.close(self._file)
            raise

    def release(self) -> None:
        """Give it back, once. In a forked child it stays the parent's."""
        if self._process is this_process():
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)


class WriterLock:
    """The exclusive lock on a store's WRITER file, which belongs to one cache object of one process (never to two in one process)."""

    def __init__(self, path: str) -> None:
        """Take it. Raises ``BlockingIOError`` when somebody holds it, else ``OSError``."""
        self._file = os.open(os.path.join(path, "WRITER"), os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise

    def release(self) -> None:
        """Give it back, once. In a forked child ``leave_to_parent`` is the way."""
        fcntl.flock(self._file, fcntl.LOCK_UN)
        os.close(self._file)

    def leave_to_parent(self) -> None:
        """In a forked child: let go of the file, for else a child that lives on would keep what its parent held when it was killed."""
        os.close(self._file)


def delete_unused(path: str) -> bool:
    """Delete a store directory unless it is in use. Returns whether it is gone. Never raises: it is only tidying up."""
    try:
        users = os.open(os.path.join(path, "USERS"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        with suppress(OSError):
            os.rmdir(path)  # its maker ended before it made USERS, or will make another directory
        return not os.path.exists(path)
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # USERS last: a store half deleted stays locked, and is found again.
        for name in sorted(os.listdir(path), key=lambda name: name == "USERS"):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)
    except OSError:
        return False
    finally:
        os.close(users)
    return True


def role_path(cache_dir: str, container_uuid: bytes, role: str) -> str:
    """The directory of a role, symbolic links resolved. Raises ``InvalidArgument``."""
    if role not in ROLES:
        raise InvalidArgument(f"role {role!r} is none of {', '.join(ROLES)}", argument="role")
    if len(container_uuid) != 16:
        raise InvalidArgument("a container's uuid has 16 bytes", argument="container_uuid")
    return os.path.join(os.path.realpath(cache_dir), container_uuid.hex(), role)


def _folders(path: str) -> list[tuple[str, StoreState | None]]:
    """Every store directory below the role directory ``path``, and its STATE; the newest STATE first."""
    found: list[tuple[int, str]] = []
    with suppress(OSError):
        for name in os.listdir(path):
            if _TOKEN.fullmatch(name) is not None:
                store, written_ns = os.path.join(path, name), 0
                with suppress(OSError):
                    written_ns = os.stat(os.path.join(store, "STATE")).st_mtime_ns
                found.append((written_ns, store))
    return [(store, read_state(store)) for _, store in sorted(found, reverse=True)]


def stores_of(path: str, address: str) -> list[tuple[str, StoreState]]:
    """The stores of an address below the role directory ``path``, with their STATE."""
    return [(store, state) for store, state in _folders(path) if state is not None and state.address == address]


class CacheDirectory:
    """The directory of one container and role, and the stores of one address in it."""

    def __init__(
        self,
        cache_dir: str,
        container_uuid: bytes,
        address: str,
        role: str,
        *,
        local: Callable[[str], bool] = is_local,
    ) -> None:
        """Find or make it. Raises: ``InvalidArgument``, ``StorageFull``, ``StorageUnavailable``."""
        path = role_path(cache_dir, container_uuid, role)
        self.address = address
        self._temporary: str | None = None
        self._process = this_process()
        try:
            os.makedirs(cache_dir, mode=0o700, exist_ok=True)
            if not local(cache_dir):
                self._temporary = tempfile.mkdtemp(prefix="chunkstore-cache-")
                warnings.warn(
                    f"cache_dir {cache_dir} is not on a local file system; using {self._temporary}, which is deleted "
                    "at the end. Set cache_dir to a local disk to keep the cache.",
                    RuntimeWarning,
                    stacklevel=4,
                )
                path = role_path(self._temporary, container_uuid, role)
            self.path = path
            os.makedirs(self.path, mode=0o700, exist_ok=True)
        except OSError as error:
            raise translate_os(error, cache_dir) from error

    def make_store(self) -> tuple[str, UsersLock]:
        """A new, empty directory under a name never used before, held by us. Raises ``OSError``."""
        self.sweep()
        os.makedirs(self.path, mode=0o700, exist_ok=True)  # the cache may be deleted at any time
        for _ in range(16):
            path = os.path.join(self.path, token(16).hex())
            os.mkdir(path, 0o700)
            try:
                return path, UsersLock(path, create=True)
            except (FileNotFoundError, BlockingIOError):
                continue  # swept by another process between the two steps
        raise FileNotFoundError(f"{self.path}: new directories vanish at once")

    def mark(self, path: str) -> None:
        """Write STATE of a store of ours. Raises ``OSError``."""
        if not os.path.isfile(os.path.join(path, "data.mdb")):
            raise FileNotFoundError(f"{path} was deleted")
        write_state(path, this_boot(self.address))

    def supersede(self, current: str) -> None:
        """Forget every other store of our address, held or not: what made ``current`` found none of them good."""
        for path, _ in stores_of(self.path, self.address):
            if path != current:
                forget(path)
        self.sweep()

    def sweep(self) -> None:
        """Delete what is no store, all but the newest store of each address, and all of addresses long forgotten, unless in use."""
        kept: set[str] = set()
        for path, state in _folders(self.path):
            if state is not None and state.address not in kept:
                kept.add(state.address)
                if state.address == self.address or len(kept) <= _ADDRESSES_KEPT:
                    continue
            delete_unused(path)

    def close(self) -> None:
        """Delete a temporary cache. Safe to repeat; in a forked child it does nothing."""
        if self._temporary is not None and self._process is this_process():
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None


def this_boot(address: str) -> StoreState:
    """STATE of a store of this address that has just been opened."""
    return StoreState(address, identity().boot_id.partition("/")[0].replace(" ", "-") or _BOOT_UNKNOWN, None)


def is_this_boot(state: StoreState) -> bool:
    """Whether the machine has certainly not been restarted since this STATE was written."""
    return state.boot_id not in ("", _BOOT_UNKNOWN) and state.boot_id == this_boot("").boot_id
