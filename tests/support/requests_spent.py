"""The HTTP requests that a block of code costs on S3."""

from __future__ import annotations

from typing import Any, Self

from chunkstore_bindings.s3.storage import S3ChunkStorage
from chunkstore_bindings.wrappers.wrapping import layers


class Requests:
    """By verb, and the users' bytes. ``storage``: the binding, or wrappers around it."""

    def __init__(self, storage: Any) -> None:
        [self._storage] = [layer for layer in layers(storage) if isinstance(layer, S3ChunkStorage)]

    def __enter__(self) -> Self:
        self._before = self._storage.request_counts()
        return self

    def __exit__(self, *_: object) -> None:
        after = self._storage.request_counts()
        spent = {name: after[name] - self._before.get(name, 0) for name in after}
        self.moved_bytes = spent.pop("sent_bytes") + spent.pop("received_bytes")
        self.verbs = {verb: count for verb, count in spent.items() if count}
        self.total = sum(spent.values())
