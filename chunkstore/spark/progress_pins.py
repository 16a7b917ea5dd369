"""The pin of a stream that must not lose what it has not read: at the owner, with the stream's offsets, and moved as it goes on.

Promises: from the first batch on there is a pin at or before what the stream has finished: a new one is made before the old one goes.
It outlives the stream, and everybody may remove it (``chunkstore pins rm``). Before a checkpoint knows the consumer, its pin ends by itself
after a week: who was killed so early comes back under another name. Leaves out: who owns the container, which must be alive
for the first pin; later a pin that cannot be moved stays where it is.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from chunkstore.asker import Asker
from chunkstore.config import LIMITS
from chunkstore.errors import ChunkstoreError, InvalidArgument

__all__ = ["ProgressPins"]

_MOVE_S: Final = 20.0
_BEGINS_S: Final = 7 * 86_400.0
_LOG = logging.getLogger("chunkstore.spark")


class ProgressPins:
    """Those of one consumer."""

    def __init__(self, asker: Asker, consumer: str) -> None:
        self._asker = asker
        self._prefix = f"spark-{consumer}-"

    def require(self, offsets: Mapping[str, int], *, lasting: bool) -> None:
        """Have a pin at or before ``offsets``. Not ``lasting``: one that ends in a week: only this process knows the consumer yet.
        Raises ``InvalidArgument`` (too many segments), and as ``Asker.pin``."""
        begins = f"{self._prefix}begins"
        pins = [pin for pin in self._asker.replica.pins() if pin.name.startswith(self._prefix)]
        able = [pin.offsets for pin in pins if pin.expires_at is None or not lasting]
        if not any(all(pinned.get(name, at) <= at for name, at in offsets.items()) for pinned in able):
            name, expires_s = (self._name(offsets), None) if lasting else (begins, _BEGINS_S)
            self._asker.pin(name, "progress of a stream", expires_s, offsets=offsets)
        if lasting and any(pin.name == begins for pin in pins):
            with suppress(ChunkstoreError):  # it ends by itself
                self._drop([begins])

    def move(self, offsets: Mapping[str, int]) -> bool:
        """Have a pin at ``offsets`` and no other. False: that failed, and the pin stays behind; the next move takes it along."""
        try:
            name = self._name(offsets)
            there = self._names()
            if name not in there:
                self._asker.pin(name, "progress of a stream", offsets=offsets, wait_s=_MOVE_S)
            self._drop([other for other in there if other != name])
        except ChunkstoreError as error:
            _LOG.warning("the pin of a stream stays where it is: %s", error.message)
            return False
        return True

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

    def _name(self, offsets: Mapping[str, int]) -> str:
        if len(offsets) > LIMITS.pin_offsets_max:
            raise InvalidArgument(
                f"a pin names {LIMITS.pin_offsets_max} segments at most; this stream reads {len(offsets)}",
                argument="pinProgress",
            )
        text = repr(sorted(offsets.items())).encode()
        return self._prefix + hashlib.sha256(text).hexdigest()[:16]
