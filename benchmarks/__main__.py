"""Run every benchmark: ``python -m benchmarks [--dir DIR] [--quick]``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

__all__: list[str] = []

if __name__ == "__main__":
    for path in sorted(Path(__file__).parent.glob("bench_*.py")):
        import_module(f"benchmarks.{path.stem}").main()
