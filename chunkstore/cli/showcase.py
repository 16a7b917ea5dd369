"""The verb ``demo``. Leaves out: the demonstration (``chunkstore.demo``), loaded only when it is wanted."""

from __future__ import annotations

from typing import Annotated

import typer

from chunkstore.cli import options

__all__ = ["demo"]


def demo(
    root: Annotated[str | None, typer.Argument(metavar="[ROOT]", help="Default: a new temporary directory.")] = None,
    *,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Decides when the writer is killed.")] = None,
    rows: Annotated[int | None, typer.Option(metavar="N", help="Only the first N flights, 2000 or more.")] = None,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Let Spark SQL count the events, too, where it can run.")
    ] = True,
    as_json: options.AsJson = False,
) -> None:
    """Offload a year of real flights, kill the writer with SIGKILL, resume without its cache, and compare."""
    from chunkstore import demo as demonstration

    demonstration.run(root, seed=seed, as_json=as_json, rows=rows, spark=spark)
