"""What a run was and what it found."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class RunResult:
    """Plain data. ``kind``: the world it ran in; ``allowed`` and ``fired``: classes of faults."""

    seed: int
    kind: str
    allowed: tuple[str, ...]
    claims: int = 0
    served: int = 0
    storage_calls: int = 0
    events: int = 0
    acknowledged: int = 0
    trace_hash: str = ""
    fired: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def replay(self) -> str:
        """The line that runs it again."""
        return f"python -m tests.simulator --seed {self.seed}"
