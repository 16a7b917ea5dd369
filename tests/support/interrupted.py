"""A process that presses Ctrl-C at random moments of its own appends: ``python -m tests.support.interrupted MODE KIND SECONDS SEED``.

Goes on for longer, a minute at most, where the machine stood still and there were fewer than ``INTERRUPTS_LEAST``.

Prints, as JSON, how many interrupts there were and what was wrong after any of them.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from typing import Any, cast

from chunkstore.assembly import open_store_on
from chunkstore.changes import Append, TablePut
from chunkstore.config import Settings
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError
from chunkstore_bindings.memory import MemoryChunkStorage
from tests.support.data import problems
from tests.support.worlds import Mode

INTERRUPTS_LEAST = 20
_LONGER_S = 60.0
_DATA = b"0123456789"


def main(mode: Mode, kind: str, seconds: float, seed: int) -> dict[str, Any]:
    """Append until ``seconds`` have passed. ``kind``: "append", "event", "commit" or "row"."""
    chance = random.Random(seed)
    wrong: list[str] = []
    interrupts = 0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    storage = MemoryChunkStorage("memory://interrupted", append=mode == "append")
    store = open_store_on(storage, settings=Settings(lease_s=0, journal_mode=mode, op_deadline_s=20.0))
    store.create("s")
    acknowledged = number = 0
    end_s = time.monotonic() + seconds
    while not wrong and (
        time.monotonic() < end_s or (interrupts < INTERRUPTS_LEAST and time.monotonic() < end_s + _LONGER_S)
    ):
        number += 1
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(15e-6, 400e-6))
            change(store, kind, number)
            signal.setitimer(signal.ITIMER_REAL, 0)
            for _ in range(3):
                time.sleep(0)  # one that is under way comes here, and not in the loop's own jump
            acknowledged += len(_DATA)
            continue
        except KeyboardInterrupt:
            interrupts += 1
        except ChunkstoreError as error:
            wrong.append(f"change {number}: {error!r}")
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            change(store, kind, number)
            acknowledged += len(_DATA)
        except (ChunkstoreError, KeyboardInterrupt) as error:
            wrong.append(f"after interrupt {interrupts}: {error!r}")
    length = store.info("s").length
    if kind != "row" and length < acknowledged:
        wrong.append(f"{acknowledged} bytes were acknowledged, {length} are there")
    if store.read("s", 0, length + 1) != _DATA * (length // len(_DATA)):
        wrong.append("what is read is not what was appended")
    wrong += [str(finding) for finding in problems(store.check("deep"))]
    if not store._container.current.queue.idle:
        wrong.append("something is under way for ever")
    store.close()
    return {"interrupts": interrupts, "changes": number, "wrong": wrong}


def change(store: ChunkedSegmentStorage, kind: str, number: int) -> None:
    """One change of that kind."""
    if kind == "append":
        store.append("s", _DATA)
    elif kind == "event":
        store.append("s", _DATA, writer_id=b"w", event_number=number)
    elif kind == "commit":
        store.commit([Append("s", _DATA), TablePut("t", b"k", b"v")])
    else:
        store.table("t").put(b"k", b"%d" % number)


if __name__ == "__main__":
    print(json.dumps(main(cast(Mode, sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))))
