"""What a stopped broker's log directory has besides segments: checkpoints, the cluster's metadata, and where its partitions end.

Promises: names of files are a fixed list, in and out; they are replaced in one commit, or stay as they were. Leaves out: segments
(``tier``), and indexes of ``__cluster_metadata-0``, which a broker rebuilds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from glob import glob
from typing import Final, TypeAlias

from chunkstore.changes import Change, Concat, Create, Delete, Seal
from chunkstore.codec.kafka.checkpoints import write_partition_metadata
from chunkstore.codec.kafka.names import parse_partition_folder, parse_uuid, segment_file
from chunkstore.codec.sources import DataSource
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Damaged, InvalidArgument, SegmentNotFound
from chunkstore.kafka.folders import clean_stop, pieces_of
from chunkstore.kafka.sources import SMALL_FILE_BYTES_MAX, Segment, opened_file

__all__ = ["Partitions", "other_files", "read_partitions", "store_cluster"]

_FILES: Final = "kafka/cluster/"
_NEW: Final = "kafka/cluster-new/"
_PARTITIONS: Final = "partitions"
_NAME: Final = re.compile(
    r"meta\.properties|bootstrap\.checkpoint|\.kafka_cleanshutdown|(cleaner|log-start|recovery-point|replication)-offset-checkpoint|"
    r"__cluster_metadata-0/([0-9]{20}(\.log|\.snapshot|-[0-9]{10}\.checkpoint)|quorum-state|leader-epoch-checkpoint|partition\.metadata)"
)
_ROW: Final = re.compile("([^ ]{1,260}) ([a-zA-Z0-9_-]{22}) ([0-9]{1,18})((?: [a-zA-Z0-9_-]{22})*)")

Partitions: TypeAlias = dict[str, tuple[str, int, tuple[str, ...]]]
"""Topic ids, end offsets and the ids of segments, by folder."""


def store_cluster(
    store: ChunkedSegmentStorage, log_dir: str, segments: list[Segment], ids: Mapping[str, Sequence[str]], mark: bytes
) -> None:
    """Replace what is stored by the files of ``log_dir``, whose broker stopped with ``mark``, its ``segments``' ends, and the ``ids`` of
    their copies by folder. Durable.

    Raises ``InvalidArgument`` (the broker ran meanwhile), errors of files, and what the store raises. Retry: safe.
    """
    for info in list(store.segments(_NEW)):
        store.delete(info.name)  # of a run that died
    ends = (each for each in segments if each.state == "ACTIVE")
    rows = ((f"{each.topic}-{each.partition}", each.topic_id, f"{each.end_offset + 1}") for each in ends)
    text = "".join(f"{' '.join((*row, *ids.get(row[0], ())))}\n" for row in rows)
    store.append(store.create(_NEW + _PARTITIONS), text.encode())
    names = [*filter(_NAME.fullmatch, [*os.listdir(log_dir), *glob("__cluster_metadata-0/*", root_dir=log_dir)])]
    for name in names:
        handle = store.create(_NEW + name)
        with opened_file(os.path.join(log_dir, name), name) as file:
            for piece in pieces_of(file):
                store.append(handle, piece)
    if clean_stop(log_dir) != mark:
        raise InvalidArgument(f"the broker of {log_dir} ran during the copy; stop it", argument="log_dir")
    changes: list[Change] = [Delete(info.name) for info in store.segments(_FILES)]
    for name in (_PARTITIONS, *names):
        changes += Seal(_NEW + name), Create(_FILES + name), Concat(_FILES + name, _NEW + name), Seal(_FILES + name)
    store.commit(changes)


def read_partitions(store: ChunkedSegmentStorage | Replica) -> Partitions | None:
    """The partitions of the whole directory; None: none is stored. Raises ``Damaged``, and what ``read`` raises."""
    try:
        data = store.read(_FILES + _PARTITIONS, 0, SMALL_FILE_BYTES_MAX)
    except SegmentNotFound:
        return None
    found: Partitions = {}
    for line in data.decode(errors="replace").splitlines():
        row = _ROW.fullmatch(line)
        if row is None or parse_partition_folder(row[1]) is None:
            raise Damaged(f"{line[:60]!r} is not a partition", object=_FILES + _PARTITIONS)
        found[row[1]] = row[2], int(row[3]), tuple(row[4].split())
    return found


def other_files(
    store: ChunkedSegmentStorage | Replica, partitions: Partitions, found: Container[str]
) -> Iterator[tuple[str, DataSource | bytes]]:
    """The files by their names in the directory, also of ``partitions`` without records, which are not in ``found``. The last one is that
    without which a broker does not start. Raises ``Damaged``, and what ``segments`` raises."""
    for folder, (topic_id, end, _) in partitions.items():
        if folder not in found:
            yield f"{folder}/partition.metadata", write_partition_metadata(parse_uuid(topic_id, object=folder))
            yield f"{folder}/{segment_file(end, 'log')}", b""
    for info in sorted(store.segments(_FILES), key=lambda each: each.name.endswith("/meta.properties")):
        name = info.name.removeprefix(_FILES)
        if _NAME.fullmatch(name):
            yield name, DataSource(info.name, info.length, partial(store.read, info.name))
