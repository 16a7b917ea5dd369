"""The words every verb shares, so that an argument means the same everywhere.

Promises: one definition of each argument and option. Leaves out: what a verb does with them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from chunkstore.errors import InvalidArgument

__all__ = [
    "ROOT_VARIABLE",
    "AcceptRollback",
    "AsJson",
    "Ask",
    "AtLsn",
    "AtTime",
    "CacheDir",
    "Container",
    "DryRun",
    "Root",
    "Segment",
    "Svg",
    "TakeOver",
    "moment_of",
]

ROOT_VARIABLE = "CHUNKSTORE_ROOT"
Root = Annotated[
    str,
    typer.Argument(
        metavar="ROOT",
        envvar=ROOT_VARIABLE,
        help="PATH, file:///PATH, s3://BUCKET/PREFIX or hdfs://HOST:HTTPPORT/PATH. Left out, if only the required other "
        "arguments are given: the variable's.",
    ),
]
Segment = Annotated[str, typer.Argument(metavar="SEGMENT", help="Name of the segment.")]
Container = Annotated[
    str, typer.Option("--container", metavar="NAME", envvar="CHUNKSTORE_CONTAINER", help="Container under the root.")
]
CacheDir = Annotated[
    str | None,
    typer.Option(
        "--cache-dir", metavar="DIR", help="Local directory of the metadata cache; deleting it is always safe."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Results and errors as JSON, nothing else on stdout.")]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Claim the container even if its owner looks alive; that owner is fenced.")
]
Ask = Annotated[
    bool, typer.Option("--ask", help="If the owner looks alive, ask it to do this; else claim the container.")
]
AcceptRollback = Annotated[
    bool,
    typer.Option(
        "--accept-rollback",
        help="Continue with a restored backup, or with a journal that lost its end. Safe only if no former owner runs any more.",
    ),
]
AtLsn = Annotated[
    int | None, typer.Option("--at-lsn", metavar="N", help="The state after the record with this number.")
]
AtTime = Annotated[
    str | None,
    typer.Option(
        "--at-time", metavar="T", help="The state at this time: 2026-03-01T12:00:00+01:00, or milliseconds since 1970."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen; change and claim nothing.")]
Svg = Annotated[
    str | None,
    typer.Option("--svg", metavar="FILE", help="Write a picture of it to FILE, as SVG; - is standard output."),
]


def moment_of(text: str | None, argument: str) -> datetime | int | None:
    """A time as people write it. Raises ``InvalidArgument``."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        example = "2026-03-01T12:00:00+01:00"
        raise InvalidArgument(
            f"{argument} must be a time with its zone, such as {example}, not {text!r}", argument=argument
        )
    return found
