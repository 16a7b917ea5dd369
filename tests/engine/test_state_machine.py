"""Random programs against a plain model (``tests/support/programs.py``), in every world.

``CHUNKSTORE_PROGRAMS=1000`` runs so many in each of them, of three times the length (``make programs``).
"""

from __future__ import annotations

import os

from tests.support.programs import Program, run
from tests.support.worlds import EVERY_WORLD, World

pytestmark = EVERY_WORLD

LONG = int(os.environ.get("CHUNKSTORE_PROGRAMS", "0"))


def test_random_programs(world: World) -> None:
    run(Program, world, programs=LONG or 12, steps=120 if LONG else 40)
