"""Whether a store's file may be given to LMDB, which has no checksums and can kill the process over a damaged page.

Promises: ``file_mark`` of a file that was closed cleanly is the one in its STATE only if no bit of it differs. A file without
such a mark (its process was killed) passes only if every page of it is what LMDB wants (``lmdb.verify``, which never gives
it to LMDB); what would take longer than a rebuild does not pass.
Leaves out: the rows in the pages (``LmdbMetadataStore.audit``).
"""

from __future__ import annotations

import os
from typing import Final

from lmdb import verify

from chunkstore.checksum import crc32c_extend
from chunkstore.config import MIB
from chunkstore.metadata.cachedir import FileMark

__all__ = ["file_mark", "is_well_formed"]

_READ_BYTES: Final = MIB
_VERIFIED_BYTES_MAX: Final = 3 << 30
"""Verified within about half a minute. What takes longer is as quickly rebuilt."""


def file_mark(store: str) -> FileMark:
    """Length and CRC32C of the data file in the directory ``store``. Raises ``OSError``."""
    length = crc = 0
    with open(os.path.join(store, "data.mdb"), "rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            length += len(data)
            crc = crc32c_extend(crc, data)
    return FileMark(length, crc)


def is_well_formed(store: str) -> bool:
    """Whether LMDB can read the data file, which nobody has open, without harm. Raises ``OSError``."""
    if os.stat(os.path.join(store, "data.mdb")).st_size > _VERIFIED_BYTES_MAX:
        return False
    try:
        return not list(verify.verify(store))  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001  (a walk over hostile bytes; whatever it meets, the file is no good)
        return False
