"""Planted bugs in asking the owner (protocol 3.19), on both of its sides.

Promises: as ``mutants_engine``. Runs in which somebody asks look for them.
Leaves out: planting (``mutants``).
"""

from __future__ import annotations

from typing import Final

from tests.simulator.mutant import EVERYWHERE, Mutant, Patch

__all__ = ["ASKING_MUTANTS"]

_ASKED: Final = "chunkstore.upkeep.asked"
_ASK: Final = "chunkstore.owner:Asker._ask"


def _mutant(name: str, what: str, *patches: Patch) -> Mutant:
    return Mutant(name, what, EVERYWHERE, patches, needs=("askers",))


ASKING_MUTANTS: Final = (
    _mutant(
        "ask-answered-first",
        "what is asked for is answered before it is committed, and the asker takes the answer for a proof",
        Patch(
            f"{_ASKED}:Asked._carry_out",
            "            answer = Answer(epoch, None, self._call(ask))",
            "            if type(ask).__name__ == 'AskCommit':\n"
            "                self._respond(token, Answer(epoch, None, (container.current.queue.head.lsn + 1,)))\n"
            "            answer = Answer(epoch, None, self._call(ask))",
        ),
        Patch(
            _ASK,
            '            raise _unknown("the owner reports it as done, but history does not show it", ask)',
            "            return answer.result[0]",
        ),
    ),
    _mutant(
        "ask-without-row",
        "the changes that are asked for are committed without their row",
        Patch(f"{_ASKED}:_commit_once", "calls.commit([once, *changes])", "calls.commit([*changes])"),
    ),
    _mutant(
        "ask-row-in-between",
        "the row is committed behind the changes that are asked for, by itself",
        Patch(
            f"{_ASKED}:_commit_once",
            "calls.commit([once, *changes])",
            "calls.commit([*changes]) if changes else None\n        calls.commit([once])",
        ),
    ),
    _mutant(
        "ask-row-unasked",
        "it is not looked whether what is asked for has happened, and the asker believes the refusal",
        Patch(
            f"{_ASKED}:_commit_once",
            "    done = version_put(table.get(once.key), once)\n    if done is None:",
            "    done = None\n    if done is None:",
        ),
        Patch(
            _ASK,
            "done = None if told and read is not None else",
            "done = None if refusal is not None or (told and read is not None) else",
        ),
    ),
)
