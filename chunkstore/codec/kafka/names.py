"""Names that Kafka and its tiers give to things: topics, uuids, segment files, partition folders, and object keys of a bucket.

Promises: parsing never guesses: what is not exactly such a name is ``None`` (of listings) or ``Damaged`` (of stored text); no topic
leaves its folder. Leaves out: where the names are listed.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

from chunkstore.errors import Damaged

__all__ = [
    "ObjectKey", "is_topic", "parse_object_key", "parse_partition_folder", "parse_segment_file", "parse_uuid", "segment_file", "uuid_text",
]  # fmt: skip

_TOPIC: Final = "([a-zA-Z0-9._-]{1,249})"
_UUID: Final = "([a-zA-Z0-9_-]{22})"
_NUMBER: Final = "(0|[1-9][0-9]{0,9})"
_FILE: Final = re.compile(r"([0-9]{20})\.(log|index|timeindex|txnindex|snapshot)")
_FOLDER: Final = re.compile(f"{_TOPIC}-{_NUMBER}")
_KEY: Final = re.compile(rf"{_TOPIC}-{_UUID}/{_NUMBER}/([0-9]{{20}})-{_UUID}\.(log|indexes|rsm-manifest)")


def is_topic(name: str) -> bool:
    """Whether Kafka allows this name of a topic."""
    return re.fullmatch(_TOPIC, name) is not None and name not in (".", "..")


def uuid_text(raw: bytes) -> str:
    """Kafka's text of the 16 bytes of a uuid: base64url without padding, 22 characters."""
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def parse_uuid(text: str, *, object: str, position: int = 0) -> bytes:
    """The 16 bytes of Kafka's text of a uuid; ``Damaged`` names ``object`` and ``position`` if it is none."""
    raw = urlsafe_b64decode(text + "==") if re.fullmatch(_UUID, text) else b""
    if uuid_text(raw) != text or not raw:
        raise Damaged(f"{text[:40]!r} is not a uuid in base64url", object=object, position=position)
    return raw


def segment_file(base_offset: int, suffix: str) -> str:
    """The name of a segment's file: ``log``, ``index``, ``timeindex``, ``txnindex`` or ``snapshot``."""
    return f"{base_offset:020d}.{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """Base offset and suffix of a segment's file; ``None`` for any other name (``.deleted`` and ``.cleaned`` files are others)."""
    found = _FILE.fullmatch(name)
    return (int(found[1]), found[2]) if found and int(found[1]) < 1 << 63 else None


def parse_partition_folder(name: str) -> tuple[str, int] | None:
    """Topic and partition of a folder; ``None`` for any other name (``-delete``, ``-future`` and ``-stray`` folders are others)."""
    found = _FOLDER.fullmatch(name)
    return (found[1], int(found[2])) if found and is_topic(found[1]) and int(found[2]) < 1 << 31 else None


class ObjectKey(NamedTuple):
    """What the key of an object says. ``suffix`` is ``log``, ``indexes`` or ``rsm-manifest``, which is written last."""

    topic: str
    topic_id: bytes
    partition: int
    base_offset: int
    segment_id: bytes
    suffix: str


def parse_object_key(key: str, prefix: str = "") -> ObjectKey | None:
    """What a key below ``prefix`` says; ``None`` for other keys. A prefix may end without a slash: only the caller knows its end."""
    found = _KEY.fullmatch(key, len(prefix)) if key.startswith(prefix) else None
    if not found or not is_topic(found[1]) or int(found[3]) >= 1 << 31 or int(found[4]) >= 1 << 63:
        return None
    try:
        topic_id, segment_id = (parse_uuid(found[number], object=key) for number in (2, 5))
    except Damaged:
        return None
    return ObjectKey(found[1], topic_id, int(found[3]), int(found[4]), segment_id, found[6])
