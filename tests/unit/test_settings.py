"""``Settings`` and ``Tuning`` are checked when they are built, and name what they refuse."""

from dataclasses import fields
from typing import Any

import pytest

from chunkstore.config import Settings, Tuning
from chunkstore.errors import InvalidArgument

EVERY = [(kind, item.name) for kind in (Settings, Tuning) for item in fields(kind)]


def refused(kind: Any, name: str, value: object) -> str:
    with pytest.raises(InvalidArgument, match=rf"{kind.__name__}\.{name} must be ") as caught:
        kind(**{name: value})
    assert caught.value.argument == name
    return caught.value.message


@pytest.mark.parametrize(("kind", "name"), EVERY, ids=lambda value: getattr(value, "__name__", value))
def test_every_value_is_checked(kind: Any, name: str) -> None:
    refused(kind, name, float("nan"))
    if isinstance(getattr(kind(), name), int):
        refused(kind, name, 1e4)
        refused(kind, name, True)


def test_errors_say_what_is_right() -> None:
    assert "a whole number from 1 to 1024, not 0" in refused(Tuning, "io_workers", 0)
    assert "None or a whole number from 1 to 1073741824, not 0" in refused(Tuning, "spill_bytes", 0)
    assert "None or a number from 0 to 3600, not -1" in refused(Tuning, "ask_s", -1)
    assert "a number from 0 to 10, not 11" in refused(Settings, "linger_s", 11)


@pytest.mark.parametrize("kind", [Settings, Tuning])
def test_unknown_names_are_refused_by_name(kind: Any) -> None:
    with pytest.raises(TypeError, match="colect_s"):
        kind(colect_s=1)


def test_the_engines_pace_is_one_setting() -> None:
    assert len(fields(Settings)) == 23  # 22, and ``tuning``
