"""What a cluster's refusal means for a chunk.

Promises: quotas and full disks are ``StorageFull``; what can never succeed is ``InvalidArgument``; everything else is
``StorageUnavailable`` with a remedy. No foreign error and no secret leaves in a message. Leaves out: refusals that decide
something (a name that exists, a lease that is held): the binding looks at those itself.
"""

from __future__ import annotations

import re

from chunkstore.errors import (
    AccessDenied,
    ChunkNotFound,
    ChunkstoreError,
    InvalidArgument,
    StorageFull,
    StorageUnavailable,
)
from chunkstore_bindings.hdfs.rest import Lost, Refused

__all__ = ["NAME_TAKEN", "is_absent", "is_unfinished", "translate"]

NAME_TAKEN = frozenset({"FileAlreadyExistsException", "AlreadyBeingCreatedException"})
"""Another client has the name: its file is there, or still being written. Both mean "lost"."""

_FULL = frozenset(
    {
        "DSQuotaExceededException",
        "NSQuotaExceededException",
        "QuotaByStorageTypeExceededException",
        "QuotaExceededException",
        "DiskOutOfSpaceException",
        "MaxDirectoryItemsExceededException",
    }
)
_NO_REPLICA = re.compile(r"No active nodes contain this block|Could not obtain block")
_NOT_PLACED = re.compile(r"could only be written to 0 of .*?There are (\d+) datanode\(s\) running and (\d+|no) node")
_BAD_NAME = re.compile(r"maximum path component name limit|is a reserved name|Invalid path name|Pathname too long")
_DENIED = frozenset(
    {"AccessControlException", "AuthorizationException", "InvalidToken", "SecurityException", "Unauthorized"}
)
_NOT_A_FOLDER = "(is not a directory)"


def is_absent(refused: Refused | Lost) -> bool:
    """Whether a refusal says that there is no such file (also: that one of its folders is a file)."""
    if isinstance(refused, Lost):
        return False
    if refused.kind == "AccessControlException":
        return _NOT_A_FOLDER in refused.message
    return refused.kind in ("FileNotFoundException", "ParentNotDirectoryException")


def is_unfinished(refused: Refused) -> bool:
    """Whether a read met a block that is being written, or whose writer died: no data node knows how long it will be."""
    return refused.kind == "CannotObtainBlockLengthException" or "Cannot obtain block length" in refused.message


def translate(error: Refused | Lost, name: str, doing: str) -> ChunkstoreError:
    """The chunkstore error for ``error``, met while ``doing`` something to ``name``. Raise it ``from error``."""
    if isinstance(error, Lost) and doing == "reading" and "timed out" in str(error):
        return StorageUnavailable(
            f"{doing} {name!r}: {error}; check that the name node and the data nodes are reachable, then retry. "
            "If only this file times out, one of its blocks may have no replica left: check "
            "`hdfs fsck PATH -files -blocks -locations`",
            object=name,
        )
    if isinstance(error, Lost):
        return StorageUnavailable(
            f"{doing} {name!r}: {error}; check that the name node and the data nodes are reachable, then retry",
            object=name,
        )
    kind, text = error.kind, error.message
    if kind in _FULL or "No space left" in text or _is_full_cluster(text):
        return StorageFull(f"{doing} {name!r}: {text or kind}; free space (or raise the quota) and retry", object=name)
    if kind == "FileNotFoundException":
        return ChunkNotFound(name)
    if kind == "ParentNotDirectoryException" or _NOT_A_FOLDER in text:
        return InvalidArgument(f"chunk name {name!r} is below another chunk; chunks are not folders", argument="name")
    if _BAD_NAME.search(text):
        return InvalidArgument(f"chunk name {name!r} is not possible in HDFS: {text}", argument="name")
    if kind == "WrongPort":
        return StorageUnavailable(
            f"{doing} {name!r}: {text}; the root names its HTTP port (9870 unless the cluster says otherwise)",
            object=name,
        )
    if _NO_REPLICA.search(text) or kind == "BlockMissingException":
        return StorageUnavailable(
            f"{doing} {name!r}: {text or kind}: no running data node has a replica of one of its blocks; start the stopped "
            "ones and retry (`hdfs fsck PATH -files -blocks -locations` names the block). If all run, its replicas are lost: restore",
            object=name,
        )
    if kind in _DENIED:
        return AccessDenied(
            f"{doing} {name!r}: {text or kind}; give ?user=NAME or ?token_file=PATH of a permitted user", object=name
        )
    if kind == "SafeModeException" or "safe mode" in text:
        return StorageUnavailable(
            f"{doing} {name!r}: the name node is in safe mode; it leaves it when enough blocks are reported: retry then",
            object=name,
        )
    if kind == "StandbyException":
        return StorageUnavailable(
            f"{doing} {name!r}: this name node is a standby; name the active one in the root", object=name
        )
    return StorageUnavailable(f"{doing} {name!r}: {kind}: {text}; fix the cause and retry", object=name)


def _is_full_cluster(text: str) -> bool:
    """Data nodes are alive and none takes a block: their disks are full. None alive is another matter."""
    match = _NOT_PLACED.search(text)
    return match is not None and int(match[1]) > 0 and match[2] in ("no", "0")
