"""Who holds the session of a sink, for people who list sessions.

Leaves out: ending it (``committing``; of a driver that was killed ``chunkstore sessions end``).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from chunkstore import runtime
from chunkstore.spark.write_options import WriteOptions

__all__ = ["batch_holder", "foreach_holder", "is_shared", "stream_holder"]

_NAME_BYTES: Final = 100


def batch_holder(options: WriteOptions) -> str:
    """Of one batch write: its application, its machine, and a random part."""
    return f"spark batch {_short(options.application or 'write')}, {_host()} {runtime.token(8).hex()}"


def is_shared(options: WriteOptions) -> bool:
    """Whether nothing tells a query from others of its machine before it runs: no sink id, and the checkpoint is the session's."""
    return not (options.sink_id or options.checkpoint)


def stream_holder(options: WriteOptions) -> str:
    """The same for every micro-batch of a query, and for nobody else, by its sink id or its checkpoint; else for all such of a machine."""
    if is_shared(options):
        return f"spark streams, {_host()}"
    return _known("stream", options.sink_id or options.checkpoint, f"{options.sink_id or ''}\0{options.checkpoint}")


def foreach_holder(sink: str) -> str:
    """The same for every micro-batch of a query in a driver that owns the container, and for nobody else. ``sink``: the key of its row."""
    return _known("foreach", sink, sink)


def _known(kind: str, name: str, key: str) -> str:
    return f"spark {kind} {_short(name)} {blake2b(key.encode(), digest_size=16).hexdigest()}"


def _host() -> str:
    return _short(runtime.identity().host)


def _short(name: str) -> str:
    return name.encode()[:_NAME_BYTES].decode("utf-8", "ignore")
