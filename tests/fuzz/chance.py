"""Mutations: of bytes, and of the arrays and maps that msgpack can say. All of it follows from one seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import msgpack

T = TypeVar("T")
Tree: TypeAlias = object
"""Tuples, dicts with text keys, ints, bytes, text, booleans, None: what msgpack can hold."""

NUMBERS = (
    0, 1, 2, 7, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 4095, 4096, 0x7FFF, 0xFFFF, 1 << 16, (1 << 31) - 1, 1 << 31,
    (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, -2, -128, -(1 << 31), -(1 << 63),
)  # fmt: skip
_WIDTHS = (1, 2, 4, 8)
_TEXTS = (
    "",
    "a",
    "slot",
    "append",
    "default/FORMAT",
    "../../etc/passwd",
    "\0",
    "é",
    "\U0010ffff",
    "x" * 300,
    "y" * 5000,
)
_BOMBS = (
    b"\xdd\xff\xff\xff\xff",  # an array, a map, bytes, text of 4 GiB
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xdc\xff\xff",
    b"\xde\xff\xff",
    b"\x91" * 600,  # deep nesting
    b"\x81\xa0" * 300,
    b"\xdc\x00\x40" * 40,  # nested and wide
    b"\xdc\x01\x40" * 1000,
    b"\xdc\x30\x00" * 200,
    b"\xc1",  # never used
    b"\xc9\xff\xff\xff\xff\x05",  # extension types
    b"\xd4\x01\x00",
    b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
)
_packer = msgpack.Packer(autoreset=True)


class Chance(random.Random):
    """``random.Random`` with a fast ``below``: mutating must not cost more than decoding."""

    def below(self, limit: int) -> int:
        """A whole number from 0 to ``limit - 1``."""
        return int(self.random() * limit)

    def one_of(self, items: Sequence[T]) -> T:
        """One of ``items``."""
        return items[int(self.random() * len(items))]

    def number(self, near: int = 0) -> int:
        """A number that is likely to hurt: a limit of something, or a neighbour of ``near``."""
        if self.random() < 0.3:
            return near + self.below(5) - 2
        if self.random() < 0.2:
            return self.getrandbits(1 + self.below(64))
        return self.one_of(NUMBERS)


def packed(value: Tree) -> bytes:
    """The msgpack bytes; of nil where msgpack cannot hold the value."""
    try:
        raw: bytes = _packer.pack(value)
    except (ValueError, TypeError, OverflowError):
        _packer.reset()
        return b"\xc0"
    return raw


def mangled(chance: Chance, data: bytes, other: bytes = b"") -> bytes:
    """``data`` with one to a few bytes, numbers or ranges changed, moved, cut or added. ``other`` is spliced in."""
    copy = bytearray(data)
    while True:
        length = len(copy)
        at = chance.below(length + 1)
        what = chance.below(12)
        if what < 3 and at < length:
            copy[at] ^= 1 << chance.below(8)
        elif what == 3 and at < length:
            copy[at] = chance.one_of((0, 1, 0x7F, 0x80, 0xFF, 0x90, 0xC0, 0xDC, chance.below(256)))
        elif what == 4:
            width = chance.one_of(_WIDTHS)
            number = chance.number() & ((1 << 8 * width) - 1)
            copy[at : at + width] = number.to_bytes(width, chance.one_of(("big", "big", "little")))
        elif what == 5:
            del copy[at : at + 1 + chance.below(1 + chance.one_of((1, 4, 16, length)))]
        elif what == 6:
            copy[at:at] = chance.randbytes(1 + chance.below(chance.one_of((2, 16, 200))))
        elif what == 7:
            end = at + 1 + chance.below(32)
            copy[end:end] = copy[at:end] * chance.one_of((1, 1, 2, 9))
        elif what == 8:
            del copy[at:]
        elif what == 9:
            copy[at : at + 16] = bytes(len(copy[at : at + 16]))
        elif what == 10:
            copy[at:] = other[chance.below(len(other) + 1) :]
        else:
            copy += chance.one_of((b"\0", b"\0" * 300, b"\xff" * 16, other, chance.randbytes(7)))
        if chance.random() < 0.6:
            return bytes(copy)


def _anything(chance: Chance, old: Tree, other: Tree) -> Tree:
    """Something to stand where ``old`` stood: close to it, of another type, or a part of ``other``."""
    what = chance.below(12)
    if what < 5:
        if type(old) is int:
            return chance.number(old)
        if type(old) is bytes:
            return chance.one_of((mangled(chance, old), old[:-1], old + b"\0", b"", b"x" * 5000, old * 3))
        if type(old) is str:
            return chance.one_of((*_TEXTS, old + "x", old[:-1], old * 2))
        if type(old) is tuple:
            return _rearranged(chance, old, other)
        return None if old is not None else 0
    if what == 5:
        return chance.number()
    if what == 6:
        return chance.one_of((None, True, False, 1.5, float("nan"), (), {}, b"", ""))
    if what == 7:
        return chance.randbytes(chance.one_of((0, 1, 15, 16, 17, 28, 32, 300)))
    if what == 8:
        return chance.one_of(_TEXTS)
    if what == 9:
        return (old,) * chance.one_of((1, 2, 33, 70))
    if what == 10:
        return {"k": old, "a": 1}
    part = other
    while type(part) is tuple and part and chance.random() < 0.7:
        part = chance.one_of(part)
    return part


def _rearranged(chance: Chance, old: tuple[Tree, ...], other: Tree) -> Tree:
    at = chance.below(len(old) + 1)
    what = chance.below(6)
    if what == 0:
        return old[:at] + old[at + 1 :]
    if what == 1:
        return (*old[:at], chance.number(), *old[at:])
    if what == 2:
        return old[:at] + old[at : at + 1] * chance.one_of((2, 2, 3, 40)) + old[at:]
    if what == 3:
        return old[::-1]
    if what == 4:
        return old[at:]
    return old + other if type(other) is tuple else (old,)


def grafted(chance: Chance, value: Tree, other: Tree = (), *, root: bool = True) -> Tree:
    """``value`` with one element somewhere inside changed, removed, added or replaced."""
    if type(value) is tuple and value and chance.random() < (0.97 if root else 0.75):
        at = chance.below(len(value))
        return (*value[:at], grafted(chance, value[at], other, root=False), *value[at + 1 :])
    if type(value) is dict and value and chance.random() < 0.75:
        name = chance.one_of(tuple(value))
        return {**value, name: grafted(chance, value[name], other, root=False)}
    return _anything(chance, value, other)


def wire(chance: Chance, value: Tree, other: Tree = ()) -> bytes:
    """msgpack bytes of ``value`` with a few elements changed; sometimes with wrong bytes, a bomb, or unchanged."""
    while chance.random() < 0.9:
        value = grafted(chance, value, other)
        if chance.random() < 0.6:
            break
    raw = packed(value)
    what = chance.random()
    if what < 0.12:
        return mangled(chance, raw, packed(other))
    if what < 0.15:
        at = chance.below(len(raw) + 1)
        return raw[:at] + chance.one_of(_BOMBS) + raw[at + chance.below(3) :]
    return raw
