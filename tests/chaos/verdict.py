"""What all owners noted, against what is there."""

from __future__ import annotations

from collections.abc import Iterable

from chunkstore.engine.reading import ReadableContainer
from tests.chaos.owner import CUT, SEGMENTS, TABLE, event


class Verdict:
    """Notes of owners. ``wrong``: what they themselves called wrong."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.tried: set[tuple[str, str]] = set()
        self.acknowledged: dict[tuple[str, str], int] = {}
        self.failed: set[tuple[str, str]] = set()
        self.wrong: list[str] = []
        self.unknown = self.cut_to = 0
        for line in lines:
            kind, _, rest = line.partition(" ")
            if kind == "X":
                self.wrong.append(rest)
                continue
            name, what, *offset = rest.split(" ")
            if kind == "C":
                self.cut_to = max(self.cut_to, int(what))
            elif kind == "T":
                self.tried.add((name, what))
            elif kind == "A":
                known = self.acknowledged.setdefault((name, what), int(offset[0]))
                if known != int(offset[0]):
                    self.wrong.append(f"{what} was acknowledged at {known} and at {offset[0]}")
            elif kind == "F":
                self.failed.add((name, what))
            self.unknown += kind == "U"

    def problems(self, store: ReadableContainer) -> list[str]:
        """Every acknowledged event is at its offset, once; unknown ones at most once; the others are not there; rows as their events."""
        problems = list(self.wrong)
        found: dict[tuple[str, str], int] = {}
        starts: dict[str, int] = {}
        for name in SEGMENTS:
            info = store.info(name)
            starts[name] = position = info.start_offset
            if position > (self.cut_to if name == CUT else 0):
                problems.append(f"{name} begins at {position}, and nobody truncated it there")
            for part in store.read(name, position, info.length).split(b"]")[:-1]:
                tag = part[1:].partition(b":")[0].decode("utf-8", "replace")
                if part + b"]" != event(tag):
                    problems.append(f"{name} at {position}: {part[:80]!r} is no event")
                elif (name, tag) in found:
                    problems.append(f"{tag} is there twice")
                found[name, tag] = position
                position += len(part) + 1
            if position != info.length:
                problems.append(f"{name} ends with half an event")
        for (name, tag), offset in self.acknowledged.items():
            there = found.get((name, tag))
            if (offset != there and offset >= starts[name]) or (offset < 0 and there is None):
                problems.append(f"{tag} was acknowledged at {offset} of {name}, and is at {there}")
        problems += [f"{tag} was said not to have happened, and is there" for _, tag in self.failed & found.keys()]
        problems += [f"{tag} is there, and was never tried" for _, tag in found.keys() - self.tried]
        rows = {entry.key.decode() for entry in store.table(TABLE).scan()}
        events = {tag for _, tag in found if tag.startswith("row-")}
        problems += [f"{tag} has an event or a row, and not both" for tag in rows ^ events]
        return problems
