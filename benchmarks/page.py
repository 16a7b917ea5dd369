"""Put the saved figures into docs/performance.md: ``python -m benchmarks.page``.

Its words are written by hand; what is between ``<!-- NAME.json -->`` and the next heading is made of that file in
``results/`` anew; ``<!-- NAME.json: ENDING, ENDING -->`` takes only figures whose names end so. Leaves out: measuring.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["main", "render"]

_HERE = Path(__file__).resolve().parent
_PAGE = _HERE.parent / "docs" / "performance.md"
_MARK = re.compile(
    r"(?P<mark><!-- (?P<name>[\w-]+)\.json(?:: (?P<endings>[^>]+))? -->)\n.*?(?=\n## |\n<!-- |\Z)", re.DOTALL
)


def _value(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def _rows(document: dict[str, Any], endings: tuple[str, ...]) -> Iterator[str]:
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
    """Rewrite the page."""
    _PAGE.write_text(render(_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {_PAGE.name}")


if __name__ == "__main__":
    main()
