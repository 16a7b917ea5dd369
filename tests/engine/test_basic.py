"""The verbs, one by one."""

from __future__ import annotations

from tests.support.worlds import World


def test_write_read_close_and_open_again(world: World) -> None:
    with world.open() as store:
        handle = store.create("orders-0")
        assert store.write(handle, 0, b"hello ") == 6
        assert store.append("orders-0", b"world") == 6
        assert store.read("orders-0", 0, 11) == b"hello world"
    with world.open() as store:
        assert store.read("orders-0", 0, 100) == b"hello world"
        assert store.check("deep") == []
    world.forget_cache()
    with world.open() as store:
        assert store.read("orders-0", 3, 5) == b"lo wo"
        assert store.check("deep") == []
