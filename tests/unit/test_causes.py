"""A bug that is dressed as weather is found out, by the simulator's recorder and by the clients of chaos runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lmdb
import pytest

from chunkstore.errors import ChunkstoreError, OutcomeUnknown, StorageUnavailable
from chunkstore.operations.container import unexpected
from tests.chaos.clients import Clients
from tests.chaos.notes import Notes
from tests.judges.causes import hidden_cause


def caused_by(cause: BaseException | None) -> ChunkstoreError:
    error = StorageUnavailable("EIO")
    error.__cause__ = cause
    return error


def test_what_is_hidden_is_found_however_deep() -> None:
    bug = TypeError("a bug")
    assert hidden_cause(caused_by(caused_by(bug))) is bug
    assert hidden_cause(caused_by(caused_by(None))) is None
    circle = caused_by(None)
    circle.__cause__ = caused_by(circle)
    assert hidden_cause(circle) is circle
    disk = OSError(5, "EIO")
    assert hidden_cause(caused_by(disk)) is disk
    assert hidden_cause(caused_by(disk), weather=(OSError,)) is None
    assert hidden_cause(caused_by(lmdb.DiskError("full")), modules=("lmdb",)) is None


@pytest.mark.parametrize(
    ("error", "bad"),
    [
        (unexpected(TypeError("a bug")), True),
        (caused_by(OSError(5, "EIO")), False),
        (StorageUnavailable("EIO"), False),
        (OutcomeUnknown("x"), False),
    ],
)
def test_chaos_takes_no_bug_for_weather(tmp_path: Path, error: ChunkstoreError, bad: bool) -> None:
    notes = Notes(str(tmp_path / "notes"))
    store: Any = type("Store", (), {"epoch": 1})()
    clients = Clients(store, notes, "c", 1.0, dict)

    def failing() -> None:
        raise error

    assert clients.attempt("c.1", "plain", failing)[0] in ("no", "un")
    notes.close()
    kinds = [json.loads(line)[1] for line in (tmp_path / "notes").read_text().splitlines()]
    assert ("bad" in kinds) == bad
