"""Backup tests run in the four worlds of the engine's (``tests/support/worlds.py``)."""

from __future__ import annotations

from tests.support.worlds import world

__all__ = ["world"]
