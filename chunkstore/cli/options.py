"""The words every verb shares, so that an argument means the same everywhere.

Promises: one definition of each argument and option, one form of sizes, time spans and times. Leaves out: what a verb does with them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from fractions import Fraction
from typing import Annotated, Final

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
    "age",
    "moment_of",
    "size",
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
        "--at-time",
        metavar="T",
        help="The state at this time: 2026-03-01, 2026-03-01T12:00:00Z, or milliseconds since 1970.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen; change and claim nothing.")]
Svg = Annotated[
    str | None,
    typer.Option("--svg", metavar="FILE", help="Write a picture of it to FILE, as SVG; - is standard output."),
]


def moment_of(text: str | None, argument: str) -> datetime | int | None:
    """A time as people write it; a date is its midnight in UTC. Raises ``InvalidArgument``."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is not None and len(text) == len("2026-03-01"):
        found = found.replace(tzinfo=UTC)
    if found is None or found.tzinfo is None:
        example = "2026-03-01T12:00:00+01:00"
        raise InvalidArgument(
            f"{argument} must be a date, or a time with its zone, such as {example}, not {text!r}", argument=argument
        )
    return found


_SIZES: Final = (
    {"": 1, "b": 1}
    | {f"{prefix}b": 1000**at for at, prefix in enumerate("kmgt", 1)}
    | {f"{prefix}ib": 1024**at for at, prefix in enumerate("kmgt", 1)}
)
_AGES: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}


def size(text: str | int) -> int:
    """A size in bytes as people write it, as ``parser`` of an option."""
    found = _quantity(text, _SIZES)
    if found is None or (found != int(found) and str(text)[-1].isdigit()):
        raise typer.BadParameter(f"{text!r} is no size; write bytes, 64KiB, 64MiB, 1.5GiB or 500kB")
    return int(found)


def age(text: str | float) -> float:
    """A time span in seconds as people write it, as ``parser`` of an option."""
    if (found := _quantity(text, _AGES)) is None:
        raise typer.BadParameter(f"{text!r} is no time span; write seconds, 30s, 15m, 12h, 90d or 2w")
    return float(found)


def _quantity(text: object, units: Mapping[str, int]) -> Fraction | None:
    matched = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?(?:e\d{1,2})?) ?([a-z]*)", str(text).lower(), re.ASCII)
    if matched is None or matched[2] not in units:
        return None
    return Fraction(matched[1]) * units[matched[2]]
