"""Settings by one flat set of names: tests draw what users decide and the engine's own pace (``Tuning``) alike."""

from dataclasses import fields, replace
from typing import Any

from chunkstore.config import Settings, Tuning

_TUNED = frozenset(item.name for item in fields(Tuning))
_USUAL = Settings()


def tuned(base: Settings = _USUAL, /, **given: Any) -> Settings:
    """``base`` with changes."""
    tuning = {name: value for name, value in given.items() if name in _TUNED}
    public = {name: value for name, value in given.items() if name not in _TUNED}
    return replace(base, tuning=replace(base.tuning, **tuning), **public)


def flat(settings: Settings) -> dict[str, Any]:
    """All values by their names."""
    both = (settings, settings.tuning)
    return {item.name: getattr(part, item.name) for part in both for item in fields(part) if item.name != "tuning"}
