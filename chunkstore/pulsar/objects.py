"""Objects that Pulsar's own offloaders wrote, wherever they are stored: opened by URL, and told apart by their index.

Promises: objects are read in ranges and never changed; a pair whose index is of the other format is refused in words.
Leaves out: which objects a bucket holds, and which ledger or topic they belong to, beyond what an index says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Final
from urllib.parse import unquote

from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.frames import PIP17, DataSource
from chunkstore.codec.pulsar.pip17_index import read_ledger_index
from chunkstore.codec.pulsar.pip17_reader import LedgerObjectReader
from chunkstore.codec.pulsar.pip76_index import read_index
from chunkstore.codec.pulsar.pip76_reader import SegmentReader
from chunkstore.config import Settings
from chunkstore.errors import InvalidArgument
from chunkstore.registry import open_storage

__all__ = ["is_url", "open_pair", "stored_object"]

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_url(name: str) -> bool:
    """Whether ``name`` is a URL, not a path."""
    return _URL.match(name) is not None


@contextmanager
def stored_object(url: str, settings: Settings | None = None) -> Iterator[DataSource]:
    """An object in storage: its root is the URL's folder, with the URL's options (``s3://bucket/folder/name?option=value``).

    The URL is the caller's own: it is opened whatever it names. Raises as ``registry.open_storage``, ``ChunkNotFound``, and
    ``InvalidArgument`` for a URL without a name.
    """
    path, question, query = url.partition("?")
    folder, _, name = path.rpartition("/")
    if not name or folder.endswith("/"):
        raise InvalidArgument("the URL of an object ends with its name: s3://bucket/folder/name", argument="URL")
    name = name if path.lower().startswith("memory:") else unquote(name)
    with closing(open_storage(folder + question + query, settings or Settings())) as storage:
        length = storage.stat(name).length
        shown = f"{storage.url.partition('?')[0]}/{name}"
        yield DataSource(shown, length, partial(storage.read, storage.open_read(name)))


def open_pair(source: DataSource, index: BytesLike, *, name: str = "index") -> LedgerObjectReader | SegmentReader:
    """The reader of a data object, by the bytes of its index object, which ``name`` names in errors: PIP-17 or PIP-76.

    Raises ``Damaged`` for an index that is neither, and where index and data object do not belong together.
    """
    if bytes(index[:4]) == PIP17.index_magic.to_bytes(4, "big"):
        return LedgerObjectReader(source, read_ledger_index(index, object=name))
    return SegmentReader(source, read_index(index, object=name))
