"""The replica of a chaos run: follows all the time and notes what it shows.

Run as ``python -m tests.chaos.watcher CONFIG``. Notes: ``shows lsn {segment: length} time`` after each refresh (with
the time it began), ``seen segment start stop crc lsn`` for the bytes it read, ``row key value version lsn`` for the table.
What must hold within one life is checked here (nothing goes back, nothing that was shown changes); that it is a prefix of
history, and across lives, is checked by the judge.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import traceback
import zlib
from typing import Any

from chunkstore import runtime
from chunkstore.errors import SegmentNotFound, SegmentTruncated, StorageFull, StorageUnavailable
from chunkstore.following import open_replica
from chunkstore.replica import Replica
from tests.chaos.notes import Notes
from tests.chaos.plan import CHAINS, GROWING, TABLE, settings_of

__all__ = ["main"]

_PIECE_BYTES = 32 * 1024


class _Watcher:
    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._chance = random.Random(config["seed"])
        self._notes = Notes(config["notes"])
        self._parent = os.getppid()

    def run(self) -> None:
        chance, config = self._chance, self._config
        while os.getppid() == self._parent:
            if config["lose_cache"] and chance.random() < 0.5:
                shutil.rmtree(config["cache"], ignore_errors=True)
            try:
                with open_replica(config["root"], settings=settings_of(config["settings"], config["cache"])) as replica:
                    self._follow(replica)
            except (StorageUnavailable, StorageFull) as error:
                self._notes.write("refused", repr(error)[:300])
                runtime.sleep_s(0.5)
            except Exception:  # noqa: BLE001  (whatever it is, it is reported as a violation)
                self._notes.write("bad", config["tag"], traceback.format_exc()[-1500:])
                runtime.sleep_s(1.0)

    def _follow(self, replica: Replica) -> None:
        chance, notes = self._chance, self._notes
        end_s = runtime.monotonic_s() + chance.uniform(2.0, 40.0)
        seen: dict[str, tuple[int, int]] = {}
        versions: dict[str, int] = {}
        before = 0
        notes.write("following")
        while os.getppid() == self._parent and runtime.monotonic_s() < end_s:
            began_s = runtime.monotonic_s()
            lsn = replica.refresh()
            if lsn < before:
                notes.write("bad", self._config["tag"], f"the replica went back from lsn {before} to {lsn}")
            before = lsn
            lengths: dict[str, int] = {}
            for segment in GROWING:
                self._look(replica, segment, seen, lsn, lengths)
            notes.write("shows", lsn, lengths, began_s)
            for key in CHAINS:
                row = replica.table(TABLE).get(key.encode())
                if row is not None and replica.lsn == lsn and row.version != versions.get(key):
                    if row.version < versions.get(key, 0):
                        notes.write("bad", self._config["tag"], f"row {key} went back to version {row.version}")
                    versions[key] = row.version
                    notes.write("row", key, row.value.decode(), row.version, lsn)
            runtime.sleep_s(chance.choice((0.02, 0.1, 0.3)))

    def _look(
        self,
        replica: Replica,
        segment: str,
        seen: dict[str, tuple[int, int]],
        lsn: int,
        lengths: dict[str, int],
    ) -> None:
        try:
            info = replica.info(segment)
            lengths[segment] = info.length
            start_offset, length = seen.get(segment, (0, max(info.start_offset, info.length - _PIECE_BYTES)))
            if info.length < length or info.start_offset < start_offset:
                self._notes.write(
                    "bad",
                    self._config["tag"],
                    f"{segment} went back from [{start_offset}, {length}) to [{info.start_offset}, {info.length})",
                )
                return
            position = max(length, info.start_offset)
            seen[segment] = (info.start_offset, position)
            while position < info.length:
                data = replica.read(segment, position, min(_PIECE_BYTES, info.length - position))
                self._notes.write("seen", segment, position, position + len(data), zlib.crc32(data), lsn)
                position += len(data)
                seen[segment] = (info.start_offset, position)
        except SegmentTruncated:
            return  # it caught up while reading: the next round begins at the new start
        except SegmentNotFound:
            self._notes.write("bad", self._config["tag"], f"{segment} is not there at lsn {lsn}")


def main() -> None:
    """Follow until killed."""
    _Watcher(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    main()
