"""The command line for tests of Pulsar's formats."""

from __future__ import annotations

from tests.cli.conftest import call

__all__ = ["call"]
