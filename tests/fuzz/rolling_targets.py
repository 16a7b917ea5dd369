"""Header files."""

from __future__ import annotations

from collections.abc import Callable

from chunkstore.codec import rolling_header
from chunkstore.codec.rolling_header import ConcatEntry, HeaderEntry, decode_header, encode_header
from chunkstore.errors import Damaged
from tests.fuzz.chance import NUMBERS, Chance, mangled
from tests.fuzz.target import Gate, Spy, Target
from tests.support.header_files import decode_entries

__all__ = ["ROLLING_TARGETS"]

_PARTS = (
    b"maxsize=100&", b"MAXSIZE=1&", b"concat=2@200&", b"concat=0@0&", b"concat=1@9223372036854775807&", b"0=s$offset.0&",
    b"0=t&", b"100=s$offset.100&", b"200=a=b/c&", b"300=x&", b"1=../../x&", b"&", b"=&", b"9" * 4000 + b"=x&", b"0=" + b"x" * 2000 + b"&",
)  # fmt: skip


def _make(chance: Chance) -> bytes:
    parts = [chance.one_of(_PARTS[:10]) for _ in range(chance.below(12))]
    while chance.random() < 0.5:
        number = str(abs(chance.one_of(NUMBERS))).encode()
        parts.insert(
            chance.below(len(parts) + 1), chance.one_of((chance.one_of(_PARTS), number + b"=n" + number + b"&"))
        )
    raw = b"".join(parts)
    return mangled(chance, raw, chance.one_of(_PARTS)) if chance.random() < 0.5 else raw


def _decode(data: bytes, gate: Gate) -> Callable[[], None]:
    try:
        header = decode_header(data)
    except Damaged as error:
        assert 0 <= error.position <= len(data), error.position
        raise
    entries = decode_entries(data)

    def again() -> None:
        offsets = [chunk.offset for chunk in header.chunks]
        assert offsets == sorted(offsets)
        assert decode_entries(encode_header(entries)) == entries
        if header.chunks and not any(isinstance(entry, ConcatEntry) for entry in entries):
            plain: list[HeaderEntry] = list(header.chunks)
            assert decode_header(encode_header(plain)).chunks == header.chunks

    return again


ROLLING_TARGETS: tuple[Target, ...] = (
    Target(
        "rolling-header", "entries of two halves that end with &", _make, _decode, (Damaged,), (Spy(rolling_header, "_resolved"),)
    ),
)  # fmt: skip
