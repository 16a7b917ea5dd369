"""The words every verb shares, so that an argument means the same everywhere.

Promises: one definition of each argument and option. Leaves out: what a verb does with them.
"""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["AcceptRollback", "AsJson", "CacheDir", "Container", "DryRun", "Root", "Segment", "Svg", "TakeOver"]

Root = Annotated[
    str,
    typer.Argument(
        metavar="ROOT",
        help="file:///PATH, s3://BUCKET/PREFIX, hdfs://HOST:HTTPPORT/PATH or memory://NAME.",
        show_default=False,
    ),
]
Segment = Annotated[str, typer.Argument(metavar="SEGMENT", help="Name of the segment.", show_default=False)]
Container = Annotated[str, typer.Option("--container", metavar="NAME", help="Container under the root.")]
CacheDir = Annotated[
    str | None,
    typer.Option(
        "--cache-dir",
        metavar="DIR",
        help="Local directory of the metadata cache; deleting it is always safe.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Results and errors as JSON, nothing else on stdout.")]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Claim the container even if its owner looks alive; that owner is fenced.")
]
AcceptRollback = Annotated[
    bool,
    typer.Option(
        "--accept-rollback",
        help="Go on with a restored backup, or with a journal that lost its end. Only where no former owner runs any more.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen; change and claim nothing.")]
Svg = Annotated[
    str | None,
    typer.Option("--svg", metavar="FILE", help="Write a picture of it to FILE, as SVG.", show_default=False),
]
