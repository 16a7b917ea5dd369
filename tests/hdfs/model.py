"""The binding over the model of HDFS's servers: patient storages, and waits that end soon."""

from __future__ import annotations

import time

from chunkstore.deadline import Backoff, Deadline
from chunkstore_bindings.hdfs import HdfsChunkStorage
from tests.support.fake_webhdfs import FakeWebHdfs

__all__ = ["FOLDER", "PATIENT_S", "SHORT_S", "EndingBackoff", "made", "temporaries"]

FOLDER = "/root/.chunkstore-tmp"
PATIENT_S = 180.0
"""The deadline of what must succeed; a server may be silent for a third of it, which no busy machine's is."""
SHORT_S = 0.6


class EndingBackoff(Backoff):
    """Ends ``SHORT_S`` after the first pause was asked for, however long it took to come to that."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__(pause_s_first=0.05, pause_s_max=0.1)
        self._deadline = deadline
        self._begun = False

    def pause(self, *, busy: bool = False, retry_after_s: float = 0.0) -> bool:
        if not self._begun:
            self._begun = True
            self._end_s = self._deadline.end_s = time.monotonic() + SHORT_S
        return super().pause(busy=busy, retry_after_s=retry_after_s)


def made(fake: FakeWebHdfs, query: str = "", *, deadline_s: float = PATIENT_S) -> HdfsChunkStorage:
    return HdfsChunkStorage(fake.root(query=query), deadline_s=deadline_s)


def temporaries(fake: FakeWebHdfs) -> list[str]:
    return [path for path in fake.files if "/.chunkstore-tmp/" in path]
