"""The verb ``usage``: what a container, or one segment of it, takes up; and the group ``quota``: how much that may be.

Promises: ``usage`` claims and changes nothing, and lists no chunk; setting a quota deletes nothing.
Leaves out: counting (``chunkstore.upkeep.usage``).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import typer

from chunkstore.cli import access, options
from chunkstore.cli.output import fields_of, human_bytes, human_time, print_facts, print_json
from chunkstore.errors import ChunkstoreError
from chunkstore.metadata.retention import encode_quota

__all__ = ["rm", "set_", "usage"]


class NoQuota(ChunkstoreError):
    """``quota rm``: no quota is stored. Python's ``set_quota`` answers False."""

    fields: ClassVar[tuple[str, ...]] = ("container",)

    def __init__(self, container: str) -> None:
        super().__init__(f"container {container!r} stores no quota; usage shows what is in force")
        self.container = container


def set_(
    root: options.Root,
    quota_bytes: Annotated[int, typer.Argument(parser=options.size, metavar="SIZE", help="Chunks may take so much.")],
    *,
    here: access.Owning,
) -> None:
    """Store the quota of a container, for all its owners. Deletes nothing; what does not fit is refused."""
    encode_quota(quota_bytes)
    with here.owner(root) as store:
        store.set_quota(quota_bytes)
    here.show({"quota_bytes": quota_bytes}, {"quota": human_bytes(quota_bytes)})


def rm(root: options.Root, *, here: access.Owning) -> None:
    """Remove the quota of a container."""
    with here.owner(root) as store:
        if not store.set_quota(None):
            raise NoQuota(here.container)
    here.show({"removed": True}, {"quota": "removed"})


def usage(
    root: options.Root,
    segment: Annotated[str | None, typer.Argument(metavar="[SEGMENT]", help="Only this segment.")] = None,
    *,
    here: access.Reading,
) -> None:
    """Show how much space is taken up, and by what."""
    with here.replica(root) as store:
        used = store.usage(segment)
    if here.as_json:
        print_json(used)
        return
    facts: dict[str, object] = {}
    for name, value in fields_of(used).items():
        if not isinstance(value, int):
            continue  # not known here, or not of one segment
        what, _, unit = name.rpartition("_")
        shown = {"bytes": human_bytes, "ms": human_time}.get(unit, str)(value)
        label = {"bytes": what, "ms": f"{what} at"}.get(unit, name)
        facts[label.replace("_", " ")] = shown
    print_facts(facts)
