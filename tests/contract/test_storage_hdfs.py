"""The HDFS storage holds the contract: against a real name node and data node, and against the model of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore.config import Settings
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkStorage
from chunkstore.testing.storage_contract import ChunkStorageContract
from tests.faults.ground import FULL_RUN
from tests.support.data import pattern
from tests.support.fake_webhdfs import FakeWebHdfs
from tests.support.servers.hdfs import hdfs_or_end

APPENDS = "?append=yes"
# HDFS takes no colon, and would sort letters beyond ASCII first.
WRITTEN = {":": ";0", ";": ";1", "~": "~0", "\x7f": "~1"}

pytestmark = [pytest.mark.slow]


class TestHdfs(ChunkStorageContract):
    options = ""

    def make_storage(self, folder: Path) -> ChunkStorage:
        self.cluster = hdfs_or_end()
        self.root = self.cluster.root()
        return open_storage(self.root + self.options, Settings(op_deadline_s=30))

    def path(self, name: str) -> str:
        written = "".join(
            WRITTEN.get(letter, letter if letter.isascii() else f"~2{ord(letter):06x}") for letter in name
        )
        return f"/{self.root.rpartition('/')[2]}/{written}"

    def raw_read(self, name: str) -> bytes:
        return self.cluster.read(self.path(name))

    def raw_write(self, name: str, data: bytes) -> None:
        self.cluster.create(self.path(name), data)

    def test_capabilities(self, storage: ChunkStorage) -> None:
        offered = storage.capabilities
        # Both would open a closed file again.
        appends = self.options == APPENDS
        assert (offered.append, offered.truncate) == (appends, appends)
        assert not offered.append_journal
        assert offered.create_if_absent
        assert offered.concat
        assert offered.set_read_only
        assert offered.medium == "hdfs"


class WithoutWhatIsTheSame:
    """Costly tests that meet no append: once for each server is enough."""

    test_create_if_absent_has_one_winner = None
    test_create_has_one_winner = None
    test_created_content_is_never_seen_in_part = None
    test_list_in_order_with_pages = None
    test_large_content = None


class TestHdfsThatAppends(WithoutWhatIsTheSame, TestHdfs):  # type: ignore[misc]
    options = APPENDS

    def test_reads_beside_appends_see_a_prefix(self, storage: ChunkStorage) -> None:
        """Here they take turns.

        A reader that meets a data node while it re-opens or closes a block (append, truncate) makes Hadoop 3.3.6 delete the
        replica, acknowledged bytes and all (HDFS-16985, HDFS-17342; docs/hdfs.md). So nothing over the real servers reads what is
        being appended to. The model, which loses nothing, is read and appended to at once.
        """
        source = pattern(0, 6_000)
        handle = storage.create(self.name())
        reader = storage.open_read(handle.name)
        for start in range(0, 6_000, 300):
            storage.write(handle, start, source[start : start + 300])
            assert storage.read(reader, 0, 100_000) == source[: start + 300]
            buffer = bytearray(1_000)
            begin = max(0, start - 200)
            assert storage.read_into(reader, begin, buffer) == start + 300 - begin
            assert buffer[: start + 300 - begin] == source[begin : start + 300]


class TestFakeHdfs(TestHdfs):
    """The model that other tests use holds the contract, too; here with pages of three entries."""

    numbers = True

    @pytest.fixture(autouse=True)
    def closed(self) -> Iterator[None]:
        yield
        self.fake.close()

    def make_storage(self, folder: Path) -> ChunkStorage:
        self.fake = FakeWebHdfs(page=3, numbers=self.numbers)
        self.root = self.fake.root("/root-1")
        return open_storage(self.root + self.options, Settings(op_deadline_s=30))

    def raw_read(self, name: str) -> bytes:
        with self.fake.lock:
            return self.fake.files[self.path(name)].data

    def raw_write(self, name: str, data: bytes) -> None:
        path = self.path(name)
        with self.fake.lock:
            self.fake.make_folders(path.rpartition("/")[0])
            file = self.fake.new_file(path)
            file.data, file.open = data, False


class TestFakeHdfsThatAppends(WithoutWhatIsTheSame, TestFakeHdfs):  # type: ignore[misc]
    options = APPENDS


if FULL_RUN:

    class TestGatewayWithoutFileNumbers(TestFakeHdfsThatAppends):
        numbers = False

    class TestFakeHdfsThatConsumes(TestFakeHdfs):
        options = "?concat=consume"
