"""The small self-checking objects next to the streams: FORMAT, claims and hints (protocol 3.1, A10, A15).

Promises: each is one frame around one msgpack array; encoding is canonical, so that a repeated put-if-absent offers identical bytes;
decoding accepts exactly one whole object of the kind asked for, and raises ``Damaged(object, position)`` for anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Literal, NamedTuple, TypeAlias

from chunkstore.checksum import BytesLike
from chunkstore.config import LIMITS
from chunkstore.errors import InvalidArgument
from chunkstore.journal import LeaseInfo
from chunkstore_journal.payloads import MODE_NUMBERS, MODES, SnapshotLink, link_from_wire, link_to_wire
from chunkstore_journal.wire import (
    FRAME_HEADER_BYTES,
    HASH_BYTES,
    TOKEN_BYTES,
    Fields,
    decode_frame,
    encode_frame,
    must_be_readable,
    pack,
)

__all__ = [
    "CONTAINER_FORMAT_VERSION",
    "Claim",
    "ContainerFormat",
    "LatestHint",
    "ObjectKind",
    "Plain",
    "VoidedHint",
    "decode_claim",
    "decode_format",
    "decode_latest",
    "decode_lease",
    "decode_voided",
    "encode_claim",
    "encode_format",
    "encode_latest",
    "encode_lease",
    "encode_voided",
]

MAGIC = b"CKSO"
OBJECT_VERSION = 1
CONTAINER_FORMAT_VERSION = 4
"""The version of the container's layout that this program writes and opens. Number 1 was never released."""

_TEXT_MAX = 255
_PLAIN_DEPTH_MAX = 8

Plain: TypeAlias = "bool | int | str | bytes | tuple[Plain, ...] | Mapping[str, Plain] | None"
"""Plain data, as a probe's result."""


class ObjectKind(IntEnum):
    """Type of a small object. Zero is never valid."""

    FORMAT = 1
    CLAIM = 2
    VOIDED = 3
    LATEST = 4
    LEASE = 5


class ContainerFormat(NamedTuple):
    """FORMAT: written once when a container is made. ``probe`` is what the storage was seen to do, not promised to. ``imports``: its
    first OPEN begins an import; without one no one else opens it."""

    uuid: bytes
    version: int
    mode: Literal["slot", "append"]
    medium: str
    probe: Mapping[str, Plain]
    created_ms: int
    name: str
    imports: bool = False


class Claim(NamedTuple):
    """``epoch/<E>``: who claimed the epoch. ``token`` (16 bytes) tells one attempt from another."""

    epoch: int
    token: bytes
    host: str
    pid: int
    boot_id: str
    time_ms: int


class VoidedHint(NamedTuple):
    """``j/VOIDED``: stream ``previous_epoch`` is OPEN, and every stream between it and ``epoch`` is void. True for ever."""

    previous_epoch: int
    epoch: int


class LatestHint(NamedTuple):
    """``snap/LATEST``: a validated snapshot, and the epoch that wrote the hint. May be old."""

    snapshot: SnapshotLink
    epoch: int


def _seal(kind: ObjectKind, fields: tuple[object, ...], decode: Callable[..., object]) -> bytes:
    """The object's bytes. Raises ``InvalidArgument`` for what ``decode`` would refuse."""
    raw = encode_frame(MAGIC, OBJECT_VERSION, kind, pack(fields))
    if len(raw) > LIMITS.small_object_bytes_max:
        raise InvalidArgument(
            f"a {kind.name} object of {len(raw)} bytes exceeds {LIMITS.small_object_bytes_max}; shorten its texts",
            argument="payload",
        )
    with must_be_readable(kind.name):
        decode(raw, object=kind.name)
    return raw


def _body(data: BytesLike, kind: ObjectKind, object: str) -> Fields:
    value = decode_frame(data, MAGIC, OBJECT_VERSION, kind, size_max=LIMITS.small_object_bytes_max, object=object)
    return Fields(value, f"the {kind.name} object", object, FRAME_HEADER_BYTES)


def _is_plain(value: object, depth: int = 0) -> bool:
    if isinstance(value, tuple):
        return depth < _PLAIN_DEPTH_MAX and all(_is_plain(item, depth + 1) for item in value)
    if isinstance(value, dict):
        return depth < _PLAIN_DEPTH_MAX and all(
            type(key) is str and _is_plain(item, depth + 1) for key, item in value.items()
        )
    return value is None or isinstance(value, (bool, int, str, bytes))


def encode_format(value: ContainerFormat) -> bytes:
    """FORMAT's bytes. Raises ``InvalidArgument`` for what ``decode_format`` would refuse."""
    probe = {name: value.probe[name] for name in sorted(value.probe)}
    body = (value.uuid, value.version, MODE_NUMBERS[value.mode], value.medium, probe, value.created_ms, value.name)
    return _seal(ObjectKind.FORMAT, (*body, True) if value.imports else body, decode_format)


def decode_format(data: BytesLike, *, object: str) -> ContainerFormat:
    """The container's FORMAT, of whatever ``version``: the caller refuses versions it does not know. Raises ``Damaged``."""
    fields = _body(data, ObjectKind.FORMAT, object)
    uuid, version, mode = fields.raw(16), fields.whole(), MODES.get(fields.whole())
    if mode is None:
        fields.wrong("a journal mode")
    medium, probe = fields.text(_TEXT_MAX), fields.take()
    if not isinstance(probe, dict) or not _is_plain(probe):
        fields.wrong("a map of probe results")
    created_ms, name = fields.whole(), fields.text(_TEXT_MAX)
    return ContainerFormat(
        uuid, version, mode, medium, probe, created_ms, name, not fields.is_at_end and fields.take() is True
    )


def encode_claim(value: Claim) -> bytes:
    """A claim's bytes. Raises ``InvalidArgument`` for what ``decode_claim`` would refuse."""
    return _seal(ObjectKind.CLAIM, tuple(value), decode_claim)


def decode_claim(data: BytesLike, *, object: str) -> Claim:
    """A claim. Raises ``Damaged``."""
    fields = _body(data, ObjectKind.CLAIM, object)
    epoch, token, host, pid = fields.whole(), fields.raw(TOKEN_BYTES), fields.text(_TEXT_MAX), fields.whole()
    return Claim(epoch, token, host, pid, fields.text(_TEXT_MAX), fields.whole())


def encode_voided(value: VoidedHint) -> bytes:
    """The bytes of ``j/VOIDED``. Raises ``InvalidArgument`` for what ``decode_voided`` would refuse."""
    return _seal(ObjectKind.VOIDED, tuple(value), decode_voided)


def decode_voided(data: BytesLike, *, object: str) -> VoidedHint:
    """``j/VOIDED``. Raises ``Damaged`` (for a hint: ignore it)."""
    fields = _body(data, ObjectKind.VOIDED, object)
    hint = VoidedHint(fields.whole(), fields.whole())
    if hint.previous_epoch >= hint.epoch:
        fields.wrong(f"an epoch above {hint.previous_epoch}")
    return hint


def encode_latest(value: LatestHint) -> bytes:
    """The bytes of ``snap/LATEST``. Raises ``InvalidArgument`` for what ``decode_latest`` would refuse."""
    return _seal(ObjectKind.LATEST, (link_to_wire(value.snapshot), value.epoch), decode_latest)


def decode_latest(data: BytesLike, *, object: str) -> LatestHint:
    """``snap/LATEST``. Raises ``Damaged`` (for a hint: ignore it)."""
    fields = _body(data, ObjectKind.LATEST, object)
    return LatestHint(link_from_wire(fields.array(), object, FRAME_HEADER_BYTES), fields.whole())


def encode_lease(value: LeaseInfo) -> bytes:
    """The bytes of ``lease``. Raises ``InvalidArgument`` for what ``decode_lease`` would refuse."""
    return _seal(ObjectKind.LEASE, (*value[:6], *((value.lsn, value.hash) if value.lsn else ())), decode_lease)


def decode_lease(data: BytesLike, *, object: str) -> LeaseInfo:
    """``lease``: who seems to be alive; once released, where its stream ends. Raises ``Damaged`` (for a hint: ignore it)."""
    fields = _body(data, ObjectKind.LEASE, object)
    epoch, counter, host, pid = fields.whole(), fields.whole(), fields.text(_TEXT_MAX), fields.whole()
    lease = LeaseInfo(epoch, counter, host, pid, fields.text(_TEXT_MAX), fields.flag())
    if fields.is_at_end or not lease.released:
        return lease
    end = lease._replace(lsn=fields.whole(), hash=fields.raw(HASH_BYTES))
    return end if end.lsn else fields.wrong("the hash of a record")
