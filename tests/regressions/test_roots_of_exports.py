"""Regressions: the root that an export names is text from a file, and does not lead just anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore import backup, errors
from chunkstore.backup.exporting import FileSink
from chunkstore.backup.files import write_export
from chunkstore.engine import parts
from chunkstore.registry import require_known_place
from tests.golden.backup_samples import HEADER, ROWS


@pytest.mark.parametrize(
    "root",
    ["s3://bucket/a?endpoint_url=http://evil", "s3://me@bucket/a", "hdfs://evil:9870/a", "evil://a", "file:///a\n"],
)
def test_an_export_does_not_lead_just_anywhere(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    sink = FileSink(str(path))
    write_export(sink, HEADER._replace(root=root), ROWS, str(path))
    sink.close()
    monkeypatch.setattr(parts, "open_storage", lambda *_: pytest.fail("opened"))
    for ask in (lambda: backup.verify(path), lambda: backup.import_(f"file://{tmp_path}/new", path)):
        with pytest.raises(errors.InvalidArgument, match=r"say where the container is \(--from\)") as caught:
            ask()
        assert "me@" not in str(caught.value) and "endpoint_url" not in str(caught.value)


def test_a_plain_root_of_an_export_may_be_opened() -> None:
    for root in ("file:///srv/log", "memory://x", "s3://bucket/log"):
        require_known_place(root)
