"""The judge: what every process was told, against the history that lies in the container.

Promises: every record since the container's creation is read, also what was collected since (``keeping``), and the calls, the
replica's looks and the survey are judged against it by ``checker``. Besides, nobody was acknowledged who tried after a newer owner had
opened; no epoch was opened twice; the replica showed everything that was acknowledged before. Each verdict is about all that happened
until then.
Leaves out: collecting the evidence (``ledger``, ``survey``).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

from chunkstore.names import ContainerNames
from tests.chaos.keeping import stored_bytes
from tests.chaos.ledger import Attempt, EpochsServed, Ledger
from tests.chaos.plan import PAIR, TABLE, Mode, event_tag, frame
from tests.chaos.survey import Survey
from tests.judges.checker import check_history
from tests.judges.events import Event
from tests.judges.stored_history import StoredHistory
from tests.judges.stored_records import SEAL, decode_format, kind_of

__all__ = ["Verdict", "event_of", "read_history"]

_OUTCOMES: dict[str, Any] = {"ok": "ok", "no": "failed", "un": "unknown", "open": "unknown"}
_VIOLATIONS_MAX = 200


class _Bytes:
    """Equal to the bytes of this length and CRC32."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, length: int, crc: int) -> None:
        self._sum = length, crc

    def __eq__(self, other: object) -> bool:
        return isinstance(other, bytes) and (len(other), zlib.crc32(other)) == self._sum

    def __repr__(self) -> str:
        return f"<{self._sum[0]} bytes>"


def read_history(folder: str, kept: str, container: str, violations: list[str]) -> StoredHistory:
    """All of history, in the order of its streams. Nobody may write meanwhile."""
    names = ContainerNames(container)
    content = lru_cache(maxsize=256)(partial(stored_bytes, folder, kept))
    uuid, mode = decode_format(content(names.format) or b"")
    history = StoredHistory(
        names, uuid, mode, content, lambda number, message: violations.append(f"invariant {number}: {message}")
    )
    found = sorted(set(_names(folder, container)) | set(_names(kept, container)))
    for name in found:
        epoch = names.parse_epoch(name)
        if epoch is not None:
            history.claimed(epoch, content(name) or b"")
    slots = {place: content(name) or b"" for name in found if (place := names.parse_slot(name)) is not None}
    for place, data in slots.items():
        if kind_of(data) == SEAL:
            history.slot_written(*place, data)
    for (epoch, number), data in slots.items():
        if number == 0 and kind_of(data) != SEAL:
            history.slot_written(epoch, 0, data)  # and what is behind it
            history.log_written(epoch, content(names.log(epoch)) or b"")
    return history


def _names(folder: str, container: str) -> Iterator[str]:
    for part in ("epoch", "j"):
        for place, _, files in os.walk(os.path.join(folder, container, part)):
            yield from (os.path.relpath(os.path.join(place, file), folder) for file in files)


def event_of(attempt: Attempt) -> Event | None:
    """An attempt as the checker knows calls; None for those that answer nothing about contents."""
    kind, details, result = attempt.kind, attempt.details, attempt.result if attempt.outcome == "ok" else None
    name: str = details[0] if details else ""
    args: tuple[Any, ...]
    match kind:
        case "plain" | "part":
            kind, args = "append", (frame(attempt.identity), None, None, None)
        case "event":
            kind, args = "append", (frame(event_tag(*details[1:])), None, *details[1:])
        case "pair":
            key, version, value = details
            halves = [
                ("append", of, (frame(f"{attempt.identity}.{half}"),)) for of, half in zip(PAIR, "ab", strict=True)
            ]
            put = ("table_put", "", (TABLE, key.encode(), value.encode(), version))
            kind, name, args, result = "commit", "", ((*halves, put),), result and (*result, None)
        case "put":
            key, version, value = details
            kind, name, args = "table_put", "", (TABLE, key.encode(), value.encode(), version)
        case "get":
            kind, name, args, result = (
                "table_get",
                "",
                (TABLE, name.encode()),
                result and (result[0].encode(), result[1]),
            )
        case "look":
            kind, args, result = "info", (), result and tuple(result)
        case "read":
            args, result = tuple(details[1:]), result and _Bytes(*result)
        case "concat":
            name, args = details[1], (details[2], details[0])
        case "create" | "seal" | "delete" | "truncate" | "last":
            args = tuple(details[1:])
        case _:
            return None
    if attempt.outcome == "no":
        result = attempt.result
    return Event(
        process=attempt.process,
        kind=kind,
        segment=name,
        args=args,
        invoked=_ns(attempt.tried_s),
        returned=None if attempt.outcome == "open" else _ns(attempt.answered_s),
        outcome=_OUTCOMES[attempt.outcome],
        result=result,
        epoch=attempt.answered_epoch or attempt.tried_epoch,
        owner=attempt.process.removesuffix(".notes"),
        fields=attempt.fields,
    )


def _ns(at_s: float) -> int:
    return round(at_s * 1_000_000_000)


class Verdict:
    """The violations found so far, in ``violations``."""

    def __init__(self, *, mode: Mode, folder: str, kept: str, container: str) -> None:
        self.violations: list[str] = []
        self._mode = mode
        self._place = folder, kept, container
        self._figures = {"records": 0, "calls": 0, "replica_slices_compared": 0}

    def report(self, violation: str) -> None:
        """Remember a violation."""
        if len(self.violations) < _VIOLATIONS_MAX:
            self.violations.append(violation)

    def judge(self, ledger: Ledger, survey: Survey, began_s: float, ended_s: float) -> None:
        """Judge all that happened so far; the survey took from ``began_s`` to ``ended_s``, and everybody else stood still."""
        self.violations += ledger.bad + survey.problems
        history = read_history(*self._place, self.violations)
        attempts = list(ledger.attempts.values())
        calls = [(attempt, event) for attempt in attempts if (event := event_of(attempt)) is not None]
        looks = [*_shown_by_replica(ledger), *_shown_to_judge(survey, began_s, ended_s)]
        owners = {epoch: ledger.owners.get(claim.pid, "") for epoch, claim in history.claims.items()}
        verdict = check_history(
            history.entries,
            [*(event for _, event in calls), *looks],
            owners={epoch: owner for epoch, owner in owners.items() if owner},
            timed=False,
        )
        for anomaly in verdict.anomalies:
            self.report(f"history {anomaly.name}: segment {anomaly.segment!r}: {anomaly.message}")
        served = EpochsServed(ledger.openings)
        self._check_epochs(ledger, attempts, served)
        acknowledged = sorted(
            (calls[index][0].answered_s, lsn)
            for index, lsn in verdict.lsns.items()
            if index < len(calls) and calls[index][0].outcome == "ok"
        )
        self._check_replica(ledger, acknowledged, served)
        self._figures = {
            "records": len(history.entries),
            "calls": len(calls),
            "replica_slices_compared": len(ledger.slices),
        }

    def _check_epochs(self, ledger: Ledger, attempts: Sequence[Attempt], served: EpochsServed) -> None:
        owners: dict[int, str] = {}
        for opening in ledger.openings:
            if owners.setdefault(opening.epoch, opening.process) != opening.process:
                self.report(f"epoch {opening.epoch} was opened by {opening.process} and by {owners[opening.epoch]}")
        for attempt in attempts:
            # (A collection that finds nothing to do says nothing about the present state.)
            if attempt.outcome == "ok" and attempt.kind != "collect":
                newest = served.before(attempt.tried_s)
                if newest > attempt.answered_epoch:
                    self.report(
                        f"{attempt.identity} ({attempt.kind}) was acknowledged by epoch {attempt.answered_epoch}, though it "
                        f"was tried after epoch {newest} had opened"
                    )

    def _check_replica(self, ledger: Ledger, acknowledged: list[tuple[float, int]], served: EpochsServed) -> None:
        """After a refresh it shows what was acknowledged before that began."""
        needed, place = 0, 0
        for shown in sorted(ledger.shown, key=lambda shown: self._since_s(shown.began_s, served)):
            while place < len(acknowledged) and acknowledged[place][0] < self._since_s(shown.began_s, served):
                needed = max(needed, acknowledged[place][1])
                place += 1
            if shown.lsn < needed:
                self.report(f"the replica showed lsn {shown.lsn} after lsn {needed} had been acknowledged: stale")

    def _since_s(self, began_s: float, served: EpochsServed) -> float:
        # In APPEND mode the last record of a stream whose successor has claimed is shown only behind the successor's OPEN.
        return began_s if self._mode == "slot" else served.claim_before(began_s)

    def summary(self) -> dict[str, Any]:
        """Figures for the report."""
        return self._figures


def _look(process: str, kind: str, name: str, args: tuple[Any, ...], result: Any, from_s: float, to_s: float) -> Event:
    return Event(process, kind, name, args, _ns(from_s), _ns(to_s), "ok", result, 0)


def _shown_by_replica(ledger: Ledger) -> Iterator[Event]:
    for piece in ledger.slices:
        place = (piece.start, piece.stop - piece.start, None, piece.lsn)
        shown = _Bytes(piece.stop - piece.start, piece.crc)
        yield _look(piece.replica, "replica_read", piece.segment, place, shown, piece.at_s, piece.at_s)
    for shown_at in ledger.shown:
        for segment, length in shown_at.lengths.items():
            end = (length, 1, None, shown_at.lsn)
            yield _look(shown_at.replica, "replica_read", segment, end, b"", shown_at.at_s, shown_at.at_s)
    for replica, at_s, key, row, lsn in ledger.rows_shown:
        yield _look(replica, "replica_get", "", (TABLE, key.encode(), None, lsn), (row[0].encode(), row[1]), at_s, at_s)


def _shown_to_judge(survey: Survey, began_s: float, ended_s: float) -> Iterator[Event]:
    for name, seen in survey.segments.items():
        args = (seen.start, len(seen.data) + 1, seen.id)
        yield _look("judge", "final", name, args, seen.data, began_s, ended_s)
    infos = sorted((name, seen.id, seen.start, seen.length, seen.sealed) for name, seen in survey.segments.items())
    yield _look("judge", "list", "", ("",), tuple(infos), began_s, ended_s)
    for key, row in survey.rows.items():
        yield _look("judge", "table_get", "", (TABLE, key.encode()), row, began_s, ended_s)
