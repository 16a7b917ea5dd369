"""What a chaos run consists of: segments, writers, framed events, phases, and the settings each life draws.

Promises: an event's bytes are a function of its tag, so whoever finds them can verify them, and several processes may offer
the same event. Everything drawn by chance comes from a seed.
Leaves out: doing any of it.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from typing import Any, Final, Literal

from chunkstore.config import KIB, MIB, RollingPolicy, Settings
from tests.support.settings import tuned

__all__ = [
    "CHAINS",
    "CHUNK_SIZES",
    "GROWING",
    "JOINED",
    "LOGS",
    "PAIR",
    "PART_PREFIX",
    "TABLE",
    "WRITERS",
    "Cast",
    "Mode",
    "Phase",
    "Role",
    "draw_settings",
    "event_tag",
    "frame",
    "settings_of",
    "writer_segment",
]

Mode = Literal["slot", "append"]
Cast = Literal["applications", "upkeep"]
"""Who takes part: applications that embed the engine; or some of them, an owner without an application, and a cron job."""
Role = Literal["contender", "serve", "gc"]

LOGS: Final = ("log-0", "log-1", "log-2")
"""Appended to by everybody, truncated at the front below what was verified."""
PAIR: Final = ("pair-a", "pair-b")
"""Appended to by commits that touch both and a table row."""
JOINED: Final = ("joined-0", "joined-1")
"""Grow by concat (and by appends)."""
GROWING: Final = (*LOGS, *PAIR, *JOINED)
PART_PREFIX: Final = "part-"
CHUNK_SIZES: Final = {"log-0": 700, "log-1": 8 * KIB, "log-2": MIB, "pair-a": 2 * KIB, "pair-b": 600}
WRITERS: Final = ("w0", "w1", "w2", "w3")
"""Exactly-once writers: whoever owns the container goes on with their events."""
TABLE: Final = "chaos"
CHAINS: Final = ("chain-0", "chain-1", "chain-pair")
"""Rows whose every value names the one before."""

_SIZES: Final = (0, 0, 5, 60, 60, 400, 1500)


def frame(tag: str) -> bytes:
    """An event's bytes: its tag and a filler that only this tag has."""
    size = _SIZES[zlib.crc32(tag.encode()) % len(_SIZES)]
    filler = (f"{tag}_" * (size // (len(tag) + 1) + 1))[:size]
    return f"[{tag}:{filler}]".encode()


def event_tag(writer: str, number: int) -> str:
    """The tag of a writer's numbered event: the same whoever offers it."""
    return f"{writer}-{number}"


def writer_segment(writer: str) -> str:
    """The segment that an exactly-once writer writes to."""
    return LOGS[int(writer[1:]) % len(LOGS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One part of a run: a fresh container in one mode on one kind of disk. ``kills`` is how many ``SIGKILL`` it shall see."""

    mode: Mode
    full_disk: bool
    seconds: float
    kills: int
    processes: int
    check_every_s: float
    cast: Cast = "applications"

    def role(self, slot: int) -> Role:
        """What the process in a slot is."""
        last = self.processes - 1 - slot
        return "contender" if self.cast == "applications" or last > 1 else ("gc", "serve")[last]

    @property
    def name(self) -> str:
        """For people and folders."""
        return f"{self.mode}{'-full-disk' if self.full_disk else ''}{'-upkeep' if self.cast == 'upkeep' else ''}"


def draw_settings(chance: random.Random, phase: Phase) -> dict[str, Any]:
    """Settings of one life, as JSON has them: small limits, so that rolls, snapshots and collections happen all the time."""
    return {
        "journal_mode": phase.mode,
        "op_deadline_s": 10.0,
        "resolve_s": chance.choice((0.0, 0.2, 1.0)),
        "lease_s": chance.choice((0.0, 0.5)),
        "lease_remote_s": 0.0,
        "linger_s": chance.choice((0.0, 0.0, 0.004)),
        "io_workers": 4,
        "lmdb_map_bytes": 1 << 28,
        "log_roll_bytes": chance.choice((24 * KIB, 200 * KIB)),
        "slot_roll_records": chance.choice((64, 400)),
        "roll_interval_s_min": chance.choice((0.05, 3.0)),
        "snapshot_bytes_min": chance.choice((16 * KIB, 200 * KIB)),
        "snapshot_slots_min": chance.choice((60, 500)),
        "gc_grace_s": chance.choice((0.0, 0.5, 2.0)),
        "open_files_max": chance.choice((8, 512)),
        "read_fence": "fenced",
        # Small appends in records, and soon in chunks: a few events, or a life's.
        "inline_bytes_max": chance.choice((0, 200, None, None)),
        "spill_bytes": chance.choice((400, 4 * KIB, 100 * KIB)),
        "spill_s": chance.choice((0.0, 0.3, 5.0)),
        "inline_rows_max": chance.choice((5, 100_000)),
        "tail_cache_bytes": chance.choice((0, 2 * KIB, 1 << 20)),
    }


def settings_of(given: dict[str, Any], cache_dir: str) -> Settings:
    """The settings that ``draw_settings`` drew."""
    return tuned(cache_dir=cache_dir, default_rolling=RollingPolicy(chunk_size_bytes_max=900), **given)
