"""The end of history that an owner's caches on this machine have seen: a small file next to the rows (protocol 3.4, A17).

Promises: it outlives the rows. A store that is held, rotten, thrown away or torn by a restart still leaves what it had applied, and the
next claimant compares that with the journal. Written after each transaction, without a sync, and synced by a clean close: as durable as
the rows themselves. One file for each address, replaced when another store becomes current, so that a former writer's last
changes go to a file that no longer has a name. A damaged file says nothing.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from struct import Struct
from typing import Final

from chunkstore.checksum import crc32c_of_bytes
from chunkstore.metadata.cachedir import sync_folder
from chunkstore.metadata.port import Head, Position
from chunkstore.runtime import token

__all__ = ["EndFile", "decode_end", "encode_end", "end_path", "read_end", "sweep_ends"]

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
