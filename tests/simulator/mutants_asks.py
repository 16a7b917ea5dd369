"""Planted bugs in asking the owner (protocol 3.19), on both of its sides.

Promises: as ``mutants_engine``. Runs in which somebody asks look for them; what protects itself twice is left to the named tests.
Leaves out: planting (``mutants``).
"""

from __future__ import annotations

from typing import Final

from tests.simulator.mutant import EVERYWHERE, S3, Mutant, Patch

__all__ = ["ASKING_MUTANTS"]

_ASKED: Final = "chunkstore.upkeep.asked"
_ASK: Final = "chunkstore.asker:Asker._ask"
_ATTACHING: Final = "tests/engine/test_attaching.py"
_SCHEDULES: Final = "tests/simulation/test_schedules_asks.py"


def _mutant(
    name: str, what: str, *patches: Patch, kinds: tuple[str, ...] = EVERYWHERE, tests: tuple[str, ...] = ()
) -> Mutant:
    return Mutant(name, what, kinds, patches, needs=("askers",), tests=tests)


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
    _mutant(
        "ask-session-twice",
        "a session is opened for whoever asks, though he has one",
        Patch("chunkstore.operations.attach:plan_find_session", "if found is None else found", ""),
    ),
    _mutant(
        "ask-session-undecided",
        "whether somebody who asks has a session is looked up while the record of it is on its way",
        Patch("chunkstore.operations.attach:plan_find_session", "changes.owned.tables.check(SESSION)", "pass"),
        tests=("tests/simulation/test_asks.py",),
    ),
    _mutant(
        "ask-undecided-refused",
        "what an owner has planned, and cannot plan again while its record is on its way, it refuses",
        Patch(f"{_ASKED}:Asked._respond", "if answer.error is not None and token in self._undecided:", "if False:"),
        tests=("tests/simulation/test_asks.py",),
    ),
    _mutant(
        "ask-refused-by-zombie",
        "an owner refuses without a look at the fence",
        Patch(f"{_ASKED}:Asked._refuse", "self._container.check_fence()", "pass"),
        tests=(_SCHEDULES,),
    ),
    _mutant(
        "ask-kept-when-refused",
        "a request stays where it is when it is answered",
        Patch("chunkstore_journal.asks:StoredAsks.respond", "self._delete(self._names.request(token))", "pass"),
        tests=(_SCHEDULES,),
    ),
    _mutant(
        "ask-replaced-unasked",
        "an asker that was refused does not look for a newer claim",
        Patch(_ASK, "self._box.is_succeeded(answer.epoch)", "False"),
        tests=(_SCHEDULES,),
    ),
    _mutant(
        "ask-unseen-is-refused",
        "what fails while an asker looks what came of it, it is told as a refusal",
        Patch(_ASK, 'raise _unknown(f"its outcome is unknown ({error.message})", ask) from error', "raise"),
        tests=("tests/simulation/test_asks.py",),
    ),
    _mutant(
        "ask-refusal-withdrawn",
        "an asker deletes the answer that keeps a refused request from being carried out when it comes again",
        Patch(_ASK, "keep_answer=not repeatable", "keep_answer=False"),
        kinds=S3,
        tests=(_SCHEDULES,),
    ),
    _mutant(
        "ask-last-record",
        "an asker believes the last record that it is shown, without a word of the owner",
        Patch(
            "chunkstore.asker:Asker._look",
            "shown is not None and (told or self._syncs_prove or shown.lsn < self.replica.lsn)",
            "True",
        ),
        tests=("tests/simulation/test_asks.py",),
    ),
    _mutant(
        "ask-repeated",
        "a request that comes again is carried out again, whatever it was answered",
        Patch(
            "chunkstore_journal.asks:StoredAsks.request",
            "data is not None and self._storage.exists(self._names.answer(token))",
            "False",
        ),
        kinds=S3,
        tests=(_SCHEDULES,),
    ),
    _mutant(
        "ask-bell-first",
        "the bell is remembered before the LIST that it asks for has succeeded",
        Patch(
            f"{_ASKED}:Asked._look",
            "        tokens = self._box.waiting(_ROUND)",
            "        self._bell = bell\n        tokens = self._box.waiting(_ROUND)",
        ),
        tests=("tests/simulation/test_asks.py",),
    ),
    _mutant(
        "staged-without-session",
        "what was staged is concatenated though its session has ended",
        Patch(
            "chunkstore.operations.concat:plan_concat", "        require_session(changes, session_id)", "        pass"
        ),
        tests=(_ATTACHING,),
    ),
    _mutant(
        "staged-left",
        "a collection leaves what was staged for a session that has ended",
        Patch("chunkstore.operations.collect:_collect", "        drop_staged(container)", "        pass"),
        tests=(_ATTACHING,),
    ),
    _mutant(
        "staged-dropped",
        "a collection takes what was staged for a session that is open",
        Patch(
            "chunkstore.operations.staging:_left_over",
            "session_id is not None and view.get(session_key(session_id)) is None",
            "session_id is not None",
        ),
        tests=(_ATTACHING,),
    ),
    _mutant(
        "staged-in-sight",
        "what is staged is not looked for before it is staged again",
        Patch("chunkstore.operations.staging:_plan", "        if changes.find(name) is None:", "        if True:"),
        tests=(_ATTACHING,),
    ),
    _mutant(
        "ask-expired",
        "a request of long ago is carried out",
        Patch(f"{_ASKED}:Asked._serve", "if late_ms > _LATE_MS:", "if False:"),
        tests=("tests/engine/test_asking.py",),
    ),
)
