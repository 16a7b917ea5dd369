"""Every regression test runs in two worlds (``tests/support/worlds.py``) unless it says otherwise."""

from __future__ import annotations

from tests.support.worlds import world

__all__ = ["world"]
