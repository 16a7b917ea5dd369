"""What goes with an object's bytes: their checksum, the token of the call that wrote them, and how they are handed over.

Promises: every object carries its CRC32C and its writer's token in its metadata, which any server keeps. Servers that keep
checksums of their own get the CRC32C as theirs, too, and check it; the others get Content-MD5. Which of the two a server is
shows in its first answer. Leaves out: cryptographic authenticity.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from typing import Any, Final

from chunkstore import runtime
from chunkstore.deadline import left_s
from chunkstore_bindings.s3.options import S3Options

__all__ = ["META_CRC", "META_TOKEN", "Body", "Integrity", "crc_text", "kept_crc", "new_token", "object_headers"]

META_CRC: Final = "chunkstore-crc32c"
META_TOKEN: Final = "chunkstore-token"
_BLOCK_BYTES: Final = 1 << 20
_HEX: Final = re.compile(r"[0-9a-f]{8}\Z")


class Body:
    """A buffer as the SDK wants bodies, without a copy: it goes out in blocks, each with a time limit of its own, so that
    a slow link is not mistaken for a dead one; and it stops when the call's time is up all the same."""

    __slots__ = ("_at", "_view")

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def __len__(self) -> int:
        return len(self._view)

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go somewhere else."""
        self._at = offset + (0, self._at, len(self._view))[whence]
        return self._at

    def read(self, size: int = -1) -> memoryview:
        """The next block, whatever size is asked for; empty at the end."""
        if not left_s(1.0):
            raise TimeoutError("the upload did not end in time")
        part = self._view[self._at : self._at + max(size, _BLOCK_BYTES)]
        self._at += len(part)
        return part


class Integrity:
    """Which checksum this server understands. Learned from answers; both are sent until one has come."""

    __slots__ = ("server_keeps_crc",)

    def __init__(self) -> None:
        self.server_keeps_crc: bool | None = None

    def headers(self, view: memoryview, crc: int | None) -> dict[str, Any]:
        """The parameters of a PUT (or of a part) that let the server check what arrives."""
        found: dict[str, Any] = {}
        if self.server_keeps_crc is not False and crc is not None:
            # Both, because some servers look at the one header only where the other announces it.
            found |= {"ChecksumAlgorithm": "CRC32C", "ChecksumCRC32C": crc_text(crc)}
        if self.server_keeps_crc is not True:
            found["ContentMD5"] = b64encode(hashlib.md5(view, usedforsecurity=False).digest()).decode()
        return found

    def learn(self, answer: dict[str, Any]) -> None:
        """Remember what the first answer to a PUT shows."""
        if self.server_keeps_crc is None:
            self.server_keeps_crc = "ChecksumCRC32C" in answer


def crc_text(crc: int) -> str:
    """A CRC32C as S3 writes it: base64 of four bytes, big end first."""
    return b64encode(crc.to_bytes(4, "big")).decode()


def new_token() -> str:
    """Distinguishes the objects of one call from all others."""
    return runtime.token(12).hex()


def object_headers(options: S3Options, crc: int | None, token: str) -> dict[str, Any]:
    """The parameters every new object gets: metadata, storage class, encryption."""
    metadata = {META_TOKEN: token}
    if crc is not None:
        metadata[META_CRC] = f"{crc:08x}"
    found: dict[str, Any] = {"Metadata": metadata}
    if options.storage_class is not None:
        found["StorageClass"] = options.storage_class
    if options.sse is not None:
        found["ServerSideEncryption"] = options.sse
    if options.sse_kms_key_id is not None:
        found["SSEKMSKeyId"] = options.sse_kms_key_id
    return found


def kept_crc(answer: dict[str, Any]) -> int | None:
    """The whole object's CRC32C from its metadata; None: it was written by another client, or joined from others.

    What the server itself keeps is not asked for on the way back: servers differ in what they mean by it for objects made
    of parts, and for parts of objects.
    """
    text = str(answer.get("Metadata", {}).get(META_CRC, ""))
    return int(text, 16) if _HEX.match(text) else None
