"""What ``with`` closes at its end."""

from __future__ import annotations

from typing import Self


class Closing:
    """A context manager that calls its own ``close``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        raise NotImplementedError
