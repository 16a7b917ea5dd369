"""Checksums and digests: CRC32C for bytes, BLAKE2b for identity and for the state digest.

Promises: CRC32C is Castagnoli (google-crc32c, hardware where the processor has it). ``record_hash`` is BLAKE2b-128.
``row_digest`` maps one metadata row to an integer below 2**256; the state digest is the sum of all rows modulo
2**256 (the "setsum" idea: incremental and free of order, protocol.md 3.2). ``crc32c_combine`` reads no byte. Leaves out: cryptographic
authenticity.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import blake2b
from typing import TypeAlias

import google_crc32c

from chunkstore.errors import InvalidArgument

__all__ = [
    "DIGEST_MODULUS",
    "BytesLike",
    "check_data",
    "crc32c",
    "crc32c_combine",
    "crc32c_extend",
    "crc32c_of_bytes",
    "crc32c_of_more",
    "name_spread",
    "record_hash",
    "row_digest",
    "rows_digest",
]

BytesLike: TypeAlias = bytes | bytearray | memoryview
DIGEST_MODULUS = 1 << 256
_WINDOW_BYTES = 1 << 18
_Window = ctypes.c_char * _WINDOW_BYTES
_extend = google_crc32c.extend
_value = google_crc32c.value
crc32c_of_bytes: Callable[[bytes], int] = _value
"""As ``crc32c``, of ``bytes`` only and without a call of Python's: every record has three of them."""
crc32c_of_more: Callable[[int, bytes], int] = _extend
"""As ``crc32c_extend``, likewise."""


def check_data(data: object, argument: str = "data") -> BytesLike:
    """A contiguous buffer of bytes, of shape (n,). Raises ``InvalidArgument``."""
    if isinstance(data, (bytes, bytearray)):
        return data
    if isinstance(data, memoryview):
        if data.c_contiguous:
            return data if data.format == "B" and data.ndim == 1 else data.cast("B")
        raise InvalidArgument(f"{argument} must be contiguous; copy it with bytes(...)", argument=argument)
    raise InvalidArgument(
        f"{argument} must be bytes, bytearray or memoryview, not {type(data).__name__}", argument=argument
    )


def crc32c(data: BytesLike) -> int:
    """CRC32C of ``data`` (any contiguous buffer of bytes)."""
    if type(data) is bytes:
        return int(_value(data))
    return crc32c_extend(0, data)


def crc32c_extend(crc: int, data: BytesLike) -> int:
    """CRC32C of the bytes after ``crc`` followed by ``data``."""
    if type(data) is bytes:
        return int(_extend(crc, data))
    # The library takes ``bytes``, and arrays of ctypes, which show writable memory without a copy. Else windows that stay in the
    # processor's cache make the copies nearly free.
    view = memoryview(data)
    size = len(view)
    whole = size - size % _WINDOW_BYTES
    for start in range(0, whole, _WINDOW_BYTES):
        part = bytes(view[start : start + _WINDOW_BYTES]) if view.readonly else _Window.from_buffer(view, start)
        crc = int(_extend(crc, part))
    return int(_extend(crc, bytes(view[whole:]))) if whole < size else crc


def crc32c_combine(crc_a: int, crc_b: int, length_b: int) -> int:
    """CRC32C of bytes with ``crc_a`` followed by ``length_b`` bytes with ``crc_b``; a product for each byte of ``length_b`` that is not 0.

    Raises ``InvalidArgument`` if ``length_b`` is not a number of bytes below 2**63.
    """
    if not 0 <= length_b < 1 << 63:
        raise InvalidArgument(f"{length_b!r} is not a number of bytes", argument="length_b")
    level = 0
    while length_b:
        if digit := length_b & 255:
            crc_a = _product(crc_a, _power(level, digit))
        length_b >>= 8
        level += 1
    return crc_a ^ crc_b


def _times_x(value: int) -> int:
    """A polynomial over GF(2), modulo CRC32C's, times x. Bit 31 is the coefficient of 1, bit 0 that of x**31."""
    return value >> 1 ^ 0x82F63B78 if value & 1 else value >> 1


def _times_x4(value: int) -> int:
    return _times_x(_times_x(_times_x(_times_x(value))))


_FALLEN_OUT = tuple(_times_x4(value) for value in range(16))
"""What four coefficients that are shifted out leave behind."""


def _product(a: int, b: int) -> int:
    """Two such polynomials multiplied: four coefficients of ``a`` at a time, the highest powers first."""
    b1 = _times_x(b)
    b2 = _times_x(b1)
    b3 = _times_x(b2)
    few = (0, b3, b2, b2 ^ b3, b1, b1 ^ b3, b1 ^ b2, b1 ^ b2 ^ b3)
    multiples = (*few, *(b ^ value for value in few))
    result = 0
    for shift in range(0, 32, 4):
        result = result >> 4 ^ _FALLEN_OUT[result & 15] ^ multiples[a >> shift & 15]
    return result


@cache
def _power(level: int, digit: int) -> int:
    """The power 8 * ``digit`` * 256**``level`` of x: what as many bytes after them do to the CRC of those before."""
    if digit > 1:
        return _product(_power(level, digit // 2), _power(level, digit - digit // 2))
    if level:
        return _product(_power(level - 1, 128), _power(level - 1, 128))
    return 1 << 23


def record_hash(data: BytesLike) -> bytes:
    """BLAKE2b-128 (16 bytes): the identity of a record and the link of the hash chain."""
    return blake2b(data, digest_size=16).digest()


def row_digest(key: bytes, value: bytes) -> int:
    """The row's summand of the state digest: BLAKE2b-256(key || len(key) as u32le || value) as a big-endian integer."""
    return int.from_bytes(blake2b(key + len(key).to_bytes(4, "little") + value, digest_size=32).digest(), "big")


_LENGTHS = tuple(length.to_bytes(4, "little") for length in range(512))


def rows_digest(keys: Iterable[bytes], values: Iterable[bytes]) -> int:
    """The sum of ``row_digest`` over rows with keys below 512 bytes, not yet reduced: a share of the time that so many calls take."""
    number, digest, lengths = int.from_bytes, blake2b, _LENGTHS
    return sum(
        [
            number(digest(key + lengths[len(key)] + value, digest_size=32).digest(), "big")
            for key, value in zip(keys, values, strict=True)
        ]
    )


def name_spread(rest: str) -> str:
    """Two hex digits that spread chunk names over prefixes: the first byte of BLAKE2b of the rest of the name."""
    return blake2b(rest.encode(), digest_size=1).hexdigest()
