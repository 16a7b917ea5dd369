"""The judge: what every process was told, against what is there.

Promises: an acknowledged event is there exactly once, where it was said to be, and in an order that agrees with the order of
calls; an event that failed is not there; an unknown one is there at most once, and never changes its mind later; nobody was
acknowledged who tried after a newer owner had opened; looks and replicas showed a prefix that contains everything
acknowledged before. Works piece by piece: each call takes in what came since the last one.
Leaves out: collecting the evidence (``ledger``, ``survey``).
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from itertools import accumulate
from typing import Any

from chunkstore.testing.chaos.chains import Chains
from chunkstore.testing.chaos.ledger import Attempt, EpochsServed, Ledger
from chunkstore.testing.chaos.parts import Parts
from chunkstore.testing.chaos.places import Call, Places, call_of_attempts
from chunkstore.testing.chaos.plan import GROWING, Mode, event_tag, frame
from chunkstore.testing.chaos.survey import Survey

__all__ = ["Verdict"]

_PART_KINDS = frozenset(("create", "part", "seal", "concat", "delete", "cut"))
_VIOLATIONS_MAX = 200


class Verdict:
    """The violations found so far, in ``violations``. ``lazy``: a part of an unacknowledged append may be there, and a replica may
    show less than was acknowledged."""

    def __init__(self, *, mode: Mode, lazy: bool) -> None:
        self.violations: list[str] = []
        self.places = Places(torn_allowed=lazy)
        self._mode = mode
        self._lazy = lazy
        self._parts = Parts()
        self._chains = Chains()
        self._writers: dict[str, list[Attempt]] = {}
        self._unsettled: list[Attempt] = []
        self._acknowledged: dict[str, list[tuple[float, int]]] = {name: [] for name in GROWING}
        self._lengths: dict[str, list[int]] = {name: [] for name in GROWING}
        self._bad_seen = 0
        self._checked = {"slices": 0, "shown": 0}
        self._replica = (0, 0.0)
        self.slices_compared = 0

    def report(self, violation: str) -> None:
        """Remember a violation."""
        if len(self.violations) < _VIOLATIONS_MAX:
            self.violations.append(violation)

    def judge(self, ledger: Ledger, survey: Survey) -> None:
        """Compare. Everybody must have stood still since before the survey, and the ledger must have been read since then."""
        self.violations += ledger.bad[self._bad_seen :]
        self._bad_seen = len(ledger.bad)
        self.violations += survey.problems
        for attempt in ledger.fresh:
            if attempt.kind in _PART_KINDS:
                self._parts.add(attempt)
            elif attempt.kind == "event":
                tag = event_tag(attempt.details[1], attempt.details[2])
                self._writers.setdefault(tag, []).append(attempt)
        self._unsettled += ledger.fresh
        ledger.fresh = []
        self.places.take(survey, lambda tag, segment: self._call_of(ledger, tag, segment), self.report)
        self._chains.follow(survey, ledger.attempts, self.report)
        self._parts.check(survey, self.places, self.report)
        served = ledger.epoch_served()
        looks = [attempt for attempt in self._unsettled if not self._settle(attempt, served)]
        self._unsettled = [attempt for attempt in looks if attempt.outcome == "open"]
        for name, entries in self._acknowledged.items():
            entries.sort()
            self._lengths[name] = list(accumulate((stop for _, stop in entries), max))
        for attempt in looks:
            if attempt.outcome == "ok":
                self._check_look(attempt, survey)
        self._check_epochs(ledger)
        self._check_replica(ledger, survey, served)

    def _call_of(self, ledger: Ledger, tag: str, segment: str) -> Call | None:
        attempts = self._writers.get(tag)
        if attempts is not None:
            return call_of_attempts(attempts, exact=False) if attempts[0].details[0] == segment else None
        attempt = ledger.attempts.get(tag)
        if attempt is None:
            attempt = ledger.attempts.get(tag[:-2])
            if attempt is None or attempt.kind != "pair" or segment != f"pair-{tag[-1]}":
                return None
            return call_of_attempts([attempt], exact=True)
        if attempt.kind == "part":
            return self._parts.call_of(tag, segment)
        return call_of_attempts([attempt], exact=True) if attempt.details[0] == segment else None

    def _settle(self, attempt: Attempt, served: EpochsServed) -> bool:
        """Judge an attempt that was answered. False for looks, and for what is still open."""
        if attempt.outcome == "open":
            return False
        if attempt.outcome == "ok" and attempt.kind != "collect":
            # (A collection that finds nothing to do says nothing about the present state.)
            newest = served.before(attempt.tried_s)
            if newest > attempt.answered_epoch:
                self.report(
                    f"{attempt.identity} ({attempt.kind}) was acknowledged by epoch {attempt.answered_epoch}, though it was tried "
                    f"after epoch {newest} had opened"
                )
        if attempt.kind == "plain":
            self._check_append(attempt, attempt.identity)
        elif attempt.kind == "event":
            # Failed means that this attempt did not write it; another owner's attempt may have.
            if attempt.outcome == "ok":
                self._check_append(attempt, event_tag(attempt.details[1], attempt.details[2]))
        elif attempt.kind in ("put", "pair"):
            self._chains.check(attempt, self.places, self.report)
            if attempt.kind == "pair" and attempt.outcome == "ok":
                for half, offset in zip("ab", attempt.result, strict=True):
                    self._acknowledge(f"pair-{half}", attempt, offset + len(frame(f"{attempt.identity}.{half}")))
        elif attempt.kind == "last" and attempt.outcome == "ok":
            if attempt.result > self.places.recorded(attempt.details[0]):
                self.report(
                    f"{attempt.identity}: writer {attempt.details[0]} was at {attempt.result}, and that event is gone"
                )
        elif attempt.kind in ("look", "read"):
            return False
        return True

    def _check_append(self, attempt: Attempt, tag: str) -> None:
        place = self.places.placed.get(tag)
        segment = attempt.details[0]
        if attempt.outcome == "ok":
            if place is None:
                self.report(f"{tag} was acknowledged in {segment} at {attempt.result}, and is not there: lost")
            elif place != (segment, attempt.result):
                self.report(f"{tag} was acknowledged in {segment} at {attempt.result}, and is at {place}")
            self._acknowledge(segment, attempt, attempt.result + len(frame(tag)))
        elif attempt.outcome == "no" and place is not None:
            self.report(f"{tag} did not happen ({attempt.result}), and is at {place}")

    def _acknowledge(self, segment: str, attempt: Attempt, stop: int) -> None:
        self._acknowledged[segment].append((attempt.answered_s, stop))

    def _length_before(self, segment: str, at_s: float) -> int:
        """How long a segment must have been for whoever looked from ``at_s`` on."""
        place = bisect_left(self._acknowledged[segment], (at_s, 0))
        return self._lengths[segment][place - 1] if place else 0

    def _check_look(self, attempt: Attempt, survey: Survey) -> None:
        segment = attempt.details[0]
        if segment not in self._acknowledged:
            return
        length = attempt.result if attempt.kind == "look" else attempt.result[1]
        needed = self._length_before(segment, attempt.tried_s)
        if length < needed and attempt.kind == "look":
            self.report(
                f"{attempt.identity}: {segment} was {length} bytes long, after {needed} had been acknowledged: stale"
            )
        if self.places.growing[segment].latest_began_below(length) > attempt.answered_s:
            self.report(f"{attempt.identity}: {segment} was {length} bytes long before they had been tried")
        if attempt.kind == "read":
            start, stop, crc = attempt.result
            seen = survey.segments[segment]
            if start >= seen.start and zlib.crc32(seen.data[start - seen.start : stop - seen.start]) != crc:
                self.report(f"{attempt.identity}: a read of {segment} [{start}, {stop}) showed other bytes")

    def _check_epochs(self, ledger: Ledger) -> None:
        owners: dict[int, str] = {}
        for opening in ledger.openings:
            if owners.setdefault(opening.epoch, opening.process) != opening.process:
                self.report(f"epoch {opening.epoch} was opened by {opening.process} and by {owners[opening.epoch]}")

    def _check_replica(self, ledger: Ledger, survey: Survey, served: EpochsServed) -> None:
        for piece in ledger.slices[self._checked["slices"] :]:
            seen = survey.segments[piece.segment]
            if piece.stop > seen.length:
                self.report(f"the replica showed {piece.segment} up to {piece.stop} at lsn {piece.lsn}: a phantom")
            elif piece.start >= seen.start:
                self.slices_compared += 1
                if zlib.crc32(seen.data[piece.start - seen.start : piece.stop - seen.start]) != piece.crc:
                    self.report(f"the replica showed other bytes in {piece.segment} [{piece.start}, {piece.stop})")
            if self.places.growing[piece.segment].latest_began_below(piece.stop) > piece.at_s:
                self.report(f"the replica showed {piece.segment} up to {piece.stop} before that had been tried")
        self._checked["slices"] = len(ledger.slices)
        for shown in ledger.shown[self._checked["shown"] :]:
            lsn, at_s = self._replica
            if shown.began_s > at_s and shown.lsn < lsn:
                self.report(f"the replica went back from lsn {lsn} to {shown.lsn} in a new life")
            self._replica = max(lsn, shown.lsn), max(at_s, shown.at_s)
            if self._lazy:
                continue
            # In APPEND mode the last record of a stream whose successor has claimed is shown only behind the successor's OPEN.
            since_s = shown.began_s if self._mode == "slot" else served.claim_before(shown.began_s)
            for segment, length in shown.lengths.items():
                needed = self._length_before(segment, since_s)
                if length < needed:
                    self.report(
                        f"the replica showed {segment} up to {length} after {needed} bytes had been acknowledged: stale"
                    )
        self._checked["shown"] = len(ledger.shown)
        versions: dict[str, int] = {}
        for _, key, version, tag in ledger.rows_shown:
            if version < versions.get(key, 0):
                self.report(f"the replica's row {key} went back to version {version} ({tag})")
            versions[key] = version

    def summary(self) -> dict[str, Any]:
        """Figures for the report."""
        return {
            "events_found": len(self.places.placed),
            "replica_slices_compared": self.slices_compared,
            "torn_bytes": self.places.torn_bytes,
        }
