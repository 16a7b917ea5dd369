"""Writes docs/cli.md, below its words, from ``--help``, and docs/api.md from docstrings: ``python -m tests.support.reference``."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Final

from chunkstore.cli.app import load_verb
from chunkstore.cli.verbs import VERBS
from tests.support.paths import ROOT

GENERATED: Final = "<!-- python -m tests.support.reference writes what follows -->"
_MODULES: Final = (
    *("", ".aio", ".arrow", ".backup", ".changes", ".kafka", ".metrics", ".observer"),
    *(".pulsar", ".spark", ".spark.jobs", ".spark.errors", ".storage", ".config"),
)
_ONLY: Final = {"chunkstore.config": ["Tuning"]}
"""Of modules whose other names are told above."""
_SHARED_BY: Final = 5


def commands() -> Iterator[tuple[str, Any]]:
    """Each verb by its full name, as a command."""
    for name in VERBS:
        command = load_verb(name)
        for verb, each in getattr(command, "commands", {"": command}).items():
            yield f"{name} {verb}".strip(), each


def _argument(parameter: Any) -> str:
    text: str = parameter.metavar or parameter.name.upper()
    return text if parameter.required or "[" in text else f"[{text}]"


def _option(parameter: Any) -> str:
    metavar = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return f"* `{names}{metavar}`: {' '.join((parameter.help or '').split())}"


def _cli() -> Iterator[str]:
    found = {name: [each for each in command.params if "--help" not in each.opts] for name, command in commands()}
    options = {
        name: [_option(each) for each in params if each.param_type_name == "option"] for name, params in found.items()
    }
    counted = Counter(line for lines in options.values() for line in lines)
    shared = [line for line, count in counted.items() if count >= _SHARED_BY]
    yield from ("## Shared options", *shared)
    for name, command in commands():
        arguments = " ".join(_argument(each) for each in found[name] if each.param_type_name == "argument")
        yield f"## {name} {arguments}".rstrip()
        yield " ".join(inspect.cleandoc(command.help).split())
        yield from (line for line in options[name] if line not in shared)
        if also := [line.split("`")[1].split(" ")[0] for line in options[name] if line in shared]:
            yield f"Also {', '.join(f'`{option}`' for option in also)}."
        yield "```\n" + "\n".join(re.findall(r"^chunkstore .*", command.epilog, re.MULTILINE)) + "\n```"


def _first(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def _signature(name: str, thing: Callable[..., object]) -> str:
    text = re.sub(r"\(self(?:, )?", "(", str(inspect.signature(thing)))
    text = re.sub(r"<function (\w+) at \w+>", r"\1", re.sub(r"(: |-> )'([^']*)'", r"\1\2", text))
    return f"`{name}{text}`"


def _api() -> Iterator[str]:
    yield "# API"
    for module in [import_module(f"chunkstore{name}") for name in _MODULES]:
        yield f"## {module.__name__}\n\n{_first(module)}"
        for name in sorted(_ONLY.get(module.__name__, module.__all__)):
            thing = getattr(module, name)
            if not inspect.isclass(thing):
                if callable(thing):
                    yield f"{_signature(name, thing)}: {_first(thing)}"
                continue
            yield f"### {name}\n\n{_first(thing)}"
            if issubclass(thing, BaseException):
                continue
            if attributes := (inspect.getdoc(thing) or "").partition("\n\nAttributes")[2]:
                yield f"```text\nattributes{attributes}\n```"
            for method, value in inspect.getmembers(thing, inspect.isfunction):
                if not method.startswith("_") and value.__module__.startswith("chunkstore"):
                    yield f"* {_signature(method, value)}: {_first(value)}"


def _joined(blocks: Iterator[str]) -> str:
    text = "\n\n".join(blocks)
    return re.sub(r"(?m)^(\* .*)\n\n(?=\* )", r"\1\n", text) + "\n"


PAGES: Final[dict[str, Callable[[], str]]] = {"cli.md": lambda: _joined(_cli()), "api.md": lambda: _joined(_api())}

if __name__ == "__main__":
    for page, make in PAGES.items():
        path = ROOT / "docs" / page
        words = path.read_text(encoding="utf-8").partition(GENERATED)[0] if path.exists() else ""
        path.write_text(f"{words}{GENERATED}\n\n{make()}", encoding="utf-8")
