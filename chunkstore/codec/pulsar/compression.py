"""The compressions of Pulsar's messages, undone: LZ4 (a raw block), ZLIB, ZSTD, SNAPPY (raw).

Promises: the result has exactly the length that the metadata declares, or ``ValueError`` says why not; a declared length that the bytes
cannot have is refused before memory is taken for it. The packages are loaded when a codec is met first. Leaves out: compressing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from chunkstore.config import KIB, MIB
from chunkstore.errors import Unsupported

__all__ = ["COMPRESSIONS", "DECOMPRESSED_BYTES_MAX", "decompress"]

COMPRESSIONS: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
"""Pulsar's names by number."""
DECOMPRESSED_BYTES_MAX = 128 * MIB
"""Longest payload of an entry, or of all chunks of a message, after decompression: it bounds the memory one entry can ask for."""

# The most bytes that one byte can become. A length beyond that is wrong, and is found out without taking memory.
_LZ4_RATIO: Final = 255
_SNAPPY_RATIO: Final = 64
_ONE_SHOT_BYTES: Final = 64 * KIB
_STEP_BYTES: Final = 128 * KIB


def decompress(codec: int, data: bytes, size_bytes: int, size_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """``data`` decompressed: exactly ``size_bytes`` bytes.

    Raises ``ValueError`` where ``data`` is not that, or longer than ``size_bytes_max``; ``Unsupported`` where a package is missing.
    """
    if size_bytes > size_bytes_max:
        raise ValueError(f"{size_bytes} bytes after decompression; at most {size_bytes_max} are read")
    if codec == 0:
        return data
    if not data and not size_bytes:
        return b""  # the Java client writes an empty payload so
    found = _CODECS[codec](data, size_bytes)
    if len(found) != size_bytes:
        raise ValueError(f"{COMPRESSIONS[codec]} gives {len(found)} bytes, the metadata says {size_bytes}")
    return found


def _missing(package: str) -> Unsupported:
    text = f"messages with this compression need {package}: pip install 'chunkstore-engine[messages]'"
    return Unsupported(text, feature="messages")


def _lz4(data: bytes, size: int) -> bytes:
    try:
        from lz4 import block
    except ImportError as error:
        raise _missing("lz4") from error
    if size > _LZ4_RATIO * len(data):
        raise ValueError(f"{len(data)} bytes of LZ4 cannot hold {size}")
    try:
        return bytes(block.decompress(data, uncompressed_size=size))
    except block.LZ4BlockError as error:
        raise ValueError(f"no LZ4 block of {size} bytes: {error}") from error


def _zlib(data: bytes, size: int) -> bytes:
    # The Java client flushes its streams and never finishes them, so their end proves nothing; the length does.
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(f"not ZLIB: {error}") from error
    if stream.unused_data:
        raise ValueError(f"{len(stream.unused_data)} bytes after the end of the ZLIB stream")
    return found


def _zstd(data: bytes, size: int) -> bytes:
    try:
        import zstandard
    except ImportError as error:
        raise _missing("zstandard") from error
    try:
        claimed = zstandard.frame_content_size(data)
        if claimed not in (-1, size):
            raise ValueError(f"a ZSTD frame of {claimed} bytes, the metadata says {size}")
        unpacker = zstandard.ZstdDecompressor()
        if size <= max(_ONE_SHOT_BYTES, _LZ4_RATIO * len(data)):
            # A size of 0 would mean no limit.
            return unpacker.decompress(data, max_output_size=max(1, size), allow_extra_data=False)
        # So many bytes are rare and may be a lie: memory is taken as they come.
        pieces: list[bytes] = []
        length = 0
        for piece in unpacker.read_to_iter(data, write_size=_STEP_BYTES):
            pieces.append(piece)
            length += len(piece)
            if length > size:
                break
        return b"".join(pieces)
    except zstandard.ZstdError as error:
        raise ValueError(f"no ZSTD frame of {size} bytes: {error}") from error


def _snappy(data: bytes, size: int) -> bytes:
    try:
        from cramjam import DecompressionError, snappy
    except ImportError as error:
        raise _missing("cramjam") from error
    claimed = shift = 0
    for byte in data[:5]:  # a varint: what the library would take memory for
        claimed |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if claimed != size or size > _SNAPPY_RATIO * len(data):
        raise ValueError(f"{len(data)} bytes of SNAPPY that claim to hold {claimed}, the metadata says {size}")
    try:
        return bytes(snappy.decompress_raw(data))
    except DecompressionError as error:
        raise ValueError(f"no SNAPPY of {size} bytes: {error}") from error


_CODECS: Final[dict[int, Callable[[bytes, int], bytes]]] = {1: _lz4, 2: _zlib, 3: _zstd, 4: _snappy}
