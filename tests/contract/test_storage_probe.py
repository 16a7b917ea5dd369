"""The put-if-absent probe passes honest storages, names what a dishonest one does wrong, and cleans up."""

from __future__ import annotations

import itertools
import json
import threading
import uuid
from pathlib import Path

import msgpack
import pytest

from chunkstore.checksum import BytesLike
from chunkstore.errors import StorageUnavailable, Unsupported
from chunkstore.storage import ListPage
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_bindings.memory import MemoryChunkStorage
from chunkstore_bindings.wrappers.probe import PROBE_RACERS, probe_create_if_absent


def memory_url() -> str:
    return f"memory://{uuid.uuid4()}"


def test_honest_storages_pass_and_are_left_clean(tmp_path: Path) -> None:
    for storage, medium in [
        (MemoryChunkStorage(memory_url()), "memory"),
        (MemoryChunkStorage(memory_url(), append=False), "memory"),
        (FilesystemChunkStorage(tmp_path, medium="nfs"), "nfs"),
    ]:
        result = probe_create_if_absent(storage, "orders/tmp/")
        found = {"winners": 1, "racers": PROBE_RACERS, "medium": medium, "url": storage.url}
        assert found.items() <= result.items()
        assert msgpack.unpackb(msgpack.packb(result)) == result == json.loads(json.dumps(result))
        assert storage.list().items == ()
        storage.close()


class Overwrites(MemoryChunkStorage):
    """Says no, and replaces the content all the same."""

    def do_create_if_absent(self, name: str, data: BytesLike) -> bool:
        existed = self.do_exists(name)
        self.do_put(name, data)
        return not existed


class IgnoresTheCondition(MemoryChunkStorage):
    """A gateway that drops the header: every create succeeds."""

    def do_create_if_absent(self, name: str, data: BytesLike) -> bool:
        self.do_put(name, data)
        return True


class ChecksThenActs(MemoryChunkStorage):
    """Two steps, and of those who race two have taken the first one before anybody takes the second."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._looked, self._two = itertools.count(1), threading.Event()

    def do_create_if_absent(self, name: str, data: BytesLike) -> bool:
        if self.do_exists(name):
            return False
        if name.endswith("-raced"):
            if next(self._looked) > 1:
                self._two.set()
            assert self._two.wait(60)
        self.do_put(name, data)
        return True


class RefusesAll(MemoryChunkStorage):
    def do_create_if_absent(self, name: str, data: BytesLike) -> bool:
        return False


class TwoFaced(MemoryChunkStorage):
    """The first create of a name is honest; in a race nobody wins."""

    def do_create_if_absent(self, name: str, data: BytesLike) -> bool:
        created = super().do_create_if_absent(name, data)
        return created and name.endswith("-first")


class ListsLate(MemoryChunkStorage):
    def do_list(self, prefix: str, after: str | None, limit: int) -> ListPage:
        return ListPage((), None)


class Forgets(MemoryChunkStorage):
    def do_create_if_absent(self, name: str, data: BytesLike) -> bool:
        return True


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Overwrites, "changed the content"),
        (IgnoresTheCondition, "created again"),
        (ChecksThenActs, "concurrent creates"),
        (RefusesAll, "was refused"),
        (TwoFaced, "0 succeeded"),
        (ListsLate, "listing"),
        (Forgets, "cannot be read"),
    ],
)
def test_dishonest_storages_are_named(kind: type[MemoryChunkStorage], text: str) -> None:
    storage = kind(memory_url())
    with pytest.raises(Unsupported, match=text) as caught:
        probe_create_if_absent(storage, "orders/tmp/")
    assert caught.value.feature == "create_if_absent"
    assert storage._chunks == {}


class Unreachable(MemoryChunkStorage):
    def do_create_if_absent(self, name: str, data: BytesLike) -> bool:
        if name.endswith("-raced"):
            raise StorageUnavailable("the server is gone", object=name)
        return super().do_create_if_absent(name, data)


def test_an_unreachable_storage_is_not_called_dishonest() -> None:
    storage = Unreachable(memory_url())
    with pytest.raises(StorageUnavailable):
        probe_create_if_absent(storage, "orders/tmp/")
    assert storage._chunks == {}
