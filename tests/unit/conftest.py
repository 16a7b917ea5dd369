"""Where the tests of Spark's readers and streams keep their containers; a module whose ground is another one makes its own."""

from __future__ import annotations

from tests.support.spark_ground import ground, store

__all__ = ["ground", "store"]
