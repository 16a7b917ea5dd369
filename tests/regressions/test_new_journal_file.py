"""A self-take-over whose new journal file cannot be synced begins that file again.

Before, the file stayed, in doubt for ever as the storage has it after a failed sync: every later try of the same claim, and so
every change, failed until the process was started again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.errors import StorageUnavailable
from tests.faults.ground import Ground
from tests.support.data import problems
from tests.support.faulty import Outcome


def is_record_of_first_log(operation: str, name: str) -> bool:
    return operation == "write" and name.endswith("0000000000000001/log.a")


def is_sync_of_second_log(operation: str, name: str) -> bool:
    return operation == "sync" and name.endswith("0000000000000002/log.a")


def test_an_owner_gets_over_a_failed_sync_of_its_new_file(tmp_path: Path) -> None:
    ground = Ground("disk", "append", tmp_path, op_deadline_s=60.0, undecided_s_max=60.0)
    store = ground.open(ground.wire)
    store.create("log")
    store.append("log", b"first ")
    ground.wire.inject(is_record_of_first_log, Outcome.ERROR_BEFORE)
    ground.wire.second(is_sync_of_second_log, Outcome.ERROR_BEFORE)
    with pytest.raises(StorageUnavailable):
        store.append("log", b"lost ")
    try:
        store.append("log", b"second")
    except StorageUnavailable:
        store.append("log", b"second")
    assert ground.wire.fired_twice
    ground.wire.heal()
    assert store.read("log", 0, 100) == b"first second"
    store.close()
    with ground.open() as successor:
        assert successor.read("log", 0, 100) == b"first second"
        assert problems(successor.check("deep")) == []
    ground.close()
