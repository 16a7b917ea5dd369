"""Who holds the session of a sink, for people who list sessions; and whether the driver that it belongs to lives.

Promises: a driver is gone only where it ran on this machine, and there is no such process any more. Then nobody waits for what its
tasks wrote: to end its session harms nobody, even if a commit is on its way, which happens as a whole or not at all.
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

__all__ = ["batch_holder", "foreach_holder", "is_gone", "is_shared", "stream_holder"]

_NAME_BYTES: Final = 100
_OF_DRIVER: Final = re.compile(
    r"spark (batch|streams) .*:(?P<pid>[0-9]{1,10}):(?P<began>[0-9]*) (?P<place>[0-9a-f]{16})( [0-9a-f]{16})?",
    re.DOTALL,
)


def batch_holder(options: WriteOptions) -> str:
    """Of one batch write: its application, its driver, and a random part."""
    return f"spark batch {_driver(options.application)} {runtime.token(8).hex()}"


def is_shared(options: WriteOptions) -> bool:
    """Whether nothing tells a query from others of its driver before it runs: no sink id, and the checkpoint is the session's."""
    return not (options.sink_id or options.checkpoint)


def stream_holder(options: WriteOptions) -> str:
    """The same for every micro-batch of a query, and for nobody else, by its sink id or its checkpoint; else for all such of a driver."""
    if is_shared(options):
        return f"spark streams {_driver(None)}"
    return _known("stream", options.sink_id or options.checkpoint, f"{options.sink_id or ''}\0{options.checkpoint}")


def foreach_holder(sink: str) -> str:
    """The same for every micro-batch of a query in a driver that owns the container, and for nobody else. ``sink``: the key of its row."""
    return _known("foreach", sink, sink)


def is_gone(holder: str) -> bool:
    """Whether this is of a driver that ran here and is no more."""
    found = _OF_DRIVER.fullmatch(holder)
    if found is None or found["place"] != _place():
        return False
    now = began(int(found["pid"]))
    return now is None or (bool(found["began"]) and now not in ("", found["began"]))


def _known(kind: str, name: str, key: str) -> str:
    return f"spark {kind} {_short(name)} {blake2b(key.encode(), digest_size=16).hexdigest()}"


def _driver(name: str | None) -> str:
    pid = driver_pid()
    where = f"{_short(runtime.identity().host)}:{pid}:{began(pid) or ''}"
    return f"{_short(name or _application(pid))}, {where} {_place()}"


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
