"""The text files of a broker's log directory: leader epochs, offset checkpoints, ``partition.metadata`` and ``meta.properties``.

Promises: what a broker wrote is written back byte for byte from what was read; a cut file, a wrong count, epochs that go back and
numbers out of range are ``Damaged`` with the position of the line. Leaves out: what checkpoints mean, and files in JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from chunkstore.codec.kafka.names import is_topic, parse_uuid, uuid_text
from chunkstore.errors import Damaged

__all__ = [
    "LeaderEpoch", "TopicOffset", "read_leader_epochs", "read_offset_checkpoint", "read_partition_metadata", "read_properties",
    "write_checkpoint", "write_partition_metadata", "write_properties",
]  # fmt: skip

_HEAD: Final = re.compile(rb"0\n([0-9]{1,10})\n")
_EPOCH: Final = re.compile("([0-9]{1,10}) ([0-9]{1,19})")
_OFFSET: Final = re.compile("([^ ]+) ([0-9]{1,10}) ([0-9]{1,19})")
_PROPERTY: Final = re.compile(r"(#[ -~]*)|([!-<>-\[\]-~]+)=([ -\[\]-~]*)")
_TOPIC_ID: Final = "version: 0\ntopic_id: "


class LeaderEpoch(NamedTuple):
    """A leader's epoch and the first offset that it wrote."""

    epoch: int
    start_offset: int


class TopicOffset(NamedTuple):
    """A row of an offset checkpoint."""

    topic: str
    partition: int
    offset: int


def _lines(data: bytes, at: int, pattern: re.Pattern[str], object: str) -> Iterator[tuple[int, re.Match[str]]]:
    """The lines from ``at`` on, each with its position, in ``pattern``."""
    for line in data[at:].split(b"\n")[:-1]:
        found = pattern.fullmatch(line.decode(errors="replace"))
        if not found:
            raise Damaged(f"{line[:60]!r} is not a valid line", object=object, position=at)
        yield at, found
        at += len(line) + 1
    if at != len(data):
        raise Damaged("the last line has no end: the file is cut off", object=object, position=at)


def _rows(data: bytes, pattern: re.Pattern[str], object: str) -> Iterator[tuple[int, str, int, int]]:
    """Position and columns of each row of a checkpoint of version 0; the last two are numbers of 32 and of 64 bits."""
    head = _HEAD.match(data)
    if not head or int(head[1]) != data.count(b"\n") - 2:
        raise Damaged("not version 0 with the count of its rows: another file, or cut off", object=object)
    for at, found in _lines(data, head.end(), pattern, object):
        name, small, large = ("", *found.groups())[-3:]
        if int(small) >> 31 or int(large) >> 63:
            raise Damaged(f"{found[0][-40:]!r} is out of range", object=object, position=at)
        yield at, name, int(small), int(large)


def read_leader_epochs(data: bytes, *, object: str = "leader-epoch-checkpoint") -> list[LeaderEpoch]:
    """The leader epochs of a partition, ascending. ``Damaged`` if epochs do not ascend or their offsets go back."""
    found: list[LeaderEpoch] = []
    for at, _, *row in _rows(data, _EPOCH, object):
        epoch = LeaderEpoch(*row)
        if found and (epoch.epoch <= found[-1].epoch or epoch.start_offset < found[-1].start_offset):
            raise Damaged(f"{epoch} follows {found[-1]}: epochs ascend", object=object, position=at)
        found.append(epoch)
    return found


def read_offset_checkpoint(data: bytes, *, object: str = "offset checkpoint") -> list[TopicOffset]:
    """The rows of a replication, recovery-point, log-start or cleaner offset checkpoint, in their order."""
    found = []
    for at, topic, partition, offset in _rows(data, _OFFSET, object):
        if not is_topic(topic):
            raise Damaged(f"{topic[:40]!r} is not a topic name", object=object, position=at)
        found.append(TopicOffset(topic, partition, offset))
    return found


def write_checkpoint(rows: Sequence[LeaderEpoch] | Sequence[TopicOffset]) -> bytes:
    """The bytes of a checkpoint file of version 0 with these rows."""
    return "\n".join(["0", str(len(rows)), *(" ".join(map(str, row)) for row in rows), ""]).encode()


def read_partition_metadata(data: bytes, *, object: str = "partition.metadata") -> bytes:
    """The 16 bytes of the topic's id. A line feed at the end is optional: brokers write none."""
    text = data.decode(errors="replace").removesuffix("\n")
    if not text.startswith(_TOPIC_ID):
        raise Damaged("not the two lines of version 0", object=object)
    return parse_uuid(text.removeprefix(_TOPIC_ID), object=object, position=len(_TOPIC_ID))


def write_partition_metadata(topic_id: bytes) -> bytes:
    """The bytes of ``partition.metadata``."""
    return f"{_TOPIC_ID}{uuid_text(topic_id)}".encode()


def read_properties(data: bytes, *, object: str = "meta.properties") -> tuple[list[str], dict[str, str]]:
    """The comment lines and the values, each in their order. ``Damaged`` for a key twice, and for escapes, which are not guessed."""
    comments: list[str] = []
    values: dict[str, str] = {}
    for at, found in _lines(data, 0, _PROPERTY, object):
        if found[2] in values or (found[1] and values):
            raise Damaged(f"{found[0][:60]!r} after {len(values)} values", object=object, position=at)
        if found[1]:
            comments.append(found[1])
        else:
            values[found[2]] = found[3]
    return comments, values


def write_properties(comments: Sequence[str], values: Mapping[str, str]) -> bytes:
    """The bytes of ``meta.properties``."""
    return "".join(f"{line}\n" for line in (*comments, *(f"{key}={value}" for key, value in values.items()))).encode()
