"""Who holds the session of a sink, for people who list sessions; and whether the driver of a batch write lives.

Promises: a batch write is gone only where its driver ran on this machine, and there is no such process any more. Then nobody waits for
what its tasks wrote: to end its session harms nobody, even if a commit is on its way, which happens as a whole or not at all.
Leaves out: ending it (``sink``). Of drivers elsewhere nothing is known.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from chunkstore import runtime
from chunkstore.processes import began
from chunkstore.spark.owners import driver_pid
from chunkstore.spark.write_options import WriteOptions

__all__ = ["batch_holder", "is_gone", "stream_holder"]

_NAME_BYTES: Final = 100
_BATCH: Final = re.compile(
    r"spark batch .*:(?P<pid>[0-9]{1,10}):(?P<began>[0-9]*) (?P<place>[0-9a-f]{16}) [0-9a-f]{16}", re.DOTALL
)


def batch_holder(options: WriteOptions) -> str:
    """Of one batch write: its application, its driver, and a random part."""
    pid = driver_pid()
    name = _short(options.application or _application(pid))
    where = f"{_short(runtime.identity().host)}:{pid}:{began(pid) or ''}"
    return f"spark batch {name}, {where} {_place()} {runtime.token(8).hex()}"


def stream_holder(options: WriteOptions) -> str:
    """The same for every micro-batch of a query, and for nobody else: by its sink id or its checkpoint; else by its driver."""
    known = f"{options.sink_id or ''}\0{options.query}"
    if known == "\0":
        known = f"{runtime.identity().host}\0{runtime.identity().boot_id}\0{driver_pid()}"
    name = _short(options.sink_id or options.query or "without a name")
    return f"spark stream {name} {blake2b(known.encode(), digest_size=16).hexdigest()}"


def is_gone(holder: str) -> bool:
    """Whether this is a batch write whose driver ran here and is no more."""
    found = _BATCH.fullmatch(holder)
    if found is None or found["place"] != _place():
        return False
    now = began(int(found["pid"]))
    return now is None or (bool(found["began"]) and now not in ("", found["began"]))


def _place() -> str:
    """Where numbers of processes mean the same: this machine since it was started, and its container of processes."""
    space = ""
    with suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    identity = runtime.identity()
    return blake2b(f"{identity.host}\0{identity.boot_id}\0{space}".encode(), digest_size=8).hexdigest()


def _application(pid: int) -> str:
    """The name of a driver's application, as its JVM was told; else what runs."""
    words: list[str] = []
    with suppress(OSError), open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
        words = file.read().split("\0")
    for before, word in zip(["", *words], words, strict=False):
        if before == "--name" or word.startswith("spark.app.name="):
            return word.removeprefix("spark.app.name=")
    return os.path.basename(words[0]) if words else "application"


def _short(name: str) -> str:
    return name.encode()[:_NAME_BYTES].decode("utf-8", "ignore")
