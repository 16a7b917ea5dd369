"""``make spark-cluster``: a declarative pipeline, run by ``spark-pipelines`` from an environment that has the wheel only."""

from __future__ import annotations

from pathlib import Path

import pytest

import chunkstore
from chunkstore.config import Tuning
from tests.spark.test_connect import make_store
from tests.support.data import pattern
from tests.support.paths import ROOT
from tests.support.spark import missing_of_connect
from tests.support.spark_owner import serving
from tests.support.spark_pipeline import Pipeline
from tests.support.wheels import build_wheel, new_environment, pip_install


def tables(url: str, segment: str) -> str:
    """The guide's example, over this segment of this root."""
    blocks = (ROOT / "docs" / "guide-spark.md").read_text(encoding="utf-8").split("```\n")
    [text] = [block for block in blocks if "import pipelines as dp" in block]
    assert text.count("file:///srv/log") == 3
    assert text.count('"segments", "orders"') == 2
    return text.replace("file:///srv/log", url).replace('"segments", "orders"', f'"segments", "{segment}"')


pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if missing_of_connect():
        pytest.skip(missing_of_connect())
    folder = tmp_path_factory.mktemp("pipelines")
    made = new_environment(folder / "python")
    pip_install(made, build_wheel(folder))
    return made


def test_tables_from_the_source_and_a_sink(python: Path, tmp_path: Path) -> None:
    url = make_store(tmp_path)
    pipeline = Pipeline(tmp_path / "project", python, tables(url, "orders"))
    with serving(url, str(python)):
        done = pipeline.run()
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    data = pattern(0, 5 << 19)
    rows = {row["offset"]: row["value"] for row in pipeline.rows("orders")}
    assert rows == {at: data[at : at + (1 << 20)] for at in (0, 1 << 20, 2 << 20)}
    assert pipeline.rows("total") == [{"bytes": 5 << 19, "rows": 3}]
    pipeline.forget()
    with serving(url, str(python)):
        assert pipeline.run().returncode == 0, "nothing is new: nothing is written again"
    settings = chunkstore.Settings(cache_dir=str(tmp_path / "another-cache"), tuning=Tuning(lmdb_map_bytes=1 << 28))
    with chunkstore.open_replica(url, settings=settings) as replica:
        assert replica.info("copy").length == len(data)
        assert replica.read("copy", 0, len(data)) == data


def test_an_error_of_the_source_is_in_what_the_run_says(python: Path, tmp_path: Path) -> None:
    url = make_store(tmp_path)
    done = Pipeline(tmp_path / "project", python, tables(url, "damaged")).run()
    assert done.returncode != 0
    assert '"type": "Damaged"' in done.stdout + done.stderr
