"""The demonstration: a year of real flights is offloaded, its writer killed in the middle, and not one acknowledged event is lost."""

from chunkstore.demo.stage import run

__all__ = ["run"]
