"""What a task finds on a machine that is not as the driver's: another root, another Python. Without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import chunkstore
from chunkstore.errors import ChunkNotFound, RootUnavailable, Unsupported
from chunkstore.spark.batches import read_task
from chunkstore.spark.errors import original_error
from tests.support.spark_ground import MIB, Ground, filled


def planned(path: Path) -> tuple[Ground, Callable[[], object]]:
    """A store, and the only task of a read of it."""
    ground = Ground(path / "one")
    with ground.open() as store:
        filled(store, "a", MIB, MIB)
    [task] = ground.plan("a")
    return ground, lambda: list(read_task(task, [("value", True)]))


def test_another_container_under_the_root(tmp_path: Path) -> None:
    ground, read = planned(tmp_path)
    other, _ = planned(tmp_path / "other")
    (ground.path / "root").rename(tmp_path / "away")
    (other.path / "root").rename(ground.path / "root")
    with pytest.raises(RootUnavailable, match="is not the planned one") as caught:
        read()
    assert caught.value.root == ground.url
    assert "every machine" in caught.value.message
    assert caught.value.__suppress_context__, "the first error told must be this one"


def test_nothing_under_the_root(tmp_path: Path) -> None:
    ground, read = planned(tmp_path)
    (ground.path / "root").rename(tmp_path / "away")
    with pytest.raises(RootUnavailable, match="container 'default' does not exist") as caught:
        read()
    assert caught.value.__suppress_context__
    told = original_error(RuntimeError("".join(caught.value.__notes__)))
    assert isinstance(told, RootUnavailable)
    assert told.root == ground.url


def test_a_chunk_that_is_gone_from_the_right_root(tmp_path: Path) -> None:
    ground, read = planned(tmp_path)
    with chunkstore.open_replica(ground.url, settings=ground.settings) as replica:
        [chunk] = replica.layout("a")
    ground.file(chunk.name).unlink()
    with pytest.raises(ChunkNotFound):
        read()


@pytest.mark.parametrize(
    ("said", "feature"),
    [
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10 than that in driver: 3.11, PySpark cannot run with",
            "python",
        ),
        ("ModuleNotFoundError: No module named 'pyarrow'", "pyarrow"),
        ("[PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however, it was not found.", "pyarrow"),
        ("ModuleNotFoundError: No module named 'chunkstore.spark'", "chunkstore"),
        (
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: chunkstore. Make sure the provider name is",
            "chunkstore",
        ),
    ],
)
def test_a_python_that_cannot_run_the_task(said: str, feature: str) -> None:
    error = original_error(RuntimeError(f"Job aborted\n  {said}\n"))
    assert isinstance(error, Unsupported)
    assert error.feature == feature
