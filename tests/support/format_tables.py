"""The tables of FORMAT pages, first of chunkstore/codec/pulsar/FORMAT.md, as the tests of the formats read them."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

TEXT = (ROOT / "chunkstore" / "codec" / "pulsar" / "FORMAT.md").read_text(encoding="utf-8")


def table(name: str, text: str = TEXT) -> list[list[str]]:
    part = text.split(f"<!-- table: {name} -->\n", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()[2:]]


def messages(text: str) -> dict[str, tuple[tuple[int, str, str, str], ...]]:
    """Message -> its fields (number, label, type, name), of all blocks of proto2."""
    found: dict[str, tuple[tuple[int, str, str, str], ...]] = {}
    for name, body in re.findall(r"^message (\w+) {\n(.*?)^}", text, re.MULTILINE | re.DOTALL):
        rows = re.findall(r"^  (\w+) (\w+) (\w+) = (\d+);\n", body, re.MULTILINE)
        assert len(rows) == body.count("\n")
        found[name] = tuple((int(number), label, kind, field) for label, kind, field, number in rows)
    return found


def fields(name: str) -> dict[str, tuple[int, int]]:
    """Field -> offset and bytes; fields lie side by side."""
    found: dict[str, tuple[int, int]] = {}
    end = 0
    for offset, length, field, _ in table(name):
        assert int(offset) == end
        found[field] = (int(offset), int(length))
        end += int(length)
    found["all"] = (0, end)
    return found


def number(data: bytes, where: tuple[int, int]) -> int:
    return int.from_bytes(data[where[0] : where[0] + where[1]], "big", signed=True)
