"""Put the saved figures into the pages of ``PAGES``: ``python -m benchmarks.page``.

The pages' words are written by hand; what stands between ``<!-- NAME.json -->`` and the next heading is made of that file in
``results/`` anew; ``<!-- NAME.json: ENDING, ENDING -->`` takes only figures whose names end so. Leaves out: measuring.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["PAGES", "main", "render"]

_HERE = Path(__file__).resolve().parent
PAGES = tuple(_HERE.parent / "docs" / name for name in ("performance.md", "guide-testing.md", "guide-simulator.md"))
_MARK = re.compile(
    r"(?P<mark><!-- (?P<name>[\w-]+)\.json(?:: (?P<endings>[^>]+))? -->)\n.*?(?=\n## |\n<!-- |\Z)", re.DOTALL
)


def _value(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def _rows(document: dict[str, Any], endings: tuple[str, ...]) -> Iterator[str]:
    if "mutants" in document:
        yield "| planted bug | what it is | noticed by | runs | processor s |"
        yield "|---|---|---|---|---|"
        for row in document["mutants"]:
            yield f"| {row['name']} | {row['what']} | {row['killer'] or '**nothing**'} | {row['runs']} | {row['cpu_s']:g} |"
        return
    if "of_these_sources" in document:
        yield "| | of the present sources | all that are saved |"
        yield "|---|---|---|"
        for name in ("claims", "runs", "violations"):
            yield f"| {name} | {document['of_these_sources'][name]:,} | {document['all'][name]:,} |"
        return
    if "totals" in document:
        # Chaos counts, and holds nothing against a target but the number of violations.
        yield "| counted | |"
        yield "|---|---|"
        for name, value in document["totals"].items():
            yield f"| {name.replace('_', ' ')} | {_value(value, '')} |"
        yield f"| violations | {sum(len(phase['violations']) for phase in document['phases'])} |"
        return
    yield f"Load of the machine when the run ended: {document['machine']['load']:.1f}."
    yield ""
    yield "| figure | value | target | |"
    yield "|---|---|---|---|"
    for figure in document["figures"]:
        if figure["name"].endswith(endings):
            # A run that ended early says of how many it had this many.
            of = figure["detail"] if figure["detail"].startswith("of ") else ""
            met = {None: of, True: "met", False: "missed"}[figure["met"]]
            yield f"| {figure['name'].strip()} | {_value(figure['value'], figure['unit'])} | {figure['target']} | {met} |"


def _table(found: re.Match[str]) -> str:
    document = json.loads((_HERE / "results" / f"{found['name']}.json").read_text(encoding="utf-8"))
    endings = tuple(found["endings"].split(", ")) if found["endings"] else ("",)
    return "\n".join([found["mark"], "", *_rows(document, endings)]) + "\n"


def render(text: str) -> str:
    """The page with every table made anew. Raises ``FileNotFoundError`` for a mark without its file."""
    return _MARK.sub(_table, text)


def main() -> None:
    """Rewrite the pages."""
    for page in PAGES:
        page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"wrote {page.name}")


if __name__ == "__main__":
    main()
