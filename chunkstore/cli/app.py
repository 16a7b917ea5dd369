"""The verbs as one command, and the one place where errors become exit codes.

Promises: 0 done, 1 damaged or failed, 2 misuse, 130 interrupted, 141 output closed by its reader; a failure is one
line on stderr (with ``--json`` one object ``{error, message, fields}``), never a traceback for a condition that has a
name. Leaves out: the verbs themselves.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from pkgutil import get_data
from typing import Annotated, Any, Final, ParamSpec, TypeVar

import typer
from typer.core import TyperCommand

from chunkstore.cli.options import ROOT_VARIABLE
from chunkstore.cli.streams import watched_streams
from chunkstore.errors import ChunkstoreError, ContainerBusy, ContainerNotFound, InvalidArgument

__all__ = ["build_command", "main"]

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


_PANELS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("Bytes", "transfer", ("put", "cat")),
    ("Look", "look", ("ls", "stat", "layout", "containers", "owner")),
    ("Change", "change", ("truncate", "seal", "unseal", "rm", "concat")),
    ("Ledgers", "ledgers", ("offload",)),
    ("Health and history", "upkeep", ("check", "scrub", "journal", "snapshot", "repair")),
    ("Backup", "backups", ("backup", "export")),
    ("Backup", "imports", ("import_",)),
    ("Backup", "restore", ("restore",)),
    ("Space", "usage", ("usage",)),
    ("Space", "space", ("gc", "defrag")),
    ("Space", "serve", ("serve",)),
    ("Try it", "showcase", ("demo",)),
)
"""Panel, module, verbs: the order of ``--help``."""
_BUCKET_VERBS: Final = ("ls", "read", "verify", "orphans", "rm", "decode")
_GROUPS: Final[tuple[tuple[str, str, str, str, tuple[str, ...]], ...]] = (
    ("Ledgers", "ledger", "The ledgers of topics: ls, read, rm.", "ledgers", ("ls", "read", "rm")),
    (
        "Ledgers",
        "pulsar",
        "Objects of Pulsar's offloaders: ls, read, verify, orphans, rm, decode.",
        "pulsar",
        _BUCKET_VERBS,
    ),
    (
        "Ledgers",
        "kafka",
        "Kafka's tiers and log directories: ls, read, verify, orphans, why, tier, restore, attach; and for its brokers: serve.",
        "kafka",
        ("ls", "read", "verify", "orphans", "why", "tier", "restore", "attach", "serve"),
    ),
    ("Health and history", "pins", "States that stay restorable: ls, add, rm.", "pins", ("ls", "add", "rm")),
    (
        "Spark",
        "spark",
        "Jobs on Spark's executors: offload.",
        "jobs",
        ("offload",),
    ),
    ("Space", "sessions", "Writers outside the owner: ls, end.", "sessions", ("ls", "end")),
    ("Space", "quota", "The quota of a container: set, rm; usage shows it.", "usage", ("set_", "rm")),
    (
        "Health and history",
        "retention",
        "Retention policies: ls, set, rm, apply.",
        "retention",
        ("ls", "set_", "rm", "apply"),
    ),
)


def _name(verb: str) -> str:
    return verb.strip("_").replace("_", "-")


_HELP: Final = "--help"
_NAMES: Final = frozenset({_name(verb) for *_, verbs in _PANELS for verb in verbs} | {group[1] for group in _GROUPS})


def build_command(only: str | None = None) -> Any:
    """All verbs as one command, of the click that typer brings; or that with the verb (or group) ``only``: the others' modules, which are
    half of the time that a short verb takes, are not loaded. ``--help`` needs no module of a verb, ``--version`` no verb."""
    app = typer.Typer(
        name="chunkstore",
        help="An embeddable storage engine for append-only segments. Each VERB has its own --help.",
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for panel, module, verbs in _PANELS:
        for verb in verbs:
            if only in (None, _HELP, _name(verb)):
                call = _summary(module, verb) if only == _HELP else _loaded(module, verb)
                app.command(_name(verb), cls=_Verb, rich_help_panel=panel)(call)
    for panel, name, text, module, verbs in _GROUPS:
        if only in (None, _HELP, name):
            group = typer.Typer(name=name, help=text, invoke_without_command=only == _HELP)
            for verb in verbs if only != _HELP else ():
                group.command(_name(verb), cls=_Verb)(_loaded(module, verb))
            app.add_typer(group, rich_help_panel=panel)
    return typer.main.get_command(app)


def _summary(module: str, verb: str) -> Callable[..., None]:
    """A stand-in with the verb's description, as its source has it: loading all verbs takes longer than showing their names."""

    def call() -> None: ...

    source = (get_data("chunkstore.cli", f"{module}.py") or b"").decode()
    found = re.search(rf'^def {verb}\(.*?^    """(.*?)"""', source, re.DOTALL | re.MULTILINE)
    call.__doc__ = found and found[1]
    return call


def _loaded(module: str, verb: str) -> Callable[..., None]:
    from chunkstore.cli.access import with_options

    found: Callable[..., None] = getattr(import_module(f"chunkstore.cli.{module}"), verb)
    return _guarded(with_options(found))


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


def _print_error(error: Exception, *, as_json: bool) -> None:
    from chunkstore.cli.output import print_error

    print_error(error, as_json=as_json)


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
        only = arguments[0] if arguments and arguments[0] in {*_NAMES, _HELP, "--version"} else None
        result = build_command(only).main(args=arguments, prog_name="chunkstore", standalone_mode=False)
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


def _in_words_of_the_command_line(error: ChunkstoreError) -> ChunkstoreError:
    """The library's remedy is a keyword argument, which cannot be given here."""
    if isinstance(error, ContainerBusy):
        remedy = "--ask lets it do the work, where the verb has that; --take-over claims the container and fences it"
        return ContainerBusy(error.container, host=error.host, pid=error.pid, remedy=remedy)
    if not isinstance(error, ContainerNotFound):
        return error
    remedy = "--container chooses one; the first 'chunkstore put' creates it, for Kafka 'kafka serve --create'"
    if error.containers is None and os.environ.get(ROOT_VARIABLE):
        remedy = f'the first argument is ROOT; with optional arguments write "${ROOT_VARIABLE}" in its place'
    return ContainerNotFound(error.container, root=error.root, containers=error.containers, remedy=remedy)


def _print_misuse(error: Exception, *, as_json: bool) -> None:
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    _print_error(InvalidArgument(text), as_json=as_json)
    if context is not None and not as_json:
        sys.stderr.write(f"chunkstore: see {context.command_path} --help\n")
