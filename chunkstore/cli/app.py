"""The verbs as one command, and the one place where errors become exit codes.

0 done, 1 damaged or failed, 2 misuse, 130 interrupted, 141 output closed by its reader. A failure is one line on stderr (with ``--json``
one object ``{error, message, fields}``), never a traceback for a condition that has a name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from typing import Annotated, Any, Final, ParamSpec, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from chunkstore.cli.options import ROOT_VARIABLE
from chunkstore.cli.streams import watched_streams
from chunkstore.cli.verbs import ALIASES, EXAMPLES, VERBS
from chunkstore.errors import (
    ChunkstoreError,
    ContainerBusy,
    ContainerNotFound,
    Damaged,
    InvalidArgument,
    SegmentNotFound,
    StorageFull,
)

__all__ = ["build_command", "load_verb", "main"]

DONE, FAILED, MISUSE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141

P = ParamSpec("P")
T = TypeVar("T")

# Typer brings its own copy of click in newer versions and imports click in older ones: the base class of usage errors
# is found through a name that both export.
_USAGE_ERROR: type[Exception] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


class _Verb(TyperCommand):
    """Where ROOT is all that is missing of the arguments, it is the variable's. Otherwise the first argument is ROOT."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, list(args))
        except _USAGE_ERROR as error:
            root = os.environ.get(ROOT_VARIABLE)
            first = next((each for each in self.params if each.param_type_name == "argument"), None)
            if not root or first is None or first.envvar != ROOT_VARIABLE or type(error).__name__ != "MissingParameter":
                raise
            ctx.params.clear()
            try:
                return super().parse_args(ctx, [root, *args])
            except _USAGE_ERROR:
                raise error from None

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ContainerBusy as error:
            options = {name for each in self.params for name in each.opts}
            asks = "--ask has that process do it" if "--ask" in options else "only verbs with --ask work next to it"
            remedy = f"{asks}; --take-over fences it" if "--take-over" in options else asks
            raise ContainerBusy(error.container, host=error.host, pid=error.pid, remedy=remedy) from error


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


class _Verbs(TyperGroup):
    """Lists the verbs by their table, and loads the module of the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        verb = VERBS.get(ALIASES.get(cmd_name, cmd_name))
        return verb and TyperCommand(cmd_name, help=verb.help, rich_help_panel=verb.panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and load_verb(args[0]), rest


def load_verb(name: str) -> Any:
    """The verb or group of this name (see ``VERBS``, ``ALIASES``) as a command of the click that typer brings; loads its module."""
    name = ALIASES.get(name, name)
    verb = VERBS[name]
    app = typer.Typer(name=name, help=verb.help, add_completion=False)
    if verb.group:
        app.callback()(lambda: None)
    for each in verb.group or (name,):
        full = f"{name} {each.strip('_')}" if verb.group else name
        lines = "\n\n".join(f"chunkstore {line}" for line in EXAMPLES[full])
        app.command(each.strip("_"), cls=_Verb, epilog=f"Examples:\n\n{lines}")(_loaded(verb.module, each))
    return typer.main.get_command(app)


def build_command() -> Any:
    """All verbs as one command, of the click that typer brings. The module of a verb is loaded when it is called."""
    app = typer.Typer(
        name="chunkstore",
        help="An embeddable storage engine for append-only segments. Each VERB has its own --help.",
        cls=_Verbs,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    return typer.main.get_command(app)


def _loaded(module: str, verb: str) -> Callable[..., None]:
    from chunkstore.cli.access import with_options

    found = import_module(f"chunkstore.cli.{module}")
    return _guarded(with_options(getattr(found, f"{verb}_" if verb == "import" else verb)))


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("chunkstore-engine")
        except PackageNotFoundError:
            number = "from a checkout that is not installed"
        typer.echo(f"chunkstore {number}")
        raise typer.Exit


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


def _print_error(error: BaseException, *, as_json: bool) -> None:
    from chunkstore.cli.output import print_error  # and with it tables and bars, which an overview does not need

    print_error(error, as_json=as_json)


def _run(arguments: list[str]) -> int:
    as_json = _wants_json(arguments)
    try:
        result = build_command().main(args=arguments, prog_name="chunkstore", standalone_mode=False)
        sys.stdout.flush()
    except (_PipeClosed, BrokenPipeError):
        return PIPE_CLOSED
    except (_Interrupted, KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except ChunkstoreError as error:
        _print_error(_in_words_of_the_command_line(error), as_json=as_json)
        return MISUSE if isinstance(error, InvalidArgument) else FAILED
    except _USAGE_ERROR as error:
        _print_misuse(error, as_json=as_json)
        return MISUSE
    except Exception as error:
        if not as_json:
            raise  # a defect: its traceback is the most useful message
        _print_error(error, as_json=True)
        return FAILED
    return result if isinstance(result, int) else DONE


_NEXT: Final[dict[type[ChunkstoreError], str]] = {  # what to type next
    Damaged: "'chunkstore check ROOT' lists what is damaged",
    SegmentNotFound: "'chunkstore ls ROOT' lists the segments",
    StorageFull: "free space, for instance with 'chunkstore gc ROOT --grace-s 0'",
}


def _in_words_of_the_command_line(error: ChunkstoreError) -> ChunkstoreError:
    """The library's remedy is a keyword argument, which cannot be given here. A note holds what to type next."""
    if (text := _NEXT.get(type(error))) is not None:
        error.add_note(text)
    if not isinstance(error, ContainerNotFound):
        return error
    remedy = (
        "'chunkstore containers ROOT' lists all, --container chooses one; the first 'chunkstore put' creates it, "
        "for Kafka 'kafka serve --create'"
    )
    if error.containers is None and os.environ.get(ROOT_VARIABLE):
        remedy = f'the first argument is ROOT; with optional arguments write "${ROOT_VARIABLE}" in its place'
    return ContainerNotFound(error.container, root=error.root, containers=error.containers, remedy=remedy)


def _print_misuse(error: Exception, *, as_json: bool) -> None:
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    _print_error(InvalidArgument(text), as_json=as_json)
    if context is not None and not as_json:
        sys.stderr.write(f"chunkstore: see {context.command_path} --help\n")
