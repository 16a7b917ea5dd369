"""Clients' verbs that take in what other containers hold, or what the own one held, and go on with what others have begun.

Promises: each import is an event of the history, which says what its source held; what an import is refused for is none of its business.
Leaves out: making containers of others' states (``keepers``), judging (``tests.judges.imports``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from random import Random
from typing import Any, Final

from chunkstore.assembly import open_store_on
from chunkstore.backup.adopting import adopt
from chunkstore.backup.imports import drop_import, merge_file
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunkNotFound,
    ChunksMissing,
    ChunkstoreError,
    Conflict,
    Damaged,
    InvalidArgument,
    PastCollected,
    SegmentExists,
    SegmentNotFound,
)
from chunkstore.following import open_replica
from chunkstore.replica import Replica
from tests.judges.imports import ImportAsk, Plan, Shown, content_of, merge_id
from tests.judges.kept_states import shown_state
from tests.judges.segment_model import Segment
from tests.simulator.drawing import Plan as RunPlan
from tests.simulator.keeping import BACKUPS, Keeping, Merge, Observation, Target, fresh_cache
from tests.simulator.world import World

__all__ = ["ImportVerbs", "draw_names"]

_MERGES_MAX: Final = 2
_BACK: Final = 15
_GONE: Final = (PastCollected, ChunksMissing, ChunkNotFound)
"""What nothing pins may be gone."""
_ARGUMENTS: Final = ("rename", "lsn", "at_lsn")
"""Names that are taken; a moment before the pin; a backup that was given up."""


class _Refused(ChunkstoreError):
    """An import that has not happened, for a reason that the world may have."""


class ImportVerbs:
    """Of ``Client``, which sets what is declared here."""

    _world: World
    _plan: RunPlan
    _random: Random
    _keeping: Keeping | None
    _writers: list[Any]
    _judged: Callable[[str], AbstractContextManager[None]]

    def tag(self) -> bytes:
        """Bytes that nobody else appends."""
        raise NotImplementedError

    def _call(self, store: ChunkedSegmentStorage, kind: str, segment: str, args: tuple[Any, ...], call: Any) -> Any:
        raise NotImplementedError

    def do_import(self, store: ChunkedSegmentStorage) -> None:
        """Something comes, whole or not at all; or what has begun to come goes again."""
        keeping, random = self._keeping, self._random
        assert keeping is not None
        if keeping.merges and (random.random() < 0.6 or len(keeping.merges) >= _MERGES_MAX):
            merge: Merge | None = random.choice(keeping.merges)
            if random.random() < 0.15:
                self._drop(store, merge)  # type: ignore[arg-type]
                return
        else:
            merge = None
            with suppress(*_GONE):
                merge = self._begin(store)
        if merge is not None:
            self._merge(store, merge)

    def do_event_again(self, store: ChunkedSegmentStorage) -> None:
        """To a segment that came: a number that is known there is, whoever sends it."""
        keeping, random = self._keeping, self._random
        if keeping is not None and keeping.imported:
            writer, segment, data = random.choice(self._writers), random.choice(keeping.imported), self.tag()
            number = random.randrange(1, writer.number + 1)
            append = partial(store.append, segment, data, writer_id=writer.name, event_number=number)
            self._call(store, "append", segment, (data, None, writer.name, number), append)

    def _url(self, folder: str) -> str:
        return f"{self._world.present().root_url}/{folder}"

    def _begin(self, store: ChunkedSegmentStorage) -> Merge | None:
        """Choose what shall come, and look what it is. None: there is nothing."""
        keeping, random = self._keeping, self._random
        assert keeping is not None
        target, folder, lsn = None, "", None
        whole = [target for target in keeping.targets if target.whole]
        if whole and random.random() < 0.7:
            served = [target for target in whole if target.is_served]
            target = random.choice(served or whole)
            folder = target.folder
        elif keeping.root.counting and random.random() < 0.4:
            folder, lsn = BACKUPS, random.choice(sorted(keeping.root.counting.values(), key=lambda item: item[0]))[0]
        else:
            lsn = store.look(lambda view: view.head.position.lsn) - random.randrange(_BACK)
            if lsn < 1:
                return None
        adopts = target is not None and target.is_served and random.random() < 0.7
        return self._begin_of(store, target, folder, lsn, adopts=adopts)

    def adopt_all(self, store: ChunkedSegmentStorage, target: Target) -> None:
        """Adopt what another container holds, in a calm world."""
        merge = self._begin_of(store, target, target.folder, None, adopts=True, owns=True, plan=Plan((), (), "s-"))
        assert merge is not None
        self._merge(store, merge)

    def _begin_of(
        self,
        store: ChunkedSegmentStorage,
        target: Target | None,
        folder: str,
        lsn: int | None,
        *,
        adopts: bool,
        owns: bool = False,
        plan: Plan | None = None,
    ) -> Merge | None:
        """``owns``: take the other container over, to pin it."""
        keeping, random = self._keeping, self._random
        assert keeping is not None
        owns = owns or random.random() < 0.7
        with (
            self._judged("looking at what shall come"),
            self._opened(store, folder, lsn, adopts=adopts, owns=owns) as view,
        ):
            names = [info.name for info in view.segments()]
            if not names:
                return None
            plan = plan or draw_names(random, names, f"s{len(keeping.merges) + len(keeping.merged)}-", usual=True)
            position = view.look(lambda found: found.head).position
            source = None if target is None else self._shown(view, target)
            identity = merge_id(view.uuid, position.lsn, position.hash, plan)
            merge = Merge(ImportAsk(identity, position.lsn, position.hash, plan, source, adopts), folder)
        keeping.merges.append(merge)
        return merge

    def _opened(
        self, store: ChunkedSegmentStorage, folder: str, lsn: int | None, *, adopts: bool, owns: bool
    ) -> AbstractContextManager[Replica]:
        url, container = self._url(folder), self._world.container
        try:
            if adopts and not owns:
                return adopt(store, url, container=container).source
            if adopts:
                # Whoever adopts may take the other one over, too.
                there = self._world.present().at(folder)
                with open_store_on(
                    there,
                    container=container,
                    create=False,
                    settings=self._world.settings,
                    cache=fresh_cache(there, "owner"),
                ) as pins:
                    return adopt(store, url, container=container, pins=pins).source
            if lsn is None:
                with open_replica(url, container=container, settings=self._world.settings) as present:
                    lsn = present.lsn
            return open_replica(url, container=container, settings=self._world.settings, at_lsn=lsn)
        except InvalidArgument as error:
            raise _refusal(error) from error

    def _shown(self, view: Replica, target: Target) -> Shown:
        """What another container holds: it is looked at as a whole, and compared at the end with what it was made of."""
        assert self._keeping is not None
        writers = tuple(writer.name for writer in self._writers)
        shown = shown_state(view, f"the source {target.folder}", writers)
        made_of = shown._replace(lsn=target.lsn, hash=b"")
        self._keeping.shown.append(
            Observation(made_of, versions=False, plan=target.plan, cut=True, founded=target.founded)
        )
        segments = {
            name: Segment(
                0,
                content_of(item.start, item.data or b""),
                item.start,
                item.sealed,
                tuple((writer, *event) for writer, event in item.events.items()),
            )
            for name, item in shown.segments.items()
        }
        return Shown(segments, {key: row[0] for key, row in shown.rows.items()})

    def _merge(self, store: ChunkedSegmentStorage, merge: Merge) -> None:
        keeping, ask = self._keeping, merge.ask
        assert keeping is not None

        before = set(keeping.root.counting)

        def call() -> None:
            try:
                merge_file(
                    store,
                    self._url(merge.folder),
                    ask.plan.names,
                    rename=dict(ask.plan.renames),
                    prefix=ask.plan.prefix,
                    source_container=self._world.container,
                    lsn=ask.lsn,
                    settings=self._world.settings,
                    adopt=ask.adopts,
                )
            except (InvalidArgument, SegmentExists, SegmentNotFound, Conflict) as error:
                raise _refusal(error) from error
            except Damaged as error:
                # A backup that is given up under its reader may be told of in any way.
                if merge.folder != BACKUPS or before <= keeping.root.counting.keys():
                    raise
                raise _Refused(error.message) from error

        self._call(store, "import", "", (ask,), call)
        if merge in keeping.merges:
            keeping.merges.remove(merge)
        keeping.merged.append(merge)
        names = ask.source.segments if ask.source is not None else ask.plan.names
        keeping.imported += [ask.plan.target(name) for name in names if ask.plan.takes(name)][:4]

    def _drop(self, store: ChunkedSegmentStorage, merge: Merge) -> None:
        """It is given up; perhaps somebody goes on with it just now, or has ended it."""
        keeping = self._keeping
        assert keeping is not None
        with self._judged("dropping an import"), suppress(Conflict):
            try:
                drop_import(store, merge.ask.identity.hex())
            except InvalidArgument as error:
                if error.argument != "identity":
                    raise
        if merge in keeping.merges:
            keeping.merges.remove(merge)


def _refusal(error: ChunkstoreError) -> ChunkstoreError:
    """What an import may be refused for, as what says nothing about the state; else the error itself."""
    allowed = not isinstance(error, InvalidArgument) or error.argument in _ARGUMENTS
    return _Refused(error.message) if allowed else error


def draw_names(random: Random, names: list[str], prefix: str, *, usual: bool) -> Plan:
    """Some segments, or all, under other names. ``usual``: perhaps under names that clients know, if they are free."""
    dice = random.random()
    if dice < 0.35:
        return Plan((), (), prefix)
    first = random.choice(names)
    if dice < 0.6:
        return Plan((first,), (), prefix)
    if dice < 0.8:
        return Plan(tuple(sorted({first, random.choice(names)})), ((first, f"{prefix}first"),), prefix)
    if usual and dice < 0.9:
        return Plan((first,), ((first, f"s{random.randrange(8)}"),), "")
    return Plan((f"{first[:2]}*",), (), prefix)
