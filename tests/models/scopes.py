"""Which models are explored how far: small scopes in every test run, large ones by ``make models``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.models.append import MUTANTS as APPEND_MUTANTS
from tests.models.append import AppendModel
from tests.models.explorer import Model
from tests.models.slot import MUTANTS as SLOT_MUTANTS
from tests.models.slot import SlotModel


class Scope(NamedTuple):
    """One model in one scope. ``mutants``: the rules that are broken; none is the protocol as it is."""

    name: str
    make: Callable[..., Model[Any]]
    options: dict[str, Any]
    mutants: tuple[str, ...] = ()

    def model(self) -> Model[Any]:
        """The model, ready to be explored."""
        return self.make(**self.options, mutants=frozenset(self.mutants))


SMALL: tuple[Scope, ...] = (
    Scope("slot: 3 claimants, 1 operation each", SlotModel, {"replica": False}),
    Scope("slot: 2 claimants, 2 operations each, replica", SlotModel, {"processes": 2, "operations": 2}),
    Scope("append: 3 claimants, replica, power cut", AppendModel, {"faults": 0}),
    Scope("append: 2 claimants, replica, power cut, failed write or sync", AppendModel, {"processes": 2}),
)

LARGE: tuple[Scope, ...] = (
    Scope("slot: 3 claimants, 1 operation each, replica", SlotModel, {}),
    Scope("slot: 3 claimants, 2 operations each", SlotModel, {"operations": 2, "replica": False}),
    Scope("slot: 4 claimants, 1 operation each", SlotModel, {"processes": 4, "replica": False}),
    Scope("append: 3 claimants, replica, power cut, failed write or sync", AppendModel, {}),
    Scope(
        "append: 2 claimants, 2 operations each, replica, power cut, failure",
        AppendModel,
        {"processes": 2, "operations": 2},
    ),
    Scope("append: 3 claimants, 2 power cuts, 2 failures", AppendModel, {"power": 2, "faults": 2, "replica": False}),
    Scope("append: 4 claimants, replica, power cut", AppendModel, {"processes": 4, "faults": 0, "epochs": 4}),
)

_TWO_OPERATIONS = frozenset(("gcseal", "gcown", "rebatch", "nextslot"))

REFUTED: tuple[Scope, ...] = (
    *(
        Scope("slot", SlotModel, {"operations": 2 if mutant in _TWO_OPERATIONS else 1}, (mutant,))
        for mutant in SLOT_MUTANTS
    ),
    *(Scope("append", AppendModel, {}, (mutant,)) for mutant in APPEND_MUTANTS),
    # Without the embedded record a successor has to sync what it trusts, as protocol P6 says.
    Scope("append", AppendModel, {"faults": 0}, ("noembed", "nofsyncseal")),
)
