"""Servers for tests, started when the first test of this process wants one, ended with it: fixtures to import in a conftest.

``moto``, ``rgw``: shared by all tests of a process; use a bucket of your own (``make_bucket``). A test that kills a server
starts one of its own. The environment gets the test credentials, for child processes, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.servers.base import ServerMissing, missing
from tests.support.servers.s3server import CREDENTIALS, S3Server

__all__ = ["moto", "rgw", "s3_environment", "start"]


def start(name: str, make: Callable[[], S3Server]) -> S3Server:
    """A server of this kind, or the end of the test that wanted it."""
    try:
        return make()
    except ServerMissing as why:
        missing(name, why)


@pytest.fixture(scope="session")
def s3_environment() -> Iterator[None]:
    """The test credentials in the environment of this process."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.delenv("AWS_PROFILE", raising=False)
        patch.delenv("AWS_SESSION_TOKEN", raising=False)
        yield


@pytest.fixture(scope="session")
def moto(s3_environment: None) -> Iterator[S3Server]:
    """moto, for the semantics."""
    try:
        from tests.support.servers.moto import Moto
    except ImportError as why:
        missing("moto", why)
    server = start("moto", Moto)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def rgw(s3_environment: None) -> Iterator[S3Server]:
    """Ceph's gateway, keeping everything in memory."""
    try:
        from tests.support.servers.rgw import Rgw
    except ImportError as why:
        missing("rgw", why)
    server = start("rgw", Rgw)
    yield server
    server.stop()
