"""The same numbers, from the source alone: plain Python over the departures, without a container and without Spark."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from examples.flights.departures import Departure

LATE_MINUTES = 15


class Numbers(NamedTuple):
    """``ledgers``: departures by day (20260301). ``delays``: by carrier and hour, the columns of gold behind those.
    ``chains``: by aircraft and day, those of two legs and more."""

    departures: int
    cancelled: int
    by_carrier: dict[str, int]
    ledgers: dict[int, int]
    delays: dict[tuple[str, int], tuple[int, int, int, int | None]]
    chains: dict[tuple[str, str], tuple[int, int, str]]


def numbers(days: Iterable[list[Departure]]) -> Numbers:
    rows: list[dict[str, Any]] = [row for day in days for row in day]
    ledgers = Counter((row["year"] * 100 + row["month"]) * 100 + row["day"] for row in rows)
    hours = defaultdict[tuple[str, int], list[int | None]](list)
    for row in rows:
        hours[row["carrier"], row["hour"]].append(row["dep_delay"])
    by_aircraft = itemgetter("tailnum", "year", "month", "day")
    chains = {}
    for (tail, year, month, day), found in groupby(sorted(rows, key=by_aircraft), key=by_aircraft):
        legs = sorted(found, key=itemgetter("sched_dep_time"))
        late = [list(chain) for is_late, chain in groupby(legs, key=_is_late) if is_late]
        chain = max(late, key=len, default=[])  # the first of the longest
        if len(chain) > 1:
            airports = " ".join([chain[0]["origin"], *(leg["dest"] for leg in chain)])
            chains[tail, f"{year}-{month:02}-{day:02}"] = (len(chain), sum(leg["dep_delay"] for leg in chain), airports)
    return Numbers(
        departures=len(rows),
        cancelled=sum(row["dep_time"] is None for row in rows),
        by_carrier=Counter(row["carrier"] for row in rows),
        ledgers=ledgers,
        delays={key: _delays(hours[key]) for key in hours},
        chains=chains,
    )


def _is_late(leg: dict[str, Any]) -> bool:
    return leg["dep_delay"] is not None and leg["dep_delay"] > LATE_MINUTES


def _delays(found: list[int | None]) -> tuple[int, int, int, int | None]:
    known = [delay for delay in found if delay is not None]
    return len(found), len(found) - len(known), sum(known), max(known, default=None)
