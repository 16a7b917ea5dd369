"""Put the saved figures into ``docs/performance.md``: ``python -m benchmarks.page``.

The page's words are written by hand; what stands between ``<!-- NAME.json -->`` and the next heading is made of that file in
``results/`` anew. Leaves out: measuring.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

__all__ = ["main", "render"]

_HERE = Path(__file__).resolve().parent
PAGE = _HERE.parent / "docs" / "performance.md"
_MARK = re.compile(r"<!-- (?P<name>[\w-]+)\.json -->\n.*?(?=\n## |\Z)", re.DOTALL)


def _value(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{text} {unit}"


def _table(name: str) -> str:
    document = json.loads((_HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))
    rows = [
        f"<!-- {name}.json -->",
        "",
        f"Load of the machine when the run ended: {document['machine']['load']:.1f}.",
        "",
        "| figure | value | target | |",
        "|---|---|---|---|",
    ]
    for figure in document["figures"]:
        met = {None: "", True: "met", False: "missed"}[figure["met"]]
        rows.append(f"| {figure['name']} | {_value(figure['value'], figure['unit'])} | {figure['target']} | {met} |")
    return "\n".join(rows) + "\n"


def render(text: str) -> str:
    """The page with every table made anew. Raises ``FileNotFoundError`` for a mark without its file."""
    return _MARK.sub(lambda found: _table(found["name"]), text)


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
