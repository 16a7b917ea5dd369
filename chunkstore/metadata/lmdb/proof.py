"""Whether a store's file may be given to LMDB, which has no checksums and can kill the process over a damaged page.

Promises: ``file_mark`` of a file that was closed cleanly is the one in its STATE only if no bit of it differs. A file without
such a mark (its process was killed) passes only if every page of it is what LMDB wants (``lmdb.verify``, which never gives
it to LMDB); a large one is looked at in a child process, which is given up when it takes too long.
Leaves out: the rows in the pages (``LmdbMetadataStore.audit``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

from lmdb import verify

from chunkstore.checksum import crc32c_extend
from chunkstore.config import MIB
from chunkstore.metadata.cachedir import FileMark

__all__ = ["file_mark", "is_well_formed"]

_READ_BYTES: Final = MIB
_CHILD_BYTES_MIN: Final = 4 * MIB
"""Verified within about 50 ms, hardly more than a child takes to start; beyond that other threads would notice."""
_CHILD_S_MAX: Final = 30.0
"""For some 3 GiB. What takes longer is as quickly rebuilt."""
_CHILD = "import sys; sys.path.append(sys.argv[1]); from lmdb.verify import verify; sys.exit(bool(verify(sys.argv[2])))"


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
    if os.stat(os.path.join(store, "data.mdb")).st_size < _CHILD_BYTES_MIN or not sys.executable:
        try:
            return not list(verify.verify(store))  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001  (a walk over hostile bytes; whatever it meets, the file is no good)
            return False
    packages = os.path.dirname(os.path.dirname(os.path.abspath(verify.__file__)))
    try:
        done = subprocess.run(  # noqa: S603  (this very interpreter)
            [sys.executable, "-I", "-S", "-c", _CHILD, packages, store],
            capture_output=True,
            timeout=_CHILD_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
