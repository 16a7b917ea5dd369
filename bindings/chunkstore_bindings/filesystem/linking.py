"""What backups ask of a file system: hard links, second names for chunks of one storage in another one.

Promises: a name is never replaced; what was linked is durable when ``link_all`` returns. Both names mean the same bytes on the disk: a link
saves a chunk from deletion, and from nothing else. Leaves out: other file systems (``Unsupported``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from chunkstore.errors import ChunkNotFound, Unsupported
from chunkstore_bindings.filesystem import posix
from chunkstore_bindings.filesystem.storage import FilesystemChunkStorage

__all__ = ["link_all"]

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


def link_all(
    source: FilesystemChunkStorage, target: FilesystemChunkStorage, names: Sequence[tuple[str, str]]
) -> list[bool]:
    """Link each (name in ``source``, name in ``target``); of each, whether that was free. Contents are durable already.

    Raises ``ChunkNotFound`` (in ``source``), ``Unsupported`` (two file systems, or one without links), ``StorageFull``,
    ``StorageUnavailable``; some are linked then, perhaps not durably. Retry: safe.
    """
    here, there = target._folders, source._folders  # noqa: SLF001
    folders = sorted({new.rpartition("/")[0] for _, new in names})
    for folder in folders:
        here.make(folder)
    linked = []
    for name, new in names:
        there.check(name)
        here.check(new)
        try:
            origin, root = there.root(), here.root()
            os.link(name, new, src_dir_fd=origin.fd, dst_dir_fd=root.fd, follow_symlinks=False)
            linked.append(True)
        except FileExistsError:
            linked.append(False)
        except OSError as error:
            if error.errno == errno.ENOENT and there.kind_of(name) != "chunk":
                raise ChunkNotFound(name) from error
            if error.errno in _NO_LINKS:
                text = f"{name!r} cannot be linked from {source.url} to {target.url} ({error.strerror})"
                raise Unsupported(text, feature="link") from error
            raise posix.translate(error, new, "linking") from error
    here.sync(folders)
    return linked
