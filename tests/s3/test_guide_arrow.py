"""The guide of Arrow and of files, run on S3: data frames read, and log handlers and writers append."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.support.documents import run_examples
from tests.support.paths import ROOT
from tests.support.servers.s3server import S3Server


@pytest.mark.proof
def test_examples_run(moto: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("duckdb", "fsspec", "pandas", "polars", "pyarrow", "tensorboard"):
        pytest.importorskip(package, reason=f"not tested: docs/guide-arrow.md ({package} is not installed)")
    import fsspec

    fsspec.register_implementation("chunkstore", "chunkstore.fs.ChunkstoreFileSystem", clobber=True)
    monkeypatch.setenv("CHUNKSTORE_ROOT", moto.root(moto.make_bucket(), "logs"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CHUNKSTORE_CONTAINER", raising=False)
    try:
        run_examples(ROOT / "docs" / "guide-arrow.md")
    finally:
        logging.getLogger("shop").handlers.clear()
    with fsspec.filesystem("chunkstore") as files:
        assert files.ls("", detail=False) == ["app", "orders", "runs", "sales.csv"]
