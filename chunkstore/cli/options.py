"""One definition of each argument and option that verbs share; one form of sizes, time spans and times."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from fractions import Fraction
from typing import Annotated, Any, Final

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
    "age_option",
    "argument",
    "flag",
    "moment_of",
    "option",
    "size",
    "size_option",
]


def option(metavar: str, help: str, *names: str, **more: Any) -> Any:
    """An option with a value. ``names``: ``--NAME`` of the parameter, unless given."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def size_option(help: str, *names: str, **more: Any) -> Any:
    """An option that is a size in bytes."""
    return typer.Option(*names, parser=size, metavar="SIZE", help=help, **more)


def age_option(help: str, *names: str, **more: Any) -> Any:
    """An option that is a time span in seconds."""
    return typer.Option(*names, parser=age, metavar="AGE", help=help, **more)


def flag(help: str, *names: str) -> Any:
    """A switch, or an option whose values show in its help."""
    return typer.Option(*names, help=help)


def argument(metavar: str, help: str, **more: Any) -> Any:
    """A positional argument."""
    return typer.Argument(metavar=metavar, help=help, **more)


ROOT_VARIABLE = "CHUNKSTORE_ROOT"
Root = Annotated[
    str,
    argument(
        "ROOT",
        "PATH, file:///PATH, s3://BUCKET/PREFIX or hdfs://HOST:HTTPPORT/PATH. Left out, if only the required other "
        "arguments are given: the variable's.",
        envvar=ROOT_VARIABLE,
    ),
]
Segment = Annotated[str, argument("SEGMENT", "Name of the segment.")]
Container = Annotated[str, option("NAME", "Container under the root.", "--container", envvar="CHUNKSTORE_CONTAINER")]
CacheDir = Annotated[
    str | None, option("DIR", "Local directory of the metadata cache; deleting it is always safe.", "--cache-dir")
]
AsJson = Annotated[bool, flag("Results and errors as JSON, nothing else on stdout.", "--json")]
TakeOver = Annotated[
    bool, flag("Claim the container even if its owner looks alive; that owner is fenced.", "--take-over")
]
Ask = Annotated[bool, flag("If the owner looks alive, ask it to do this; else claim the container.", "--ask")]
AcceptRollback = Annotated[
    bool,
    flag(
        "Continue with a restored backup, or with a journal that lost its end. Safe only if no former owner runs any more.",
        "--accept-rollback",
    ),
]
AtLsn = Annotated[int | None, option("N", "The state after the record with this number.", "--at-lsn")]
AtTime = Annotated[
    str | None,
    option("T", "The state at this time: 2026-03-01, 2026-03-01T12:00:00Z, or milliseconds since 1970.", "--at-time"),
]
DryRun = Annotated[bool, flag("Show what would happen; change and claim nothing.", "--dry-run")]
Svg = Annotated[str | None, option("FILE", "Write a picture of it to FILE, as SVG; - is standard output.", "--svg")]


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
