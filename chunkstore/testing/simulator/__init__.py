"""A deterministic simulator: production code on a seeded scheduler, over one simulated storage, with faults.

``World`` is for directed tests and for looking around; ``Story`` runs one random story. See docs/guide-simulator.md.
Needs the ``testing`` extra.
"""

from chunkstore.testing.simulator.faults import CLASSES, Weather
from chunkstore.testing.simulator.wire import Call, Gate, Rule
from chunkstore.testing.simulator.world import Job, Machine, Process, World

__all__ = ["CLASSES", "Call", "Gate", "Job", "Machine", "Process", "Rule", "Weather", "World"]
