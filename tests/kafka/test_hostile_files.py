"""Any bytes: what reads a file of Kafka's gives its values, or one typed error that names object and position."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.codec.kafka.checkpoints import (
    read_leader_epochs,
    read_offset_checkpoint,
    read_partition_metadata,
    read_properties,
)
from chunkstore.codec.kafka.indexes import OffsetIndex, TimeIndex, read_producer_snapshot, read_transaction_index
from chunkstore.codec.kafka.manifest import read_manifest
from chunkstore.codec.kafka.names import parse_object_key, parse_partition_folder, parse_segment_file
from chunkstore.codec.kafka.remote_metadata import decode_metadata_record, encode_metadata_record
from chunkstore.errors import Damaged
from tests.kafka.support_logdir import FIXTURES, LOG_DIR
from tests.kafka.support_records import SEGMENT

PARTITION = LOG_DIR / "transactions-0"
SEGMENT_FILE = PARTITION / "00000000000000000034.log"
READERS: dict[str, tuple[Callable[..., object], bytes]] = {
    "index": (partial(OffsetIndex, base_offset=34), SEGMENT_FILE.with_suffix(".index").read_bytes()),
    "timeindex": (partial(TimeIndex, base_offset=34), SEGMENT_FILE.with_suffix(".timeindex").read_bytes()),
    "txnindex": (read_transaction_index, SEGMENT_FILE.with_suffix(".txnindex").read_bytes()),
    "snapshot": (read_producer_snapshot, SEGMENT_FILE.with_suffix(".snapshot").read_bytes()),
    "epochs": (read_leader_epochs, (PARTITION / "leader-epoch-checkpoint").read_bytes()),
    "offsets": (read_offset_checkpoint, (LOG_DIR / "replication-offset-checkpoint").read_bytes()),
    "partition": (read_partition_metadata, (PARTITION / "partition.metadata").read_bytes()),
    "properties": (read_properties, (LOG_DIR / "meta.properties").read_bytes()),
    "record": (decode_metadata_record, encode_metadata_record(SEGMENT)),
    "manifest": (read_manifest, min((FIXTURES / "aiven-bucket").rglob("*.rsm-manifest")).read_bytes()),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
@given(
    at=st.integers(0, 2000), cut=st.integers(0, 40), put=st.binary(max_size=40), end=st.none() | st.integers(0, 2000)
)
def test_changed_bytes_are_read_or_refused(name: str, at: int, cut: int, put: bytes, end: int | None) -> None:
    read, genuine = READERS[name]
    at %= len(genuine) + 1
    data = (genuine[:at] + put + genuine[at + cut :])[:end]
    try:
        read(data, object="the file")
    except Damaged as error:
        assert error.object == "the file"
        assert 0 <= error.position <= len(data)


@given(st.text(max_size=60) | st.from_regex(r"[a-z.]{1,3}-[0-9]{1,11}(/[0-9]{1,11})?", fullmatch=True))
def test_no_name_leaves_its_folder(name: str) -> None:
    for parse in (parse_partition_folder, parse_segment_file, parse_object_key):
        found = parse(name)
        if found is not None:
            assert Path(str(found[0])).name == str(found[0])
