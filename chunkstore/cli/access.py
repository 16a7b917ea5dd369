"""The options that verbs share, and with them opening a container: as a replica that never claims, or as its owner, politely.

A verb that changes refuses a container whose owner looks alive (``ContainerBusy``) unless ``--take-over`` is given."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from datetime import datetime
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import chunkstore
from chunkstore.cli import options
from chunkstore.cli.output import print_each, print_facts, print_json, print_note, status
from chunkstore.cli.verbs import ALIASES, FORMER, VERBS
from chunkstore.config import Settings
from chunkstore.errors import ContainerBusy, InvalidArgument, Unsupported

__all__ = ["Asking", "Claiming", "Owning", "Past", "Reading", "needs", "require_lasting", "with_options"]

_ORDER: Final = (
    "metadata_log",
    "key",
    "prefix",
    "at_lsn",
    "at_time",
    "container",
    "ask",
    "take_over",
    "accept_rollback",
    "cache_dir",
    "as_json",
)
"""Of the shared options in ``--help``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A verb's parameter ``here`` of this class, or one below, means the options that are its fields."""

    container: options.Container = "default"
    cache_dir: options.CacheDir = None
    as_json: options.AsJson = False

    def _at(self) -> tuple[int | None, datetime | int | None]:
        """The record, or the time, whose state is read; else the present."""
        return None, None

    @property
    def settings(self) -> Settings:
        """The default settings, with the cache where the user wants it."""
        return Settings(cache_dir=self.cache_dir)

    @contextmanager
    def replica(self, root: str) -> Iterator[chunkstore.Replica]:
        """The container's present state, or that of ``Past``, read-only.

        Raises ``InvalidArgument``, ``ContainerNotFound``, ``PastCollected``, ``Damaged``, ``StorageUnavailable``.
        """
        at_lsn, at_time = self._at()
        with chunkstore.open_replica(
            root, container=self.container, settings=self.settings, at_lsn=at_lsn, at_time=at_time
        ) as opened:
            if text := opened.why_short:
                print_note(text)
            yield opened

    def show(self, document: object, facts: Mapping[str, object]) -> None:
        """What a verb found or did: ``document`` with ``--json``, else ``facts``, one a line."""
        if self.as_json:
            print_json(document)
        else:
            print_facts(facts)

    def show_each(
        self, items: Iterable[Any], columns: Sequence[str], row: Callable[[Any], Sequence[object]], **more: Any
    ) -> None:
        """See ``print_each``."""
        print_each(items, columns, row, as_json=self.as_json, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Past(Reading):
    """Of a verb that also reads a past state."""

    at_lsn: options.AtLsn = None
    at_time: options.AtTime = None

    def _at(self) -> tuple[int | None, datetime | int | None]:
        return self.at_lsn, options.moment_of(self.at_time, "--at-time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claiming(Reading):
    """Of a verb that claims a container by other means than ``owner``."""

    take_over: options.TakeOver = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Owning(Claiming):
    """Of a verb that changes a container."""

    accept_rollback: options.AcceptRollback = False

    @contextmanager
    def owner(
        self, root: str, *, create: bool = False, gc_grace_s: float | None = None
    ) -> Iterator[chunkstore.ChunkedSegmentStorage]:
        """The container as its new owner; closed, and so released, when the block ends.

        Raises ``ContainerBusy`` if the present owner looks alive (never with ``take_over``), ``ContainerNotFound`` unless
        ``create``, ``InvalidArgument`` for a root in memory, ``RolledBack`` unless ``accept_rollback``, and whatever opening raises.
        """
        require_lasting(root)
        settings = self.settings if gc_grace_s is None else replace(self.settings, gc_grace_s=gc_grace_s)
        with status(f"opening {self.container}", as_json=self.as_json):
            store = chunkstore.open(
                root,
                container=self.container,
                create=create,
                settings=settings,
                take_over=self.take_over,
                accept_rollback=self.accept_rollback,
            )
        with store:
            yield store


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking(Owning):
    """Of a verb that a live owner can be asked to do."""

    ask: options.Ask = False

    @contextmanager
    def owner_or_asker(
        self, root: str, *, create: bool = False, gc_grace_s: float | None = None
    ) -> Iterator[chunkstore.ChunkedSegmentStorage | chunkstore.Asker]:
        """As ``owner``; with ``ask``, where the present owner looks alive, what asks it to do the same."""
        if self.ask and self.take_over:
            text = "--ask uses the live owner, --take-over fences it; give one of them"
            raise InvalidArgument(text, argument="--ask")
        with ExitStack() as stack:
            opened: chunkstore.ChunkedSegmentStorage | chunkstore.Asker
            try:
                opened = stack.enter_context(self.owner(root, create=create, gc_grace_s=gc_grace_s))
            except ContainerBusy:
                if not self.ask:
                    raise
                asker = chunkstore.open_asker(root, container=self.container, settings=self.settings)
                opened = stack.enter_context(asker)
                stack.enter_context(status(f"asking the owner of {self.container}", as_json=self.as_json))
            yield opened


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Raise ``Unsupported`` where a package of the extra is missing for what is imported in the block."""
    try:
        yield
    except ImportError as error:
        text = f"{what} need the extra {extra!r} ({error.name} is missing): pip install 'chunkstore-engine[{extra}]'"
        raise Unsupported(text, feature=extra) from error


def require_lasting(root: str) -> None:
    """Raise ``InvalidArgument`` for a root in memory: what a command writes there ends with the command; and for the word of a
    verb that names no folder."""
    if root in {*VERBS, *ALIASES, *FORMER} and not os.path.isdir(root):
        raise InvalidArgument(
            f"{root!r} is a verb where a root belongs; a new folder of that name is ./{root}", argument="ROOT"
        )
    if root.lower().startswith("memory:"):
        text = f"root {root!r}: nothing would be stored, memory:// ends with this command; use file:///PATH, s3:// or hdfs://"
        raise InvalidArgument(text, argument="ROOT")


def with_options(verb: Callable[..., None]) -> Callable[..., None]:
    """``verb``, as ``typer`` wants to see it: a parameter that is a dataclass means an option for each of its fields. A switch has no
    ``--no-`` form."""
    parameters: dict[str, Parameter] = {}
    records: dict[str, tuple[Any, list[str]]] = {}
    for name, item in signature(verb, eval_str=True).parameters.items():
        if not is_dataclass(item.annotation):
            parameters[name] = item
            continue
        hints = get_type_hints(item.annotation, include_extras=True)
        defaults = {
            each.name: Parameter.empty if each.default is MISSING else each.default for each in fields(item.annotation)
        }
        records[name] = (item.annotation, list(defaults))
        parameters |= {
            each: Parameter(each, Parameter.KEYWORD_ONLY, default=value, annotation=hints[each])
            for each, value in defaults.items()
        }
    for name, item in parameters.items():
        if get_origin(item.annotation) is Annotated:
            kind, *more = get_args(item.annotation)
            if kind is bool and more[0].default is ...:
                more[0].default = f"--{name.replace('_', '-')}"  # where typer looks for the first name

    @wraps(verb)
    def call(**given: Any) -> None:
        for name, (record, own) in records.items():
            given[name] = record(**{each: given.pop(each) for each in own})
        verb(**given)

    order = sorted(parameters, key=lambda name: _ORDER.index(name) if name in _ORDER else -1)
    call.__signature__ = Signature([parameters[name] for name in order])  # type: ignore[attr-defined]
    call.__annotations__ = {name: parameters[name].annotation for name in order}
    return call
