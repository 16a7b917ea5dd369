"""The verb ``usage``: what a container, or one segment of it, takes up.

Promises: nothing is claimed or changed, and no chunk is listed.
Leaves out: counting (``chunkstore.upkeep.usage``).
"""

from __future__ import annotations

from typing import Annotated

import typer

from chunkstore.cli import access, options
from chunkstore.cli.output import fields_of, human_bytes, human_time, print_facts, print_json

__all__ = ["usage"]


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
