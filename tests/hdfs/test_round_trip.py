"""From a disk to a bucket, to HDFS and back, on real servers, with processes that are killed on the way."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fresh_seeds import FRESH_SEED
from tests.support.round_trip import round_trip
from tests.support.servers.hdfs import HdfsCluster
from tests.support.servers.s3server import S3Server

pytestmark = pytest.mark.timeout(600)


@pytest.mark.proof
def test_from_disk_to_rgw_to_hdfs_and_back(
    rgw: S3Server, hdfs: HdfsCluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = secrets.randbits(32)
    record_property(FRESH_SEED, seed)
    found = round_trip(tmp_path, rgw.root(rgw.make_bucket(), "backups"), hdfs.root(), kills=1, seed=seed)
    assert len(found.kills) == 4 and found.chunks > 30
