"""Bounded msgpack for stored bytes, which every decoder of this package uses; and one frame around a body.

Promises: ``unpack`` never allocates more than a small multiple of its input, and raises ``Damaged`` for anything that is not exactly one
value of arrays, maps with text keys, ints, bytes, text, booleans and nil. ``pack`` is canonical for what we pack (maps sorted by callers).
A frame is magic, version, kind, length and CRC32C in 16 bytes, then a body. The CRC covers the first twelve bytes and the body; a length
is compared with the limit before anything of that length is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import NamedTuple, NoReturn

import msgpack

from chunkstore.checksum import BytesLike, crc32c, crc32c_extend
from chunkstore.errors import Damaged, InvalidArgument

__all__ = [
    "FRAME_HEADER_BYTES",
    "HASH_BYTES",
    "TOKEN_BYTES",
    "Fields",
    "FrameHeader",
    "check_frame",
    "decode_frame",
    "decode_frame_header",
    "encode_frame",
    "must_be_readable",
    "pack",
    "refuse",
    "unpack",
]

HASH_BYTES = 16
TOKEN_BYTES = 16
_U64_MAX = (1 << 64) - 1
_SHORT_BYTES = 4096
_SHORT_ARRAY = 32
_packer = msgpack.Packer(autoreset=True)  # holds the interpreter's lock throughout: plain values call no Python code
_unpackb = msgpack.unpackb
_Unpacker = msgpack.Unpacker
_EXPECTED = (msgpack.UnpackException, ValueError, TypeError, OverflowError, RecursionError)


def pack(value: object) -> bytes:
    """The msgpack bytes of ``value``. Raises ``InvalidArgument`` for what msgpack cannot hold (ints beyond 64 bits, objects)."""
    try:
        packed: bytes = _packer.pack(value)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        _packer.reset()
        raise InvalidArgument(f"a value cannot be stored: {error}", argument="payload") from error
    return packed


def unpack(data: bytes, object: str, position: int) -> object:
    """The one value that ``data`` holds; arrays as tuples. Raises ``Damaged`` (``object``, ``position``) for anything else."""
    # An array header of 16 or 32 bits makes the unpacker reserve room for as many elements as it *claims*, once per nesting
    # level. Short arrays in short data cannot claim much; for all else, skipping (which builds nothing) proves first that
    # the claims are honest.
    if len(data) <= _SHORT_BYTES:
        # Not ``suppress``: it costs as much as the unpacking, and replay comes through here for every record.
        try:
            return _unpackb(data, use_list=False, max_ext_len=0, max_array_len=_SHORT_ARRAY)
        except _EXPECTED:
            pass
    try:
        scout = _Unpacker(max_buffer_size=max(len(data), 1))
        scout.feed(data)
        scout.skip()
        value = _unpackb(data, use_list=False, max_ext_len=0)
    except _EXPECTED as error:
        raise Damaged(
            f"not a valid msgpack value ({error or type(error).__name__})", object=object, position=position
        ) from error
    return value


def refuse(reason: str, object: str, position: int) -> NoReturn:
    """Raise ``Damaged``."""
    raise Damaged(reason, object=object, position=position)


@contextmanager
def must_be_readable(what: str) -> Iterator[None]:
    """Around the decoding of what was just encoded: what readers would refuse is the caller's ``InvalidArgument``."""
    try:
        yield
    except Damaged as error:
        raise InvalidArgument(f"this {what} could not be read again: {error.message}", argument="payload") from error


class Fields:
    """Takes an array's elements one after another, each with its type; every surprise is ``Damaged``. Elements after them are ignored."""

    __slots__ = ("_at", "_object", "_position", "_values", "_what")

    def __init__(self, value: object, what: str, object: str, position: int) -> None:
        self._what = what
        self._object = object
        self._position = position
        if type(value) is not tuple:
            refuse(f"{what} is not an array", object, position)
        self._values = value
        self._at = 0

    def wrong(self, expected: str) -> NoReturn:
        """Raise ``Damaged`` for the element taken last."""
        refuse(f"element {self._at - 1} of {self._what} is not {expected}", self._object, self._position)

    def take(self) -> object:
        """The next element, whatever it is."""
        at = self._at
        self._at = at + 1
        if at >= len(self._values):
            self.wrong("there")
        return self._values[at]

    @property
    def is_at_end(self) -> bool:
        """Whether every element was taken."""
        return self._at >= len(self._values)

    def version(self, known: int) -> None:
        """The next element must be ``known``, the version this program reads."""
        found = self.take()
        if type(found) is not int or found != known:
            refuse(
                f"{self._what} has version {found!r}; this program reads version {known}", self._object, self._position
            )

    def whole(self, high: int = _U64_MAX) -> int:
        """The next element, an int from 0 to ``high``."""
        value = self.take()
        if type(value) is not int or not 0 <= value <= high:
            self.wrong(f"a whole number from 0 to {high}")
        return value

    def text(self, size_max: int) -> str:
        """The next element, a str of at most ``size_max`` characters."""
        value = self.take()
        if type(value) is not str or len(value) > size_max:
            self.wrong(f"text of at most {size_max} characters")
        return value

    def raw(self, size: int | None = None) -> bytes:
        """The next element, bytes; exactly ``size`` of them where given."""
        value = self.take()
        if type(value) is not bytes or (size is not None and len(value) != size):
            self.wrong("bytes" if size is None else f"{size} bytes")
        return value

    def flag(self) -> bool:
        """The next element, a boolean."""
        value = self.take()
        if type(value) is not bool:
            self.wrong("true or false")
        return value

    def array(self) -> tuple[object, ...]:
        """The next element, an array."""
        value = self.take()
        if type(value) is not tuple:
            self.wrong("an array")
        return value


# Frames

_HEADER = Struct(">4sBBHII")
"""magic, version, kind, zero, body length, CRC32C. FORMAT.md's table is tested against it."""
_CRC_AT = 12
_CRC = Struct(">I")
FRAME_HEADER_BYTES = _HEADER.size


class FrameHeader(NamedTuple):
    """Believe nothing but ``body_bytes`` (within the limit) before ``check_frame`` has seen the body."""

    version: int
    kind: int
    body_bytes: int


def encode_frame(magic: bytes, version: int, kind: int, body: bytes) -> bytes:
    """The frame's bytes."""
    front = _HEADER.pack(magic, version, kind, 0, len(body), 0)[:_CRC_AT]
    return b"".join((front, _CRC.pack(crc32c_extend(crc32c(front), body)), body))


def decode_frame_header(raw: bytes, magic: bytes, body_bytes_max: int, *, object: str, position: int) -> FrameHeader:
    """The header in the first 16 bytes of ``raw``. Raises ``Damaged`` for a wrong magic, a cut header, a length beyond the limit."""
    if len(raw) < FRAME_HEADER_BYTES:
        refuse(f"{len(raw)} bytes are too few; it is cut short", object, position)
    found, version, kind, _, length, _ = _HEADER.unpack_from(raw)
    if found != magic:
        refuse(f"{found!r} is stored where {magic!r} belongs", object, position)
    if length > body_bytes_max:
        refuse(f"a length of {length} bytes is claimed; {body_bytes_max} is the limit", object, position)
    return FrameHeader(version, kind, length)


def decode_frame(data: BytesLike, magic: bytes, version: int, kind: int, *, size_max: int, object: str) -> object:
    """The value in an object of one frame, of this kind. Raises ``Damaged``, also for an object longer than ``size_max``."""
    raw = bytes(data[: size_max + 1])
    header = decode_frame_header(raw, magic, size_max - FRAME_HEADER_BYTES, object=object, position=0)
    body = raw[FRAME_HEADER_BYTES:]
    check_frame(raw, body, version=version, object=object, position=0)
    if header.kind != kind:
        refuse(f"an object of kind {header.kind} is stored where {kind} belongs", object, 0)
    return unpack(body, object, FRAME_HEADER_BYTES)


def check_frame(header: bytes, body: bytes, *, version: int, object: str, position: int) -> None:
    """Raise ``Damaged`` unless ``header`` (16 bytes, as given to ``decode_frame_header``) vouches for ``body``, in ``version``."""
    _, found, _, zero, length, crc = _HEADER.unpack_from(header)
    if length != len(body):
        refuse(f"{length} bytes are announced, {len(body)} are stored", object, position)
    if crc32c_extend(crc32c(header[:_CRC_AT]), body) != crc:
        refuse("wrong CRC", object, position)
    if found != version or zero:
        refuse(f"version {found} is not {version}, the one this program reads; upgrade it", object, position)
