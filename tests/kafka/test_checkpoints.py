"""Text files and names of a broker's log directory: genuine ones come back byte for byte, others are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chunkstore.codec.kafka.checkpoints import (
    LeaderEpoch,
    TopicOffset,
    read_leader_epochs,
    read_offset_checkpoint,
    read_partition_metadata,
    read_properties,
    write_checkpoint,
    write_partition_metadata,
    write_properties,
)
from chunkstore.codec.kafka.names import (
    parse_object_key,
    parse_partition_folder,
    parse_segment_file,
    parse_uuid,
    segment_file,
    uuid_text,
)
from chunkstore.errors import Damaged
from tests.kafka.support_logdir import FIXTURES, LOG_DIR

Reader = Callable[..., object]


def test_genuine_checkpoints_come_back() -> None:
    for path in sorted(FIXTURES.rglob("leader-epoch-checkpoint")):
        assert write_checkpoint(read_leader_epochs(path.read_bytes())) == path.read_bytes(), path
    for name in ("replication-offset", "recovery-point-offset", "log-start-offset", "cleaner-offset"):
        data = (LOG_DIR / f"{name}-checkpoint").read_bytes()
        assert write_checkpoint(read_offset_checkpoint(data)) == data
    data = (LOG_DIR / "open-transaction-0" / "leader-epoch-checkpoint").read_bytes()
    assert read_leader_epochs(data) == [LeaderEpoch(0, 0), LeaderEpoch(4, 141), LeaderEpoch(6, 142)]
    data = (LOG_DIR / "replication-offset-checkpoint").read_bytes()
    assert TopicOffset("still-open", 0, 141) in read_offset_checkpoint(data)


def test_genuine_partition_metadata_and_properties_come_back() -> None:
    for path in sorted(FIXTURES.rglob("partition.metadata")):
        assert write_partition_metadata(read_partition_metadata(path.read_bytes())) == path.read_bytes(), path
    data = (LOG_DIR / "meta.properties").read_bytes()
    found = read_properties(data)
    assert write_properties(*found) == data
    assert found[1]["cluster.id"] == "S0ZLVEVTVC1DTFVTVEVSMQ"
    assert read_partition_metadata(b"version: 0\ntopic_id: " + b"A" * 22 + b"\n") == bytes(16)


@pytest.mark.parametrize(
    ("read", "data", "position"),
    [
        (read_leader_epochs, b"", 0),
        (read_leader_epochs, b"0\n1\n0 0\n1 1", 8),
        (read_leader_epochs, b"0\n", 0),
        (read_leader_epochs, b"1\n0\n", 0),
        (read_leader_epochs, b"0\n2\n0 0\n", 0),
        (read_leader_epochs, b"0\n99999999999\n0 0\n", 0),
        (read_leader_epochs, b"0\n1\n0 0 0\n", 4),
        (read_leader_epochs, b"0\n1\n-1 0\n", 4),
        (read_leader_epochs, b"0\n2\n3 0\n3 5\n", 8),
        (read_leader_epochs, b"0\n2\n3 5\n4 4\n", 8),
        (read_leader_epochs, b"0\n1\n0 9223372036854775808\n", 4),
        (read_leader_epochs, "0\n1\n0 \u0663\n".encode(), 4),
        (read_offset_checkpoint, b"0\n1\n../x 0 0\n", 4),
        (read_offset_checkpoint, b"0\n1\n\xff 0 0\n", 4),
        (read_offset_checkpoint, b"0\n1\na 2147483648 0\n", 4),
        (read_partition_metadata, b"version: 1\ntopic_id: " + b"A" * 22, 0),
        (read_partition_metadata, b"version: 0\ntopic_id: " + b"A" * 21 + b"B", 21),
        (read_properties, b"#\na=1\na=2\n", 6),
        (read_properties, b"a=1\n#\n", 4),
        (read_properties, b"a=\\u0041\n", 0),
        (read_properties, b"a=1\nb", 4),
    ],
)
def test_damaged_text_names_its_line(read: Reader, data: bytes, position: int) -> None:
    with pytest.raises(Damaged) as caught:
        read(data, object="o")
    assert (caught.value.object, caught.value.position) == ("o", position)


def test_names_of_folders_and_files() -> None:
    folders = [path for path in LOG_DIR.iterdir() if path.is_dir()]
    assert all(parse_partition_folder(path.name) for path in folders)
    assert parse_partition_folder("a-b-12") == ("a-b", 12)
    for wrong in ("a-01", "a-2147483648", "a", "..-0", "a/b-0", "a-0.b7d9e0-delete", f"{'n' * 250}-0", "a-0\n"):
        assert parse_partition_folder(wrong) is None, wrong
    files = [path.name for path in LOG_DIR.glob("transactions-0/0*")]
    assert [segment_file(*found) for name in files if (found := parse_segment_file(name))] == files
    for wrong in ("0.log", f"{1 << 63:020d}.log", f"{0:020d}.log.deleted", f"{0:020d}-0000000000.checkpoint"):
        assert parse_segment_file(wrong) is None, wrong
    assert uuid_text(parse_uuid("_sETRRVmRf2NAjVtoRuPpA", object="o")) == "_sETRRVmRf2NAjVtoRuPpA"


def test_keys_of_objects() -> None:
    """The prefix is put before the topic as it is; only who knows it can say where it ends."""
    keys = [str(path.relative_to(FIXTURES / "aiven-bucket")) for path in (FIXTURES / "aiven-bucket").rglob("*.*")]
    assert len(keys) == 48
    for key in keys:
        prefix, _, rest = key.partition("/")
        found = parse_object_key(key, prefix + "/")
        assert found is not None
        assert f"{uuid_text(found.segment_id)}.{found.suffix}" == key[-23 - len(found.suffix) :]
        assert parse_object_key(prefix + rest, prefix) == found
        assert parse_object_key(key) is None
    good = "t-" + "A" * 22 + "/0/" + "0" * 20 + "-" + "A" * 22 + ".log"
    assert parse_object_key(good) == ("t", bytes(16), 0, 0, bytes(16), "log")
    for wrong in (
        good + "x",
        good.replace("/0/", "/00/"),
        good.replace("A.log", "B.log"),
        ".." + good[1:],
        good[:-4],
        "x" + good[2:],
    ):
        assert parse_object_key(wrong) is None, wrong
