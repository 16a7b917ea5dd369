"""What is True or False is nothing else: a text such as "no" would count as True, and discard or delete what it was to keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore import backup


def refuses(call: Any, argument: str) -> None:
    for value in ("no", "False", 0, 1, None):
        with pytest.raises(chunkstore.InvalidArgument, match=f"{argument} must be True or False") as caught:
            call(**{argument: value})
        assert caught.value.argument == argument


def test_no_is_not_yes(tmp_path: Path) -> None:
    root, other, file = (tmp_path / "root").as_uri(), (tmp_path / "other").as_uri(), tmp_path / "a.cks"
    settings = chunkstore.Settings(cache_dir=str(tmp_path / "cache"), lease_s=0, gc_grace_s=0)

    def bound(function: Any, *arguments: Any) -> Any:
        return lambda **given: function(*arguments, settings=settings, **given)

    with chunkstore.open(root, settings=settings, optimiser=chunkstore.OptimiserPolicy()) as store:
        store.create("a")
        store.append("a", b"data")
        backup.export(store, file)
        head = store._container.current.store.head()
        for call in (store.collect, store.apply_retention, store.defrag, store.optimiser.run_once):
            refuses(call, "dry_run")
        refuses(store.sweep, "delete")
        refuses(lambda **given: store.reader("a", **given), "follow")
        refuses(lambda **given: backup.export(store, tmp_path / "b.cks", **given), "pin")
        for argument in ("pin", "link", "verify"):
            refuses(lambda **given: backup.backup(store, other, **given), argument)
        assert store._container.current.store.head() == head
    for argument in ("create", "accept_rollback"):
        refuses(bound(chunkstore.open, root), argument)
    for argument in ("dry_run", "salvage"):
        refuses(bound(backup.restore, root, other), argument)
    refuses(bound(backup.import_, other, file), "dry_run")
    assert not (tmp_path / "other").exists()
