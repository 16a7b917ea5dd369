"""Undoing what was done to the objects of a segment: AES-GCM under a data key that RSA wraps, then zstd.

Promises: what is not authentic is ``Damaged``, and no byte of it is given out; keys appear in no message. The RSA padding is OAEP with
SHA3-512 for label and mask, which ``cryptography`` refuses: it is done here. Leaves out: encrypting, and hiding timings from others.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha3_512
from typing import Final

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from chunkstore.codec.kafka.manifest import Chunk, Manifest, unpack_zstd
from chunkstore.config import MIB
from chunkstore.errors import Damaged, InvalidArgument

__all__ = ["CHUNK_BYTES_MAX", "ChunkDecoder", "PrivateKey", "load_private_key"]

CHUNK_BYTES_MAX: Final = 256 * MIB
"""Longest chunk that is unpacked: it bounds the memory that one can ask for."""
_HASH_BYTES: Final = 64
_IV_BYTES: Final = 12


@dataclass(frozen=True, slots=True, repr=False)
class PrivateKey:
    """The numbers of an RSA private key. It has no text, so that no log shows it."""

    modulus: int
    exponent: int


def load_private_key(pem: bytes) -> PrivateKey:
    """The RSA private key of a PEM file without a password; ``InvalidArgument`` for any other."""
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, RSAPrivateKey):
        raise InvalidArgument("not a PEM file of an RSA private key without a password", argument="pem")
    numbers = key.private_numbers()
    return PrivateKey(numbers.public_numbers.n, numbers.d)


def _masked(data: bytes, seed: bytes) -> bytes:
    blocks = range(-(-len(data) // _HASH_BYTES))
    mask = b"".join(sha3_512(seed + number.to_bytes(4, "big")).digest() for number in blocks)
    return bytes(left ^ right for left, right in zip(data, mask, strict=False))


def _unwrapped(wrapped: bytes, key: PrivateKey) -> bytes:
    """What RSA-OAEP wrapped; ``ValueError`` if it was not under this key."""
    size = (key.modulus.bit_length() + 7) // 8
    number = int.from_bytes(wrapped, "big")
    block = pow(number, key.exponent, key.modulus).to_bytes(size, "big")
    seed = _masked(block[1 : _HASH_BYTES + 1], block[_HASH_BYTES + 1 :])
    text = _masked(block[_HASH_BYTES + 1 :], seed)
    found = text[_HASH_BYTES:].lstrip(b"\0")
    whole = len(wrapped) == size and number < key.modulus and not block[0]
    if not whole or text[:_HASH_BYTES] != sha3_512().digest() or found[:1] != b"\1":
        raise ValueError("not wrapped under this key")
    return found[1:]


class ChunkDecoder:
    """Gives the log's and the indexes' bytes of one segment from what its objects hold. Threads may share it."""

    def __init__(self, manifest: Manifest, keys: Sequence[PrivateKey] = (), *, stem: str = "segment") -> None:
        """``keys``: private keys, each one is tried; ``stem``: how the names of the segment's objects begin, for errors.

        ``InvalidArgument`` if the data key is wrapped under none of them.
        """
        self._manifest, self._stem, self._cipher = manifest, stem, None
        if manifest.data_key is None:
            return
        owner, _, wrapped = manifest.data_key.partition(":")
        for key in keys:
            with suppress(ValueError):
                self._cipher = AESGCM(_unwrapped(b64decode(wrapped, validate=True), key))
                return
        text = f"{stem}.log is encrypted under {owner[:60]!r}: none of the {len(keys)} keys fits (--key FILE.pem)"
        raise InvalidArgument(text, argument="keys")

    def chunk(self, chunk: Chunk, stored: bytes) -> bytes:
        """The bytes of the log that ``stored`` is: all bytes of ``chunk`` in the object ``.log``. ``Damaged`` if they are not."""
        text = f"{len(stored)} bytes are not a chunk of {chunk.size_bytes} bytes, stored in {chunk.stored_bytes}"
        try:
            plain = self._plain(stored)
            if self._manifest.compression:
                plain = unpack_zstd(plain, min(chunk.size_bytes, CHUNK_BYTES_MAX))
            if len(stored) != chunk.stored_bytes or len(plain) != chunk.size_bytes:
                raise ValueError(f"{len(plain)} after unpacking")
        except (InvalidTag, ValueError) as error:
            text = f"{text}: {str(error) or 'not authentic'}"
            raise Damaged(text, object=f"{self._stem}.log", position=chunk.stored_position) from error
        return plain

    def index(self, name: str, stored: bytes) -> bytes:
        """The bytes of an index, of which ``stored`` is all that the manifest names; it is never compressed. Empty is empty."""
        position, size = self._manifest.indexes[name] or (0, 0)
        try:
            if len(stored) != size:
                raise ValueError(f"{len(stored)} bytes, but the manifest has {size}")
            return self._plain(stored) if stored else b""
        except (InvalidTag, ValueError) as error:
            text = f"{name}: {str(error) or 'not authentic'}"
            raise Damaged(text, object=f"{self._stem}.indexes", position=position) from error

    def _plain(self, stored: bytes) -> bytes:
        if self._cipher is None:
            return stored
        return self._cipher.decrypt(stored[:_IV_BYTES], stored[_IV_BYTES:], self._manifest.aad)
