"""A share of the engine's own tests, unchanged, on S3, over Ceph's gateway. With ``CHUNKSTORE_FAULTS=full`` all of them, also over moto."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.engine import test_recovery
from tests.faults.ground import FULL_RUN
from tests.support.servers.s3server import S3Server
from tests.support.worlds import RemoteWorld, World

pytestmark = pytest.mark.timeout(900)

_HERE = Path(__file__).parent.parent / "engine"
# They say what memory and files do, or bring a storage of their own.
_NOT_HERE = {"test_every_world", "test_order", "test_flaky"}
_SHARES: dict[str, set[str]] = {
    "moto": set(),
    "rgw": {"test_asking", "test_basic", "test_fencing", "test_reader", "test_recovery"},
}
# The others are left to ``make proofs``.
_IN_EVERY_RUN = {"test_basic", "test_fencing"}
# Long, and about rows more than about the storage, or refused before it is asked: in a full run only.
_LONG = {
    "test_bad_attributes_are_refused_and_harm_nobody",
    "test_everything_is_there_again",  # below
    "test_an_epoch_whose_changes_cancel_out_is_followed_all_the_same",
    "test_many_epochs_each_writing",
    "test_take_overs_under_load_lose_and_double_nothing",  # tests/s3/test_gateway.py: processes
    "test_the_other_kind_of_metadata_shows_the_same",
    "test_whatever_the_deposed_owner_is_asked_first_it_says_so",
}


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A fresh world on the server that the class asks for."""
    server: S3Server = request.getfixturevalue(request.param)
    made = RemoteWorld("s3", server.root(server.make_bucket(), "world"), tmp_path)
    try:
        yield made
    finally:
        made.close()


def suite(server: str, module: ModuleType) -> type:
    """A module's tests of worlds as a class, in the worlds of this file."""
    tests = {
        name: staticmethod(function)
        for name, function in vars(module).items()
        if name.startswith("test_")
        and "world" in getattr(function, "__annotations__", {})
        and (FULL_RUN or name not in _LONG)
    }
    marks = [pytest.mark.parametrize("world", [server], indirect=True)]
    if module.__name__.rpartition(".")[2] not in _IN_EVERY_RUN:
        marks.append(pytest.mark.proof)
    return type(module.__name__, (), {**tests, "pytestmark": marks})


for _path in sorted(_HERE.glob("test_*.py")):
    _name = _path.stem
    _title = _name.removeprefix("test_").title().replace("_", "")
    for _server, _share in _SHARES.items():
        if _name not in _NOT_HERE and (FULL_RUN or _name in _share):
            globals()[f"Test{_server.title()}{_title}"] = suite(
                _server, importlib.import_module(f"tests.engine.{_name}")
            )


# All eight combinations run in the worlds of tests/engine. Here each value is met once.
@pytest.mark.proof
@pytest.mark.parametrize("world", ["rgw"], indirect=True)
@pytest.mark.parametrize(("cache", "end", "snapshots"), [("lost", "crashed", 0), ("kept", "closed", 1)])
def test_everything_is_there_again(world: World, cache: str, end: str, snapshots: int) -> None:
    test_recovery.test_everything_is_there_again(world, cache, end, snapshots)
