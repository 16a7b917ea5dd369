"""Interrupted: a segment that is imported from its header file when it is named (``crash_runs`` has the rest)."""

from __future__ import annotations

from contextlib import suppress

from chunkstore.changes import EndSession
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, OutcomeUnknown
from tests.faults.crash_runs import OperationRun, Promise, mend
from tests.faults.ground import State
from tests.faults.scenarios import SMALL, Operation

__all__ = ["HEADER_OPERATIONS", "HeaderRun"]

_FILES = {
    "old$header": b"maxsize=40&0=old$offset.0&40=old$offset.40&",
    "old$offset.0": b"a" * 40,
    "old$offset.40": b"b" * 7,
}


def _old_files(store: ChunkedSegmentStorage) -> None:
    store.optimiser.pause()  # what is interrupted is what this thread does
    for name, data in _FILES.items():
        store.read_context.storage.put(name, data)


def _import(store: ChunkedSegmentStorage, _: object) -> None:
    try:
        store.info("old")
    except ChunkstoreError as error:
        raise OutcomeUnknown("a look says nothing about what it brought") from error


HEADER_OPERATIONS = (Operation("import-from-header", _import, _old_files, {**SMALL, "headers": "import"}),)


class HeaderRun(OperationRun):
    """A killed import leaves its session open: it is ended here, as an operator would, and the next import would do."""

    def clean(self, store: ChunkedSegmentStorage) -> None:
        super().clean(store)
        _end_sessions(store)

    def go_on(self, promise: Promise, before: State, after: State) -> State:
        with suppress(ChunkstoreError):
            mend(self.store)
            _end_sessions(self.store)
        return super().go_on(promise, before, after)


def _end_sessions(store: ChunkedSegmentStorage) -> None:
    for session in store.sessions():
        store.commit([EndSession(session.id)])
