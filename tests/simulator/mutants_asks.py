"""Planted bugs in asking the owner (protocol 3.19), on both of its sides.

Promises: as ``mutants_engine``. Runs in which somebody asks look for them.
Leaves out: planting (``mutants``).
"""

from __future__ import annotations

from typing import Final

from tests.simulator.mutant import EVERYWHERE, Mutant, Patch

__all__ = ["ASKING_MUTANTS"]

_COMMIT_ONCE: Final = "chunkstore.upkeep.calls:UpkeepCalls._commit_once"
_COMMITS: Final = "self.commit([once, *changes])"


def _mutant(name: str, what: str, *patches: Patch) -> Mutant:
    return Mutant(name, what, EVERYWHERE, patches, needs=("askers",))


ASKING_MUTANTS: Final = (
    _mutant(
        "ask-answered-first",
        "what is asked for is answered before it is committed, and the asker takes the answer for a proof",
        Patch(
            "chunkstore.upkeep.asked:Asked._answer",
            "        with self._container.upkeep.run",
            "        if type(ask).__name__ == 'AskCommit' and type(ask.once).__name__ == 'TablePut':\n"
            "            head = self._container.current.queue.head.lsn\n"
            "            self._respond(token, Answer(epoch, None, head + 1))\n"
            "        with self._container.upkeep.run",
        ),
    ),
    _mutant(
        "ask-without-row",
        "the changes that are asked for are committed without their row",
        Patch(_COMMIT_ONCE, _COMMITS, "self.commit([*changes])"),
    ),
    _mutant(
        "ask-row-in-between",
        "the row is committed behind the changes that are asked for, by itself",
        Patch(
            _COMMIT_ONCE,
            _COMMITS,
            "self.commit([*changes]) if changes else None\n        self.commit([once])",
        ),
    ),
    _mutant(
        "ask-row-unasked",
        "it is not looked whether what is asked for has happened, and the asker believes the refusal",
        Patch(_COMMIT_ONCE, "if done is None:", "if True:"),
        Patch(
            "chunkstore.owner:Asker.run",
            "            done = self._done(ask)\n",
            "            done = None if answer is not None else self._done(ask)\n",
        ),
    ),
)
