"""Chains of table rows: every value names the one before, so the newest leads through all that ever counted.

Promises: an acknowledged put is on the chain, a failed one is not, an unknown one may be; the order on the chain agrees with the
order of calls; a commit over two segments and a row happened in all three places or in none.
"""

from __future__ import annotations

from collections.abc import Callable

from chunkstore.testing.chaos.ledger import Attempt
from chunkstore.testing.chaos.places import Places
from chunkstore.testing.chaos.plan import CHAINS, PAIR
from chunkstore.testing.chaos.survey import Survey

__all__ = ["Chains"]

Report = Callable[[str], None]


class Chains:
    """The chains as far as they were followed."""

    def __init__(self) -> None:
        self._heads = dict.fromkeys(CHAINS, "")
        self._latest_began = dict.fromkeys(CHAINS, 0.0)
        self._members: set[str] = set()

    def follow(self, survey: Survey, attempts: dict[str, Attempt], report: Report) -> None:
        """Walk from each row's newest value back to where the last walk began."""
        for key, head in self._heads.items():
            tag = survey.rows.get(key, (0, ""))[1]
            links: list[str] = []
            seen: set[str] = set()
            while tag != head:
                attempt = attempts.get(tag)
                if attempt is None or attempt.details[0] != key or tag in seen or not tag:
                    report(f"chain {key}: from {tag!r} nothing leads back to {head!r}: an acknowledged row was lost")
                    break
                links.append(tag)
                seen.add(tag)
                tag = attempt.details[1]
            self._take(key, links, attempts, report)

    def _take(self, key: str, links: list[str], attempts: dict[str, Attempt], report: Report) -> None:
        for tag in reversed(links):
            attempt = attempts[tag]
            if attempt.outcome == "ok" and attempt.answered_s < self._latest_began[key]:
                report(f"chain {key}: {tag} was acknowledged before a value in front of it was tried")
            self._latest_began[key] = max(self._latest_began[key], attempt.tried_s)
            self._members.add(tag)
        if links:
            self._heads[key] = links[0]

    def check(self, attempt: Attempt, places: Places, report: Report) -> None:
        """One attempt of kind put or pair."""
        on_chain = attempt.identity in self._members
        if attempt.outcome == "ok" and not on_chain:
            report(f"{attempt.identity} was acknowledged for {attempt.details[0]}, and is not on the chain: lost")
        if attempt.outcome == "no" and on_chain:
            report(
                f"{attempt.identity} for {attempt.details[0]} did not happen ({attempt.result}), and is on the chain"
            )
        if attempt.kind == "pair":
            self._check_pair(attempt, places, report, on_chain=on_chain)

    def _check_pair(self, attempt: Attempt, places: Places, report: Report, *, on_chain: bool) -> None:
        found = [places.placed.get(f"{attempt.identity}.{half}") for half in "ab"]
        if [place is not None for place in found] != [on_chain, on_chain]:
            report(f"{attempt.identity} is torn: row {on_chain}, events at {found}")
        elif attempt.outcome == "ok":
            expected = list(zip(PAIR, attempt.result, strict=True))
            if found != expected:
                report(f"{attempt.identity} was acknowledged at {expected}, and is at {found}")
