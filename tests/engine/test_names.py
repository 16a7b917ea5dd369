"""Segment names: what is allowed, what is refused, and that none of them reaches the storage's paths."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from chunkstore.errors import InvalidArgument
from tests.support.worlds import World

GOOD = [
    "a",
    "x" * 255,
    "ü" * 127 + "x",
    "😀" * 63,
    "..",
    ".",
    "../../../etc/passwd",
    "/absolute",
    "a/b/c",
    "a//b/",
    "\\windows\\..\\",
    " ",
    "\n\t\r",
    "C:",
    "%00%2e",
    "-rf",
    "*",
    "e\u0301",
    "\u00e9",
    "\uffff",
    "\U0010ffff",
    "!writers",
]


def test_every_allowed_name_works_and_stays_inside_the_root(world: World) -> None:
    with world.open() as store:
        for number, name in enumerate(GOOD):
            store.create(name)
            store.append(name, str(number).encode())
        assert store.read(GOOD[4], 0, 9) == b"4"
    world.forget_cache()
    with world.open() as store:
        assert {info.name for info in store.segments()} == set(GOOD)
        for number, name in enumerate(GOOD):
            assert store.read(name, 0, 9) == str(number).encode()
            assert [info.name for info in store.segments(name, limit=1)] == [name]
        assert store.check("deep") == []
        for name in GOOD[::2]:
            store.delete(name)
        assert {info.name for info in store.segments()} == set(GOOD[1::2])
    objects = world.objects()
    assert objects and all(name.startswith("default/") and ".." not in name for name in objects)
    if world.kind == "filesystem":
        outside = {"root"} | {entry for entry in os.listdir(world.tmp_path) if entry.startswith("cache-")}
        assert set(os.listdir(world.tmp_path)) == outside
        assert set(os.listdir(world.root)) == {"default", ".chunkstore-tmp"}


@pytest.mark.parametrize("name", ["", "x" * 256, "ü" * 128, "a\0b", "\0", "\udcff"], ids=ascii)
def test_refused_names(world: World, name: str) -> None:
    store = world.open()
    calls: tuple[tuple[str, Callable[[], object]], ...] = (
        ("name", lambda: store.create(name)),
        ("segment", lambda: store.append(name, b"")),
        ("segment", lambda: store.read(name, 0, 1)),
    )
    for argument, call in calls:
        with pytest.raises(InvalidArgument) as caught:
            call()
        assert caught.value.argument == argument
