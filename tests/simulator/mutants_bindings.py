"""Planted bugs in the bindings of files, S3 and HDFS. See ``mutants``."""

from __future__ import annotations

from typing import Final

from tests.simulator.mutant import POSIX, Mutant, Patch

__all__ = ["BINDING_MUTANTS"]

_FILES: Final = "chunkstore_bindings.filesystem"
_S3: Final = "chunkstore_bindings.s3"
_HDFS: Final = "chunkstore_bindings.hdfs"
_ON_FILES: Final = (
    "tests/simulation/test_bound_posix.py",
    "tests/simulation/test_contract.py::TestBoundPosix",
    "tests/unit/test_filesystem_held.py",
    "tests/unit/test_filesystem_file_cache.py",
    "tests/unit/test_filesystem.py",
    "tests/unit/test_filesystem_others.py",
    "tests/unit/test_filesystem_compose.py",
)
_ON_S3: Final = (
    "tests/simulation/test_bound_servers.py",
    "tests/simulation/test_contract.py::TestBoundS3",
    "tests/s3/test_doubt.py",
    "tests/s3/test_hostile.py",
    "tests/s3/test_nonsense.py",
    "tests/s3/test_composing.py",
    "tests/s3/test_faults.py",
)
_ON_HDFS: Final = (
    "tests/simulation/test_bound_servers.py",
    "tests/hdfs/test_creating.py",
    "tests/hdfs/test_joining_and_asking.py",
    "tests/hdfs/test_doubts.py",
    "tests/hdfs/test_reading.py",
    "tests/hdfs/test_moved.py",
    "tests/simulation/test_contract.py::TestBoundHdfs",
)


def _file(name: str, what: str, *patches: Patch, needs: tuple[str, ...] = ()) -> Mutant:
    return Mutant(name, what, POSIX, patches, needs, bound=True, tests=_ON_FILES)


def _s3(name: str, what: str, *patches: Patch, needs: tuple[str, ...] = ()) -> Mutant:
    return Mutant(name, what, ("s3-slot",), patches, needs, bound=True, tests=_ON_S3)


def _hdfs(name: str, what: str, *patches: Patch, needs: tuple[str, ...] = ()) -> Mutant:
    return Mutant(name, what, ("hdfs-slot",), patches, needs, bound=True, tests=_ON_HDFS)


BINDING_MUTANTS: Final = (
    _file(
        "file-link-unsynced",
        "the folder is not synced after a link",
        Patch(f"{_FILES}.atomic:AtomicFiles.create_if_absent", "self._folders.sync([folder])", "pass"),
        needs=("power_cut",),
    ),
    _file(
        "file-taken-unsynced",
        "the folder is not synced when a name is found taken",
        Patch(
            f"{_FILES}.atomic:AtomicFiles.create_if_absent",
            "self._folders.sync([folder])",
            "created and self._folders.sync([folder])",
        ),
        needs=("power_cut",),
    ),
    _file(
        "file-put-unsynced",
        "the folder is not synced after a file is replaced",
        Patch(f"{_FILES}.atomic:AtomicFiles.put", "self._folders.sync([folder])", "pass"),
        needs=("power_cut",),
    ),
    _file(
        "file-create-unsynced",
        "a sync of a new file leaves its name out",
        Patch(
            f"{_FILES}.storage:FilesystemChunkStorage.do_sync",
            'self._folders.sync([name.rpartition("/")[0]])',
            "pass",
        ),
        Patch(
            f"{_FILES}.storage:FilesystemChunkStorage.do_sync",
            'self._folders.sync(list(dict.fromkeys(name.rpartition("/")[0] for name in fresh)))',
            "pass",
        ),
        needs=("power_cut",),
    ),
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
        "file-sync-error-swallowed",
        "an error of a sync is not told",
        Patch(
            f"{_FILES}.storage:FilesystemChunkStorage._sync_file",
            "except OSError as error:\n                self._failed.add(name)",
            "except OSError as error:\n                return\n                self._failed.add(name)",
        ),
        needs=("sync_error",),
    ),
    _file(
        "file-sync-tried-again",
        "a file whose sync has failed is synced again, and believed",
        Patch(f"{_FILES}.storage:FilesystemChunkStorage._sync_file", "self._failed.add(name)", "pass"),
        needs=("sync_error",),
    ),
    _file(
        "file-short-write",
        "a write that took a part of the bytes counts as whole",
        Patch(f"{_FILES}.posix:write_all", "if done == size:", "if done:"),
        needs=("short_write",),
    ),
    _file(
        "file-short-read",
        "a read that brought a part of the bytes counts as whole",
        Patch(f"{_FILES}.storage:FilesystemChunkStorage.do_read", "if len(data) == length:", "if data:"),
        needs=("short_write",),
    ),
    _file(
        "file-one-temporary",
        "all processes write the same temporary",
        Patch(f"{_FILES}.atomic:AtomicFiles._write_temporary", "runtime.token(12).hex()", "'one'"),
        Patch(
            f"{_FILES}.atomic:AtomicFiles._write_temporary",
            "os.O_RDWR | os.O_CREAT | os.O_EXCL",
            "os.O_RDWR | os.O_CREAT",
        ),
    ),
    _file(
        "file-offset-unchecked",
        "a write goes wherever the caller says, whatever the file's size",
        Patch(
            f"{_FILES}.storage:FilesystemChunkStorage.do_write",
            "self.check_write_offset(name, expected=info.st_size, given=offset)",
            "pass",
        ),
    ),
    _file(
        "file-stale-handle",
        "an open file is trusted after its name was given to another",
        Patch(f"{_FILES}.chunk_files:ChunkFiles.readable", "self._drop_nameless(name, file)", "False"),
        Patch(
            f"{_FILES}.storage:FilesystemChunkStorage.do_read", "if file is None or file.recheck:", "if file is None:"
        ),
    ),
    _file(
        "file-evicted-unsynced",
        "a file with unsynced bytes is closed without a sync",
        Patch(f"{_FILES}.file_cache:FileCache._evict_one", "self._sync_before_close(name, file)", "pass"),
    ),
    _file(
        "file-identity-of-path",
        "what lies at the path counts as ours, whatever tree was opened",
        Patch(
            f"{_FILES}.storage:FilesystemChunkStorage.do_identity",
            "if info is None or _identity_of(info) != seen:",
            "if info is None:",
        ),
    ),
    _file(
        "file-parents-made-again",
        "a container's folder that has gone is made again",
        Patch(
            f"{_FILES}.folders:Folders.make_again",
            'while lost and (lost == TEMPORARY_FOLDER or "/" in lost):',
            "while lost:",
        ),
        Patch(f"{_FILES}.folders:Folders._make_one", "if not (is_first and self.held.was_held(folder)):", "if True:"),
    ),
    _file(
        "file-list-ends-early",
        "a listing's first page counts as all of it",
        Patch(
            f"{_FILES}.storage:FilesystemChunkStorage.do_list",
            "return ListPage(tuple(items), items[-1].name)",
            "return ListPage(tuple(items), None)",
        ),
    ),
    _s3(
        "s3-taken-is-ours",
        "412 counts as created",
        Patch(
            f"{_S3}.sending:put_if_absent",
            "if not in_doubt:\n                    return False",
            "if not in_doubt:\n                    return True",
        ),
    ),
    _s3(
        "s3-taken-is-lost",
        "412 after an attempt without answer counts as lost",
        Patch(f"{_S3}.sending:put_if_absent", "if not in_doubt:", "if True:"),
        needs=("lost_reply",),
    ),
    _s3(
        "s3-token-ignored",
        "equal bytes of another client count as ours",
        Patch(f"{_S3}.sending:_is_ours", "return kept is None or kept == token", "return True"),
    ),
    _s3(
        "s3-bytes-ignored",
        "whatever holds the name counts as ours after an attempt without answer",
        Patch(f"{_S3}.sending:_is_ours", "if found.data != body:\n        return False", "return True"),
        needs=("lost_reply",),
    ),
    _s3(
        "s3-no-condition",
        "an object is created without If-None-Match",
        Patch(f"{_S3}.sending:put_if_absent", 'IfNoneMatch="*",', ""),
    ),
    _s3(
        "s3-conflict-is-taken",
        "409 counts as taken",
        Patch(
            f"{_S3}.sending:put_if_absent",
            "if refusal.kind is Kind.TAKEN:",
            "if refusal.kind is Kind.CONFLICT:\n                return False\n            if refusal.kind is Kind.TAKEN:",
        ),
        needs=("conflict",),
    ),
    _s3(
        "s3-doubt-forgotten",
        "an attempt without answer is forgotten when the next one is refused",
        Patch(f"{_S3}.sending:put_if_absent", "in_doubt = in_doubt or refusal.is_doubtful", "in_doubt = False"),
        needs=("lost_reply",),
    ),
    _s3(
        "s3-absent-is-empty",
        "an object that is not there reads as empty",
        Patch(
            f"{_S3}.reading:_ask",
            "if refusal.kind is Kind.BEYOND_END:",
            "if refusal.kind in (Kind.BEYOND_END, Kind.NOT_FOUND):",
        ),
    ),
    _s3(
        "s3-range-off-by-one",
        "a range ends one byte early",
        Patch(f"{_S3}.reading:_ask", "bytes={offset}-{end - 1}", "bytes={offset}-{max(offset, end - 2)}"),
    ),
    _s3(
        "s3-short-body",
        "a body that ends early counts as whole",
        Patch(
            f"{_S3}.reading:_blocks",
            "if not block:\n                raise",
            "if not block:\n                break\n                raise",
        ),
        Patch(f"{_S3}.reading:_blocks", "raise refusal_of(error) from error", "return"),
        needs=("lost_reply",),
    ),
    _s3(
        "s3-crc-not-compared",
        "bytes that do not match the CRC kept with them are given out",
        Patch(f"{_S3}.reading:_verified", "if found.expected_crc is None or", "if True or"),
    ),
    _s3(
        "s3-crc-not-kept",
        "an object is written without its CRC",
        Patch(f"{_S3}.checksums:object_headers", "if crc is not None:", "if False:"),
    ),
    _s3(
        "s3-versions-mixed",
        "pieces of two versions of an object are put together",
        Patch(f"{_S3}.reading:_fill_split", "if len({piece.etag for piece in present}) > 1 or count", "if count"),
    ),
    _s3(
        "s3-list-ends-early",
        "a listing's first page counts as all of it",
        Patch(f"{_S3}.listing:list_page", 'if not page["IsTruncated"]:', "if True:"),
        Patch(
            f"{_S3}.listing:list_page", "return ListPage(tuple(items), after)", "return ListPage(tuple(items), None)"
        ),
    ),
    _file(
        "file-short-copy",
        "a copy that the kernel ends early counts as whole",
        Patch(f"{_FILES}.posix:copy_range", "while done < length:", "while not done:"),
        Patch(f"{_FILES}.copying:Copier.copy", "BaseChunkStorage.check_covered(item, item.offset + done)", "pass"),
    ),
    _file(
        "file-cut-source-unnoticed",
        "a source that ends before its range does is composed as far as it goes",
        Patch(f"{_FILES}.copying:Copier.copy", "BaseChunkStorage.check_covered(item, item.offset + done)", "pass"),
    ),
    _file(
        "file-composed-in-place",
        "what is composed is written under its name, and not under a temporary's",
        Patch(
            f"{_FILES}.storage:FilesystemChunkStorage.do_compose",
            "if not self._atomic.create_if_absent(name, lambda file: carried.append(self._copier.copy(ranges, file, 0))):"
            "\n        raise ChunkExists(name)",
            "self.do_create(name, None)\n"
            "    carried.append(self._copier.copy(ranges, self._open[name].fd, 0))\n    self.do_sync([name])",
        ),
        needs=("power_cut",),
    ),
    _s3(
        "s3-compose-replaces",
        "an upload in parts is completed without its condition",
        Patch(f"{_S3}.multipart:complete", '{"IfNoneMatch": "*"} if upload.exclusive else {}', "{}"),
    ),
    _s3(
        "s3-parts-unchecked",
        "an upload is completed whatever the server has copied",
        Patch(f"{_S3}.multipart:in_parts", "if check is not None:", "if False:"),
    ),
    _s3(
        "s3-range-from-start",
        "a part is copied from its source's beginning",
        Patch(
            f"{_S3}.joining:_copy",
            "bytes={span.start}-{span.stop - 1}",
            "bytes=0-{span.stop - span.start - 1}",
        ),
    ),
    _s3(
        "s3-completed-blindly",
        "a completion without answer counts as done when the upload is gone",
        Patch(f"{_S3}.multipart:complete", "if in_doubt and _landed(client, upload, length):", "if in_doubt:"),
    ),
    _hdfs(
        "hdfs-length-unchecked",
        "a temporary is renamed whatever has arrived of it",
        Patch(
            f"{_HDFS}.atomic:AtomicCreates._written",
            'if status is None or status.get("length") != size:',
            "if status is None:",
        ),
    ),
    _hdfs(
        "hdfs-rename-replaces",
        "a file is created by a rename that replaces what has the name",
        Patch(
            f"{_HDFS}.atomic:AtomicCreates.place", 'option = "OVERWRITE" if replace else "NONE"', 'option = "OVERWRITE"'
        ),
    ),
    _hdfs(
        "hdfs-compose-from-start",
        "a range is copied from its chunk's beginning",
        Patch(f"{_HDFS}.storage:HdfsChunkStorage._copied", "range(item.offset, end,", "range(0, item.length,"),
        Patch(f"{_HDFS}.storage:HdfsChunkStorage._copied", "end - start", "item.length - start"),
    ),
    _hdfs(
        "hdfs-compose-replaces",
        "what is composed replaces what has the name",
        Patch(
            f"{_HDFS}.storage:HdfsChunkStorage.do_compose",
            "if not self._atomic.create(name, pieces, deadline):\n            raise ChunkExists(name)",
            "self._atomic.put(name, pieces, deadline)",
        ),
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
    _hdfs(
        "hdfs-ours-is-taken",
        "a name that our own rename without answer took counts as lost",
        Patch(
            f"{_HDFS}.atomic:AtomicCreates._is_ours",
            'return bool(status["fileId"] == temporary.number)',
            "return False",
        ),
        needs=("lost_reply",),
    ),
    _hdfs(
        "hdfs-number-ignored",
        "whatever has the name counts as ours after a rename without answer",
        Patch(
            f"{_HDFS}.atomic:AtomicCreates._is_ours",
            'return bool(status["fileId"] == temporary.number)',
            "return True",
        ),
        needs=("lost_reply",),
    ),
    _hdfs(
        "hdfs-taken-is-ours",
        "a name that is taken counts as created",
        Patch(
            f"{_HDFS}.atomic:AtomicCreates.place",
            "if lost is None:\n                    return False",
            "if lost is None:\n                    return True",
        ),
    ),
    _hdfs(
        "hdfs-doubt-forgotten",
        "a refusal behind a rename without answer counts as the end of it",
        Patch(
            f"{_HDFS}.atomic:AtomicCreates.place",
            "elif lost is not None:\n                raise _in_doubt(lost, refused) from refused",
            "elif False:\n                pass",
        ),
    ),
    _hdfs(
        "hdfs-short-read",
        "a read that brought a part of the bytes counts as whole",
        Patch(f"{_HDFS}.storage:HdfsChunkStorage._read_until", "if taken == length or (", "if taken or ("),
        Patch(f"{_HDFS}.rest:Stream.pieces", "if self.length is None or self.taken == self.length:", "if True:"),
        needs=("lost_reply",),
    ),
    _hdfs(
        "hdfs-create-sent-twice",
        "a body that may have arrived is sent to another data node",
        Patch(
            f"{_HDFS}.rest:WebHdfs.send",
            "if lost.sent:\n                raise",
            "if False:\n                raise",
        ),
    ),
    _hdfs(
        "hdfs-list-ends-early",
        "a listing's first page counts as all of it",
        Patch(f"{_HDFS}.files:Files.page", 'int(listing["remainingEntries"]) > 0', "False"),
    ),
    _hdfs(
        "hdfs-rename-unguarded",
        "a temporary is renamed by number, wherever its folder lies",
        Patch(
            f"{_HDFS}.held:HeldFolders.place",
            'by_name = f"{self._root}/{first}/{TEMPORARY_FOLDER}"',
            'by_name = f"{prefix}/{TEMPORARY_FOLDER}"',
        ),
    ),
    _hdfs(
        "hdfs-parents-made-again",
        "a container's folder that has gone is made again",
        Patch(
            f"{_HDFS}.held:HeldFolders._make_ready",
            "self._check(first, name, deadline)",
            'self._rest.question("PUT", f"{self._root}/{first}", "MKDIRS", deadline)\n'
            "    self._numbers.pop(first)\n    self._hold(first, name, deadline)\n    prefix = self._prefix(first)",
        ),
        Patch(f"{_HDFS}.held:HeldFolders.place", "if first not in self._ready:", "if True:"),
    ),
)
