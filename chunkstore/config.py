"""Settings and limits: every number that has a name, with its unit last and its reason next to it.

Promises: ``Settings`` and ``RollingPolicy`` are frozen and checked when built; unknown names are refused by Python.
Leaves out: components (storage, metadata store, clock) travel apart, through ``assembly``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from chunkstore.errors import InvalidArgument

__all__ = [
    "GIB",
    "KIB",
    "LIMITS",
    "MIB",
    "DefragPolicy",
    "JournalMode",
    "Limits",
    "OptimiserPolicy",
    "RetentionPolicy",
    "RollingPolicy",
    "Settings",
    "Tuning",
    "default_cache_dir",
]

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

JournalMode = Literal["auto", "slot", "append"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that readers enforce against hostile or damaged input. Part of the format: change only with a version."""

    record_bytes_max: int = 16 * MIB
    """One journal record; readers refuse longer ones (protocol.md A7)."""
    batch_bytes_max: int = 4 * MIB
    """One group commit (protocol.md 3.7); leaves room below ``record_bytes_max`` for one large operation."""
    batch_ops_max: int = 10_000
    """Operations in one group commit (protocol.md 3.7)."""
    row_bytes_max: int = 1 * MIB
    """One metadata row's value."""
    snapshot_block_bytes_max: int = 4 * MIB
    """One block of a snapshot."""
    small_object_bytes_max: int = 64 * KIB
    """FORMAT, claims, hints, SEAL objects: anything longer is damage."""
    segment_name_bytes_max: int = 255
    table_namespace_bytes_max: int = 64
    table_key_bytes_max: int = 400
    """LMDB keys hold at most 511 bytes."""
    pins_max: int = 256
    """Pins of one container: each collection reads them all."""
    attribute_count_max: int = 128
    attribute_bytes_max: int = 4 * KIB
    commit_chunks_max: int = 50_000
    """Chunks that one commit may add, and that it may replace: keeps its record below ``record_bytes_max``."""
    commit_bytes_max: int = 32 * GIB
    """Bytes of one append: with it the rows of so many chunks, block borders included, stay below ``record_bytes_max``."""
    spill_extents_max: int = 10_000
    """Extents that one spill makes bytes of a chunk of."""
    retention_names_max: int = 256
    """Segments that one step of retention looks at."""
    retention_chunks_max: int = 10_000
    """Chunk rows that one step of retention reads, about."""
    defrag_chunks_max: int = 20_000
    """Chunk rows that one step of defrag reads."""
    ask_append_bytes_max: int = 4 * MIB
    """Bytes of one append that the owner is asked for."""
    garbage_unfold_chunks_max: int = 5_000
    """Chunks that one collector record forgets (protocol.md A7)."""


LIMITS = Limits()


def default_cache_dir() -> str:
    """Where the LMDB cache is unless ``Settings.cache_dir`` says otherwise: ``$XDG_CACHE_HOME/chunkstore``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "chunkstore")


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingPolicy:
    """When an append starts a new chunk.

    ``chunk_size_bytes_max``: a chunk never grows beyond it (default 128 MiB: large enough that metadata stays small,
    small enough to copy in a breath). Raises ``InvalidArgument`` if it is below 1 or above 2**53.
    """

    chunk_size_bytes_max: int = 128 * MIB

    def __post_init__(self) -> None:
        value = self.chunk_size_bytes_max
        if type(value) is not int or not 1 <= value <= 1 << 53:
            raise InvalidArgument(
                f"chunk_size_bytes_max must be a whole number from 1 to 2**53, not {value!r}",
                argument="chunk_size_bytes_max",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """What of a segment is kept when ``apply_retention`` truncates it; whatever one of the two gives up, goes. At least one is given.

    ``size_bytes_max``: chunks are dropped from the head as long as so many bytes stay (1 to 2**62). ``age_s_max``: chunks are dropped
    whose every byte is older (0.001 to 10**10 seconds, kept to the millisecond). Raises ``InvalidArgument``.
    """

    size_bytes_max: int | None = None
    age_s_max: float | None = None

    def __post_init__(self) -> None:
        size, age = self.size_bytes_max, self.age_s_max
        if size is None and age is None:
            text = "a RetentionPolicy needs size_bytes_max, age_s_max or both; to retain everything, remove the policy"
            raise InvalidArgument(text, argument="size_bytes_max")
        if size is not None and (type(size) is not int or not 1 <= size <= 1 << 62):
            text = f"size_bytes_max must be a whole number of bytes from 1 to 2**62, not {size!r}"
            raise InvalidArgument(text, argument="size_bytes_max")
        if age is not None and (type(age) not in (int, float) or not 0.001 <= age <= 10**10):
            text = f"age_s_max must be a number of seconds from 0.001 to 10**10, not {age!r}"
            raise InvalidArgument(text, argument="age_s_max")

    @property
    def age_ms_max(self) -> int | None:
        """``age_s_max`` in milliseconds."""
        return None if self.age_s_max is None else round(self.age_s_max * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragPolicy:
    """Which small chunks ``defrag`` merges into larger ones. Raises ``InvalidArgument`` when a value is out of range.

    Attributes (units last):
      fanout: so many neighbours of about the same size make one chunk (2 to 1,000). Fewer: fewer chunks, and more bytes moved: each is
        written at most 1 + log(rolling size / append, fanout) times.
      verify: read each new chunk back and compare it before it takes the place of others.
      run_chunks_max: chunks that are merged into one at most (``fanout`` to 10,000).
      run_bytes_max: a new chunk is no longer than this, nor than the segment's rolling size (1 to 2**53).
      age_s_min: chunks that were made less than so many seconds ago stay (0 to 10**10).
    """

    fanout: int = 8
    verify: bool = True
    run_chunks_max: int = 10_000
    run_bytes_max: int = 1 * GIB
    age_s_min: float = 0.0

    def __post_init__(self) -> None:
        _require(self, isinstance(self.verify, bool), "verify", "a bool")
        _check_numbers(self, (("fanout", 2, 1_000), ("run_bytes_max", 1, 1 << 53), ("age_s_min", 0.0, 10**10)))
        _check_numbers(self, (("run_chunks_max", self.fanout, 10_000),))


def _require(holder: object, good: bool, name: str, rule: str) -> None:
    if not good:
        text = f"{type(holder).__name__}.{name} must be {rule}, not {getattr(holder, name)!r}"
        raise InvalidArgument(text, argument=name)


def _check_numbers(holder: object, ranges: Iterable[tuple[str, float, float]]) -> None:
    """A lower bound that is an ``int`` asks for whole numbers."""
    for name, low, high in ranges:
        value, whole, optional = getattr(holder, name), isinstance(low, int), name in _OPTIONAL
        good = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        bounds = f"{low} to {high}" if whole else f"{low:g} to {high:g}"
        rule = f"{'None or ' * optional}a {'whole ' * whole}number from {bounds}"
        _require(holder, (good and low <= value <= high) or (optional and value is None), name, rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What only the engine's own pace needs (``Settings.tuning``). Raises ``InvalidArgument`` when a value is out of range.

    Attributes (units last):
      resolve_s: how long a fenced owner tries to learn the outcome from its successor's OPEN (protocol.md A5).
      undecided_s_max: an undecided batch is "unknown" after so long without a self-take-over (protocol.md A6); local: op_deadline_s.
      ask_s: pause between an owner's looks for requests; 0: it answers none. None: 0.05 s, remote 1 to 20 s; after one 0.002 s, 0.1 s.
      collect_s: pause between an owner's own collections, in bounded steps next to its work. 0: only ``collect()`` collects.
      spill_bytes: a segment with so many bytes in the journal's records gets them into a chunk. None: 1 MiB; remote 8 MiB.
      spill_s: ... and one whose bytes have been there for so long. None: 60 s; remote 300 s.
      inline_rows_max: appends that the journal's records may hold in all; beyond that the oldest are spilled.
      io_workers: threads for parallel chunk I/O and parallel syncs.
      lease_remote_s: period of the lease on remote storage, if longer than ``lease_s``: each renewal is a request. Use one value for all.
      follow_s_max: longest pause of a remote follower that waits: 0.05 s while news come, then an eighth of the silence.
      log_roll_bytes: an APPEND log longer than this is rolled (protocol.md A11).
      slot_roll_records: a SLOT stream longer than this is rolled (protocol.md A11).
      roll_interval_s_min: at most one roll in this time.
      snapshot_bytes_min: a snapshot is due after so many bytes of the journal (protocol.md A8).
      snapshot_slots_min: a snapshot is due after so many slots (protocol.md A8).
      snapshots_kept: validated snapshots that the collector keeps.
      cache_free_bytes_min: as ``free_bytes_min``, for the disk of the cache, whose reserve is that free space itself.
      lmdb_map_bytes: size of the LMDB map (address space, not memory); grown where it is too small.
      parallel_read_bytes_min: reads of at least this length are split over several threads.
      retry_tries_max: tries of one call of a remote storage, the first included, within ``retry_s_max``.
    """

    resolve_s: float = 5.0
    undecided_s_max: float = 60.0
    ask_s: float | None = None
    collect_s: float = 300.0
    spill_bytes: int | None = None
    spill_s: float | None = None
    inline_rows_max: int = 100_000
    io_workers: int = 32
    lease_remote_s: float = 30.0
    follow_s_max: float = 10.0
    log_roll_bytes: int = 256 * MIB
    slot_roll_records: int = 65_536
    roll_interval_s_min: float = 600.0
    snapshot_bytes_min: int = 16 * MIB
    snapshot_slots_min: int = 1_000
    snapshots_kept: int = 3
    cache_free_bytes_min: int = 4 * MIB
    lmdb_map_bytes: int = 1 << 40
    parallel_read_bytes_min: int = 8 * MIB
    retry_tries_max: int = 8

    def __post_init__(self) -> None:
        _check_numbers(self, _TUNING_RANGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a user decides about a store; the rest is its ``Tuning``. Raises ``InvalidArgument`` when a value is out of range.

    Attributes (units last):
      cache_dir: local directory of the LMDB cache; deleting it is always safe.
      journal_mode: "auto" takes APPEND where the file system is on the allow-list, else SLOT (protocol.md A13).
      headers: "ignore", or "import": an owner imports an unknown segment whose header file is at the root when it is first named
        (docs/guide-backup.md).
      read_fence: "fenced" checks the fence on every owner read (linearizable); "tail" only where a read touches the segment's end, or asks
        for anything but bytes: what is before never changes, but a newer owner's truncation, deletion or new segment of the name is not
        seen there.
      linger_s: how long a short batch waits for company; 0 is right for local disks, 0.02 to 0.25 for S3.
      op_deadline_s: every wait of one operation ends by then.
      gc_grace_s: removed chunks are kept this long for readers in flight, from the label of the record that removed them.
      gc_grace_emergency_s: in safe mode, the grace where that is shorter; None leaves it as it is.
      quota_bytes: chunks (live, garbage, dead heads; not journal, snapshots or orphans) may take so much, where no quota is
        stored in the container (``set_quota``); 0 is no quota.
      free_bytes_min: local disks: below this much free space safe mode begins; a quarter of it (16 MiB at most) is held back in a file,
        given up for the records of what frees space. 0 switches both off.
      pitr_horizon_s: history kept for point-in-time restore; 0 keeps only what recovery needs.
      inline_bytes_max: appends of up to so many bytes travel in the journal's record, and become bytes of chunks later (64 KiB at most; 0:
        none do). None: 64 KiB. Where storages append, up to four times as many (64 KiB at most) after bytes of the segment that do: else
        each would begin a chunk.
      tail_cache_bytes: so much of what was appended last in that way is kept in memory.
      open_files_max: bound of the file-handle cache; must stay below ``ulimit -n``.
      lease_s: period of the lease hint; 0 switches it off. Never consulted for safety.
      verify: "blocks": every block that a read touches is verified; "off": reads give out what the storage answers, unverified.
      retry_s_max: one call of a remote storage (s3, hdfs) is asked again for this long, where that is safe; 0 switches it off.
      read_bytes_per_s_max, write_bytes_per_s_max: what the store may read from, and write to, its storage; 0 is no limit.
      read_requests_per_s_max, write_requests_per_s_max: the same for calls of the storage.
      default_rolling: the policy of segments that are created without one.
      tuning: the engine's own pace (``chunkstore.config.Tuning``); no application needs it.
    """

    cache_dir: str | None = None
    journal_mode: JournalMode = "auto"
    headers: Literal["ignore", "import"] = "ignore"
    read_fence: Literal["fenced", "tail"] = "fenced"
    linger_s: float = 0.0
    op_deadline_s: float = 60.0
    gc_grace_s: float = 3600.0
    gc_grace_emergency_s: float | None = None
    quota_bytes: int = 0
    free_bytes_min: int = 4 * MIB
    pitr_horizon_s: float = 0.0
    inline_bytes_max: int | None = None
    tail_cache_bytes: int = 64 * MIB
    open_files_max: int = 512
    lease_s: float = 5.0
    verify: Literal["blocks", "off"] = "blocks"
    retry_s_max: float = 20.0
    read_bytes_per_s_max: float = 0.0
    write_bytes_per_s_max: float = 0.0
    read_requests_per_s_max: float = 0.0
    write_requests_per_s_max: float = 0.0
    default_rolling: RollingPolicy = field(default_factory=RollingPolicy)
    tuning: Tuning = field(default_factory=Tuning)

    def __post_init__(self) -> None:
        for name, allowed, rule in (
            ("journal_mode", ("auto", "slot", "append"), "auto, slot or append"),
            ("headers", ("ignore", "import"), "'ignore' or 'import'"),
            ("read_fence", ("fenced", "tail"), "'fenced' or 'tail'"),
            ("verify", ("blocks", "off"), "'blocks' or 'off'"),
        ):
            _require(self, getattr(self, name) in allowed, name, rule)
        path = self.cache_dir
        _require(self, path is None or (isinstance(path, str) and path != ""), "cache_dir", "a path")
        _check_numbers(self, _SETTINGS_RANGES)
        _require(self, isinstance(self.default_rolling, RollingPolicy), "default_rolling", "a RollingPolicy")
        _require(self, isinstance(self.tuning, Tuning), "tuning", "a Tuning")

    def lease_period_s(self, *, remote: bool) -> float:
        """How often the owner renews its lease on a storage of this kind; 0: never."""
        return max(self.lease_s, self.tuning.lease_remote_s) if remote and self.lease_s else self.lease_s


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserPolicy:
    """What an owner's optimiser does besides collecting (``Tuning.collect_s``), and how fast. Raises ``InvalidArgument``.

    ``interval_s``: from the end of one pass of a job to the next (0.01 to a year). ``bytes_s``, ``requests_s``: what all jobs together
    may move, and ask of the storage, in the long run (0: no limit); what one step has spent too much is waited for before the next.
    ``step_deadline_s``: a step begins nothing new after so long (0.01 to 3600); what hangs in it ends by ``op_deadline_s``.
    ``retention``: apply the policies of ``set_retention``. ``sweep_s``: delete orphans that are a day old so often (0: never).
    ``defrag``: merge small chunks so (None: never). ``defrag_inline``: begin within a second, not within ``interval_s``, when a segment has
    got ``fanout`` new chunks. ``scrub_bytes_s``: read and compare so much of what is stored, once a day at most (0: never).
    """

    interval_s: float = 60.0
    bytes_s: float = 0.0
    requests_s: float = 0.0
    step_deadline_s: float = 5.0
    retention: bool = False
    sweep_s: float = 0.0
    defrag: DefragPolicy | None = None
    defrag_inline: bool = False
    scrub_bytes_s: float = 0.0

    def __post_init__(self) -> None:
        _check_numbers(self, _POLICY_RANGES)
        for name in ("retention", "defrag_inline"):
            _require(self, type(getattr(self, name)) is bool, name, "a bool")
        if self.defrag_inline and self.defrag is None:
            text = "OptimiserPolicy.defrag_inline needs defrag=DefragPolicy(), too"
            raise InvalidArgument(text, argument="defrag_inline")
        good = self.defrag is None or isinstance(self.defrag, DefragPolicy)
        _require(self, good, "defrag", "a DefragPolicy or None")


_YEAR_S = 366 * 86_400.0
_OPTIONAL = ("inline_bytes_max", "gc_grace_emergency_s", "ask_s", "spill_bytes", "spill_s")
_Ranges: TypeAlias = tuple[tuple[str, float, float], ...]
_SETTINGS_RANGES: _Ranges = (
    ("linger_s", 0.0, 10),
    ("op_deadline_s", 0.001, _YEAR_S),
    ("gc_grace_s", 0.0, _YEAR_S),
    ("gc_grace_emergency_s", 0.0, _YEAR_S),
    ("quota_bytes", 0, 1 << 62),
    ("free_bytes_min", 0, 1 << 50),
    ("pitr_horizon_s", 0.0, 10 * _YEAR_S),
    ("inline_bytes_max", 0, 64 * KIB),
    ("tail_cache_bytes", 0, 1 << 40),
    ("open_files_max", 8, 1 << 20),
    ("lease_s", 0.0, 3600),
    ("retry_s_max", 0.0, 86_400),
    ("read_bytes_per_s_max", 0.0, 1 << 50),
    ("write_bytes_per_s_max", 0.0, 1 << 50),
    ("read_requests_per_s_max", 0.0, 1 << 30),
    ("write_requests_per_s_max", 0.0, 1 << 30),
)
_TUNING_RANGES: _Ranges = (
    ("resolve_s", 0.0, 3600),
    ("undecided_s_max", 0.0, 86_400),
    ("ask_s", 0.0, 3600),
    ("collect_s", 0.0, _YEAR_S),
    ("spill_bytes", 1, GIB),
    ("spill_s", 0.0, _YEAR_S),
    ("inline_rows_max", 1, 10_000_000),
    ("io_workers", 1, 1024),
    ("lease_remote_s", 0.0, 3600),
    ("follow_s_max", 0.05, 3600),
    ("log_roll_bytes", 1024, 1 << 40),
    ("slot_roll_records", 2, 1 << 40),
    ("roll_interval_s_min", 0.0, _YEAR_S),
    ("snapshot_bytes_min", 1, 1 << 40),
    ("snapshot_slots_min", 1, 1 << 40),
    ("snapshots_kept", 1, 1000),
    ("cache_free_bytes_min", 0, 1 << 50),
    ("lmdb_map_bytes", 64 * KIB, 1 << 46),
    ("parallel_read_bytes_min", 64 * KIB, 1 << 40),
    ("retry_tries_max", 1, 1_000_000),
)
_POLICY_RANGES: _Ranges = (
    ("interval_s", 0.01, _YEAR_S),
    ("bytes_s", 0.0, 1 << 50),
    ("requests_s", 0.0, 1 << 30),
    ("step_deadline_s", 0.01, 3600),
    ("sweep_s", 0.0, _YEAR_S),
    ("scrub_bytes_s", 0.0, 1 << 50),
)
