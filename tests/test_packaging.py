"""The distribution: what the wheel contains, that it installs and imports, that an editable install works."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.support.paths import PACKAGES, ROOT
from tests.support.wheels import build_wheel, new_environment, pip_install, run

LOOK = """
import importlib.metadata as metadata, pathlib, sys
import importlib.util
for package in "chunkstore chunkstore_bindings chunkstore_journal pyspark_chunkstore pyspark_kafka_tiered pyspark_pulsar_offload".split():
    print(pathlib.Path(importlib.util.find_spec(package).origin).parent)
import chunkstore, chunkstore_bindings, chunkstore_journal
[entry] = metadata.distribution("chunkstore-engine").entry_points.select(group="console_scripts")
assert entry.name == "chunkstore"
[files] = metadata.distribution("chunkstore-engine").entry_points.select(group="fsspec.specs")
assert (files.name, files.value) == ("chunkstore", "chunkstore.fs:ChunkstoreFileSystem")
assert not {"chunkstore.engine", "lmdb"} & set(sys.modules), "who wants an error or a format pays for what is imported here"
assert callable(entry.load())
assert chunkstore.changes.Create("a") and set(chunkstore.__all__) <= set(dir(chunkstore)) and not hasattr(chunkstore, "nonsense")
with chunkstore.open("memory://packaging") as store:
    store.create("a")
    assert store.append("a", b"bytes") == 0
    assert store.read("a", 0, 5) == b"bytes"
"""

# What Spark does to find data sources: every top-level module named pyspark_* is imported and asked for its DefaultSource.
SPARK_LOOKS = """
import importlib, pkgutil, sys
from pyspark.sql.datasource import DataSource
found = [module.name for module in pkgutil.iter_modules() if module.name.startswith("pyspark_")]
sources = [importlib.import_module(name).DefaultSource for name in found]
assert all(issubclass(source, DataSource) for source in sources)
assert not {"lmdb", "pyarrow"} & set(sys.modules), "every user of Spark pays for what is imported here"
print(*(source.name() for source in sources))
"""


def spark_finds(python: Path, cwd: Path) -> str:
    pytest.importorskip("pyspark", reason="pyspark is not installed: whether Spark finds the format is not tested")
    return run(python, "-I", "-c", SPARK_LOOKS, cwd=cwd).strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tops = {name.split("/")[0] for name in names}
    [metadata] = tops - set(PACKAGES)
    assert metadata.endswith(".dist-info")
    for package, folder in PACKAGES.items():
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names, f"{package} must tell type checkers that it is typed"
        expected = {
            f"{package}/{path.relative_to(folder).as_posix()}"
            for path in folder.rglob("*")
            if path.is_file() and path.suffix in (".py", ".md", ".typed") and "__pycache__" not in path.parts
        }
        assert expected <= names
    assert f"{metadata}/licenses/LICENSE" in names


def test_the_wheel_installs_and_imports(wheel: Path, tmp_path: Path) -> None:
    python = new_environment(tmp_path / "fresh")
    pip_install(python, wheel)
    places = run(python, "-I", "-c", LOOK, cwd=tmp_path).split()
    assert all(Path(place).is_relative_to(tmp_path / "fresh") for place in places)
    assert "put" in run(python.parent / "chunkstore", "--help", cwd=tmp_path)


@pytest.mark.proof
def test_every_public_name_has_a_known_type(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("pyright") is None:
        pytest.skip("pyright is not installed: whether the types of the wheel are complete is not tested")
    python = new_environment(tmp_path / "fresh")
    pip_install(python, wheel)
    monkeypatch.setenv("PATH", f"{python.parent}{os.pathsep}{os.environ['PATH']}")
    assert "completeness score: 100%" in run("pyright", "--verifytypes", "chunkstore", "--ignoreexternal", cwd=tmp_path)


def test_an_editable_install_finds_all_source_roots(tmp_path: Path) -> None:
    python = new_environment(tmp_path / "editable")
    pip_install(python, "-e", ROOT)
    places = run(python, "-I", "-c", LOOK, cwd=tmp_path).split()
    assert [Path(place) for place in places] == list(PACKAGES.values())
    assert "put" in run(python.parent / "chunkstore", "--help", cwd=tmp_path)


def test_spark_finds_the_format_in_a_wheel(wheel: Path, tmp_path: Path) -> None:
    python = new_environment(tmp_path / "fresh")
    pip_install(python, wheel)
    assert spark_finds(python, tmp_path) == "chunkstore kafka-tiered pulsar-offload"


def test_spark_finds_the_format_in_an_editable_install(tmp_path: Path) -> None:
    python = new_environment(tmp_path / "editable")
    pip_install(python, "-e", ROOT)
    assert spark_finds(python, tmp_path) == "chunkstore kafka-tiered pulsar-offload"
