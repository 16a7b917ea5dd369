"""The verbs as one command, and the one place where errors become exit codes.

Promises: 0 done, 1 damaged or failed, 2 misuse, 130 interrupted, 141 output closed by its reader; a failure is one
line on stderr (with ``--json`` one object ``{error, message, fields}``), never a traceback for a condition that has a
name. Leaves out: the verbs themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version
from typing import Annotated, ParamSpec, TypeVar

import typer

from chunkstore.cli import (
    backups,
    change,
    headers,
    imports,
    ledgers,
    look,
    pins,
    restore,
    retention,
    space,
    transfer,
    upkeep,
)
from chunkstore.cli.output import print_error
from chunkstore.cli.serve import serve
from chunkstore.cli.showcase import demo
from chunkstore.cli.streams import watched_streams
from chunkstore.cli.usage import usage
from chunkstore.errors import ChunkstoreError, ContainerNotFound, InvalidArgument

__all__ = ["app", "main"]

DONE, FAILED, MISUSE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141

P = ParamSpec("P")
T = TypeVar("T")

# Typer brings its own copy of click in newer versions and imports click in older ones: the base class of usage errors
# is found through a name that both export.
_USAGE_ERROR: type[Exception] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


class _PipeClosed(Exception):
    """The reader of our output is gone (typer would take a BrokenPipeError away from us)."""


class _Interrupted(Exception):
    """Ctrl-C (typer's answer to KeyboardInterrupt differs between versions)."""


def _guarded(verb: Callable[P, T]) -> Callable[P, T]:
    @wraps(verb)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            result = verb(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise _PipeClosed from error
        except KeyboardInterrupt as error:
            raise _Interrupted from error
        return result

    return call


app = typer.Typer(
    name="chunkstore",
    help="An embeddable storage engine for append-only segments. Each VERB has its own --help.",
    add_completion=False,
    pretty_exceptions_enable=False,
)

_PANELS: tuple[tuple[str, tuple[Callable[..., None], ...]], ...] = (
    ("Bytes", (transfer.put, transfer.cat)),
    ("Look", (look.ls, look.stat, look.layout, look.containers, look.owner)),
    ("Change", (change.truncate, change.seal, change.unseal, change.rm, change.concat)),
    ("Ledgers", (ledgers.offload,)),
    ("Health and history", (upkeep.check, upkeep.scrub, upkeep.journal, upkeep.snapshot, upkeep.repair)),
    ("Backup", (backups.backup, backups.export, imports.import_, headers.import_headers, restore.restore)),
    ("Space", (usage, space.gc, space.defrag, serve)),
    ("Try it", (demo,)),
)
for _panel, _verbs in _PANELS:
    for _verb in _verbs:
        app.command(_verb.__name__.strip("_").replace("_", "-"), rich_help_panel=_panel)(_guarded(_verb))

_GROUPS: tuple[tuple[str, str, str, tuple[Callable[..., None], ...]], ...] = (
    ("Ledgers", "ledger", "Look at the ledgers of topics: ls, read.", (ledgers.ls, ledgers.read)),
    ("Ledgers", "pulsar", "Objects that Pulsar's offloaders wrote: decode.", (ledgers.decode,)),
    ("Health and history", "pins", "States that stay restorable: ls, add, rm.", (pins.ls, pins.add, pins.rm)),
    (
        "Health and history",
        "retention",
        "Policies that say what is kept, and applying them: ls, set, rm, apply.",
        (retention.ls, retention.set_, retention.rm, retention.apply),
    ),
)
for _panel, _name, _text, _verbs in _GROUPS:
    _group = typer.Typer(name=_name, help=_text)
    for _verb in _verbs:
        _group.command(_verb.__name__.rstrip("_"))(_guarded(_verb))
    app.add_typer(_group, rich_help_panel=_panel)


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            number = distribution_version("chunkstore-engine")
        except PackageNotFoundError:
            number = "from a checkout that is not installed"
        typer.echo(f"chunkstore {number}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def _wants_json(arguments: Sequence[str]) -> bool:
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in before


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ``argv`` defaults to the process's own arguments."""
    with watched_streams():
        return _run(list(sys.argv[1:] if argv is None else argv))


def _run(arguments: list[str]) -> int:
    as_json = _wants_json(arguments)
    try:
        result = typer.main.get_command(app).main(args=arguments, prog_name="chunkstore", standalone_mode=False)
        sys.stdout.flush()
    except (_PipeClosed, BrokenPipeError):
        return PIPE_CLOSED
    except (_Interrupted, KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except ChunkstoreError as error:
        print_error(_in_words_of_the_command_line(error), as_json=as_json)
        return MISUSE if isinstance(error, InvalidArgument) else FAILED
    except _USAGE_ERROR as error:
        _print_misuse(error, as_json=as_json)
        return MISUSE
    except Exception as error:
        if not as_json:
            raise  # a defect: its traceback is the most useful message
        print_error(error, as_json=True)
        return FAILED
    return result if isinstance(result, int) else DONE


def _in_words_of_the_command_line(error: ChunkstoreError) -> ChunkstoreError:
    """The library's remedy is a keyword argument, which cannot be given here."""
    if not isinstance(error, ContainerNotFound):
        return error
    where = f" under {error.root}" if error.root else ""
    reworded = error.copy()
    text = (
        f"no container {error.container!r}{where}: 'chunkstore containers ROOT' lists those that are there "
        "(--container chooses one); the first 'chunkstore put' makes it"
    )
    reworded.args = (text,)
    return reworded


def _print_misuse(error: Exception, *, as_json: bool) -> None:
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    print_error(InvalidArgument(text), as_json=as_json)
    if context is not None and not as_json:
        sys.stderr.write(f"chunkstore: see {context.command_path} --help\n")
