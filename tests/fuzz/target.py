"""What is fuzzed: a maker of inputs, a decoder, and where the decoder's first check ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

from tests.fuzz.chance import Chance


class Gate:
    """Counts the inputs that came past the first check: at most one for each input."""

    __slots__ = ("_counted", "passed")

    def __init__(self) -> None:
        self.passed = 0
        self._counted = False

    def next_input(self) -> None:
        self._counted = False

    def past(self) -> None:
        """This input has come past the first check."""
        if not self._counted:
            self._counted = True
            self.passed += 1


class Spy(NamedTuple):
    """A step of the decoder behind its first check: that it was taken is the proof."""

    owner: object
    name: str


@dataclass(frozen=True)
class Target:
    """One decoder.

    ``make`` builds an input from chance alone. ``decode`` gives it to the decoder; the only exceptions it may let out are
    ``errors``. It calls ``gate.past()`` itself, or ``spies`` do. It may return what shall be checked of the result
    afterwards, outside of what is measured: most often that it can be written, and read as the same again.
    """

    name: str
    first_check: str
    make: Callable[[Chance], bytes]
    decode: Callable[[bytes, Gate], Callable[[], None] | None]
    errors: tuple[type[Exception], ...]
    spies: tuple[Spy, ...] = ()
    each: int = 1
    """How many inputs one counts for: a row is one, and a whole engine for each would take days."""
    memory_bytes: int = 0
    """What it may take besides, whatever the input: a whole engine."""

    @contextmanager
    def watched(self, gate: Gate) -> Iterator[None]:
        """While this lasts, the spies report to ``gate``."""
        with ExitStack() as stack:
            for spy in self.spies:
                stack.enter_context(mock.patch.object(spy.owner, spy.name, _reporting(spy, gate)))
            yield


def _reporting(spy: Spy, gate: Gate) -> Callable[..., Any]:
    step = getattr(spy.owner, spy.name)

    def taken(*arguments: Any, **named: Any) -> Any:
        gate.past()
        return step(*arguments, **named)

    return taken
