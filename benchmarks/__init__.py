"""Benchmarks as code: every figure is a ratio against a bare loop or a peer measured in the same run."""

__all__: list[str] = []
