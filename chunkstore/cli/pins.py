"""``pins ls``, ``pins add``, ``pins rm``. Only ``ls`` does not claim."""

from __future__ import annotations

from typing import Annotated

from chunkstore.cli import access, options
from chunkstore.cli.options import age_option, argument, option
from chunkstore.cli.output import human_time
from chunkstore.cli.streams import VerbFailed
from chunkstore.records.arguments import check_pin
from chunkstore.records.names import check_segment_name
from chunkstore.records.segments import Pin

__all__ = ["add", "ls", "rm"]

_Name = Annotated[str, argument("NAME", "Name of the pin.")]


class NoSuchPin(VerbFailed):
    """``pins rm``: nothing of this name is pinned. Python's ``unpin`` answers False."""

    fields = ("pin",)


def ls(root: options.Root, *, here: access.Reading) -> None:
    """List the pins, by name."""
    with here.replica(root) as store:
        pins = store.pins()
    here.show_each(
        pins, ("pin", "lsn", "created", "expires", "holder", "note"), _row, right=("lsn",), none="nothing is pinned"
    )


def _row(pin: Pin) -> tuple[object, ...]:
    expires = "" if pin.expires_at is None else human_time(pin.expires_at)
    return (pin.name, pin.lsn, human_time(pin.created_at), expires, pin.holder, pin.note)


def add(
    root: options.Root,
    name: _Name,
    *,
    note: Annotated[str, option("TEXT", "Purpose of the pin.")] = "",
    expires_s: Annotated[float | None, age_option("It lasts at least this long.", show_default="until pins rm")] = None,
    here: access.Asking,
) -> None:
    """Pin the present state: collection keeps everything it needs."""
    check_segment_name(name, "name")
    check_pin(note, expires_s)  # before anybody is fenced for it
    with here.owner_or_asker(root) as store:
        pin = store.pin(name, note, expires_s)
    here.show(pin, {"pin": pin.name, "lsn": pin.lsn, "expires": _row(pin)[3] or "never"})


def rm(root: options.Root, name: _Name, *, here: access.Asking) -> None:
    """Remove a pin; the next collection deletes what only this pin kept."""
    with here.owner_or_asker(root) as store:
        if not store.unpin(name):
            raise NoSuchPin(name, f"no pin {name!r} here; pins ls lists the pins")
    here.show({"pin": name, "removed": True}, {"removed": name})
