"""Tests of classes with ``simulated = True`` run in a task of a simulated process; a ``scene`` is what named schedules play in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chunkstore import runtime
from tests.simulation.scene import Scene, scene_of


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    instance = pyfuncitem.instance
    if not getattr(instance, "simulated", False):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    instance.process.run(lambda: pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(autouse=True)
def production_afterwards() -> Iterator[None]:
    yield
    runtime.install(None)


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """In the world that ``@worlds(...)`` names."""
    with scene_of(request.param) as scene:
        yield scene
