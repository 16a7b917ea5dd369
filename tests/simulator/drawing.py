"""What a random run is like: drawn from its seed, swarm-style, so that no two runs have the same weather and constants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from chunkstore.config import JournalMode, RollingPolicy, Settings
from tests.simulator.faults import CLASSES, Weather
from tests.simulator.lies import draw_distrust
from tests.simulator.world import StorageKind
from tests.support.settings import flat, tuned

_ONLY_S3: Final = frozenset(
    ("unavailable", "lost_reply", "late_apply", "very_late_apply", "duplicate", "conflict", "burst", "stale_list")
)
_ONLY_POSIX: Final = frozenset(("io_error", "short_write", "disk_full", "sync_error", "torn_write", "late_write"))
_BINDINGS: Final = 0.4
"""The share of runs over the real bindings."""
_HDFS: Final = 0.4
"""The share of these, where it is an object store's turn, that are HDFS's."""
_ASKING: Final = 0.3
"""The share of runs without lies in which somebody asks."""
_LATENCY_S_ASKING: Final = 0.005
_UPKEEP: Final = 0.15
"""The share of runs with all verbs of upkeep."""
_PINNING: Final = 0.25
"""The share of these in which pins stand across spills."""
_TIMES: Final = (
    "linger_s", "op_deadline_s", "resolve_s", "undecided_s_max", "gc_grace_s", "lease_s", "roll_interval_s_min", "collect_s"
)  # fmt: skip
# Per call for what hits calls, per turn of the nemesis for the rest; what has few occasions needs more of a chance.
_CHANCES: Final[dict[str, tuple[float, ...]]] = {
    "unavailable": (0.003, 0.01, 0.04),
    "lost_reply": (0.003, 0.01, 0.04),
    "late_apply": (0.003, 0.01, 0.03),
    "very_late_apply": (0.003, 0.01),
    "duplicate": (0.01, 0.05, 0.2),
    "conflict": (0.01, 0.05, 0.3),
    "burst": (0.001, 0.003),
    "stale_list": (0.5, 0.9),
    "io_error": (0.001, 0.003, 0.01),
    "short_write": (0.005, 0.02),
    "disk_full": (0.003, 0.01),
    "sync_error": (0.003, 0.01),
    "torn_write": (0.005, 0.02),
    "late_write": (0.15, 0.4),
    "slow": (0.003, 0.01, 0.03),
    "crash_at_call": (0.001, 0.003, 0.006),
    "stall_at_call": (0.003, 0.01, 0.03),
    "crash": (0.1, 0.2),
    "stall": (0.1, 0.3),
    "long_stall": (0.1, 0.25),
    "clock_jump": (0.05, 0.2),
    "power_cut": (0.03, 0.08),
    "machine_lost": (0.02, 0.05),
    "hang": (0.05, 0.15),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run: storage, constants, weather, and how busy everybody is."""

    seed: int
    storage: StorageKind
    settings: Settings
    weather: Weather
    preempt_every: float
    latency_s: float
    timeout_s: float
    machines: int
    claims: int
    owners_max: int
    haste: float
    clients: int
    replicas: int
    askers: int
    segments: int
    pace: float
    fence_by_stat: bool
    remote: bool
    bindings: bool
    retrying: bool
    lmdb: bool
    mix: tuple[tuple[str, int], ...]
    distrust: tuple[tuple[str, float], ...]


def draw_plan(seed: int, *, claims: int = 24, bound: StorageKind | None = None) -> Plan:
    """The plan that belongs to a seed. ``bound``: it is over this binding."""
    random = Random(f"plan {seed}")
    choice = random.choice
    kind: StorageKind = choice(("s3", "posix", "posix"))
    bindings = random.random() < _BINDINGS
    if bound is not None:
        kind, bindings = bound, True
    elif kind == "s3" and bindings and random.random() < _HDFS:
        kind = "hdfs"
    remote = kind != "posix"
    mode: JournalMode = "slot" if remote else choice(("slot", "append", "append"))
    latency_s = choice((0.005, 0.02, 0.1)) if remote else choice((0.00005, 0.0005, 0.005))
    timeout_s = latency_s * choice((10, 50))
    fence_by_stat = remote or mode == "append" or random.random() < 0.5
    upkeep = random.random() < _UPKEEP
    # Bytes rot in worlds whose storages are simulated at the port; merging would spread the rot.
    lies = () if bindings or upkeep else draw_distrust(random)
    plan = Plan(
        seed=seed,
        storage=kind,
        # Reading a segment of many chunks takes a handful of requests of HDFS for each of them, in one operation.
        settings=_draw_settings(random, mode, latency_s, timeout_s, patience=20 if kind == "hdfs" else 1),
        weather=_draw_weather(random, kind, network=not fence_by_stat),
        preempt_every=choice((0.0, 5.0, 20.0, 100.0)),
        latency_s=latency_s,
        timeout_s=timeout_s,
        machines=choice((1, 2, 3)),
        claims=claims,
        owners_max=choice((1, 2, 3, 4)),
        haste=choice((1.0, 1.0, 0.2)),
        clients=choice((1, 2, 3, 5)),
        replicas=choice((0, 0, 1, 2)),
        askers=0,
        segments=choice((1, 2, 4, 8)),
        pace=choice((20.0, 60.0, 200.0)),
        fence_by_stat=fence_by_stat,
        remote=remote and random.random() < 0.5,
        bindings=bindings,
        retrying=remote and random.random() < 0.5,
        lmdb=random.random() < 0.004,
        mix=_draw_mix(random) + _draw_upkeep(random, whole=upkeep, merging=not lies),
        distrust=lies,
    )
    if not lies and random.random() < _ASKING:
        plan = _with_askers(plan, random)
    return _with_pins(plan, random) if upkeep and random.random() < _PINNING else plan


def _with_pins(plan: Plan, random: Random) -> Plan:
    """The same, with pins across spills.

    A snapshot covers extents, a pin stands behind it, they are spilled, and streams end: only the pin keeps the records that held them."""
    mix = tuple(item for item in plan.mix if item[0] not in ("merge", "policy", "retention", "sweep"))
    settings = tuned(
        plan.settings,
        inline_bytes_max=None,
        inline_rows_max=100_000,
        spill_bytes=1 << 20,
        spill_s=plan.timeout_s * random.choice((1, 3, 10, 30, 100)),
        gc_grace_s=0.0,
        snapshot_bytes_min=1,
        snapshot_slots_min=1,
        snapshots_kept=1,
        slot_roll_records=random.choice((5, 20)),
        log_roll_bytes=1024,
        roll_interval_s_min=0.0,
    )
    return replace(plan, mix=(*mix, ("pin", 3), ("unpin", 2), ("collect", 6), ("snapshot", 6)), settings=settings)


def _with_askers(plan: Plan, random: Random) -> Plan:
    """The same, with some who ask, and slow enough for their pauses and those of owners that look, which are no settings."""
    latency_s = max(plan.latency_s, _LATENCY_S_ASKING)
    slower = latency_s / plan.latency_s
    times = {name: value for name, value in flat(plan.settings).items() if name in _TIMES}
    # What is longer than a run is as it was.
    settings = tuned(
        plan.settings,
        ask_s=latency_s * random.choice((2, 10, 50)),
        **{name: value * slower for name, value in times.items() if value < 600},
    )
    # The chunks of a session are looked at one by one, in one operation.
    settings = replace(settings, op_deadline_s=max(settings.op_deadline_s, 200 * latency_s))
    return replace(
        plan,
        settings=settings,
        latency_s=latency_s,
        timeout_s=plan.timeout_s * slower,
        pace=max(plan.pace, 60.0),
        askers=random.choice((1, 2, 3)),
    )


def _draw_settings(random: Random, mode: JournalMode, latency_s: float, timeout_s: float, *, patience: int) -> Settings:
    choice = random.choice
    return tuned(
        journal_mode=mode,
        read_fence="tail" if random.random() < 0.25 else "fenced",
        linger_s=choice((0.0, 0.0, latency_s, latency_s * 5)),
        op_deadline_s=max(0.001, timeout_s * choice((1, 3, 20))) * patience,
        resolve_s=timeout_s * choice((0, 1, 10)),
        undecided_s_max=timeout_s * choice((1, 5, 50)),
        gc_grace_s=choice((0.0, 0.0, timeout_s, 3600.0)),
        io_workers=choice((1, 2, 8)),
        ask_s=0.0,
        collect_s=choice((0.0, 0.0, timeout_s * 2)),
        follow_s_max=choice((0.05, 1.0, 10.0)),
        lease_s=choice((0.0, 0.0, timeout_s * 5)),
        lease_remote_s=timeout_s * choice((0, 20)),
        log_roll_bytes=choice((1024, 4096, 1 << 20)),
        slot_roll_records=choice((2, 5, 20, 1000)),
        roll_interval_s_min=choice((0.0, timeout_s * 5, 600.0)),
        snapshot_bytes_min=choice((1, 500, 5000, 1 << 20)),
        snapshot_slots_min=choice((1, 3, 10, 50, 1000)),
        snapshots_kept=choice((1, 1, 2, 3)),
        default_rolling=RollingPolicy(chunk_size_bytes_max=choice((7, 30, 100, 1000))),
        # What travels in records, and how soon it is spilled: some of it is collected, pinned, truncated and taken over as it is.
        inline_bytes_max=choice((None, None, None, 20, 0)),
        spill_bytes=choice((1, 50, 500, 1 << 20)),
        spill_s=timeout_s * choice((0, 1, 10, 100, 100_000)),
        inline_rows_max=choice((1, 10, 100_000, 100_000)),
        tail_cache_bytes=choice((0, 2000, 1 << 20)),
    )


def _draw_weather(random: Random, kind: StorageKind, *, network: bool) -> Weather:
    if kind == "posix":
        unfit = _ONLY_S3 if network else _ONLY_S3 | {"late_write"}
    else:
        unfit = _ONLY_POSIX if kind == "s3" else _ONLY_POSIX | {"conflict", "stale_list"}
    chances: dict[str, float] = {}
    for name in CLASSES:
        if name not in unfit and random.random() < 0.5:
            chances[name] = random.choice(_CHANCES[name])
    return Weather(**chances)


def _draw_upkeep(random: Random, *, whole: bool, merging: bool) -> tuple[tuple[str, int], ...]:
    """Weights of verbs of upkeep. ``whole``: all of them."""
    drawn: list[tuple[str, int]] = []
    if merging and (random.random() < 0.4 or whole):
        drawn.append(("merge", random.choice((2, 10))))
    if random.random() < 0.4 or whole:
        drawn += [("policy", 2), ("retention", 3)]
    if random.random() < 0.4 or whole:
        drawn.append(("sweep", 2))
    if whole:
        drawn += [("collect", 3), ("truncate", 2), ("pin", 1), ("unpin", 2)]
    return tuple(drawn)


def _draw_mix(random: Random) -> tuple[tuple[str, int], ...]:
    """Weights of the clients' verbs; some are left out, appends and reads never."""
    weights = {"append": random.choice((5, 20, 40)), "read": random.choice((2, 5, 20)), "info": 2, "create": 3}
    optional = {
        "append_many": 3,
        "event": 6,
        "truncate": 3,
        "seal": 1,
        "unseal": 2,
        "concat": 2,
        "delete": 1,
        "commit": 3,
        "exists": 1,
        "list": 1,
        "table_put": 3,
        "table_delete": 1,
        "table_get": 2,
        "snapshot": 2,
        "collect": 2,
        "writer": 1,
    }
    for name, weight in optional.items():
        if random.random() < 0.6:
            weights[name] = weight * random.choice((1, 1, 3))
    if "collect" in weights and random.random() < 0.4:
        weights |= {"pin": 1, "unpin": 2}  # while there is a pin, little is deleted
    return tuple(weights.items())
