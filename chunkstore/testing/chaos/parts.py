"""The fate of parts: created, filled, sealed, and then joined to another segment, deleted, or left where they are.

Promises: an acknowledged event of a part is in the part, or where an (acknowledged or possible) concat put it, or nowhere after an
(acknowledged or possible) deletion; what is acknowledged excludes every other fate.
"""

from __future__ import annotations

from collections.abc import Callable

from chunkstore.testing.chaos.ledger import Attempt
from chunkstore.testing.chaos.places import Call, Places, call_of_attempts
from chunkstore.testing.chaos.survey import Survey

__all__ = ["Part", "Parts"]


class Part:
    """All that was tried with one part."""

    __slots__ = ("appends", "concats", "creates", "cuts", "deletes", "name", "seals")

    def __init__(self, name: str) -> None:
        self.name = name
        self.creates: list[Attempt] = []
        self.appends: list[Attempt] = []
        self.seals: list[Attempt] = []
        self.concats: list[Attempt] = []
        self.deletes: list[Attempt] = []
        self.cuts: list[Attempt] = []


class Parts:
    """All parts that may still exist."""

    def __init__(self) -> None:
        self._parts: dict[str, Part] = {}
        self._part_of: dict[str, Part] = {}

    def add(self, attempt: Attempt) -> None:
        """Take in an attempt of kind create, part, seal, concat, cut or delete."""
        name = attempt.details[0]
        part = self._parts.get(name)
        if part is None:
            part = self._parts[name] = Part(name)
        if attempt.kind == "part":
            self._part_of[attempt.identity] = part
            part.appends.append(attempt)
        else:
            lists = {
                "create": part.creates,
                "seal": part.seals,
                "concat": part.concats,
                "delete": part.deletes,
                "cut": part.cuts,
            }
            lists[attempt.kind].append(attempt)

    def call_of(self, tag: str, segment: str) -> Call | None:
        """The concat that may have put a part's event into a growing segment."""
        part = self._part_of.get(tag)
        if part is None:
            return None
        possible = [attempt for attempt in part.concats if attempt.details[1] == segment and attempt.may_have_happened]
        return call_of_attempts(possible, exact=False) if possible else None

    def check(self, survey: Survey, places: Places, report: Callable[[str], None]) -> None:
        """Hold every part's fate against what is there; parts that are settled are forgotten."""
        for part in list(self._parts.values()):
            exists = part.name in survey.segments
            _check_existence(part, exists=exists, sealed=exists and survey.segments[part.name].sealed, report=report)
            for attempt in part.appends:
                _check_append(part, attempt, places, exists=exists, report=report)
            every = (*part.creates, *part.appends, *part.seals, *part.concats, *part.deletes, *part.cuts)
            if not exists and all(attempt.outcome != "open" for attempt in every):
                # The judge remembers places of events for ever, so coming back would be seen as an unknown segment.
                del self._parts[part.name]
        for name in survey.segments:
            if name.startswith("part-") and name not in self._parts:
                report(f"{name} exists, and it was never created, or came back")


def _happened(attempts: list[Attempt]) -> bool:
    return any(attempt.outcome == "ok" for attempt in attempts)


def _possible(attempts: list[Attempt]) -> bool:
    return any(attempt.may_have_happened for attempt in attempts)


def _check_existence(part: Part, *, exists: bool, sealed: bool, report: Callable[[str], None]) -> None:
    gone = _happened(part.concats) or _happened(part.deletes)
    if exists and gone:
        report(f"{part.name} exists, though its concat or deletion was acknowledged")
    if _happened(part.concats) and _happened(part.deletes):
        report(f"{part.name} was joined and deleted, both acknowledged")
    if not exists and _happened(part.creates) and not _possible(part.concats) and not _possible(part.deletes):
        report(f"{part.name} was created, and is gone though nobody removed it")
    if exists and not _possible(part.creates):
        report(f"{part.name} exists, though its creation failed")
    if exists and _happened(part.seals) and not sealed:
        report(f"{part.name} was sealed, and is not any more")


def _check_append(part: Part, attempt: Attempt, places: Places, *, exists: bool, report: Callable[[str], None]) -> None:
    tag = attempt.identity
    here, placed = places.in_parts.get(tag), places.placed.get(tag)
    if attempt.outcome == "no" and (here is not None or placed is not None):
        report(f"{tag} in {part.name} did not happen ({attempt.result}), and is at {here or placed}")
    if attempt.outcome != "ok":
        return
    if here is not None:
        if here != (part.name, attempt.result):
            report(f"{tag} was acknowledged in {part.name} at {attempt.result}, and is at {here}")
    elif placed is not None:
        possible = [
            (concat.details[1], concat.details[2] + attempt.result)
            for concat in part.concats
            if concat.may_have_happened
        ]
        if placed not in possible:
            report(f"{tag} of {part.name} is at {placed}; it was joined to give one of {possible}")
        if _happened(part.deletes):
            report(f"{tag} of {part.name} is at {placed}, though its deletion was acknowledged")
    elif exists and not _possible(part.cuts):
        report(f"{tag} was acknowledged in {part.name} at {attempt.result}, and is not there: lost")
    elif not exists and (_happened(part.concats) or not _possible(part.deletes)):
        report(f"{tag} was acknowledged in {part.name}, which is gone, and so is the event: lost")
