"""Sessions of writers outside the owner: ``sessions ls``, ``sessions end``. Nothing is claimed where nothing is to be ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from chunkstore import runtime
from chunkstore.changes.sessions import check_session_id
from chunkstore.cli import access, options
from chunkstore.cli.options import age_option, argument
from chunkstore.cli.output import human_time, print_json, print_note, shown
from chunkstore.cli.streams import VerbFailed
from chunkstore.engine.owner import end_session
from chunkstore.errors import InvalidArgument
from chunkstore.records.segments import OpenSession

__all__ = ["end", "ls"]

_OlderThan = Annotated[float | None, age_option("Sessions that were opened at least so long ago.", "--older-than")]


_NONE_OLDER = "no session was opened so long ago"


class NoSuchSession(VerbFailed):
    """``sessions end``: no session of this id is open."""

    fields = ("session_id",)


def ls(
    root: options.Root,
    *,
    older_than: _OlderThan = None,
    here: access.Reading,
) -> None:
    """List open sessions, oldest first. The sweep keeps the chunks written in them."""
    with here.replica(root) as store:
        found = _older(store.sessions(), older_than)
    here.show_each(
        found,
        ("session", "opened", "expires", "holder"),
        lambda item: (item.id, human_time(item.opened_at), human_time(item.expires_at), item.holder),
        right=("session",),
        none="no session is open" if older_than is None else _NONE_OLDER,
    )


def end(
    root: options.Root,
    session_ids: Annotated[list[int] | None, argument("[ID]...", "Ids of sessions.")] = None,
    *,
    older_than: _OlderThan = None,
    dry_run: options.DryRun = False,
    here: access.Asking,
) -> None:
    """End sessions whose writers are dead. The sweep deletes chunks that they did not attach.

    A writer that is still alive loses its unattached chunks and gets an error.
    """
    _check(session_ids or (), older_than)
    with here.replica(root) as store:
        chosen = _chosen(store.sessions(), session_ids or (), older_than)
    if dry_run and (chosen or here.as_json):
        _show_plan(here, chosen)
        return
    if not chosen:
        if not here.as_json:
            print_note(f"{_NONE_OLDER}; nothing ended")
        return  # no one is fenced for nothing
    with here.owner_or_asker(root) as opened:
        for item in chosen:
            ended = end_session(opened, item.id)
            document = {"id": item.id, "holder": item.holder, "ended": ended}
            here.show(document, {"ended" if ended else "had ended": f"{item.id}, {item.holder}"})


def _check(session_ids: Sequence[int], older_than: float | None) -> None:
    if bool(session_ids) == (older_than is not None):
        text = "name the sessions by their ids or by --older-than, not both"
        raise InvalidArgument(text, argument="ID")
    for session_id in session_ids:
        check_session_id(session_id)


def _older(sessions: Sequence[OpenSession], older_than: float | None) -> list[OpenSession]:
    """By the clock of a caller that owned the container when they were opened, against ours."""
    if older_than is None:
        return list(sessions)
    latest_ms = runtime.now_ms() - older_than * 1000
    return [item for item in sessions if item.opened_at <= latest_ms]


def _chosen(sessions: Sequence[OpenSession], session_ids: Sequence[int], older_than: float | None) -> list[OpenSession]:
    if older_than is not None:
        return _older(sessions, older_than)
    there = {item.id: item for item in sessions}
    for session_id in session_ids:
        if session_id not in there:
            text = f"no session {session_id} is open here; sessions ls lists the open ones"
            raise NoSuchSession(session_id, text)
    return [there[session_id] for session_id in dict.fromkeys(session_ids)]


def _show_plan(here: access.Reading, chosen: Sequence[OpenSession]) -> None:
    if here.as_json:
        actions = [{"action": "end", "id": item.id, "holder": item.holder} for item in chosen]
        print_json({"actions": actions, "bytes": 0, "requests": 0})
        return
    for item in chosen:
        typer.echo(shown(f"would end  {item.id}, {item.holder}, opened {human_time(item.opened_at)}"))
