"""Going back in place on an object store: copies are made by the server, and what a former owner deletes is not what came back."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.config import DefragPolicy
from tests.backup_restore.in_place import described, head, rewound
from tests.support.data import pattern, problems
from tests.support.servers.s3server import S3Server
from tests.support.worlds import RemoteWorld

pytestmark = pytest.mark.proof


def test_undone(moto: S3Server, tmp_path: Path) -> None:
    world = RemoteWorld("s3", moto.root(moto.make_bucket()), tmp_path)
    try:
        with world.open() as store:
            store.create("a")
            for number in range(3):
                store.append("a", pattern(5 * number, 5))
            store.create("b")
            store.append("b", b"gone and back")
            lsn, then = head(store), described(store)
            store.defrag("a", policy=DefragPolicy(fanout=2))
            store.delete("b")
        assert rewound(world, lsn=lsn).copied_chunks == 4
        with world.replica() as replica:
            held = {chunk.name for info in replica.segments() for chunk in replica.layout(info.name)}
        for name in {*world.chunks()} - held:
            world.remove(name)
        with world.open() as store:
            assert described(store) == then and problems(store.check("deep")) == []
    finally:
        world.close()
