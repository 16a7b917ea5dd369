"""What the processes do that ``test_kills`` kills: imported by them, too."""

from __future__ import annotations

from multiprocessing import get_context
from multiprocessing.process import BaseProcess

import chunkstore
from chunkstore.config import Settings
from chunkstore.storage import ChunkRange
from chunkstore_bindings.s3.options import parse_root
from chunkstore_bindings.s3.storage import S3ChunkStorage

__all__ = ["append_twice", "compose", "large", "run", "settings"]

MIB = 1 << 20
_processes = get_context("forkserver")
_processes.set_forkserver_preload([__name__, "boto3", "chunkstore.assembly", "chunkstore.engine"])


def run(work: object, *arguments: object) -> BaseProcess:
    """``work(*arguments)`` in a process of its own, which has imported everything already."""
    process = _processes.Process(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
    process.start()
    return process


def settings(folder: str) -> Settings:
    """Of every owner in these tests."""
    return Settings(cache_dir=folder, lease_s=0, op_deadline_s=180)


def large(tag: str) -> bytes:
    """Three parts of 5 MiB, the last one shorter."""
    return tag.encode().ljust(16, b".") * (11 * MIB // 16)


def append_twice(root: str, folder: str, tag: str) -> None:
    """A small append, which is acknowledged, and a large one, which goes up in parts."""
    store = chunkstore.open(root, settings=settings(folder))
    store.append("s", f"{tag}: acknowledged.".encode())
    store.append("s", large(tag))


def compose(root: str, name: str, sources: list[str], length: int) -> None:
    """Make a new object of objects of this length, on the server."""
    S3ChunkStorage(parse_root(root)).compose(name, [ChunkRange(source, 0, length) for source in sources])
