"""Writing to the log directory of a stopped broker: a partition's folder is put there whole, on disk, or not at all.

Promises: a running broker's directory is refused; a run that was killed leaves only names that the next one clears. Leaves out: what
is in the files.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from chunkstore.checksum import BytesLike
from chunkstore.codec.kafka.names import parse_segment_file
from chunkstore.codec.sources import DataSource, read_exactly
from chunkstore.config import MIB
from chunkstore.errors import InvalidArgument
from chunkstore.kafka.sources import translated

__all__ = [
    "clean_stop",
    "kept_metadata",
    "locked",
    "pieces_of",
    "put_back",
    "put_file",
    "put_in_place",
    "staged",
    "write_file",
]

_STAGING: Final = ".chunkstore-restore"
_ASIDE: Final = ".chunkstore-old"
_PIECE_BYTES: Final = 8 * MIB

_held: Final[dict[str, object]] = {}
"""Locks that are held here: those of the file system exclude processes, not threads."""


def clean_stop(log_dir: str) -> bytes:
    """The mark of the broker's last clean stop. Raises ``InvalidArgument``: it runs, or did not stop cleanly."""
    lock, mark = os.path.join(log_dir, ".lock"), os.path.join(log_dir, ".kafka_cleanshutdown")
    with translated(log_dir):
        try:
            if os.path.exists(lock):  # a clean stop removes it
                with open(lock, "rb") as file:
                    fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            with open(mark, "rb") as file:
                return file.read(4096)
        except BlockingIOError as error:
            raise InvalidArgument(f"a broker holds {lock}: stop it", argument="log_dir") from error
        except FileNotFoundError as error:
            text = f"{mark} is missing: the broker did not stop cleanly; start it and stop it"
            raise InvalidArgument(text, argument="log_dir") from error


@contextmanager
def locked(log_dir: str) -> Iterator[None]:
    """Hold ``.lock`` of a log directory as a broker does; the directory is made where it is missing. Raises ``InvalidArgument`` (another
    holds it), ``AccessDenied`` and ``StorageUnavailable``."""
    lock, mine = os.path.join(os.path.realpath(log_dir), ".lock"), object()
    held = InvalidArgument(f"a broker, or another restore, holds {lock}: stop it", argument="log_dir")
    if _held.setdefault(lock, mine) is not mine:
        raise held
    with ExitStack() as stack:
        stack.callback(_held.pop, lock)
        with translated(lock):
            os.makedirs(log_dir, exist_ok=True)
            file = stack.enter_context(open(lock, "ab"))
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise held from error
            if not os.fstat(file.fileno()).st_nlink:  # deleted by a restore that has just ended
                raise held
        stack.callback(Path(lock).unlink, missing_ok=True)
        yield


def kept_metadata(folder: str, keep: bool) -> bytes | None:
    """The ``partition.metadata`` that stays. Raises ``InvalidArgument`` if the folder has files that would be lost."""
    with translated(folder):
        names = os.listdir(folder) if os.path.isdir(folder) else []
        logs = [name for name in names if name.endswith(".log") and os.path.getsize(os.path.join(folder, name))]
        known = ("leader-epoch-checkpoint", "partition.metadata")
        foreign = [name for name in names if not (keep and (parse_segment_file(name) or name in known))]
        if (keep and "partition.metadata" not in names) or logs or foreign:
            text = "a topic's that a fresh cluster created, without a record" if keep else "absent or empty"
            text += f", without {foreign[0]}" if foreign else ""
            raise InvalidArgument(f"{folder} must be {text}; nothing was restored", argument="log_dir")
        if not keep:
            return None
        with open(os.path.join(folder, "partition.metadata"), "rb") as file:
            return file.read(4096)


def staged(log_dir: str) -> str:
    """An empty folder on the same file system, for ``put_in_place``."""
    staging = os.path.join(log_dir, _STAGING)
    with translated(staging):
        shutil.rmtree(staging, ignore_errors=True)
        os.makedirs(staging)
    return staging


def put_in_place(log_dir: str, folder: str, *, replaced: bool) -> None:
    """Make the staged folder a partition's, on disk; ``replaced``: the folder of the empty partition that is there is deleted."""
    aside, target = os.path.join(log_dir, _ASIDE), os.path.join(log_dir, folder)
    with translated(target):
        if replaced:
            os.mkdir(aside)
            os.rename(target, os.path.join(aside, folder))
        os.rename(os.path.join(log_dir, _STAGING), target)  # fails where files are in it
        _sync(target, log_dir)
    put_back(log_dir)


def put_file(log_dir: str, name: str, data: DataSource | bytes) -> None:
    """Write a new file of the directory, or of a folder in it, which is made; both names are on disk, too."""
    folder = os.path.dirname(os.path.join(log_dir, name))
    with translated(folder):
        os.makedirs(folder, exist_ok=True)
        write_file(log_dir, name, data)
        _sync(folder, log_dir)


def _sync(*folders: str) -> None:
    for path in folders:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(descriptor)
        os.close(descriptor)


def put_back(log_dir: str) -> None:
    """After a ``put_in_place`` that ended, or was killed: the folder that it put aside is deleted, or is there again."""
    aside = os.path.join(log_dir, _ASIDE)
    with translated(aside):
        for folder in os.listdir(aside) if os.path.isdir(aside) else ():
            target = os.path.join(log_dir, folder)
            if os.path.exists(target):
                shutil.rmtree(os.path.join(aside, folder))
            else:
                os.rename(os.path.join(aside, folder), target)
        if os.path.isdir(aside):
            os.rmdir(aside)


def pieces_of(data: DataSource) -> Iterator[BytesLike]:
    """All of its bytes, in pieces."""
    return (read_exactly(data, at, min(_PIECE_BYTES, data.length - at)) for at in range(0, data.length, _PIECE_BYTES))


def write_file(folder: str, name: str, data: DataSource | bytes) -> int:
    """Write a new file, and have it on disk; returns its bytes."""
    path = os.path.join(folder, name)
    with translated(path), open(path, "xb") as file:
        file.writelines([data] if isinstance(data, bytes) else pieces_of(data))
        file.flush()
        os.fsync(file.fileno())
        return file.tell()
