"""What the verbs of upkeep say: collections, merges, retention, sweeps and scrubs. Plain data that loads none of them.

Leaves out: doing it (``operations.collect``, ``upkeep``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

from chunkstore.records.chunks import ChunkInfo

__all__ = [
    "CollectReport",
    "DefragAction",
    "DefragReport",
    "Found",
    "Orphan",
    "RetentionCut",
    "RetentionReport",
    "ScrubFinding",
    "ScrubMark",
    "ScrubPosition",
    "ScrubReport",
    "SweepReport",
    "SweptKind",
]


class CollectReport(NamedTuple):
    """What a collection did (or, as a dry run, would do). ``waiting`` counts garbage chunks still in their grace period, ``refused``
    rows that are damaged or lead elsewhere: they stay, and ``check`` names them. ``pinned`` counts garbage chunks that a pin keeps; a
    dry run ends no pins, and counts what expired ones keep, too."""

    chunks: int
    chunk_bytes: int
    waiting: int
    journal_objects: int
    journal_bytes: int
    refused: int
    pinned: int


class DefragAction(NamedTuple):
    """One new chunk: the bytes ``[start, stop)`` of a segment, which so far are stored in ``chunks`` chunks. ``requests``: about."""

    action: Literal["merge", "relocate"]
    segment: str
    start: int
    stop: int
    chunks: int
    requests: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the new chunk."""
        return self.stop - self.start


class DefragReport(NamedTuple):
    """What ``defrag`` did, or as a dry run would. Chunks are those of the segments it looked at. ``bytes_moved``: of new chunks;
    ``requests``: about. ``carried_bytes``: of what was moved, what went through this client; a dry run does not know. ``refused``:
    segments with runs that are damaged and stay as they are: ``check("deep")`` names what is wrong. ``ahead``: segments with chunks that
    stay because they were made later than it is by this machine's clock, which is wrong, or was wrong where they were made."""

    segments: int
    chunks_before: int
    chunks_after: int
    bytes_moved: int
    requests: int
    carried_bytes: int
    actions: tuple[DefragAction, ...]
    refused: tuple[str, ...]
    ahead: tuple[str, ...] = ()


class RetentionCut(NamedTuple):
    """One truncation: what is below ``offset`` goes; ``chunks`` become garbage."""

    segment: str
    segment_id: int
    start_offset: int
    offset: int
    chunks: int


class RetentionReport(NamedTuple):
    """What ``apply_retention`` truncated, or as a dry run would. ``segments``: how many with a policy it looked at; those that are
    ``refused`` are damaged, or their policy is: ``check`` tells of the former. ``future``: segments of which age truncates no more, because
    a chunk has a time after now."""

    cuts: tuple[RetentionCut, ...]
    segments: int
    refused: tuple[str, ...]
    future: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes that can be read no more."""
        return sum(cut.offset - cut.start_offset for cut in self.cuts)

    @property
    def chunks(self) -> int:
        """Chunks that are garbage now."""
        return sum(cut.chunks for cut in self.cuts)


class SweptKind(NamedTuple):
    """Objects of one kind, and their bytes."""

    objects: int
    size_bytes: int


class SweepReport(NamedTuple):
    """What a sweep found and did. ``orphans`` may go. ``waiting``: referenced by nothing, and young, or of the present epoch.
    ``strangers`` have no names of ours, and stay. ``deleted``, and ``uploads`` (unfinished ones, aborted; None: the server would not
    list them), are 0 unless it was asked to delete. ``by_kind``: the orphans by "chunk", "session chunk", "temporary",
    "request" (and answers)."""

    orphans: int
    orphan_bytes: int
    deleted: int
    deleted_bytes: int
    waiting: int
    waiting_bytes: int
    strangers: int
    uploads: int | None
    by_kind: dict[str, SweptKind]


class Orphan(NamedTuple):
    """``kind``: as in ``SweepReport.by_kind``."""

    kind: str
    identity: bytes
    info: ChunkInfo


class Found(NamedTuple):
    """What a LIST and the rows after it say."""

    orphans: list[Orphan]
    waiting: list[ChunkInfo]
    strangers: int

    def report(self, deleted: Sequence[Orphan] = (), uploads: int | None = 0) -> SweepReport:
        """In numbers."""
        kinds: dict[str, SweptKind] = defaultdict(lambda: SweptKind(0, 0))
        for item in self.orphans:
            before = kinds[item.kind]
            kinds[item.kind] = SweptKind(before.objects + 1, before.size_bytes + item.info.length)
        return SweepReport(
            len(self.orphans),
            sum(item.info.length for item in self.orphans),
            len(deleted),
            sum(item.info.length for item in deleted),
            len(self.waiting),
            sum(info.length for info in self.waiting),
            self.strangers,
            uploads,
            dict(kinds),
        )


class ScrubPosition(NamedTuple):
    """All bytes of segments with lower names, and those of ``segment`` below ``offset``, have been looked at. An empty name is the
    beginning, which is after the end."""

    segment: str
    offset: int


class ScrubMark(NamedTuple):
    """How far a pass has come that began at ``began_ms`` (a label); without a segment it has ended."""

    position: ScrubPosition
    began_ms: int


class ScrubFinding(NamedTuple):
    """A ``Finding``, and the bytes ``[start, stop)`` of the segment that cannot be read; those of rows have no range (0, 0).
    ``repaired``: they can be read now."""

    invariant: int
    severity: str
    segment: str
    chunk: str
    object: str
    position: int
    message: str
    start: int
    stop: int
    repaired: bool


class ScrubReport(NamedTuple):
    """As ``ScrubStep``, of one call. ``position``: where the next one goes on; None where this one came to the end (``done``).
    ``began_at``: of the pass, in milliseconds since 1970; all that was there then has been looked at once it is done."""

    chunks: int
    size_bytes: int
    findings: tuple[ScrubFinding, ...]
    repaired: int
    position: ScrubPosition | None
    done: bool
    began_at: int

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged that was not repaired."""
        return all(finding.repaired or finding.severity != "damage" for finding in self.findings)
