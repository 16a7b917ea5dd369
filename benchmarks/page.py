"""Put the saved figures into docs/performance.md: ``python -m benchmarks.page``.

A row of its table names its figure, ``<!-- FILE: FIGURE -->``: value and target are those of that figure in ``results/FILE.json``.
Leaves out: measuring, and everything else on the page, which is written by hand.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

__all__ = ["main", "render"]

_HERE = Path(__file__).resolve().parent
_PAGE = _HERE.parent / "docs" / "performance.md"
_ROW = re.compile(r"^(?P<head>\| .* <!-- (?P<file>[\w-]+): (?P<name>.+) --> \|).*$", re.MULTILINE)


def _row(found: re.Match[str]) -> str:
    figures = json.loads((_HERE / "results" / f"{found['file']}.json").read_text(encoding="utf-8"))["figures"]
    for figure in figures:
        if figure["name"] == found["name"]:
            value = figure["value"]
            text = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
            unit = "" if figure["unit"] == "ratio" else f" {figure['unit']}"
            missed = " **missed**" if figure["met"] is False else ""
            return f"{found['head']} {text}{unit}{missed} | {figure['target']} |"
    return f"{found['head']} not measured | |"


def render(text: str) -> str:
    """The page with every row's figure as it was saved last. Raises ``FileNotFoundError`` for a row without its file."""
    return _ROW.sub(_row, text)


def main() -> None:
    """Rewrite the page."""
    _PAGE.write_text(render(_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {_PAGE.name}")


if __name__ == "__main__":
    main()
