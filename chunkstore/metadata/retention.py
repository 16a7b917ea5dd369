"""Rows of retention policies and of the quota, in the reserved table namespaces ``!retention`` and ``!quota`` (FORMAT.md, same names).

Promises: a policy is of one segment, by its exact name, or of all names with a prefix; both kinds are ordered by name. A segment's
own policy goes before those of prefixes, and a longer prefix before a shorter one.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import chain
from struct import Struct

from chunkstore.config import RetentionPolicy
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import QUOTA_KEY, RETENTION_NAMESPACE, SEGMENT, VISIBLE_SEGMENTS, table_key, table_prefix
from chunkstore.metadata.port import MetadataView
from chunkstore.records.names import check_segment_name, utf8_bytes

__all__ = [
    "Policies",
    "decode_policy",
    "encode_policy",
    "encode_quota",
    "find_quota",
    "keys_of",
    "pattern_key",
    "scan_policies",
]

_VALUE = Struct(">BQQ")
_QUOTA = Struct(">BQ")
_VERSION = 1
_NONE = 0
_SIZE_MAX = 1 << 62
_AGE_MS_MAX = 10**13
_OF_PREFIX, _OF_NAME = b"*", b"="
_PREFIX_BYTES_MAX = 255
_TABLE = table_prefix(RETENTION_NAMESPACE)


def encode_policy(policy: RetentionPolicy) -> bytes:
    """The value of a policy's row."""
    return _VALUE.pack(_VERSION, policy.size_bytes_max or _NONE, policy.age_ms_max or _NONE)


def decode_policy(key: bytes, raw: bytes) -> RetentionPolicy:
    """The policy in a row. Raises ``Damaged``: what cannot be read gives nothing up."""
    value = decode_table(key, raw).value
    if len(value) == _VALUE.size:
        version, size, age_ms = _VALUE.unpack(value)
        if version == _VERSION and (size or age_ms) and size <= _SIZE_MAX and age_ms <= _AGE_MS_MAX:
            return RetentionPolicy(size_bytes_max=size or None, age_s_max=age_ms / 1000 if age_ms else None)
    raise Damaged("not a retention policy of a known version; set it again", object=f"metadata row {key!r}")


def encode_quota(quota_bytes: int) -> bytes:
    """The value of the quota's row. Raises ``InvalidArgument``."""
    if isinstance(quota_bytes, bool) or not isinstance(quota_bytes, int) or not 0 < quota_bytes <= _SIZE_MAX:
        raise InvalidArgument(f"quota_bytes is 1 to {_SIZE_MAX}, not {quota_bytes!r}", argument="quota_bytes")
    return _QUOTA.pack(_VERSION, quota_bytes)


def find_quota(view: MetadataView) -> int | None:
    """The stored quota in bytes, or None. Raises ``Damaged``."""
    raw = view.get(QUOTA_KEY)
    if raw is None:
        return None
    value = decode_table(QUOTA_KEY, raw).value
    if len(value) == _QUOTA.size:
        version, quota_bytes = _QUOTA.unpack(value)
        if version == _VERSION and 0 < quota_bytes <= _SIZE_MAX:
            return int(quota_bytes)
    raise Damaged("not a quota of a known version; set it again", object=f"metadata row {QUOTA_KEY!r}")


def pattern_key(pattern: str) -> bytes:
    """The key, within the namespace, of a segment's policy, or of a prefix's: a name that ends with ``*``. Raises ``InvalidArgument``."""
    if not isinstance(pattern, str) or not pattern.endswith("*"):
        check_segment_name(pattern, "name_or_prefix")
        return _OF_NAME + pattern.encode()
    prefix = pattern[:-1]
    if not 0 <= utf8_bytes(prefix) <= _PREFIX_BYTES_MAX or "\0" in prefix:
        text = (
            f"a prefix has at most {_PREFIX_BYTES_MAX} bytes of UTF-8 in front of its '*', and no NUL: not {pattern!r}"
        )
        raise InvalidArgument(text, argument="name_or_prefix")
    return _OF_PREFIX + prefix.encode()


def keys_of(name: str) -> Iterator[bytes]:
    """The keys of all rows that may hold the policy of a segment, or come to."""
    encoded = name.encode()
    yield table_key(RETENTION_NAMESPACE, _OF_NAME + encoded)
    for length in range(min(len(encoded), _PREFIX_BYTES_MAX) + 1):
        yield table_key(RETENTION_NAMESPACE, _OF_PREFIX + encoded[:length])


def scan_policies(view: MetadataView) -> Iterator[tuple[str, RetentionPolicy]]:
    """All policies with the names or prefixes that they are of: prefixes first, then names, each in order. Raises ``Damaged``."""
    for key, raw in view.scan(_TABLE, _TABLE + b"\xff"):
        kind, text = key[len(_TABLE) : len(_TABLE) + 1], key[len(_TABLE) + 1 :].decode("utf-8", "replace")
        if kind not in (_OF_PREFIX, _OF_NAME):
            raise Damaged("not the key of a retention policy", object=f"metadata row {key!r}")
        yield text + ("*" if kind == _OF_PREFIX else ""), decode_policy(key, raw)


class Policies:
    """The policies that a view shows. Reads those of prefixes, which are few, at once. Raises ``Damaged``."""

    def __init__(self, view: MetadataView) -> None:
        self._view = view
        start = _TABLE + _OF_PREFIX
        rows = view.scan(start, start + b"\xff")
        self._prefixes = {key[len(start) :]: decode_policy(key, raw) for key, raw in rows}
        self._lengths = sorted({len(prefix) for prefix in self._prefixes}, reverse=True)

    def of(self, name: bytes) -> RetentionPolicy:
        """The policy of the segment of this name, which is one of ``names``. Raises ``Damaged``."""
        found = self.find(name)
        assert found is not None
        return found

    def find(self, name: bytes) -> RetentionPolicy | None:
        """The policy of any segment, or None. Raises ``Damaged``."""
        key = table_key(RETENTION_NAMESPACE, _OF_NAME + name)
        raw = self._view.get(key)
        if raw is not None:
            return decode_policy(key, raw)
        return next((found for length in self._lengths if (found := self._prefixes.get(name[:length]))), None)

    def names(self, after: bytes | None) -> Iterator[bytes]:
        """In order, each once, the names above ``after`` of segments with a policy; those of policies whose segment is not there, too."""
        below = chain.from_iterable(self._below(prefix, after) for prefix in self._outermost())
        before: bytes | None = None
        for name in merge(self._own(after), below):
            if name != before:
                yield name
            before = name

    def _own(self, after: bytes | None) -> Iterator[bytes]:
        base = _TABLE + _OF_NAME
        for key, _ in self._view.scan(base if after is None else base + after + b"\0", base + b"\xff"):
            yield key[len(base) :]

    def _below(self, prefix: bytes, after: bytes | None) -> Iterator[bytes]:
        base = SEGMENT + prefix
        start = max(base, VISIBLE_SEGMENTS, b"" if after is None else SEGMENT + after + b"\0")
        for key, _ in self._view.scan(start, base + b"\xff"):
            yield key[len(SEGMENT) :]

    def _outermost(self) -> Iterator[bytes]:
        outer: bytes | None = None
        for prefix in sorted(self._prefixes):
            if outer is None or not prefix.startswith(outer):
                outer = prefix
                yield prefix
