"""What may go wrong, how often, and how often it did: the weather of a run."""

from __future__ import annotations

from dataclasses import dataclass, fields
from random import Random
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Probabilities from 0 to 1: of the classes of calls per call they can hit, of the others per turn of the nemesis; see README.md."""

    unavailable: float = 0.0
    lost_reply: float = 0.0
    late_apply: float = 0.0
    very_late_apply: float = 0.0
    duplicate: float = 0.0
    conflict: float = 0.0
    burst: float = 0.0
    stale_list: float = 0.0
    io_error: float = 0.0
    short_write: float = 0.0
    disk_full: float = 0.0
    sync_error: float = 0.0
    torn_write: float = 0.0
    late_write: float = 0.0
    slow: float = 0.0
    crash_at_call: float = 0.0
    stall_at_call: float = 0.0
    crash: float = 0.0
    stall: float = 0.0
    long_stall: float = 0.0
    clock_jump: float = 0.0
    power_cut: float = 0.0
    machine_lost: float = 0.0
    hang: float = 0.0


CLASSES: Final = tuple(item.name for item in fields(Weather))


class Faults:
    """The dice of one run. While ``active`` is false, nothing goes wrong."""

    CALLS: Final = (
        "unavailable", "lost_reply", "late_apply", "very_late_apply", "duplicate", "conflict", "burst",
        "io_error", "short_write", "disk_full", "sync_error", "torn_write", "late_write", "slow", "crash_at_call",
        "stall_at_call",
    )  # fmt: skip

    def __init__(self, weather: Weather, seed: int | str) -> None:
        self.weather = weather
        self.random = Random(f"weather {seed}")
        self.fired: dict[str, int] = {}
        self.active = True
        self.burst_until = -1
        self.full_until = -1
        self._table: list[tuple[float, str]] = []
        total = 0.0
        for name in self.CALLS:
            chance: float = getattr(weather, name)
            if chance:
                total += chance
                self._table.append((total, name))
        self._any = total

    def clear_up(self) -> None:
        """The end of all bad weather. What is on its way already stays on its way."""
        self.active = False
        self.burst_until = self.full_until = -1

    def draw(self) -> str:
        """The fault that wants to happen at a call, or "". It counts only once ``note`` says that it did."""
        if not self._any:
            return ""
        dice = self.random.random()
        if dice >= self._any:
            return ""
        for limit, name in self._table:
            if dice < limit:
                return name
        return ""

    def note(self, name: str) -> None:
        """A fault of this class has happened."""
        self.fired[name] = self.fired.get(name, 0) + 1

    def chance(self, name: str) -> bool:
        """Whether a fault of a class outside of calls happens now; noted if so."""
        if not self.active:
            return False
        if self.random.random() < getattr(self.weather, name):
            self.note(name)
            return True
        return False
