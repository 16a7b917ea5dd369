"""Every engine test runs in two or four worlds (``tests/support/worlds.py``)."""

from __future__ import annotations

from tests.support.worlds import world

__all__ = ["world"]
