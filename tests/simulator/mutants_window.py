"""Planted bugs in the window of a ``StorageWriter``: what is on its way behind an append that fails.

Promises and leaves out: as ``mutants_engine``. Only where appends make chunks of their own is there a window.
"""

from __future__ import annotations

from typing import Final

from tests.simulator.mutant import EVERYWHERE, Mutant, Patch

__all__ = ["WINDOW_MUTANTS"]

_WINDOW: Final = "chunkstore.operations.append_window:AppendWindow"
_WRITER: Final = "chunkstore.writer:StorageWriter"
_KINDS: Final = ("s3-slot",)
_TESTS: Final = ("tests/engine/test_writer_window.py",)
_ENTERS: Final = Patch(
    f"{_WINDOW}._check", "if before is not None and before.op.decided and before.op.error is not None:", "if False:"
)

WINDOW_MUTANTS: Final = (
    Mutant(
        "window-acks-behind-a-hole",
        "a batch that fails fails alone: what is behind it is committed and acknowledged",
        _KINDS,
        (
            _ENTERS,
            Patch(f"{_WRITER}._finish", "self._failing = True", "pass"),
            Patch(f"{_WRITER}._run", "self._failing = self._failing or batch.error is not None", "pass"),
            Patch(
                f"{_WRITER}._resolve",
                "            self._break(batch.error)\n                break",
                "            with self._condition:\n"
                "                    self._underway.popleft()\n"
                "                    self._underway_bytes -= len(batch.data)\n"
                "                    self._committed_to = batch.event_number\n"
                "                    self._condition.notify_all()\n"
                "                for future, _ in batch.pieces:\n"
                "                    future.set_exception(batch.error.copy())\n"
                "                continue",
            ),
        ),
    ),
    Mutant(
        "window-enters-behind-a-hole",
        "a batch enters the queue although the one before it has failed",
        _KINDS,
        (_ENTERS,),
        tests=_TESTS,
    ),
    Mutant(
        "window-forgets-epochs",
        "a batch enters the queue of a new epoch before it is known what became of the one before it",
        _KINDS,
        (Patch(f"{_WINDOW}.begin", "before is not None and before.owned is not owned", "False"),),
        tests=_TESTS,
    ),
    Mutant(
        "window-left-open",
        "what a broken writer was about to append enters the queue behind the writer that resumes it",
        _KINDS,
        (Patch(f"{_WINDOW}.close", "self._closed = True", "pass"),),
        tests=_TESTS,
    ),
    Mutant(
        "writer-gives-no-way",
        "a writer of the same id begins while what its former has under way is not decided",
        EVERYWHERE,
        (Patch(f"{_WRITER}.give_way", "self._gives_way = self._failing = True", "return"),),
    ),
)
