"""FORMAT_MESSAGES.md says what the code does: its tables are read and compared."""

from __future__ import annotations

from pathlib import Path

import chunkstore.codec.pulsar
from chunkstore.codec.pulsar.compression import DECOMPRESSED_BYTES_MAX
from chunkstore.codec.pulsar.message_entries import CHUNKED_BYTES_MAX, CHUNKED_MESSAGES_MAX
from chunkstore.codec.pulsar.message_metadata import (
    BROKER_ENTRY_MAGIC,
    CRC32C_MAGIC,
    MESSAGE_METADATA_BYTES_MAX,
    MESSAGES,
)
from chunkstore.codec.pulsar.messages import iter_messages
from chunkstore.config import MIB
from tests.support.format_tables import messages, table
from tests.support.pulsar_entries import METADATA, SINGLE, message

TEXT = (Path(chunkstore.codec.pulsar.__file__).parent / "FORMAT_MESSAGES.md").read_text(encoding="utf-8")


def test_fields_of_metadata() -> None:
    assert list(messages(TEXT).items()) == list(MESSAGES.items())


def test_parts_of_an_entry() -> None:
    magics = [bytes.fromhex(table(name, TEXT)[0][2].removeprefix("0x")) for name in ("broker part", "checksum part")]
    assert magics == [BROKER_ENTRY_MAGIC, CRC32C_MAGIC]
    entry = message(b"x", broker=(7, 8)).payload
    assert entry[:2] == magics[0]
    length = int.from_bytes(entry[2:6], "big")
    assert entry[6 + length : 8 + length] == magics[1]
    [row] = iter_messages([message(b"x", broker=(7, 8))])
    assert (row.broker_time, row.index, row.payload) == (7, 8, b"x")


def test_bounds() -> None:
    assert f"| metadata | {MESSAGE_METADATA_BYTES_MAX // MIB} MiB |" in TEXT
    assert f"decompressed | {DECOMPRESSED_BYTES_MAX // MIB} MiB |" in TEXT
    assert f"{CHUNKED_BYTES_MAX // MIB} MiB, {CHUNKED_MESSAGES_MAX:,} messages" in TEXT


def test_the_encoder_of_the_tests_writes_the_fields_that_are_read() -> None:
    for numbers, name in ((METADATA, "MessageMetadata"), (SINGLE, "SingleMessageMetadata")):
        assert sorted(numbers.values()) == [number for number, *_ in MESSAGES[name]]
