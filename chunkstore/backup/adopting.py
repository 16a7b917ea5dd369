"""Adopting from another container: its chunks stay where they are, and ours read them there (decision 0021).

Promises: before anything refers to the other container's chunks a pin without an end keeps them there, made behind the row that remembers
it: whatever is interrupted, a collection gives the pin up once nothing refers to the root. All that is adopted of one container is kept
by one pin, the first, because what is there when it is adopted is removed behind that. Leaves out: which chunks, and the commits that
adopt them (``importing``, ``changes.Adopt``).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.assembly import open_asker
from chunkstore.backup.exporting import Pins
from chunkstore.backup.files import container_uuid
from chunkstore.config import Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, InvalidArgument, Unsupported
from chunkstore.following import open_replica
from chunkstore.metadata.roots import pin_prefix, scan_roots
from chunkstore.names import BackupNames
from chunkstore.records import ACTIVE, RootRecord
from chunkstore.replica import Replica
from chunkstore.storage import ChunkStorage

__all__ = ["Adoption", "adopt", "pin_for_new"]

_NOTE_MAX: Final = 400


class Adoption(NamedTuple):
    """``root``: the number to adopt under. ``source``: the container as it is under the pin, which stands at ``lsn`` (0: there is none);
    closed by the caller."""

    root: int
    source: Replica
    pin: str
    lsn: int

    def close(self) -> None:
        """Close the source. The root and its pin stay while anything refers to them."""
        self.source.close()


def adopt(
    store: ChunkedSegmentStorage,
    root: str,
    *,
    container: str = "default",
    no_pin: bool = False,
    pins: Pins | None = None,
) -> Adoption:
    """Get ready to adopt chunks of the container at ``root``, or of its newest backup there: pin it, and show it as it is under the pin.

    What the source shows may be adopted (``changes.Adopt``, or an import with this number) as long as it is not refreshed.
    ``no_pin``: the caller sees to it that nothing is collected there; a backup cannot be pinned, so there it has to be said. ``pins``:
    who makes the pin, else its owner is asked. ``root`` may be on another storage; credentials in it are not remembered: this process
    and every reader need their own.

    Changes a row of ours, and makes a pin there. Raises ``InvalidArgument`` (the root; our own container), ``ContainerNotFound``,
    ``Conflict`` (its pin is being given up just now: again),
    ``Unsupported`` (it cannot be pinned), what asking for a pin raises (``OutcomeUnknown``: nobody answered), and what opening and commits
    raise. Retry: safe, it finds root and pin.
    """
    own = container_uuid(store.read_context.storage, store.read_context.names)
    with ExitStack() as failed:
        source = failed.enter_context(open_replica(root, container=container, settings=store.settings))
        if source.uuid == own:
            text = "a container does not adopt what is its own, in whatever copy: name another container"
            raise InvalidArgument(text, argument="root")
        _check_pinnable(source, no_pin=no_pin)
        prefix = pin_prefix(store.container, store.read_context.storage.address, own)
        name = "" if no_pin else _known_pin(store, source, prefix) or prefix + runtime.token(8).hex()
        number = store.add_root(_row(source, name))
        note = _note(store.container, store.read_context.storage.url)
        lsn = 0 if no_pin else _pin(store.settings, root, source, name, note, pins)
        failed.pop_all()
        return Adoption(number, source, name, lsn)


def pin_for_new(
    root: str, *, container: str, settings: Settings, new: ChunkStorage, new_container: str, no_pin: bool
) -> tuple[RootRecord, int]:
    """For a container that is yet to be made of that at ``root``: the pin, and the row that will remember it (``add_root``); the pin's lsn.

    A pin that an earlier try has made is found by its note. Raises as ``adopt``. Retry: safe.
    """
    with open_replica(root, container=container, settings=settings) as source:
        _check_pinnable(source, no_pin=no_pin)
        if no_pin:
            return _row(source, ""), 0
        # Its uuid is chosen when it is made, after this pin.
        note, prefix = _note(new_container, new.url), pin_prefix(new_container, new.address)
        made = (pin for pin in source.pins() if pin.note == note and pin.expires_at is None)
        there = (pin.name for pin in made if pin.name.startswith(prefix))
        name = next(there, prefix + runtime.token(8).hex())
        return _row(source, name), _pin(settings, root, source, name, note, None)


def _row(source: Replica, pin: str) -> RootRecord:
    return RootRecord(source.storage.url, "", source.container, source.uuid, pin, 0, 0, ACTIVE, 0)


def _note(container: str, url: str) -> str:
    return f"adopted by container {container!r} at {url}"[:_NOTE_MAX]


def _check_pinnable(source: Replica, *, no_pin: bool) -> None:
    if not no_pin and isinstance(source.read_context.names, BackupNames):
        raise _cannot_pin(source, "these are backups, whose copies go when they are given up")


def _known_pin(store: ChunkedSegmentStorage, source: Replica, prefix: str) -> str:
    """The pin of ours under which there are chunks of the source already, if it is still there."""
    there = {pin.name for pin in source.pins() if pin.name.startswith(prefix)}
    wanted = (source.storage.url, "", source.container, source.uuid)
    for _, row in store.read_context.look(lambda view: list(scan_roots(view))):
        if isinstance(row, RootRecord) and row.state == ACTIVE and row.pin in there and row[:4] == wanted:
            return row.pin
    return ""


def _pin(settings: Settings, root: str, source: Replica, name: str, note: str, pins: Pins | None) -> int:
    """Make the pin unless it is there; its lsn, which ``source`` shows then."""
    try:
        # Behind the row: what was given up under an earlier row of this pin is seen to be.
        source.refresh()
        there = next((pin for pin in source.pins() if pin.name == name), None)
        if there is None and pins is not None:
            there = pins.pin(name, note)
        elif there is None:
            with open_asker(root, container=source.container, settings=settings) as asker:
                there = asker.pin(name, note)
        source.refresh()
    except ChunkstoreError as error:
        raise _cannot_pin(source, error.message) from error
    if source.lsn < there.lsn:
        raise _cannot_pin(source, f"what can be read there ends at lsn {source.lsn}, before the pin")
    return there.lsn


def _cannot_pin(source: Replica, why: str) -> Unsupported:
    text = (
        f"the container {source.container!r} at {source.storage.url} cannot be pinned ({why}), so what is adopted could be "
        "collected there; have its owner run, or say no_pin and see to it"
    )
    return Unsupported(text, feature="pin")
