"""Writers outside the owner (protocol A9): what travels to them, and what they send back.

Promises: plain data, picklable, that imports no engine: executors have the storage, but neither the metadata nor the claim. A
session's chunks have names of their own (``d/<2 hex>/s<session>-<n>-<random>``), which no sweep touches before the session ends.
Leaves out: opening, attaching and ending, which the owner does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

from chunkstore.errors import InvalidArgument
from chunkstore.records.blocks import count_borders
from chunkstore.records.names import session_chunk_id, utf8_bytes

__all__ = [
    "SessionChunk",
    "check_chunk_number",
    "check_holder",
    "check_session_chunks",
    "check_session_id",
    "staged_name",
    "staged_session",
]

_NUMBER_MAX: Final = (1 << 64) - 1
_STAGED: Final = re.compile(r"\0staged/([0-9a-f]{16})/[0-9a-f]{32}\Z")


class SessionChunk(NamedTuple):
    """A chunk that a session has written and made durable. ``border_crcs``: the CRCs at the borders of its blocks (``records.blocks``);
    without them only reads of the whole chunk are verified."""

    id: bytes
    length: int
    crc32c: int
    border_crcs: tuple[int, ...] = ()


def check_session_id(session_id: object) -> None:
    """A whole number of 63 bits. Raises ``InvalidArgument``."""
    if type(session_id) is not int or not 1 <= session_id < 1 << 63:
        raise InvalidArgument(f"{session_id!r} is not a session's id", argument="session_id")


def check_holder(holder: object, ttl_s: object) -> None:
    """A session's holder and how long it may be open, labels both. Raises ``InvalidArgument``."""
    if not isinstance(holder, str) or not 1 <= utf8_bytes(holder) <= 255:
        raise InvalidArgument("holder must be a str of 1 to 255 bytes", argument="holder")
    if not isinstance(ttl_s, (int, float)) or not 0 < ttl_s <= 366 * 86_400:
        raise InvalidArgument(f"ttl_s must be a number of seconds above 0, not {ttl_s!r}", argument="ttl_s")


def check_chunk_number(number: object, argument: str, most: int = _NUMBER_MAX) -> None:
    """A whole number from 0 to ``most``. Raises ``InvalidArgument``."""
    if type(number) is not int or not 0 <= number <= most:
        raise InvalidArgument(f"{argument} must be a whole number from 0 to {most}, not {number!r}", argument=argument)


def check_session_chunks(session_id: int, chunks: object) -> None:
    """Chunks that this session wrote, each once. Raises ``InvalidArgument`` naming a bad one."""
    if not isinstance(chunks, (tuple, list)):
        raise InvalidArgument("chunks are a tuple of SessionChunk", argument="chunks")
    prefix = session_chunk_id(session_id, 0, 0)[:16]
    seen: set[bytes] = set()
    for position, item in enumerate(chunks):
        good = isinstance(item, SessionChunk) and isinstance(item.id, bytes) and len(item.id) == 28
        if not good or type(item.length) is not int or type(item.crc32c) is not int:
            raise InvalidArgument(f"chunk {position} is not a SessionChunk", argument="chunks")
        if item.id[:16] != prefix or item.length < 1 or not 0 <= item.crc32c < 1 << 32:
            raise InvalidArgument(f"chunk {position} was not written by session {session_id:x}", argument="chunks")
        if type(item.border_crcs) is not tuple or (
            item.border_crcs and not _are_crcs_of(item.border_crcs, item.length)
        ):
            raise InvalidArgument(f"chunk {position} has other borders than its length", argument="chunks")
        if item.id in seen:
            raise InvalidArgument(f"chunk {position} is named twice", argument="chunks")
        seen.add(item.id)


def _are_crcs_of(crcs: tuple[object, ...], length: int) -> bool:
    good = all(type(crc) is int and 0 <= crc < 1 << 32 for crc in crcs)
    return good and len(crcs) == count_borders(length)


def staged_name(session_id: int, ids: Iterable[bytes]) -> str:
    """What a segment is called that holds these chunks of a session until a commit concats it to another. No one can say such a name
    (``metadata.keys.VISIBLE_SEGMENTS``), and the same chunks have the same one."""
    return f"\0staged/{session_id:016x}/{blake2b(b''.join(ids), digest_size=16).hexdigest()}"


def staged_session(name: str) -> int | None:
    """The session whose chunks a segment of such a name holds; None: it has another name."""
    found = _STAGED.match(name)
    return None if found is None else int(found[1], 16)
