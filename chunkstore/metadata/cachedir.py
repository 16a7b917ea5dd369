"""Directories of the metadata cache: who may use which, which is current, which can be trusted (docs/decisions/0004).

::

    <cache_dir>/<container uuid, 32 hex digits>/owner/          any number of processes; the epoch decides (protocol 3.8)
    <cache_dir>/<container uuid, 32 hex digits>/replica-<n>/    one process; LOCK is held by it
        CURRENT                 the name of the current store's directory and a newline; replaced by rename
        <token>/                one store, made once under a name that is never used again
            data.mdb, lock.mdb  LMDB's own
            STATE               who opened it last, in which boot, and what data.mdb was when it was closed cleanly
            USERS               every process that has it open holds a shared lock on it
            WRITER              locked by the writer, before LMDB's own lock: waiting for this one can have a deadline

Promises: a directory in use by any living process is never deleted, and an unused one that is not current is, at the
next occasion. A store is trusted only if no restart of the machine can have torn it: it was opened last in this very boot
(the page cache survives a process), or it was closed cleanly and every byte is what it was then.

flock is used here and nowhere in containers: a cache directory is on a local file system, or it is not used at all.
Leaves out: what is in a store (``lmdb``).
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
from itertools import count as counter
from typing import NamedTuple

from chunkstore.errors import ChunkstoreError, InvalidArgument, StorageFull, StorageUnavailable
from chunkstore.runtime import identity, monotonic_s, sleep_s, token

__all__ = [
    "CacheDirectory",
    "FileMark",
    "StoreState",
    "UsersLock",
    "WriterLock",
    "current_store",
    "delete_unused",
    "is_in_use",
    "is_local",
    "is_this_boot",
    "read_state",
    "role_path",
    "this_boot",
    "translate_os",
    "write_state",
]

LOCAL_FILE_SYSTEMS = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs", "tmpfs", "ramfs", "overlay")
)
_TOKEN = re.compile(r"[0-9a-f]{32}")
_STATE = re.compile(r"chunkstore-cache 2 ([0-9a-f]{32}) (\S{1,200}) (?:open|clean ([0-9]{1,20}) ([0-9a-f]{8}))\n")
_ROLE = re.compile(r"owner|replica(-[0-9]{1,9})?")
_SMALL_BYTES = 4096
_BOOT_UNKNOWN = "unknown"
_POLL_S = 0.001


def translate_os(error: OSError, path: str) -> ChunkstoreError:
    """The error that says what an ``OSError`` on the cache means to the caller."""
    if error.errno in (ENOSPC, EDQUOT):
        return StorageFull(f"no space left for the metadata cache {path}; free some, or set cache_dir", object=path)
    return StorageUnavailable(
        f"the metadata cache {path} cannot be used: {error}; it can be deleted at any time", object=path
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
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
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
    """STATE of a store: ``opener`` is the token of the last opener; ``clean``: what the data file was when it was closed cleanly."""

    opener: str
    boot_id: str
    clean: FileMark | None


def read_state(path: str) -> StoreState | None:
    """STATE in the store directory ``path``; None if it is missing or damaged (then the store is not to be trusted)."""
    match = _STATE.fullmatch(_read_small(os.path.join(path, "STATE")))
    if match is None:
        return None
    clean = None if match[3] is None else FileMark(int(match[3]), int(match[4], 16))
    return StoreState(match[1], match[2], clean)


def write_state(path: str, state: StoreState) -> None:
    """Write STATE durably. Raises ``OSError``."""
    mark = "open" if state.clean is None else f"clean {state.clean.length} {state.clean.crc32c:08x}"
    _write_atomically(os.path.join(path, "STATE"), f"chunkstore-cache 2 {state.opener} {state.boot_id} {mark}\n")


class UsersLock:
    """A shared lock on a store's USERS file: while it is held, the directory is not deleted."""

    def __init__(self, path: str, *, create: bool) -> None:
        """Take it. Raises ``OSError``, also when the directory has just been deleted or is being deleted."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._file = os.open(os.path.join(path, "USERS"), flags, 0o600)
        self._pid = os.getpid()
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.fstat(self._file).st_nlink == 0:
                raise FileNotFoundError(f"{path} was deleted")
        except OSError:
            os.close(self._file)
            raise

    def release(self) -> None:
        """Give it back, once. In a forked child it stays the parent's."""
        if self._pid == os.getpid():
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)


class WriterLock:
    """An exclusive lock on a store's WRITER file, among processes; one thread of each asks at a time.

    LMDB's own lock cannot be waited for with a deadline. The holder of this one never waits for that, also not while
    another process is stopped in the middle of its transaction.
    """

    def __init__(self, path: str) -> None:
        """Open the file, made if it is missing. Raises ``OSError``."""
        self._file = os.open(os.path.join(path, "WRITER"), os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o600)

    def acquire(self, wait_s: float) -> bool:
        """Take it, waiting ``wait_s`` at most; whether it is held now."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return self._acquire_slowly(monotonic_s() + wait_s)
        return True

    def _acquire_slowly(self, deadline_s: float) -> bool:
        while monotonic_s() < deadline_s:
            sleep_s(_POLL_S)
            with suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
        return False

    def release(self) -> None:
        """Give it back. Safe to repeat, and after ``close``."""
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give it back, and the file."""
        file, self._file = self._file, -1
        os.close(file)


def is_in_use(path: str) -> bool:
    """Whether any process has the store open. Raises ``OSError``."""
    users = os.open(os.path.join(path, "USERS"), os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(users)
    return False


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
    if _ROLE.fullmatch(role) is None:
        raise InvalidArgument(f"role {role!r} is neither 'owner' nor a replica", argument="role")
    if len(container_uuid) != 16:
        raise InvalidArgument("a container's uuid has 16 bytes", argument="container_uuid")
    return os.path.join(os.path.realpath(cache_dir), container_uuid.hex(), role)


def current_store(path: str) -> str | None:
    """The current store's directory below the role directory ``path``; None if there is none or CURRENT is damaged."""
    name = _read_small(os.path.join(path, "CURRENT"))
    if not name.endswith("\n") or _TOKEN.fullmatch(name[:-1]) is None:
        return None
    store = os.path.join(path, name[:-1])
    return store if os.path.isfile(os.path.join(store, "data.mdb")) else None


class CacheDirectory:
    """The directory of one container and role, and the stores in it."""

    def __init__(
        self, cache_dir: str, container_uuid: bytes, role: str, *, local: Callable[[str], bool] = is_local
    ) -> None:
        """Find or make it; a replica takes the first free place.

        Raises: ``InvalidArgument``, ``StorageFull``, ``StorageUnavailable``.
        """
        if role not in ("owner", "replica"):
            raise InvalidArgument(f"role {role!r} is neither 'owner' nor 'replica'", argument="role")
        path = role_path(cache_dir, container_uuid, role)
        self.root = cache_dir
        self._temporary: str | None = None
        self._lock: int | None = None
        self._pid = os.getpid()
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
                self.root = self._temporary
            self.path = path if role == "owner" else self._take_place(path)
            os.makedirs(self.path, mode=0o700, exist_ok=True)
        except OSError as error:
            raise translate_os(error, cache_dir) from error

    def _take_place(self, path: str) -> str:
        for number in counter():
            place = f"{path}-{number}"
            os.makedirs(place, mode=0o700, exist_ok=True)
            file = os.open(os.path.join(place, "LOCK"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
            except OSError:
                os.close(file)
                raise
            else:
                self._lock = file
                return place
        raise AssertionError("counting does not end")

    def current(self) -> str | None:
        """See ``current_store``."""
        return current_store(self.path)

    def make_store(self) -> tuple[str, UsersLock]:
        """A new, empty directory under a name never used before, held by us. Raises ``OSError``."""
        self.sweep()
        for _ in range(16):
            path = os.path.join(self.path, token(16).hex())
            os.mkdir(path, 0o700)
            try:
                return path, UsersLock(path, create=True)
            except (FileNotFoundError, BlockingIOError):
                continue  # swept by another process between the two steps
        raise FileNotFoundError(f"{self.path}: new directories vanish at once")

    def make_current(self, path: str) -> None:
        """Let CURRENT name ``path``, and delete what it named before unless it is in use. Raises ``OSError``."""
        if not os.path.isfile(os.path.join(path, "data.mdb")):
            raise FileNotFoundError(f"{path} was deleted")
        _write_atomically(os.path.join(self.path, "CURRENT"), os.path.basename(path) + "\n")
        self.sweep()

    def forget_current(self, path: str) -> None:
        """Remove CURRENT if it names ``path``."""
        if self.current() == path:
            with suppress(OSError):
                os.unlink(os.path.join(self.path, "CURRENT"))

    def sweep(self) -> None:
        """Delete store directories that are neither current nor in use."""
        current = self.current()
        with suppress(OSError):
            for name in os.listdir(self.path):
                path = os.path.join(self.path, name)
                if _TOKEN.fullmatch(name) is not None and path != current:
                    delete_unused(path)

    def close(self) -> None:
        """Give a replica's place back; delete a temporary cache. Safe to repeat; in a forked child it does nothing."""
        if self._pid != os.getpid():
            return
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None


def this_boot(opener: str) -> StoreState:
    """STATE of a store that ``opener`` has just opened."""
    return StoreState(opener, identity().boot_id.replace(" ", "-") or _BOOT_UNKNOWN, None)


def is_this_boot(state: StoreState) -> bool:
    """Whether the machine has certainly not been restarted since this STATE was written."""
    return state.boot_id not in ("", _BOOT_UNKNOWN) and state.boot_id == this_boot("").boot_id
