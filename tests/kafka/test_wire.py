"""FORMAT_WIRE.md says what the code does: its tables are read and compared; and what peers send is hostile."""

from __future__ import annotations

import re
from struct import pack, unpack_from
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.kafka import wire
from chunkstore.kafka.model import RemoteLogSegmentMetadata, RemoteLogSegmentState, TopicIdPartition
from chunkstore.kafka.wire import Operation, Status
from tests.kafka.support_metadata import PARTITION, segment
from tests.kafka.support_wire import place, update_of
from tests.support.format_tables import table
from tests.support.paths import ROOT

TEXT = (ROOT / "chunkstore" / "kafka" / "FORMAT_WIRE.md").read_text(encoding="utf-8")
TYPES = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", TEXT, re.MULTILINE))
SIZES = {"i8": 1, "i32": 4, "i64": 8}


def request(operation: int, arguments: bytes) -> wire.Request:
    return wire.decode_request(pack(">BQIB", 1, 7, 60_000, operation) + arguments)


class ByTable:
    """Reads values by the table of types alone."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, kind: str) -> int:
        return int.from_bytes(self.take(SIZES[kind]), "big", signed=True)

    def read(self, name: str) -> list[Any]:
        found: list[Any] = []
        for field in TYPES[name].split(", "):
            nested, kind = re.search(r"`(\w+)`$", field), re.search(r"\((i\d+)\)$", field)
            if field.startswith("each"):
                count = found.pop()
                found.append({self.number("i32"): self.number("i64") for _ in range(count)})
            elif nested is not None and nested[1] == "str":
                found.append(self.take(int.from_bytes(self.take(2), "big")).decode())
            elif nested is not None and nested[1] == "bytes":
                length = self.number("i32")
                found.append(None if length < 0 else self.take(length))
            elif nested is not None:
                found += self.read(nested[1])
            else:
                found.append(self.take(16) if kind is None else self.number(kind[1]))
        return found


offsets, bytes_16 = st.integers(0, (1 << 63) - 1), st.binary(min_size=16, max_size=16)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60)
partitions = st.builds(TopicIdPartition, bytes_16, names, st.integers(0, (1 << 31) - 1))


@st.composite
def segments(draw: st.DrawFn) -> RemoteLogSegmentMetadata:
    start = draw(offsets)
    end = draw(st.integers(start, (1 << 63) - 1))
    epochs = draw(st.dictionaries(st.integers(0, (1 << 31) - 1), st.integers(start, end), min_size=1, max_size=4))
    more = {
        "segment_size_in_bytes": draw(st.integers(0, (1 << 31) - 1)), "custom_metadata": draw(st.none() | st.binary(max_size=50)),
        "state": draw(st.sampled_from(RemoteLogSegmentState)), "txn_idx_empty": draw(st.booleans()),
        "max_timestamp_ms": draw(st.integers(-1, 1 << 60)),
    }  # fmt: skip
    return segment(
        draw(st.integers(0, 99)),
        start,
        end,
        epochs,
        partition=draw(partitions),
        **more,
    )


def test_operations_and_statuses() -> None:
    for name, kind in (("operations", Operation), ("statuses", Status)):
        assert [tuple(row[:2]) for row in table(name, TEXT)] == [(str(item.value), item.name) for item in kind]


@given(segments())
def test_a_segment_is_as_the_table_says_and_comes_back(item: RemoteLogSegmentMetadata) -> None:
    data = wire.encode_segment(item)
    assert request(Operation.ADD, data).arguments() == (item,)
    reader = ByTable(data)
    identity = item.remote_log_segment_id
    assert reader.read("segment") == [
        identity.topic_id_partition.topic_id, identity.topic_id_partition.topic, identity.topic_id_partition.partition, identity.id,
        item.start_offset, item.end_offset, item.max_timestamp_ms, item.broker_id, item.event_timestamp_ms, item.segment_size_in_bytes,
        item.segment_leader_epochs, item.custom_metadata, item.state, item.txn_idx_empty,
    ]  # fmt: skip
    assert reader.at == len(data)


def test_an_update_and_partitions_are_as_the_table_says() -> None:
    item = segment(3, 0, 9, {0: 0})
    data = update_of(item, 2, b"custom")
    (update,) = request(Operation.UPDATE, data).arguments()
    assert ByTable(data).read("update")[3:] == [
        update.remote_log_segment_id.id, update.event_timestamp_ms, update.custom_metadata, update.state, update.broker_id,
    ]  # fmt: skip
    both = pack(">i", 2) + 2 * place(PARTITION) + pack(">i", 0)
    assert request(Operation.LEADERSHIP, both).arguments() == ([PARTITION] * 2, [])


@given(st.sampled_from([*Operation, 0, 99]), st.data())
def test_hostile_arguments_are_refused_with_a_position(operation: int, data: st.DataObject) -> None:
    whole = wire.encode_segment(segment(1, 0, 9, {0: 0}))
    cut = data.draw(st.integers(0, len(whole) - 1))
    body = data.draw(
        st.binary(max_size=80) | st.just(whole[:cut] + b"\x7f" * 4 + whole[cut + 4 :]) | st.just(whole[:cut])
    )
    try:
        request(operation, body).arguments()
    except InvalidArgument as error:
        assert error.argument
    except Damaged as error:
        assert operation == Operation.COPY and error.position > 0  # its lengths


def test_what_is_no_frame_or_request_is_damaged() -> None:
    for length in (0, wire.BODY_BYTES_MAX + 1, (1 << 32) - 1):
        with pytest.raises(Damaged):
            wire.checked_length(pack(">II", length, 0))
    assert wire.checked_length(wire.frame(b"body")[:8]) == 4
    assert wire.checked_body(wire.frame(b"body")[:8], b"body") == b"body"
    with pytest.raises(Damaged):
        wire.checked_body(wire.frame(b"body")[:8], b"bodY")
    for body in (b"", b"\1", b"\2" + bytes(13)):
        with pytest.raises(Damaged):
            wire.decode_request(body)
    with pytest.raises(InvalidArgument, match="at byte 18: a count of 2147483647"):
        request(Operation.STOP, pack(">i", (1 << 31) - 1)).arguments()
    assert unpack_from(">BQB", wire.answer_head(9, Status.DENIED)) == (1, 9, 6)
    assert len(wire.encode_text("\N{SNOWMAN}" * 99_999)) < 1 << 16
