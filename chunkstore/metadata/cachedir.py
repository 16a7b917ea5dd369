"""Directories of the metadata cache: one writer at a time, one root, used again after a clean close, else rebuilt (decision 0004).

::

    <cache_dir>/<container uuid, 32 hex digits>/<owner, replica or past>/
        END-<address, hashed>       of owners: the end of history that was seen of that root (FORMAT.md; protocol 3.4, A17)
        <token>/                one store, made once under a name that is never used again
            data.mdb, lock.mdb  LMDB's own
            STATE               the address of its root, and what data.mdb was when it was closed cleanly
            LOCK                the one cache object that has the store open holds an exclusive lock on it

A store is found by the container's uuid, the role and the address of its root, because copies of a root have the same uuid. A store
without STATE is never opened: it is half made, or another store took its place. No store is deleted while its lock is held. flock is
used here and nowhere in containers: a cache directory is on a local file system, or it is not used at all.

END outlives the rows: a store that is held, rotten, thrown away or torn by a restart still leaves what it had applied. It is written
after each transaction, without a sync, and replaced when another store becomes current. A damaged file says nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import warnings
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from struct import Struct
from typing import Final, NamedTuple
from urllib.parse import quote

from chunkstore.checksum import crc32c_extend, crc32c_of_bytes
from chunkstore.config import MIB
from chunkstore.errors import ChunkstoreError, InvalidArgument, StorageFull, StorageUnavailable
from chunkstore.metadata.port import ROLES, Head, Position
from chunkstore.processes import this_process
from chunkstore.runtime import token

__all__ = [
    "CacheDirectory",
    "EndFile",
    "StoreLock",
    "decode_end",
    "delete_unused",
    "encode_end",
    "end_path",
    "forget",
    "is_local",
    "is_unchanged",
    "mark_clean",
    "read_end",
    "role_path",
    "sweep_ends",
    "sync_folder",
    "translate_os",
]

_PREFIX: Final = "END-"
_END: Final = Struct(">BQ16sQQQ32s")
_VERSION: Final = 1
_CRC_BYTES: Final = 4
_TRIES: Final = 8
"""A reader next to the writer may meet half of a write, and reads once more."""
_KEPT: Final = 64
"""Files of so many addresses are kept."""


def encode_end(head: Head) -> bytes:
    """The file's bytes (FORMAT.md of this folder)."""
    lsn, record_hash, epoch, index, end = head.position
    value = _END.pack(_VERSION, lsn, record_hash, epoch, index, end, head.digest.to_bytes(32, "big"))
    return value + crc32c_of_bytes(value).to_bytes(_CRC_BYTES, "big")


def decode_end(data: bytes) -> Head | None:
    """None for whatever else: another version, or damage."""
    value, crc = data[: _END.size], data[_END.size :]
    if len(data) != _END.size + _CRC_BYTES or crc != crc32c_of_bytes(value).to_bytes(_CRC_BYTES, "big"):
        return None
    version, lsn, record_hash, epoch, index, end, digest = _END.unpack(value)
    if version != _VERSION:
        return None
    return Head(Position(lsn, record_hash, epoch, index, end), int.from_bytes(digest, "big"))


def end_path(folder: str, address: str) -> str:
    """The file of a root's address in the directory of a role."""
    name = hashlib.blake2b(address.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return os.path.join(folder, _PREFIX + name)


def read_end(path: str) -> Head | None:
    """What is recorded there; None: nothing, or nothing that can be relied on."""
    for _ in range(_TRIES):
        try:
            with open(path, "rb", buffering=0) as file:
                data = file.read(_END.size + _CRC_BYTES + 1)
        except OSError:
            return None
        head = decode_end(data)
        if head is not None:
            return head
    return None


def sweep_ends(folder: str) -> None:
    """Delete the files of all addresses but those whose owners wrote last. Raises nothing: it is only tidying up."""
    with suppress(OSError):
        names = [name for name in os.listdir(folder) if name.startswith(_PREFIX)]
        if len(names) > _KEPT:
            paths = [os.path.join(folder, name) for name in names]
            for path in sorted(paths, key=lambda path: os.stat(path).st_mtime_ns)[:-_KEPT]:
                os.unlink(path)


class EndFile:
    """The file of an address, from now on written by us alone, which replaces the one that was there."""

    def __init__(self, path: str, head: Head) -> None:
        """Raises ``OSError``."""
        self._lsn = head.position.lsn
        temporary = f"{path}.{token(8).hex()}.new"
        self._file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(self._file, encode_end(head), 0)
            os.fsync(self._file)
            os.rename(temporary, path)
            sync_folder(os.path.dirname(path))
        except BaseException:
            os.close(self._file)
            with suppress(OSError):
                os.unlink(temporary)
            raise

    def note(self, head: Head) -> None:
        """Record it, unless more was recorded before. A failure leaves the file older than the rows, as a killed process does."""
        if head.position.lsn >= self._lsn:
            self._lsn = head.position.lsn
            with suppress(OSError):
                os.pwrite(self._file, encode_end(head), 0)

    def close(self, *, clean: bool) -> None:
        """Once; ``clean``: what was noted is synced first."""
        if clean:
            with suppress(OSError):
                os.fsync(self._file)
        os.close(self._file)


LOCAL_FILE_SYSTEMS = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs", "tmpfs", "ramfs", "overlay")
)
_TOKEN = re.compile(r"[0-9a-f]{32}")
_STATE = re.compile(r"chunkstore-cache 3 (\S*) (open|[0-9]{1,20}-[0-9a-f]{8})\n")
_OPEN: Final = "open"
_SMALL_BYTES: Final = 65_536
_READ_BYTES: Final = MIB
_ADDRESSES_KEPT: Final = 8
"""Of so many addresses a store that is not in use is kept."""


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
    """Whether ``path`` is on a file system of this machine. Where the system does not say (no /proc), True."""
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


class _State(NamedTuple):
    """STATE of a store: its root's address, escaped, and the mark of its data file when it was closed cleanly, or ``_OPEN``."""

    address: str
    mark: str


def _read_state(path: str) -> _State | None:
    """STATE in the store directory ``path``; None if it is missing or damaged."""
    match = _STATE.fullmatch(_read_small(os.path.join(path, "STATE")))
    return None if match is None else _State(match[1], match[2])


def _write_state(path: str, address: str, mark: str) -> None:
    _write_atomically(os.path.join(path, "STATE"), f"chunkstore-cache 3 {address} {mark}\n")


def _file_mark(path: str) -> str:
    """Length and CRC32C of a store's data file."""
    length = crc = 0
    with open(os.path.join(path, "data.mdb"), "rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            length += len(data)
            crc = crc32c_extend(crc, data)
    return f"{length}-{crc:08x}"


def mark_clean(path: str) -> None:
    """Record the synced data file of a store, unless another store took its place. Raises ``OSError``."""
    state = _read_state(path)
    if state is not None:
        _write_state(path, state.address, _file_mark(path))


def is_unchanged(path: str) -> bool:
    """Whether the store was closed cleanly and no bit of its file differs since: LMDB has no checksums and can kill the process
    over a damaged page. Raises ``OSError``."""
    state = _read_state(path)
    return state is not None and state.mark != _OPEN and state.mark == _file_mark(path)


def forget(path: str) -> None:
    """Remove STATE: the store is never opened again, and deleted when it is not in use any more."""
    with suppress(OSError):
        os.unlink(os.path.join(path, "STATE"))


class StoreLock:
    """The exclusive lock on a store, which belongs to one cache object of one process (never to two in one process)."""

    def __init__(self, path: str, *, create: bool = False) -> None:
        """Take it. Raises ``BlockingIOError`` when it is held, ``FileNotFoundError`` when the store was deleted, else ``OSError``."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._file = os.open(os.path.join(path, "LOCK"), flags, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._file).st_nlink == 0:
                raise FileNotFoundError(f"{path} was deleted")
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
        held = StoreLock(path)
    except FileNotFoundError:
        with suppress(OSError):
            os.rmdir(path)  # its maker ended before it made LOCK, or will make another directory
        return not os.path.exists(path)
    except OSError:
        return False
    try:
        # LOCK last: a store half deleted stays locked, and is found again.
        for name in sorted(os.listdir(path), key=lambda name: name == "LOCK"):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)
    except OSError:
        return False
    finally:
        held.release()
    return True


def role_path(cache_dir: str, container_uuid: bytes, role: str) -> str:
    """The directory of a role, symbolic links resolved. Raises ``InvalidArgument``."""
    if role not in ROLES:
        raise InvalidArgument(f"role {role!r} is none of {', '.join(ROLES)}", argument="role")
    if len(container_uuid) != 16:
        raise InvalidArgument("a container's uuid has 16 bytes", argument="container_uuid")
    return os.path.join(os.path.realpath(cache_dir), container_uuid.hex(), role)


def _folders(path: str) -> list[tuple[str, _State | None]]:
    """Every store directory below the role directory ``path``, and its STATE; the newest STATE first."""
    found: list[tuple[int, str]] = []
    with suppress(OSError):
        for name in os.listdir(path):
            if _TOKEN.fullmatch(name) is not None:
                store, written_ns = os.path.join(path, name), 0
                with suppress(OSError):
                    written_ns = os.stat(os.path.join(store, "STATE")).st_mtime_ns
                found.append((written_ns, store))
    return [(store, _read_state(store)) for _, store in sorted(found, reverse=True)]


class CacheDirectory:
    """The directory of one container and role, and the stores of one address in it."""

    def __init__(self, cache_dir: str, container_uuid: bytes, address: str, role: str) -> None:
        """Find or make it. Raises: ``InvalidArgument``, ``StorageFull``, ``StorageUnavailable``."""
        path = role_path(cache_dir, container_uuid, role)
        self._address = quote(address)
        self._temporary: str | None = None
        self._process = this_process()
        try:
            os.makedirs(cache_dir, mode=0o700, exist_ok=True)
            if not is_local(cache_dir):
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

    def stores(self) -> list[str]:
        """The stores of our address, the one that was closed or opened last first."""
        return [path for path, state in _folders(self.path) if state is not None and state.address == self._address]

    def make_store(self) -> tuple[str, StoreLock]:
        """A new, empty directory under a name never used before, held by us. Raises ``OSError``."""
        self.sweep()
        os.makedirs(self.path, mode=0o700, exist_ok=True)  # the cache may be deleted at any time
        for _ in range(16):
            path = os.path.join(self.path, token(16).hex())
            os.mkdir(path, 0o700)
            try:
                return path, StoreLock(path, create=True)
            except (FileNotFoundError, BlockingIOError):
                continue  # swept by another process between the two steps
        raise FileNotFoundError(f"{self.path}: new directories vanish at once")

    def mark(self, path: str) -> None:
        """Let a store of ours be found once it is closed cleanly. Raises ``OSError``."""
        if not os.path.isfile(os.path.join(path, "data.mdb")):
            raise FileNotFoundError(f"{path} was deleted")
        _write_state(path, self._address, _OPEN)

    def supersede(self, current: str) -> None:
        """Forget every other store of our address, held or not: what made ``current`` found none of them good."""
        for path in self.stores():
            if path != current:
                forget(path)
        self.sweep()

    def sweep(self) -> None:
        """Delete all stores that are not in use, but the one closed cleanly of each of the last addresses."""
        kept: set[str] = set()
        for path, state in _folders(self.path):
            if state is not None and state.mark != _OPEN and state.address not in kept:
                kept.add(state.address)
                if state.address == self._address or len(kept) <= _ADDRESSES_KEPT:
                    continue
            delete_unused(path)

    def close(self) -> None:
        """Delete a temporary cache. Safe to repeat; in a forked child it does nothing."""
        if self._temporary is not None and self._process is this_process():
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None
