"""``PulsarObjects``: ledgers as objects that a Pulsar broker serves, under its keys, with its user metadata.

Promises: the data object is one upload of blocks, of which one is in memory; the index is written last; both carry the format version that
a broker asks for; deleting takes the index first, and unfinished uploads, too. Leaves out: other layouts than PIP-17's, the file system
offloader's, buckets without user metadata (``Unsupported``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from chunkstore.buckets import open_bucket
from chunkstore.codec.pulsar.block_index import INDEX_BYTES_MAX
from chunkstore.codec.pulsar.encoding import EncodedBlock
from chunkstore.codec.pulsar.frames import DataSource
from chunkstore.codec.pulsar.offload_metadata import TOPIC_KEY, LedgerMetadata
from chunkstore.codec.pulsar.pip17 import LedgerEncoder, LedgerObjectReader, read_ledger_index
from chunkstore.errors import Damaged, InvalidArgument, Unsupported
from chunkstore.pulsar.bucket_objects import FORMAT_VERSION_KEY
from chunkstore.pulsar.offload_ledger import LedgerOffloader
from chunkstore.pulsar.read_handle import LedgerPart, ReadHandle, StoredLedger
from chunkstore.registry import Root
from chunkstore_bindings.bucket.port import Bucket, ObjectHead

__all__ = ["PulsarObjects"]

_VERSION: Final = "1"
_SOFTWARE_KEY: Final = "s3managedledgeroffloadersoftware"


class PulsarObjects(LedgerOffloader):
    """Offloads to the bucket that ``url`` names (or an open ``Bucket``, which stays the caller's): ``s3://BUCKET``, as in a broker's
    ``managedLedgerOffloadBucket``; below a prefix no broker finds them. ``cluster``: the broker's ``clusterName``.

    Raises ``InvalidArgument``, and ``Unsupported`` for a bucket without user metadata, whose objects a broker refuses.
    """

    driver_name = "S3"

    def __init__(self, url: Root | Bucket, *, cluster: str = "standalone") -> None:
        self._bucket = url if isinstance(url, Bucket) else open_bucket(url)
        self._cluster = cluster
        if not self._bucket.keeps_metadata:
            raise Unsupported(f"{self._bucket.url} keeps no user metadata, which a broker asks for", feature="metadata")

    @property
    def driver_metadata(self) -> Mapping[str, str]:
        name = urlsplit(self._bucket.url).netloc
        return {**super().driver_metadata, "bucket": name, "region": "", "serviceEndpoint": ""}

    def do_offload(self, handle: ReadHandle, uuid: str, extra_metadata: Mapping[str, str]) -> None:
        data, index = _keys(handle.ledger, uuid)
        blocks: list[EncodedBlock] = []
        named = extra_metadata.get("ManagedLedgerName", "")
        custom = (("component", b"managed-ledger"), (TOPIC_KEY, named.encode()), ("application", b"pulsar"))
        metadata = LedgerMetadata(
            write_quorum=1, ensemble_size=1, length=handle.length, last_entry=handle.last_add_confirmed, custom=custom
        )
        encoder = LedgerEncoder(blocks.append, metadata, ledger=handle.ledger, block_bytes_max=self.block_bytes_max)
        indexes: list[bytes] = []

        def parts() -> Iterator[bytes]:
            for entry in handle.iter_entries():
                encoder.append(entry.entry, entry.payload)
                if blocks:
                    yield b"".join(blocks.pop().buffers)
            indexes.append(encoder.finish())
            yield b"".join(blocks.pop().buffers)

        common = {
            FORMAT_VERSION_KEY: _VERSION,
            f"{_SOFTWARE_KEY}version": "chunkstore",
            f"{_SOFTWARE_KEY}gitsha": "none",
        }
        common |= {"pulsarclustername": self._cluster, **extra_metadata}
        self._bucket.put_parts(data, parts(), {**common, "role": "data"})
        self._bucket.put(index, indexes[0], {**common, "role": "index"})

    def do_read(self, ledger: int, uuid: str) -> ReadHandle:
        data, index = _keys(ledger, uuid)
        length = self._head(index).length
        if length > INDEX_BYTES_MAX:
            raise Damaged(f"an index has at most {INDEX_BYTES_MAX} bytes, not {length}", object=index)
        found = read_ledger_index(self._bucket.read(index, 0, length), object=index)
        source = DataSource(data, self._head(data).length, partial(self._bucket.read, data))
        last = found.entry_limit - 1
        part = LedgerPart(LedgerObjectReader(source, found, ledger=ledger), 0, last)
        return StoredLedger(ledger, [part], last_add_confirmed=last, length=found.metadata.length)

    def do_delete(self, ledger: int | None, uuid: str) -> None:
        if ledger is None:
            raise InvalidArgument("the keys have the ledger's id: give ledger_id", argument="ledger_id")
        data, index = _keys(ledger, uuid)
        self._bucket.delete(index)
        for upload in self._bucket.uploads(data):
            if upload.key == data:
                self._bucket.abort_upload(data, upload.upload_id)
        self._bucket.delete(data)

    def _head(self, key: str) -> ObjectHead:
        head = self._bucket.head(key)
        found = head.metadata.get(FORMAT_VERSION_KEY)
        if found != _VERSION:
            raise Damaged(f"{FORMAT_VERSION_KEY} is {found!r}, {_VERSION!r} expected", object=key)
        return head


def _keys(ledger: int, uuid: str) -> tuple[str, str]:
    """The keys of data and index."""
    data = f"{uuid}-ledger-{ledger}"
    return data, data + "-index"
