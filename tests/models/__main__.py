"""The models in large scopes: ``python -m tests.models``; minutes, and a few GiB of memory."""

from __future__ import annotations

import gc
import sys

from tests.models.explorer import explore
from tests.models.scopes import LARGE, REFUTED, SMALL


def main() -> int:
    """Explore all scopes and all mutants; 1 where the protocol is violated or a mutant survives."""
    wrong = 0
    # States refer to one another and never in cycles: looking for cycles would take most of the time.
    gc.disable()
    for scope in (*SMALL, *LARGE):
        found = explore(scope.model(), states_max=20_000_000)
        wrong += found.violation is not None
        print(f"{scope.name}: {found} {' > '.join(found.trace)}", flush=True)
    for scope in REFUTED:
        found = explore(scope.model())
        wrong += found.violation is None
        print(f"{scope.name} without {', '.join(scope.mutants)}: {found}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
