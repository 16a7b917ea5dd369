"""A deterministic simulator: production code on a seeded scheduler, over one simulated storage, with faults.

``World`` is for directed tests and for looking around; ``Run`` is one random run. See README.md here.
Needs the ``dev`` extra.
"""

from tests.simulator.faults import CLASSES, Weather
from tests.simulator.wire import Call, Gate, Rule
from tests.simulator.world import Job, Machine, Process, World

__all__ = ["CLASSES", "Call", "Gate", "Job", "Machine", "Process", "Rule", "Weather", "World"]
