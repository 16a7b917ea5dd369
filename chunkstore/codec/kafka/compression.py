"""The compressions of Kafka's record batches: gzip, snappy (xerial's blocks, or raw), lz4 frames and zstd frames.

Promises: at most ``size_bytes_max`` come out, whatever a stream claims, and memory is taken as bytes come. Other bytes after a stream are
refused. A stream that ends early is refused here, or gives too few bytes for its records. Leaves out: lz4 frames with the wrong header
checksum of magic 0 and 1.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Final

from chunkstore.config import KIB, MIB
from chunkstore.errors import Unsupported

__all__ = ["CODECS", "decompress"]

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""Their names, by their numbers in a batch's attributes."""

_GZIP_WINDOW: Final = 31
_GZIP_MEMBERS_MAX: Final = 64
"""Producers write one; each one copies what is left of the stream."""
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_SNAPPY_RATIO: Final = 64
"""At most so many bytes come from one of snappy: a copy of 3 bytes makes 64."""


def decompress(codec: int, data: bytes, size_bytes_max: int) -> bytes:
    """The bytes that ``data`` holds, compressed with codec number ``codec``.

    Raises ``ValueError`` where it is no whole stream or holds more than ``size_bytes_max``, and ``Unsupported`` for an unknown codec or
    one whose package is not installed (extra ``kafka``).
    """
    if codec >= len(CODECS):
        raise Unsupported(f"codec {codec} of record batches; known are {', '.join(CODECS)}", feature=f"codec {codec}")
    if codec == 0 or not data:
        return data
    # Little is asked for at once of small batches: it is taken before it is known to be needed.
    found: list[bytes] = []
    left = size_bytes_max
    try:
        for piece in _STREAMS[codec](data, left if codec == _SNAPPY else min(1 * MIB, 4 * KIB + 8 * len(data))):
            found.append(piece)
            left -= len(piece)
            if left < 0:
                raise ValueError(f"more than {size_bytes_max} bytes after decompression")
    except ImportError as error:
        text = f"record batches with {CODECS[codec]} need {error.name}: pip install 'chunkstore-engine[kafka]'"
        raise Unsupported(text, feature="kafka") from error
    return b"".join(found)


def _gzip(data: bytes, piece_bytes: int) -> Iterator[bytes]:
    rest = data
    for _ in range(_GZIP_MEMBERS_MAX):
        member = zlib.decompressobj(_GZIP_WINDOW)
        try:
            while not member.eof:
                piece = member.decompress(rest, piece_bytes)
                rest = member.unconsumed_tail
                if not (piece or rest or member.eof):
                    raise ValueError("the gzip stream is cut off")
                yield piece
        except zlib.error as error:
            raise ValueError(f"no gzip: {error}") from error
        rest = member.unused_data
        if not rest:
            return
    raise ValueError(f"more than {_GZIP_MEMBERS_MAX} gzip members")


def _snappy(data: bytes, size_bytes_max: int) -> Iterator[bytes]:
    if not data.startswith(_XERIAL):
        yield _snappy_block(data, size_bytes_max)
    at = 0 if data.startswith(_XERIAL) else len(data)
    while at < len(data):
        if data.startswith(_XERIAL, at):
            at += _XERIAL_HEADER_BYTES
            continue
        begin = at + 4
        at = begin + int.from_bytes(data[at:begin], "big")
        if at > len(data):
            raise ValueError(f"a snappy block from byte {begin} to {at}, of {len(data)} bytes")
        yield _snappy_block(data[begin:at], size_bytes_max)


def _snappy_block(data: bytes, size_bytes_max: int) -> bytes:
    from cramjam import DecompressionError, snappy

    claimed = 0
    for place, byte in enumerate(data[:5]):  # a varint: what the library would take memory for
        claimed |= (byte & 127) << 7 * place
        if byte < 128:
            break
    if claimed > min(size_bytes_max, _SNAPPY_RATIO * len(data)):
        raise ValueError(f"{len(data)} bytes of snappy that claim to hold {claimed}; at most {size_bytes_max} are read")
    try:
        return bytes(snappy.decompress_raw(data))
    except DecompressionError as error:
        raise ValueError(f"no snappy: {error}") from error


def _lz4(data: bytes, piece_bytes: int) -> Iterator[bytes]:
    from lz4.frame import LZ4FrameDecompressor

    frame = LZ4FrameDecompressor()
    rest = data
    try:
        while not frame.eof:
            piece = frame.decompress(rest, max_length=piece_bytes)
            rest = b""
            if not (piece or frame.eof):
                raise ValueError("the lz4 frame is cut off")
            yield piece
    except RuntimeError as error:
        raise ValueError(f"no lz4 frame: {error}") from error
    if frame.unused_data:
        raise ValueError(f"{len(frame.unused_data)} bytes after the lz4 frame")


def _zstd(data: bytes, piece_bytes: int) -> Iterator[bytes]:
    import zstandard

    try:
        # The reader does not say whether the last frame was whole.
        stream = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
        while piece := stream.read(piece_bytes):
            yield piece
    except zstandard.ZstdError as error:
        raise ValueError(f"no zstd frame: {error}") from error


_SNAPPY: Final = 2
_STREAMS: Final[dict[int, Callable[[bytes, int], Iterator[bytes]]]] = {1: _gzip, _SNAPPY: _snappy, 3: _lz4, 4: _zstd}
