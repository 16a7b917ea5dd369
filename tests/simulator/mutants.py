"""Planted bugs: the yardstick of the simulator (protocol 6.1). A bug that no run notices means that the simulator is too weak.

A mutant is one or a few lines of production code, replaced in memory while it is applied. Promises: production code knows
nothing of this; a mutant whose lines have changed or moved fails loudly instead of planting nothing; leaving ``planted``
brings the code back as it was. Leaves out: running (``hunt``), judging (invariants and the history checker).
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from importlib import import_module
from types import CodeType, FunctionType
from typing import Final, NamedTuple, cast

from tests.simulator.mutant import Mutant, Patch
from tests.simulator.mutants_asks import ASKING_MUTANTS
from tests.simulator.mutants_bindings import BINDING_MUTANTS
from tests.simulator.mutants_distrust import DISTRUST_MUTANTS
from tests.simulator.mutants_engine import ENGINE_MUTANTS
from tests.simulator.mutants_inline import INLINE_MUTANTS
from tests.simulator.mutants_journal import JOURNAL_MUTANTS
from tests.simulator.mutants_lines import LINE_MUTANTS
from tests.simulator.mutants_upkeep import UPKEEP_MUTANTS

__all__ = ["MUTANTS", "Mutant", "MutantError", "Patch", "planted"]

MUTANTS: Final[dict[str, Mutant]] = {
    mutant.name: mutant
    for mutant in (
        *JOURNAL_MUTANTS,
        *ENGINE_MUTANTS,
        *UPKEEP_MUTANTS,
        *ASKING_MUTANTS,
        *BINDING_MUTANTS,
        *DISTRUST_MUTANTS,
        *INLINE_MUTANTS,
        *LINE_MUTANTS,
    )
}
"""Every planted bug, by name."""

_FLAGS: Final = __future__.annotations.compiler_flag


class MutantError(RuntimeError):
    """A mutant does not fit the code any more: mend its lines."""


class _Planted(NamedTuple):
    function: FunctionType
    before: CodeType


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Production code with this bug in it. Raises ``MutantError`` if its lines are not there exactly once."""
    done: list[_Planted] = []
    try:
        for target in dict.fromkeys(patch.target for patch in mutant.patches):
            function = _function(target)
            code = _changed(target, [patch for patch in mutant.patches if patch.target == target], function)
            done.append(_Planted(function, function.__code__))
            function.__code__ = code
        yield
    finally:
        for function, before in reversed(done):
            function.__code__ = before


def _function(target: str) -> FunctionType:
    """``module:Class.name`` or ``module:name``."""
    module, _, path = target.partition(":")
    found = reduce(inspect.getattr_static, path.split("."), import_module(module))
    if isinstance(found, staticmethod):
        found = found.__func__
    if isinstance(found, property):
        found = found.fget
    found = inspect.unwrap(cast("Callable[..., object]", found))
    if not isinstance(found, FunctionType):
        raise MutantError(f"{target} is not a function")
    return found


def _changed(target: str, patches: Sequence[Patch], function: FunctionType) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    for patch in patches:
        if source.count(patch.old) != 1:
            raise MutantError(f"{target} holds these lines {source.count(patch.old)} times, not once: {patch.old!r}")
        source = source.replace(patch.old, patch.new)
    if source.startswith("@"):
        source = source[source.index("def ") :]  # a decorator's work has been done already
    # Its globals stay the module's, because only the code object is used.
    namespace: dict[str, object] = {}
    exec(
        compile(source, f"<mutant of {target}>", "exec", flags=_FLAGS, dont_inherit=True),
        dict(function.__globals__),
        namespace,
    )
    (made,) = namespace.values()
    assert isinstance(made, FunctionType)
    if made.__code__.co_freevars != function.__code__.co_freevars:
        raise MutantError(f"{target} is a closure, or calls super(): choose another place")
    return made.__code__
