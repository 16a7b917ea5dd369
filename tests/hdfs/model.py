"""The binding over the model of HDFS's servers: patient storages, and waits that end soon."""

from __future__ import annotations

from chunkstore_bindings.hdfs import HdfsChunkStorage
from tests.support.fake_webhdfs import FakeWebHdfs

__all__ = ["FOLDER", "PATIENT_S", "SHORT_S", "made", "temporaries"]

FOLDER = "/root/.chunkstore-tmp"
PATIENT_S = 180.0
"""The deadline of what must succeed; a server may be silent for a third of it, which no busy machine's is."""
SHORT_S = 0.6


def made(fake: FakeWebHdfs, query: str = "", *, deadline_s: float = PATIENT_S) -> HdfsChunkStorage:
    return HdfsChunkStorage(fake.root(query=query), deadline_s=deadline_s)


def temporaries(fake: FakeWebHdfs) -> list[str]:
    return [path for path in fake.files if "/.chunkstore-tmp/" in path]
