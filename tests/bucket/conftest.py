"""A bucket of each kind that the tests of the port ask for, fresh, with a way past it to what is really stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from chunkstore.buckets import open_bucket
from chunkstore_bindings.bucket.port import Bucket
from tests.support.servers.faultproxy import FaultProxy
from tests.support.servers.hdfs import HdfsCluster, hdfs_or_end
from tests.support.servers.s3server import S3Server


class Made(NamedTuple):
    """A bucket, and ``leftovers``: what was written and is no object."""

    bucket: Bucket
    leftovers: Callable[[], list[str]]


class S3Made(NamedTuple):
    """The prefix ``root`` of a bucket on a server, and the proxy that it is asked through."""

    bucket: Bucket
    server: S3Server
    name: str
    proxy: FaultProxy

    def leftovers(self) -> list[str]:
        """The keys of unfinished uploads."""
        found = self.server.client.list_multipart_uploads(Bucket=self.name)
        return [str(item["Key"]) for item in found.get("Uploads", [])]

    def put(self, key: str) -> None:
        """Put an object of this whole key, past the bucket."""
        self.server.client.put_object(Bucket=self.name, Key=key, Body=b"data")

    def spent(self) -> list[str]:
        """The methods of the requests since the last call."""
        found = [request.method for request in self.proxy.requests]
        self.proxy.requests.clear()
        return found


@contextmanager
def _in_s3(server: S3Server, prefix: str) -> Iterator[S3Made]:
    name = server.make_bucket()
    with FaultProxy(server.port) as proxy, open_bucket(server.root(name, prefix, port=proxy.port)) as bucket:
        made = S3Made(bucket, server, name, proxy)
        made.put("elsewhere")
        yield made


@pytest.fixture(params=[pytest.param("moto", marks=pytest.mark.proof), "rgw"])
def s3(request: pytest.FixtureRequest) -> Iterator[S3Made]:
    """The gateway; ``make proofs`` asks moto, too."""
    with _in_s3(request.getfixturevalue(request.param), "root") as made:
        yield made


@pytest.fixture(params=["folder", "rgw", *(pytest.param(name, marks=pytest.mark.proof) for name in ("moto", "hdfs"))])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Made | S3Made]:
    """A bucket of each kind."""
    if request.param == "folder":
        with open_bucket(f"file://{tmp_path}/new") as bucket:
            yield Made(bucket, lambda: [path.name for path in tmp_path.rglob(".chunkstore-tmp/*")])
    elif request.param == "hdfs":
        cluster = hdfs_or_end()
        root = cluster.root()
        with open_bucket(root) as bucket:
            yield Made(bucket, lambda: _temporaries(cluster, root.rpartition("/")[2]))
    else:
        with _in_s3(request.getfixturevalue(request.param), "some where/röot") as made:
            yield made


def _temporaries(cluster: HdfsCluster, root: str) -> list[str]:
    listing = cluster.ask("GET", f"/{root}/.chunkstore-tmp", "LISTSTATUS").json()["FileStatuses"]
    return [str(status["pathSuffix"]) for status in listing["FileStatus"]]
