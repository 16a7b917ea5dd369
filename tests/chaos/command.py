"""One process of a chaos run: the command line, as an owner without an application or as a cron job, again and again until it is killed.

Run by the supervisor as ``python -m tests.chaos.command CONFIG``; ``config["role"]`` is "serve" or "gc" (and now and then a
defrag). The command is the product's own, over a storage that keeps what it deletes, for the judge. Notes: those of ``contender``
about openings, and ``bad`` for an answer that it must not give.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, Final
from unittest import mock

from chunkstore import assembly, runtime
from chunkstore.cli.app import main as command_line
from chunkstore.config import Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkStorage
from tests.chaos.keeping import KeepingChunkStorage
from tests.chaos.notes import Notes
from tests.chaos.stumbling import StumblingChunkStorage

__all__ = ["main"]

_MAY_SAY: Final = frozenset(
    ("Closed", "ContainerBusy", "DeadlineExceeded", "NotOwner", "OutcomeUnknown", "StorageFull", "StorageUnavailable")
)
"""Errors that weather and other owners lead to."""


class _Command:
    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._tag = str(config["tag"])
        self._chance = random.Random(config["seed"])
        self._notes = Notes(config["notes"])
        self._parent = os.getppid()
        self._open_store_on = assembly.open_store_on

    def run(self) -> None:
        chance, config = self._chance, self._config
        if config["lose_cache"]:
            shutil.rmtree(config["cache"], ignore_errors=True)
        with mock.patch.multiple(assembly, open_storage=self._open_storage, open_store_on=self._noted):
            while os.getppid() == self._parent:
                runtime.sleep_s(min(8.0, chance.expovariate(1.0 / config["patience_s"])))
                self._once()

    def _arguments(self) -> list[str]:
        chance, config = self._chance, self._config
        verb = "defrag" if config["role"] == "gc" and chance.random() < 0.4 else config["role"]
        found = [verb, config["root"], "--cache-dir", config["cache"], "--json"]
        if chance.random() < 0.8:
            found.append("--take-over")
        if verb == "serve":
            # Upkeep looks twice as often for something to do.
            found += ["--defrag", "--idle-s", f"{chance.choice((0.5, 2.0, 5.0))}"]
        elif verb == "gc":
            found += ["--grace-s", "0", "--orphans", "--delete", "--age-s", "0"]
            found += chance.choice(([], ["--keep-in", "lost"]))
        return found

    def _once(self) -> None:
        out, err = io.StringIO(), io.StringIO()
        try:
            with redirect_stdout(out), redirect_stderr(err):
                code = command_line(self._arguments())
        except BaseException:  # noqa: BLE001  (whatever it is, it is reported as a violation)
            self._notes.write("bad", self._tag, traceback.format_exc()[-1500:])
            return
        said = [json.loads(line) for line in err.getvalue().splitlines() if line.startswith("{")]
        names = {str(item["error"]) for item in said if "error" in item}
        findings = [line for line in out.getvalue().splitlines() if '"finding"' in line or "Damaged" in line]
        if (code and not names) or names - _MAY_SAY or findings:
            self._notes.write("bad", self._tag, f"exit code {code}: {err.getvalue()[-800:]} {findings[:3]}")
        self._notes.write("closed", self._tag)

    def _open_storage(self, root: str, settings: Settings) -> ChunkStorage:
        config = self._config
        kept = KeepingChunkStorage(open_storage(root, settings), config["container"], config["kept"])
        return StumblingChunkStorage(kept, self._chance, config["stumbles"])

    def _noted(self, storage: ChunkStorage, **chosen: Any) -> ChunkedSegmentStorage:
        notes = self._notes
        notes.write("opening", 0.0 if chosen["take_over"] else 1.0, os.getpid())
        try:
            store = self._open_store_on(storage, **chosen)
        except ChunkstoreError as error:
            notes.write("refused", f"{type(error).__name__}: {error}"[:300])
            raise
        report = store.report
        cut = None if report.tail_cut is None else list(report.tail_cut)
        notes.write("opened", store.epoch, report.source, report.replayed_records, cut, list(report.findings)[:3])
        return store


def main() -> None:
    """Run the command until killed."""
    _Command(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    main()
