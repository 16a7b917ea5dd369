"""What tests that draw a fresh seed call it in their reports, so that the end of the run can name it."""

from __future__ import annotations

FRESH_SEED = "seed of a fresh random run"
