"""What a run was and what it found: plain data. Leaves out: running (``runs``), adding up (``campaign``)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class RunResult:
    """What a run was and what it found."""

    seed: int
    storage: str
    mode: str
    claims: int = 0
    served: int = 0
    points: int = 0
    switches: int = 0
    storage_calls: int = 0
    events: int = 0
    acknowledged: int = 0
    unknown: int = 0
    virtual_s: float = 0.0
    trace_hash: str = ""
    allowed: tuple[str, ...] = ()
    fired: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    lmdb: bool = False
    bindings: bool = False

    @property
    def kind(self) -> str:
        """The world it ran in."""
        extra = " bound" * self.bindings + " lmdb" * self.lmdb
        return f"{self.storage} {self.mode}{extra}"

    def replay(self, extra: str = "") -> str:
        """The line that runs it again."""
        return f"python -m tests.simulator --seed {self.seed}{extra}"
