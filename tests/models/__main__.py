"""The models in large scopes: ``python -m tests.models [--save]``; minutes, and a few GiB of memory."""

from __future__ import annotations

import argparse
import gc
import sys

from tests.models.explorer import explore
from tests.models.scopes import LARGE, REFUTED, SMALL
from tests.support.report import Report


def main() -> int:
    """Explore all scopes and all mutants; 1 where the protocol is violated or a mutant survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/models.json")
    options = parser.parse_args()
    report = Report("models")
    wrong = 0
    # States refer to one another and never in cycles: looking for cycles would take most of the time.
    gc.disable()
    for scope in (*SMALL, *LARGE):
        found = explore(scope.model(), states_max=20_000_000)
        wrong += found.violation is not None
        detail = (
            f"{found.seconds:.1f} s" if found.violation is None else f"{found.violation}: {' > '.join(found.trace)}"
        )
        report.add(scope.name, found.states, "states", detail=detail)
    refuted, mutated = 0, REFUTED
    for scope in mutated:
        found = explore(scope.model())
        refuted += found.violation is not None
        print(f"  {scope.name} without {', '.join(scope.mutants)}: {found}")
    report.add("mutants refuted", refuted, "mutants", at_least=len(mutated))
    if options.save and not wrong:
        report.save()
    return 1 if wrong or refuted < len(mutated) else 0


if __name__ == "__main__":
    sys.exit(main())
