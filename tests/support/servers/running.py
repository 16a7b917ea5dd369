"""Servers for tests, started when the first test of this process wants one, ended with it: fixtures to import in a conftest.

``moto``, ``rgw``: shared by all tests of a process; use a bucket of your own (``make_bucket``). A test that kills a server
starts one of its own. The environment gets the test credentials, for child processes, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from tests.support.servers.base import ServerMissing, missing
from tests.support.servers.s3server import CREDENTIALS, S3Server

__all__ = ["moto", "rgw", "running", "s3_environment"]


def running(name: str, kind: str, *arguments: object, module: str = "") -> Iterator[Any]:
    """A server of this class in ``module`` (one of this folder, default: ``name``), stopped at the end; or the end of the test."""
    try:
        server = getattr(import_module(f"tests.support.servers.{module or name}"), kind)(*arguments)
    except (ImportError, ServerMissing) as why:
        missing(name, why)
    yield server
    server.stop()


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
    yield from running("moto", "Moto")


@pytest.fixture(scope="session")
def rgw(s3_environment: None) -> Iterator[S3Server]:
    """Ceph's gateway, keeping everything in memory."""
    yield from running("rgw", "Rgw")
