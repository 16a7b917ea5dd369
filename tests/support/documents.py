"""Examples in documents, run as a reader would type them."""

from __future__ import annotations

import re
from pathlib import Path

_PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def has_examples(path: Path) -> bool:
    return _PYTHON_BLOCK.search(path.read_text(encoding="utf-8")) is not None


def run_examples(path: Path) -> dict[str, object]:
    """Run the document's Python blocks one after the other; returns what they defined."""
    text = path.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in _PYTHON_BLOCK.finditer(text):
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block[1], str(path), "exec"), names)
    return names
