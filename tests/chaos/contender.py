"""One process of a chaos run: opens the container, serves clients until it is deposed, waits a while, opens again.

Run by the supervisor as ``python -m tests.chaos.contender CONFIG`` with the configuration as JSON. Notes:
``opening``, ``opened epoch``, ``refused error``, ``closed``, and those of ``clients``. It ends by itself only when its parent has gone.
Promises: after it was deposed every further call, reads too, must be refused; an answer is noted as a violation.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import traceback
from typing import Any

from chunkstore import runtime
from chunkstore.assembly import open_store_on
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunkstoreError,
    ContainerBusy,
    DeadlineExceeded,
    NotOwner,
    OutcomeUnknown,
    StorageFull,
    StorageUnavailable,
)
from chunkstore.registry import open_storage
from tests.chaos.clients import Clients
from tests.chaos.keeping import KeepingChunkStorage
from tests.chaos.notes import Notes
from tests.chaos.plan import LOGS, settings_of
from tests.chaos.stumbling import StumblingChunkStorage

__all__ = ["main", "read_verified"]

_HANG_S = 90.0


def read_verified(path: str) -> dict[str, int]:
    """Offsets below which the judge has verified everything; empty before the first verdict."""
    try:
        with open(path, encoding="utf-8") as file:
            found: dict[str, int] = json.load(file)
            return found
    except (FileNotFoundError, ValueError):
        return {}


class _Contender:
    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._tag = str(config["tag"])
        self._chance = random.Random(config["seed"])
        self._notes = Notes(config["notes"])
        self._parent = os.getppid()

    def run(self) -> None:
        chance, config = self._chance, self._config
        if config["lose_cache"]:
            shutil.rmtree(config["cache"], ignore_errors=True)
        number = 0
        while os.getppid() == self._parent:
            runtime.sleep_s(min(8.0, chance.expovariate(1.0 / config["patience_s"])))
            store = self._open()
            if store is not None:
                number += 1
                self._serve(store, f"{self._tag}.{number}")

    def _open(self) -> ChunkedSegmentStorage | None:
        config, notes = self._config, self._notes
        wait_s = self._chance.choice((0.0, 0.0, 0.0, 1.2))
        notes.write("opening", wait_s, os.getpid())
        try:
            settings = settings_of(config["settings"], config["cache"])
            kept = KeepingChunkStorage(open_storage(config["root"], settings), config["container"], config["kept"])
            storage = StumblingChunkStorage(kept, self._chance, config["stumbles"])
            try:
                store = open_store_on(
                    storage, settings=settings, create=False, take_over=not wait_s, close_storage=True
                )
            except BaseException:
                storage.close()
                raise
        except (NotOwner, ContainerBusy, StorageFull, StorageUnavailable, DeadlineExceeded, OutcomeUnknown) as error:
            notes.write("refused", f"{type(error).__name__}: {error}"[:300])
            return None
        except Exception:  # noqa: BLE001  (whatever it is, it is reported as a violation)
            notes.write("bad", self._tag, f"open: {traceback.format_exc()[-1500:]}")
            return None
        report = store.report
        cut = None if report.tail_cut is None else list(report.tail_cut)
        notes.write("opened", store.epoch, report.source, report.replayed_records, cut, list(report.findings)[:3])
        return store

    def _serve(self, store: ChunkedSegmentStorage, tag: str) -> None:
        config, notes = self._config, self._notes
        clients = Clients(store, notes, tag, config["rate"], lambda: read_verified(config["verified"]))
        clients.start()
        # Some step down by themselves; the others serve until somebody else has taken over.
        end_s = runtime.monotonic_s() + self._chance.choice((2.0, 600.0, 600.0))
        while not clients.fenced.wait(0.1) and runtime.monotonic_s() < end_s and os.getppid() == self._parent:
            pass
        if clients.fenced.is_set():
            runtime.sleep_s(0.2)
        if not clients.stop(_HANG_S):
            notes.write("bad", tag, f"a client hangs for {_HANG_S:g} s")
        if clients.fenced.is_set():
            self._refuses(store, tag)
        store.close()
        notes.write("closed", tag)

    def _refuses(self, store: ChunkedSegmentStorage, tag: str) -> None:
        try:
            store.read(LOGS[0], 0, 1)
        except NotOwner:
            return
        except ChunkstoreError as error:
            self._notes.write("bad", tag, f"a deposed owner answered a read with {error!r}")
            return
        self._notes.write("bad", tag, "a deposed owner answered a read")


def main() -> None:
    """Serve until killed."""
    _Contender(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    main()
