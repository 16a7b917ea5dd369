"""The small self-checking objects next to the streams: FORMAT, claims and hints (protocol 3.1, A10, A15).

Promises: each is one header (magic, version, kind, length, CRC32C) and one msgpack array; encoding is canonical, so that
a repeated put-if-absent offers identical bytes; decoding accepts exactly one whole object of the kind asked for, of at
most ``LIMITS.small_object_bytes_max`` bytes, and raises ``Damaged(object, position)`` for anything else.
Leaves out: where they are (``names``) and what they decide (claims decide everything; hints nothing).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Literal, NamedTuple, TypeAlias

from chunkstore.checksum import BytesLike
from chunkstore.config import LIMITS
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.journal import LeaseInfo
from chunkstore_journal.payloads import MODE_NUMBERS, MODES, SnapshotLink, link_from_wire, link_to_wire
from chunkstore_journal.wire import (
    FRAME_HEADER_BYTES,
    HASH_BYTES,
    TOKEN_BYTES,
    Fields,
    check_frame,
    decode_frame_header,
    encode_frame,
    must_be_readable,
    pack,
    refuse,
    unpack,
)

__all__ = [
    "CONTAINER_FORMAT_VERSION",
    "Claim",
    "ContainerFormat",
    "LatestHint",
    "LeaseHint",
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


LeaseHint: TypeAlias = LeaseInfo
"""``lease``: who seems to be alive; once released, where its stream ends."""


def _seal(kind: ObjectKind, fields: tuple[object, ...]) -> bytes:
    raw = encode_frame(MAGIC, OBJECT_VERSION, kind, pack(fields))
    if len(raw) > LIMITS.small_object_bytes_max:
        raise InvalidArgument(
            f"a {kind.name} object of {len(raw)} bytes exceeds {LIMITS.small_object_bytes_max}; shorten its texts",
            argument="payload",
        )
    return raw


def _body(data: BytesLike, kind: ObjectKind, object: str) -> Fields:
    raw = bytes(data[: LIMITS.small_object_bytes_max + 1])
    limit = LIMITS.small_object_bytes_max - FRAME_HEADER_BYTES
    header = decode_frame_header(raw, MAGIC, limit, object=object, position=0)
    body = raw[FRAME_HEADER_BYTES:]
    check_frame(raw, body, version=OBJECT_VERSION, object=object, position=0)
    if header.kind != kind:
        refuse(f"an object of kind {header.kind}, where {kind.name} ({int(kind)}) belongs", object, 0)
    return Fields(unpack(body, object, FRAME_HEADER_BYTES), f"the {kind.name} object", object, FRAME_HEADER_BYTES)


def _canonical(value: Plain, depth: int = 0) -> object:
    """``value`` with sorted maps and tuples for arrays. Raises ``InvalidArgument`` for what is not plain data."""
    if depth > _PLAIN_DEPTH_MAX:
        raise InvalidArgument(f"probe results nest deeper than {_PLAIN_DEPTH_MAX}", argument="probe")
    if value is None or isinstance(value, (bool, int, str, bytes)):
        return value
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise InvalidArgument("names in probe results must be text", argument="probe")
        return {key: _canonical(value[key], depth + 1) for key in sorted(value)}
    if isinstance(value, (tuple, list)):
        return tuple(_canonical(item, depth + 1) for item in value)
    raise InvalidArgument(f"{type(value).__name__} is not plain data", argument="probe")


def _plain(value: object, object: str, depth: int = 0) -> Plain:
    if value is None or isinstance(value, (bool, int, str, bytes)):
        return value
    if isinstance(value, tuple) and depth < _PLAIN_DEPTH_MAX:
        return tuple(_plain(item, object, depth + 1) for item in value)
    if isinstance(value, dict) and depth < _PLAIN_DEPTH_MAX and all(type(key) is str for key in value):
        return {key: _plain(item, object, depth + 1) for key, item in value.items()}
    raise Damaged("a probe result is not plain data", object=object, position=FRAME_HEADER_BYTES)


def encode_format(value: ContainerFormat) -> bytes:
    """FORMAT's bytes. Raises ``InvalidArgument`` for what ``decode_format`` would refuse."""
    if value.mode not in MODE_NUMBERS:
        raise InvalidArgument(f"mode must be 'slot' or 'append', not {value.mode!r}", argument="mode")
    mode = MODE_NUMBERS[value.mode]
    probe = _canonical(value.probe)
    body = (value.uuid, value.version, mode, value.medium, probe, value.created_ms, value.name)
    raw = _seal(ObjectKind.FORMAT, (*body, True) if value.imports else body)
    with must_be_readable("FORMAT"):
        decode_format(raw, object="FORMAT")
    return raw


def decode_format(data: BytesLike, *, object: str) -> ContainerFormat:
    """The container's FORMAT, of whatever ``version``: the caller refuses versions it does not know. Raises ``Damaged``."""
    fields = _body(data, ObjectKind.FORMAT, object)
    uuid, version, mode = fields.raw(16), fields.whole(), MODES.get(fields.whole())
    if mode is None:
        fields.wrong("a journal mode")
    medium, probe = fields.text(_TEXT_MAX), _plain(fields.take(), object)
    if not isinstance(probe, Mapping):
        fields.wrong("a map of probe results")
    created_ms, name = fields.whole(), fields.text(_TEXT_MAX)
    return ContainerFormat(
        uuid, version, mode, medium, probe, created_ms, name, not fields.is_at_end and fields.take() is True
    )


def encode_claim(value: Claim) -> bytes:
    """A claim's bytes. Raises ``InvalidArgument`` for what ``decode_claim`` would refuse."""
    raw = _seal(ObjectKind.CLAIM, tuple(value))
    with must_be_readable("claim"):
        decode_claim(raw, object="claim")
    return raw


def decode_claim(data: BytesLike, *, object: str) -> Claim:
    """A claim. Raises ``Damaged``."""
    fields = _body(data, ObjectKind.CLAIM, object)
    return Claim(
        fields.whole(),
        fields.raw(TOKEN_BYTES),
        fields.text(_TEXT_MAX),
        fields.whole(),
        fields.text(_TEXT_MAX),
        fields.whole(),
    )


def encode_voided(value: VoidedHint) -> bytes:
    """The bytes of ``j/VOIDED``. Raises ``InvalidArgument`` for what ``decode_voided`` would refuse."""
    raw = _seal(ObjectKind.VOIDED, tuple(value))
    with must_be_readable("VOIDED hint"):
        decode_voided(raw, object="VOIDED")
    return raw


def decode_voided(data: BytesLike, *, object: str) -> VoidedHint:
    """``j/VOIDED``. Raises ``Damaged`` (for a hint: ignore it)."""
    fields = _body(data, ObjectKind.VOIDED, object)
    hint = VoidedHint(fields.whole(), fields.whole())
    if hint.previous_epoch >= hint.epoch:
        fields.wrong(f"an epoch above {hint.previous_epoch}")
    return hint


def encode_latest(value: LatestHint) -> bytes:
    """The bytes of ``snap/LATEST``. Raises ``InvalidArgument`` for what ``decode_latest`` would refuse."""
    raw = _seal(ObjectKind.LATEST, (link_to_wire(value.snapshot), value.epoch))
    with must_be_readable("LATEST hint"):
        decode_latest(raw, object="LATEST")
    return raw


def decode_latest(data: BytesLike, *, object: str) -> LatestHint:
    """``snap/LATEST``. Raises ``Damaged`` (for a hint: ignore it)."""
    fields = _body(data, ObjectKind.LATEST, object)
    return LatestHint(link_from_wire(fields.array(), object, FRAME_HEADER_BYTES), fields.whole())


def encode_lease(value: LeaseHint) -> bytes:
    """The bytes of ``lease``. Raises ``InvalidArgument`` for what ``decode_lease`` would refuse."""
    more = (value.lsn, value.hash) if value.lsn else ()
    raw = _seal(ObjectKind.LEASE, (*value[:6], *more))
    with must_be_readable("lease"):
        decode_lease(raw, object="lease")
    return raw


def decode_lease(data: BytesLike, *, object: str) -> LeaseHint:
    """``lease``. Raises ``Damaged`` (for a hint: ignore it)."""
    fields = _body(data, ObjectKind.LEASE, object)
    lease = LeaseInfo(
        fields.whole(),
        fields.whole(),
        fields.text(_TEXT_MAX),
        fields.whole(),
        fields.text(_TEXT_MAX),
        fields.flag(),
    )
    if fields.is_at_end or not lease.released:
        return lease
    end = lease._replace(lsn=fields.whole(), hash=fields.raw(HASH_BYTES))
    return end if end.lsn else fields.wrong("the hash of a record")
