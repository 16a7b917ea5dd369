"""What a cluster's refusal means for a chunk.

Promises: quotas and full disks are ``StorageFull``; what can never succeed is ``InvalidArgument``; everything else is
``StorageUnavailable`` with a remedy. No foreign error and no secret leaves in a message. Leaves out: refusals that decide
something (a name that exists, a lease that is held): the binding looks at those itself.
"""

from __future__ import annotations

import re

from chunkstore.errors import ChunkNotFound, ChunkstoreError, InvalidArgument, StorageFull, StorageUnavailable
from chunkstore_bindings.hdfs.rest import GONE, Lost, Refused

__all__ = ["DENIED", "NAME_TAKEN", "is_absent", "is_unfinished", "translate"]

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
DENIED = frozenset(
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
            f"{doing} {name!r}: {error}; see that the name node and the data nodes are up and can be reached, then retry. If only this "
            "one stays silent, a block of it may have no replica left, which a data node looks for all that time: "
            "`hdfs fsck PATH -files -blocks -locations` tells",
            object=name,
        )
    if isinstance(error, Lost):
        return StorageUnavailable(
            f"{doing} {name!r}: {error}; see that the name node and the data nodes are up and can be reached, then retry",
            object=name,
        )
    kind, text = error.kind, error.message
    if kind in _FULL or "No space left" in text or _is_full_cluster(text):
        return StorageFull(f"{doing} {name!r}: {text or kind}; free space (or raise the quota) and retry", object=name)
    if kind == GONE:
        return StorageUnavailable(
            f"{doing} {name!r}: the folder in which its container was opened is not there any more ({text}); nothing is made anew. "
            "Open the container where it is now, or open what was restored",
            object=name,
        )
    if kind == "FileNotFoundException":
        return ChunkNotFound(name)
    if kind == "ParentNotDirectoryException" or _NOT_A_FOLDER in text:
        return InvalidArgument(f"chunk name {name!r} lies below another chunk; a chunk is no folder", argument="name")
    if _BAD_NAME.search(text):
        return InvalidArgument(f"chunk name {name!r} is not possible in HDFS: {text}", argument="name")
    if kind == "WrongPort":
        return StorageUnavailable(
            f"{doing} {name!r}: {text}; the root names its HTTP port (9870 unless the cluster says otherwise)",
            object=name,
        )
    if _NO_REPLICA.search(text) or kind == "BlockMissingException":
        return StorageUnavailable(
            f"{doing} {name!r}: {text or kind}: no data node that is up has a replica of a block of it; start those that are down "
            "and retry (`hdfs fsck PATH -files -blocks -locations` names the block). If all are up, its replicas are lost: restore",
            object=name,
        )
    if kind in DENIED:
        return StorageUnavailable(
            f"{doing} {name!r}: {text or kind}; give ?user=NAME or ?token_file=PATH of somebody who may", object=name
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
    return StorageUnavailable(f"{doing} {name!r}: {kind}: {text}; mend the cause and retry", object=name)


def _is_full_cluster(text: str) -> bool:
    """Data nodes are alive and none takes a block: their disks are full. None alive is another matter."""
    match = _NOT_PLACED.search(text)
    return match is not None and int(match[1]) > 0 and match[2] in ("no", "0")
