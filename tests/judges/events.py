"""What clients did and what they were told: the history that a checker judges.

Promises: an ``Event`` is plain, frozen data; times are points of one virtual clock shared by all processes (nobody's own
clock), in nanoseconds, so that "returned before invoked" is real-time order. An event is recorded once it has an outcome, or
at the end of the run for calls that never returned (their process died or hangs): ``unknown``, ``returned is None``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from chunkstore.errors import ChunkstoreError

Outcome = Literal["ok", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Event:
    """One call of one client; see the module.

    Attributes:
      process: who called, unique in a run (an owner that opens again after being fenced has a new name).
      kind, segment, args: what was asked.
      invoked, returned: virtual nanoseconds; ``returned`` is None for a call that never answered.
      outcome, result: what was answered.
      epoch: the owner's epoch when it answered (when it was asked, if it never did); 0 where there is none.
      owner: which opening of the container was asked, a name unique in a run; "" where that is not known.
      fields: what the error of a ``failed`` carries (``error_fields``); () where that is not known.
    """

    process: str
    kind: str
    segment: str
    args: tuple[Any, ...]
    invoked: int
    returned: int | None
    outcome: Outcome
    result: Any
    epoch: int
    owner: str = ""
    fields: tuple[Any, ...] = ()

    @property
    def about_session(self) -> bool:
        """Whether what is asked for was refused because its session is not open: which are, no judge knows."""
        return self.kind == "ask" and self.result == "Conflict" and self.fields[:1] == ("open",)

    @property
    def ends_inside(self) -> bool:
        """Whether it is a read that was answered whole: its owner may have looked at no fence (``read_fence="tail"``)."""
        return self.kind == "read" and self.outcome == "ok" and len(self.result) == self.args[1]

    def repeats(self, other: Event) -> bool:
        """Whether this is what a buffering writer that the failure of ``other`` broke was given later."""
        return (
            (self.kind, self.process, self.args[1:], self.outcome, self.result, self.fields)
            == ("write", other.process, other.args[1:], other.outcome, other.result, other.fields)
            and other.kind == "write"
            and other.invoked < self.invoked <= (other.returned or 0)
        )


def error_fields(error: ChunkstoreError) -> tuple[Any, ...]:
    """What an error says about the state, besides its class."""
    return tuple(getattr(error, name) for name in error.fields if name != "subject")
