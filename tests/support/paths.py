"""Where the sources lie, for processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "chunkstore": ROOT / "chunkstore",
    "chunkstore_bindings": ROOT / "bindings" / "chunkstore_bindings",
    "chunkstore_journal": ROOT / "journal" / "chunkstore_journal",
    "pyspark_chunkstore": ROOT / "bindings" / "pyspark_chunkstore",
    "pyspark_kafka_tiered": ROOT / "bindings" / "pyspark_kafka_tiered",
    "pyspark_pulsar_offload": ROOT / "bindings" / "pyspark_pulsar_offload",
}
"""Each package's folder."""
SOURCES = os.pathsep.join(str(ROOT / part) for part in ("", "bindings", "journal"))
"""The PYTHONPATH of a checkout."""
