"""Planted bugs in the bindings of files and HDFS. See ``mutants``."""

from __future__ import annotations

from typing import Final

from tests.simulator.mutant import APPEND, POSIX, Mutant, Patch

__all__ = ["BINDING_MUTANTS"]

_FILES: Final = "chunkstore_bindings.filesystem"
_APPENDER: Final = f"{_FILES}.appender:FileAppender"
_HDFS: Final = "chunkstore_bindings.hdfs"


def _file(name: str, what: str, *patches: Patch, needs: tuple[str, ...] = ()) -> Mutant:
    return Mutant(name, what, POSIX, patches, needs, bound=True)


def _log(name: str, what: str, *patches: Patch, needs: tuple[str, ...] = ()) -> Mutant:
    return Mutant(name, what, APPEND, patches, needs, bound=True)


def _hdfs(name: str, what: str, *patches: Patch, needs: tuple[str, ...] = ()) -> Mutant:
    return Mutant(name, what, ("hdfs-slot",), patches, needs, bound=True)


BINDING_MUTANTS: Final = (
    _file(
        "file-folder-unsynced",
        "a folder that was made is not synced into its parent",
        Patch(f"{_FILES}.folders:Folders._make_one", "self._sync_one(parent)", "pass"),
        needs=("power_cut",),
    ),
    _file(
        "file-temporary-unsynced",
        "a temporary is linked without having been synced",
        Patch(f"{_FILES}.atomic:AtomicFiles._write_temporary", "posix.sync_all(fd)", "pass"),
        needs=("power_cut",),
    ),
    _file(
        "file-harden-leaves-name",
        "hardening syncs the bytes and not the name",
        Patch(f"{_FILES}.storage:FilesystemChunkStorage.do_harden", "self._folders.sync([folder])", "pass"),
        needs=("power_cut",),
    ),
    _file(
        "file-rename-for-link",
        "a file is created by a rename, which replaces what has the name",
        Patch(f"{_FILES}.atomic:AtomicFiles._link", "partial(os.link,", "partial(os.replace,"),
    ),
    _file(
        "file-exists-is-ours",
        "a name that is taken counts as created",
        Patch(
            f"{_FILES}.atomic:AtomicFiles._link",
            "if error.errno == errno.EEXIST:\n            return False",
            "if error.errno == errno.EEXIST:\n            return True",
        ),
    ),
    _file(
        "file-short-write",
        "a write that took a part of the bytes counts as whole",
        Patch(f"{_FILES}.posix:write_all", "if done == size:", "if done:"),
        needs=("short_write",),
    ),
    _log(
        "file-log-unlooked",
        "an owner that appends by a descriptor does not look for a newer claim",
        Patch(
            f"{_APPENDER}.look",
            "os.stat(self._rest, dir_fd=folder.fd, follow_symlinks=False)",
            "raise FileNotFoundError",
        ),
    ),
    _log(
        "file-log-unsynced",
        "a record that is written by a descriptor is not synced",
        Patch(f"{_APPENDER}.write_durable", "posix.sync_data(file.fd)", "pass"),
        needs=("power_cut",),
    ),
    _log(
        "file-log-cut-short",
        "a log that is closed loses its last byte with the zeros after it",
        Patch(f"{_APPENDER}.close", "os.ftruncate(file.fd, end)", "os.ftruncate(file.fd, end - 1)"),
    ),
    _hdfs(
        "hdfs-lost-is-done",
        "a rename without answer counts as done",
        Patch(
            f"{_HDFS}.atomic:AtomicCreates.place",
            "except Lost as failure:\n            lost = failure\n        except Refused",
            "except Lost:\n            return True\n        except Refused",
        ),
        needs=("late_apply",),
    ),
)
