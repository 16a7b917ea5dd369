"""The replica that a batch is planned from, and the pin that keeps what was planned for the life of a frame.

Promises: with ``pinS`` the owner has committed a pin before anything is planned, so its position lies at or before the plan's, and nothing
that the plan names is collected while the pin lasts, whoever truncates, merges or deletes meanwhile. Each plan has a pin of its own,
which ends by itself. Assumes an owner that is alive: nobody else can pin, and reading never claims. Leaves out: pins of streams
(``progress_pins``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from chunkstore import runtime
from chunkstore.asker import Asker
from chunkstore.assembly import open_asker, open_replica
from chunkstore.config import LIMITS
from chunkstore.errors import Conflict, OutcomeUnknown
from chunkstore.replica import Replica
from chunkstore.spark.options import ReadOptions

__all__ = ["planning_replica"]

_PREFIX: Final = "spark-frame-"
_TOKEN_BYTES: Final = 8
_FRAMES_MAX: Final = LIMITS.pins_max // 2
"""Pins of frames at a time: the others are for backups, exports and streams."""
_NOTE_CHARACTERS: Final = 200
_WAIT_S: Final = 60.0


@contextmanager
def planning_replica(options: ReadOptions) -> Iterator[Replica]:
    """A replica of the moment that the options name, closed behind it.

    With ``options.pin_s`` the owner is asked for a pin of so many seconds first. Raises as ``open_replica``; then also ``OutcomeUnknown``
    (no owner answered), ``Conflict`` (too many frames are pinned), and as ``Asker.pin``.
    """
    if options.pin_s is None:
        lsn, time_ms = options.as_of_lsn, options.as_of_ms
        with open_replica(
            options.path, container=options.container, settings=options.settings, at_lsn=lsn, at_time=time_ms
        ) as replica:
            yield replica
        return
    with open_asker(options.path, container=options.container, settings=options.settings) as asker:
        _pin(asker, options, options.pin_s)
        yield asker.replica


def _pin(asker: Asker, options: ReadOptions, pin_s: int) -> None:
    frames = sum(pin.name.startswith(_PREFIX) for pin in asker.replica.pins())
    if frames >= _FRAMES_MAX:
        raise Conflict(
            f"pins of frames (option pinS, {_PREFIX}...)",
            expected=f"fewer than {_FRAMES_MAX}",
            found=frames,
            remedy="shorten pinS, or remove those that nobody reads any more ('chunkstore pins ls')",
        )
    name = _PREFIX + runtime.token(_TOKEN_BYTES).hex()
    what = options.topic or options.topics_pattern or options.segments_pattern or ", ".join(options.segments)
    try:
        asker.pin(name, f"a frame of {what}"[:_NOTE_CHARACTERS], expires_s=float(pin_s), wait_s=_WAIT_S)
    except OutcomeUnknown as error:
        error.add_note(
            "Option 'pinS' needs an owner that is alive: an application, or 'chunkstore serve'. Reading itself needs none."
        )
        raise
