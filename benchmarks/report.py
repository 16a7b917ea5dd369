"""The figures of one run of a benchmark: printed beside their targets, saved as JSON with versions and the machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
_PACKAGES = (
    "boto3",
    "botocore",
    "chunkstore-engine",
    "lmdb",
    "msgpack",
    "google-crc32c",
    "protobuf",
    "pyarrow",
    "pyspark",
)


@dataclass
class Figure:
    """One measured figure, its baseline if it has one, and the target it is held against."""

    name: str
    value: float
    unit: str
    target: str = ""
    met: bool | None = None
    detail: str = ""


@dataclass
class Report:
    """The figures of one benchmark run."""

    benchmark: str
    figures: list[Figure] = field(default_factory=list)

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        detail: str = "",
    ) -> None:
        """Record and print a figure; a target is shown, never asserted."""
        target, met = "", None
        if at_least is not None:
            target, met = f">= {at_least:g}", value >= at_least
        elif at_most is not None:
            target, met = f"<= {at_most:g}", value <= at_most
        self.figures.append(Figure(name, value, unit, target, met, detail))
        mark = "" if met is None else ("  met" if met else "  MISSED")
        print(f"{name:<58} {value:>12.3f} {unit:<10} {target:<12}{mark}  {detail}", flush=True)

    def save(self) -> Path:
        """Write the figures with versions and machine to ``results``; returns the path."""
        RESULTS.mkdir(exist_ok=True)
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=RESULTS
        ).stdout.strip()
        versions: dict[str, str] = {}
        for name in _PACKAGES:
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                versions[name] = "source"
        document = {
            "benchmark": self.benchmark,
            "commit": commit or "unknown",
            "date": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
            "machine": {
                "processors": os.cpu_count(),
                "python": sys.version.split()[0],
                "kernel": platform.release(),
                "load": os.getloadavg()[0],
            },
            "versions": versions,
            "figures": [asdict(figure) for figure in self.figures],
        }
        path = RESULTS / f"{self.benchmark}.json"
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"saved {path.name}", flush=True)
        return path
