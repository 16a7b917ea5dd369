"""The pin of a stream that must not lose what it has not read: at the owner, with the stream's offsets, and moved as it goes on.

Promises: from the first batch on there is a pin at or before what the stream has finished: a new one is made before the old one goes.
It holds segments that are made later, too, by the beginnings of their names. It outlives the stream, and everybody may remove it
(``chunkstore pins rm``). Before a checkpoint knows the consumer, its pin ends by itself after a week: who was killed so early comes back
under another name. Leaves out: who owns the container, which must be alive for the first pin; later a pin that cannot be moved stays
where it is.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple
from zlib import crc32

from chunkstore.asker import Asker
from chunkstore.config import LIMITS
from chunkstore.errors import ChunkstoreError, InvalidArgument
from chunkstore.records import Pin, SegmentInfo

__all__ = ["ProgressPins", "Unread", "unread_of"]

_NOTE: Final = "progress of a stream"
_MOVE_S: Final = 20.0
_BEGINS_S: Final = 7 * 86_400.0
_LOG = logging.getLogger("chunkstore.spark")


class Unread(NamedTuple):
    """What a pin is to hold: by segment what lies behind an offset; and of others, also of later ones, all, if their names begin so."""

    offsets: Mapping[str, int]
    prefixes: tuple[str, ...]

    def is_held(self, pin: Pin) -> bool:
        """Whether this pin does."""
        held = ((pin.held(name), at) for name, at in self.offsets.items())
        return set(self.prefixes) <= set(pin.prefixes) and all(low is not None and low <= at for low, at in held)

    def pinned(self) -> Mapping[str, int]:
        """The offsets that a pin names. Of too many it names the first ones; its prefixes hold the others whole.

        Raises ``InvalidArgument``: nothing would hold them."""
        if len(self.offsets) > LIMITS.pin_offsets_max and not self.prefixes:
            raise InvalidArgument(
                f"a pin names {LIMITS.pin_offsets_max} segments at most; this stream reads {len(self.offsets)}: give a segmentsPattern",
                argument="pinProgress",
            )
        return dict(islice(self.offsets.items(), LIMITS.pin_offsets_max))


def unread_of(found: Iterable[tuple[SegmentInfo, int]], prefixes: tuple[str, ...], turn: int) -> Unread:
    """``found``: segments that are there, and how far each was read. Those of which something may go come first, by turns."""

    def order(item: tuple[SegmentInfo, int]) -> tuple[bool, int]:
        info, at = item
        return at <= info.start_offset, crc32(f"{turn} {info.name}".encode())

    in_order = sorted(found, key=order)
    return Unread({info.name: min(max(at, info.start_offset), info.length) for info, at in in_order}, prefixes)


class ProgressPins:
    """Those of one consumer."""

    def __init__(self, asker: Asker, consumer: str) -> None:
        self._asker = asker
        self._prefix = f"spark-{consumer}-"

    def require(self, unread: Unread, *, lasting: bool) -> None:
        """Have a pin that holds ``unread``. Not ``lasting``: one that ends in a week: only this process knows the consumer yet.
        Raises ``InvalidArgument`` (too many segments), and as ``Asker.pin``."""
        begins = f"{self._prefix}begins"
        pins = [pin for pin in self._asker.replica.pins() if pin.name.startswith(self._prefix)]
        able = [pin for pin in pins if pin.expires_at is None or not lasting]
        if not any(map(unread.is_held, able)):
            name, expires_s = (self._name(unread), None) if lasting else (begins, _BEGINS_S)
            self._pin(name, unread, expires_s)
        if lasting and any(pin.name == begins for pin in pins):
            with suppress(ChunkstoreError):  # it ends by itself
                self._drop([begins])

    def move(self, unread: Unread) -> bool:
        """Have a pin that holds ``unread``, and no other. False: that failed, and the pin stays behind; the next move takes it along."""
        try:
            name = self._name(unread)
            there = self._names()
            if name not in there:
                self._pin(name, unread, wait_s=_MOVE_S)
            self._drop([other for other in there if other != name])
        except ChunkstoreError as error:
            _LOG.warning("the pin of a stream stays where it is: %s", error.message)
            return False
        return True

    def _pin(self, name: str, unread: Unread, expires_s: float | None = None, **wait: float) -> None:
        self._asker.pin(name, _NOTE, expires_s, offsets=unread.pinned(), prefixes=unread.prefixes, **wait)

    def drop(self) -> None:
        """Give all of them up, if that is possible now."""
        try:
            self._drop(self._names())
        except ChunkstoreError as error:
            _LOG.warning("the pin %s... of a stream that never began stays: %s", self._prefix, error.message)

    def _drop(self, names: list[str]) -> None:
        for name in names:
            self._asker.unpin(name, wait_s=_MOVE_S)

    def _names(self) -> list[str]:
        return [pin.name for pin in self._asker.replica.pins() if pin.name.startswith(self._prefix)]

    def _name(self, unread: Unread) -> str:
        text = repr((sorted(unread.pinned().items()), unread.prefixes)).encode()
        return self._prefix + hashlib.sha256(text).hexdigest()[:16]
