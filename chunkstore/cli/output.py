"""How the command line speaks: JSON, tables, sizes, progress and errors.

Names from a store are shown with control characters escaped, so that a hostile name cannot steer a terminal. In a pipe a table is
tab-separated lines without a heading. Progress is shown on a terminal only."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, Literal, TypeAlias, cast

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from chunkstore.errors import ChunkstoreError, InvalidArgument

__all__ = [
    "Meter",
    "fields_of",
    "human_bytes",
    "human_time",
    "is_terminal",
    "jsonable",
    "meter",
    "print_each",
    "print_error",
    "print_facts",
    "print_findings",
    "print_json",
    "print_note",
    "print_table",
    "shown",
    "status",
    "write_picture",
]

_ROWS_PER_TABLE = 1_000
_CELLS_MIN = 12  # of a name, in a table


def jsonable(value: object) -> object:
    """``value`` in JSON's types: records become objects, bytes ``{"base64": ...}``, anything else its text."""
    if value is None or isinstance(value, str | float | bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": b64encode(value).decode()}
    if hasattr(value, "_asdict") or (is_dataclass(value) and not isinstance(value, type)):
        return {key: jsonable(item) for key, item in fields_of(value).items()}
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [jsonable(item) for item in value]
    return str(value)


def fields_of(record: object) -> dict[str, object]:
    """The fields of a named tuple, a dataclass or a mapping, by name, in order."""
    if isinstance(record, Mapping):
        return {str(key): value for key, value in record.items()}
    if is_dataclass(record) and not isinstance(record, type):
        return {item.name: getattr(record, item.name) for item in dataclass_fields(record)}
    names: Sequence[str] = getattr(record, "_fields", ())
    return {name: getattr(record, name) for name in names}


def print_json(document: object) -> None:
    """One JSON document on one line of stdout."""
    sys.stdout.write(json.dumps(jsonable(document)) + "\n")


def shown(value: object) -> str:
    """``value`` for people: control characters, line separators and lone surrogates escaped."""
    text = "" if value is None else str(value)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in text
    )


def human_bytes(size_bytes: int) -> str:
    """A size in the largest binary unit that keeps it at least 1."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} PiB"


def human_time(time_ms: int) -> str:
    """Milliseconds since 1970 as UTC, to the second."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(time_ms)


def is_terminal() -> bool:
    """Whether results are read by a person at a terminal."""
    return sys.stdout.isatty()


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = (), none: str = ""
) -> None:
    """Rows as a table on a terminal, as tab-separated lines in a pipe. ``right`` names right-aligned columns. ``none``: the note where
    there are no rows.

    A long table is printed in parts, so that memory stays bounded. On a terminal names wrap; where a table does not fit,
    each row is a block of lines.
    """
    if none:
        rows = iter(rows)
        if not (first := list(islice(rows, 1))):
            print_note(none)
            return
        rows = chain(first, rows)
    if not is_terminal():
        for row in rows:
            sys.stdout.write("\t".join(shown(cell) for cell in row) + "\n")
        return
    console = Console(highlight=False)
    cells = ([cell if isinstance(cell, Text) else Text(shown(cell)) for cell in row] for row in rows)
    while part := list(islice(cells, _ROWS_PER_TABLE)):
        _print_part(console, columns, part, right)


def _print_part(console: Console, columns: Sequence[str], rows: list[list[Text]], right: Sequence[str]) -> None:
    """The widest column takes what width the others leave; where that is too little, each row is a block of lines."""
    widths = [max(map(cell_len, [name, *(row[at].plain for row in rows)])) for at, name in enumerate(columns)]
    widest = widths.index(max(widths))
    left = console.width - (sum(widths) - widths[widest]) - 2 * len(columns)
    if left < min(widths[widest], _CELLS_MIN):
        width = max(map(len, columns))
        for row in rows:
            for name, cell in zip(columns, row, strict=True):
                console.print(Text.assemble(f"{name:<{width}}  ", cell), soft_wrap=True)
            console.print()
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at, name in enumerate(columns):
        justify: Literal["left", "right"] = "right" if name in right else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=at != widest)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_each(
    items: Iterable[Any],
    columns: Sequence[str],
    row: Callable[[Any], Sequence[object]] = tuple,
    *,
    as_json: bool,
    right: Sequence[str] = (),
    document: Callable[[Any], object] = lambda item: item,
    none: str = "",
) -> None:
    """A list: with ``as_json`` the document of each item, else a table, or the note ``none`` where there is no item."""
    if not as_json:
        print_table(columns, map(row, items), right=right, none=none)
        return
    for item in items:
        print_json(document(item))


def print_findings(findings: Iterator[object], columns: Sequence[str], right: Sequence[str], *, as_json: bool) -> bool:
    """What a check of a bucket found; whether that is nothing."""
    first = next(findings, None)
    found = findings if first is None else chain([first], findings)
    if as_json:
        print_json({"ok": first is None, "findings": found})
    elif first is not None:
        print_table(columns, cast("Iterable[Sequence[object]]", found), right=right)
    return first is None


def print_facts(facts: Mapping[str, object]) -> None:
    """One fact a line: its name, then its value."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        sys.stdout.write(f"{name:<{width}}  {shown(value)}\n")


def print_note(text: str) -> None:
    """A line on stderr about what succeeded."""
    sys.stderr.write(f"chunkstore: {shown(text)}\n")


def print_error(error: BaseException, *, as_json: bool) -> None:
    """An error on stderr: one line for people, with its notes, or ``{error, message, fields}``."""
    fields = error.to_fields() if isinstance(error, ChunkstoreError) else {}
    message = str(error) or type(error).__name__
    if as_json:
        document = {"error": type(error).__name__, "message": message, "fields": jsonable(fields)}
        sys.stderr.write(json.dumps(document) + "\n")
        return
    sys.stderr.write(f"chunkstore: {shown('; '.join([message, *filter(None, getattr(error, '__notes__', ()))]))}\n")


def write_picture(path: str, text: str, *, as_json: bool) -> bool:
    """Put a picture into a file, in place of what is there, or on stdout (``-``), which then takes nothing else: False.

    Raises ``InvalidArgument``.
    """
    if path == "-":
        if as_json:
            raise InvalidArgument("--svg - and --json both write to standard output: name a file", argument="FILE")
        sys.stdout.write(text)
        return False
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InvalidArgument(f"cannot write {path}: {reason}", argument="FILE") from error
    return True


Meter: TypeAlias = Callable[[int], None]
"""Shows that so many bytes more are done."""
_bars: list[Progress] = []
"""On the screen: two that move the cursor leave lines of each other."""


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{human_bytes(int(task.speed))}/s")


@contextmanager
def status(text: str, *, as_json: bool) -> Iterator[None]:
    """What is being waited for, on stderr while the block runs; silent in a pipe, with ``--json`` and while a bar is shown."""
    console = Console(stderr=True)
    if as_json or _bars or not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


@contextmanager
def meter(title: str, total_bytes: int | None, *, as_json: bool) -> Iterator[Meter]:
    """A progress bar on stderr while the block runs; silent in a pipe and with ``--json``."""
    console = Console(stderr=True)
    if as_json or not console.is_terminal:
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=max(4, min(40, console.width - 60))),
        DownloadColumn(binary_units=True),
        _Speed(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        _bars.append(progress)
        try:
            task = progress.add_task(shown(title), total=total_bytes)
            yield lambda size_bytes: progress.update(task, advance=size_bytes)
        finally:
            _bars.remove(progress)
