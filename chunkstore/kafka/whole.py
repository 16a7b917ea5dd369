"""What a stopped broker's log directory has besides segments: checkpoints, the cluster's metadata, and where its partitions end.

Promises: names of files are a fixed list, in and out; they are replaced in one commit, or stay as they were. Leaves out: segments
(``tier``), and indexes of ``__cluster_metadata-0``, which a broker rebuilds.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from glob import glob
from pathlib import Path
from typing import Final, TypeAlias

from chunkstore.changes import Change, Concat, Create, Delete, Seal
from chunkstore.codec.kafka.checkpoints import write_partition_metadata
from chunkstore.codec.kafka.names import parse_partition_folder, parse_uuid, segment_file
from chunkstore.codec.sources import DataSource
from chunkstore.config import MIB
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Damaged, InvalidArgument, SegmentNotFound
from chunkstore.kafka.sources import SMALL_FILE_BYTES_MAX, Segment, translated

__all__ = ["Partitions", "clean_stop", "locked", "other_files", "read_partitions", "store_cluster"]

_FILES: Final = "kafka/cluster/"
_NEW: Final = "kafka/cluster-new/"
_PARTITIONS: Final = "partitions"
_NAME: Final = re.compile(
    r"meta\.properties|bootstrap\.checkpoint|\.kafka_cleanshutdown|(cleaner|log-start|recovery-point|replication)-offset-checkpoint|"
    r"__cluster_metadata-0/([0-9]{20}(\.log|\.snapshot|-[0-9]{10}\.checkpoint)|quorum-state|leader-epoch-checkpoint|partition\.metadata)"
)
_ROW: Final = re.compile("([^ ]{1,260}) ([a-zA-Z0-9_-]{22}) ([0-9]{1,18})((?: [a-zA-Z0-9_-]{22})*)")

_held: Final[dict[str, object]] = {}
"""Locks that are held here: those of the file system exclude processes, not threads."""

Partitions: TypeAlias = dict[str, tuple[str, int, tuple[str, ...]]]
"""Topic ids, end offsets and the ids of segments, by folder."""


def clean_stop(log_dir: str) -> bytes:
    """The mark of the broker's last clean stop. Raises ``InvalidArgument``: it runs, or did not stop cleanly."""
    lock, mark = os.path.join(log_dir, ".lock"), os.path.join(log_dir, ".kafka_cleanshutdown")
    with translated(log_dir):
        try:
            if os.path.exists(lock):  # a clean stop removes it
                with open(lock, "rb") as file:
                    fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            with open(mark, "rb") as file:
                return file.read(4096)
        except BlockingIOError as error:
            raise InvalidArgument(f"a broker holds {lock}: stop it", argument="log_dir") from error
        except FileNotFoundError as error:
            text = f"{mark} is missing: the broker did not stop cleanly; start it and stop it"
            raise InvalidArgument(text, argument="log_dir") from error


@contextmanager
def locked(log_dir: str) -> Iterator[None]:
    """Hold ``.lock`` of a log directory as a broker does; the directory is made where it is missing. Raises ``InvalidArgument`` (another
    holds it), ``AccessDenied`` and ``StorageUnavailable``."""
    lock, mine = os.path.join(os.path.realpath(log_dir), ".lock"), object()
    held = InvalidArgument(f"a broker, or another restore, holds {lock}: stop it", argument="log_dir")
    if _held.setdefault(lock, mine) is not mine:
        raise held
    with ExitStack() as stack:
        stack.callback(_held.pop, lock)
        with translated(lock):
            os.makedirs(log_dir, exist_ok=True)
            file = stack.enter_context(open(lock, "ab"))
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise held from error
            if not os.fstat(file.fileno()).st_nlink:  # deleted by a restore that has just ended
                raise held
        stack.callback(Path(lock).unlink, missing_ok=True)
        yield


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
        with translated(name), open(os.path.join(log_dir, name), "rb") as file:
            while data := file.read(8 * MIB):
                store.append(handle, data)
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
