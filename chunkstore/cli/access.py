"""Opening a container for a verb: as a replica that never claims, or as its owner, politely.

Promises: a verb that only reads follows the journal once and leaves no trace; a verb that changes refuses a container
whose owner looks alive (``ContainerBusy``) unless ``--take-over`` is given. Leaves out: what the verb then does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console

import chunkstore
from chunkstore.cli.options import moment_of
from chunkstore.config import Settings
from chunkstore.errors import ContainerBusy, InvalidArgument

__all__ = ["owner", "owner_or_asker", "replica", "settings_for", "wait_s"]

_LEASES_WATCHED = 2.2
"""A live owner rewrites its lease every ``lease_s``: watching a little over two periods tells it from a dead one."""


def settings_for(cache_dir: str | None, gc_grace_s: float | None = None) -> Settings:
    """The default settings, with the cache where the user wants it, and another grace for garbage."""
    return Settings(cache_dir=cache_dir) if gc_grace_s is None else Settings(cache_dir=cache_dir, gc_grace_s=gc_grace_s)


def wait_s(settings: Settings) -> float:
    """How long to watch the present owner for signs of life before it is pushed aside."""
    return _LEASES_WATCHED * settings.lease_s


@contextmanager
def replica(
    root: str, container: str, cache_dir: str | None, at_lsn: int | None = None, at_time: str | None = None
) -> Iterator[chunkstore.Replica]:
    """The container's present state, or a past one, read-only.

    Raises ``InvalidArgument``, ``ContainerNotFound``, ``PastCollected``, ``Damaged``, ``StorageUnavailable``.
    """
    moment = moment_of(at_time, "--at-time")
    settings = settings_for(cache_dir)
    with chunkstore.open_replica(root, container=container, settings=settings, at_lsn=at_lsn, at_time=moment) as opened:
        yield opened


@contextmanager
def owner(
    root: str,
    container: str,
    cache_dir: str | None,
    *,
    take_over: bool,
    accept_rollback: bool,
    create: bool = False,
    quiet: bool = False,
    gc_grace_s: float | None = None,
) -> Iterator[chunkstore.ChunkedSegmentStorage]:
    """The container as its new owner; closed, and so released, when the block ends.

    Raises ``ContainerBusy`` if the present owner looks alive (never with ``take_over``), ``ContainerNotFound`` unless
    ``create``, ``RolledBack`` unless ``accept_rollback``, and whatever opening raises.
    """
    settings = settings_for(cache_dir, gc_grace_s)
    watched_s = 0.0 if take_over else wait_s(settings)
    with _note(f"opening {container}", quiet=quiet):
        store = chunkstore.open(
            root,
            container=container,
            create=create,
            settings=settings,
            wait_s=watched_s,
            accept_rollback=accept_rollback,
        )
    with store:
        yield store


@contextmanager
def owner_or_asker(
    root: str,
    container: str,
    cache_dir: str | None,
    *,
    ask: bool,
    take_over: bool,
    accept_rollback: bool,
    quiet: bool = False,
    gc_grace_s: float | None = None,
) -> Iterator[chunkstore.ChunkedSegmentStorage | chunkstore.Asker]:
    """As ``owner``; with ``ask``, where the present owner looks alive, what asks it to do the same."""
    if ask and take_over:
        text = "--ask has the live owner do it, --take-over fences that owner: say one of them"
        raise InvalidArgument(text, argument="--ask")
    with ExitStack() as stack:
        opened: chunkstore.ChunkedSegmentStorage | chunkstore.Asker
        try:
            claimed = owner(
                root,
                container,
                cache_dir,
                take_over=take_over,
                accept_rollback=accept_rollback,
                quiet=quiet,
                gc_grace_s=gc_grace_s,
            )
            opened = stack.enter_context(claimed)
        except ContainerBusy:
            if not ask:
                raise
            asker = chunkstore.open_asker(root, container=container, settings=settings_for(cache_dir))
            opened = stack.enter_context(asker)
            stack.enter_context(_note(f"asking the owner of {container}", quiet=quiet))
        yield opened


@contextmanager
def _note(text: str, *, quiet: bool) -> Iterator[None]:
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(text):
        yield
