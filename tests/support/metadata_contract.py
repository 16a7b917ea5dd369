"""The contract of a metadata store and its cache as a test class. A store inherits it and supplies one method::

    class TestMyStore(MetadataStoreContract):
        def make_cache(self, folder, container, address, role): ...   # a MetadataCache; the same folder finds the same stores

What a store holds is compared with ``metadata_history``, which derives everything the slow way."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore import runtime
from chunkstore.errors import ChunkstoreError, Closed, Damaged, InvalidArgument
from chunkstore.metadata.port import GENESIS, Head, MetadataCache, MetadataStore, Position
from tests.support.metadata_basics import EVERYTHING, MetadataBasics, compare
from tests.support.metadata_history import History, World


class MetadataStoreContract(MetadataBasics):
    """Inherit, supply ``make_cache``, and let pytest collect the subclass (named ``Test...``)."""

    # Conditions

    def test_a_new_store_is_empty_at_genesis(self, store: MetadataStore) -> None:
        assert store.head() == Head(GENESIS, 0)
        assert store.get(b"Snothing") is None
        with store.view() as view:
            assert list(view.scan(*EVERYTHING)) == []
            assert view.head == Head(GENESIS, 0)
            assert view.get(b"Snothing") is None
            assert view.locate(1, 0) is None
            assert view.count_chunks(1, 0, 100) == 0

    def test_apply_is_conditional_on_lsn_and_hash(self, store: MetadataStore) -> None:
        history, other = History(), History()
        first, second, third = (history.commit([(b"Sa", b"%d" % number)]) for number in range(3))
        strange = other.commit([(b"Sb", b"x")])
        stranger = other.commit([(b"Sb", b"y")])
        assert not store.apply([second], verify=False)
        assert store.head().position == GENESIS
        assert store.apply([first], verify=False)
        for wrong in ([first], [third], [stranger], [strange], [first, second]):
            assert not store.apply(wrong, verify=True)
            assert store.head().position == first.position
            assert store.get(b"Sb") is None
        assert not store.apply([second._replace(position=third.position)], verify=False)
        assert store.apply([second, third], verify=True)
        assert store.get(b"Sa") == b"2"

    def test_commits_that_do_not_follow_one_another(self, store: MetadataStore) -> None:
        history = History()
        first, _, third = (history.commit([(b"Sa", b"%d" % number)]) for number in range(3))
        with pytest.raises(InvalidArgument):
            store.apply([first, third], verify=False)
        assert store.head().position == GENESIS
        assert store.get(b"Sa") is None

    def test_a_wrong_digest_applies_nothing(self, store: MetadataStore) -> None:
        world = World()
        commits = [world.create(), world.append(1, 10), world.append(1, 5)]
        for broken in range(3):
            wrong = list(commits)
            wrong[broken] = commits[broken]._replace(digest=(commits[broken].digest or 0) ^ 1)
            with pytest.raises(Damaged) as caught:
                store.apply(wrong, verify=True)
            assert caught.value.position == broken + 1
            assert store.head().position == GENESIS
            with store.view() as view:
                assert list(view.scan(*EVERYTHING)) == []
        assert store.apply(commits, verify=True)
        with store.view() as view:
            compare(view, world)

    def test_a_changed_row_is_noticed_by_the_digest(self, store: MetadataStore) -> None:
        history = History()
        first = history.commit([(b"Sa", b"1")])
        second = history.commit([(b"Sa", b"2")])
        assert store.apply([first._replace(rows=((b"Sa", b"changed"),))], verify=False)
        with pytest.raises(Damaged, match="digest"):
            store.apply([second], verify=True)
        assert store.get(b"Sa") == b"changed"

    @pytest.mark.parametrize("verify", [False, True])
    @pytest.mark.parametrize("key", [b"", b"\0head", b"r" + bytes(16), b"x" + bytes(16), b"Qx", b"S" * 512])
    def test_rows_that_cannot_be(self, store: MetadataStore, key: bytes, verify: bool) -> None:
        commit = History().commit([(b"Sgood", b"1"), (key, b"2")])
        with pytest.raises(Damaged):
            store.apply([commit], verify=verify)
        assert store.head().position == GENESIS
        assert store.get(b"Sgood") is None

    @pytest.mark.parametrize(
        "op",
        [
            (2,), (2, 1, 0, 1), (2, -1, 0, 1, ((0, bytes(28)),)), (2, 1, 0, 1, ((0, b"short"),)),
            (2, 1, 0, 1, ((-1, bytes(28)),)), (2, 1, 0, 1, ((1 << 64, bytes(28)),)), (2, 1, 0, 1, 7), (2, 1, 0, 1, (3,)),
            (7, 1), (7, "a", 0, 2), (6, 1, -1), (6, 1, 1 << 70), (5,), (5, None), (15, 1, 5, 5, ((5, bytes(28)),)),
            (15, 1, 0, 5, ()),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("verify", [False, True])
    def test_operations_that_cannot_be(self, store: MetadataStore, op: tuple[object, ...], verify: bool) -> None:
        commit = History().commit([(b"Sgood", b"1")], [op])
        with pytest.raises(Damaged):
            store.apply([commit], verify=verify)
        assert store.head().position == GENESIS
        assert store.get(b"Sgood") is None

    def test_a_row_rewritten_and_deleted_within_one_batch(self, store: MetadataStore) -> None:
        history = History()
        commits = [
            history.commit([(b"Sa", b"1"), (b"Sb", b"1")]),
            history.commit([(b"Sa", None), (b"Sb", b"2"), (b"Sb", b"3")]),
            history.commit([(b"Sa", b"4"), (b"Sb", None), (b"Snever", None)]),
        ]
        assert store.apply(commits, verify=True)
        with store.view() as view:
            assert dict(view.scan(*EVERYTHING)) == {b"Sa": b"4"} == history.rows

    # Head and bulk loads

    def test_jump(self, store: MetadataStore) -> None:
        history = History()
        first = history.commit([(b"Sa", b"1")])
        assert store.apply([first], verify=True)
        later = Position(9, b"h" * 16, 5, 1, 77)
        assert not store.jump(later, history.digest ^ 1)
        assert not store.jump(GENESIS, history.digest)
        assert store.head() == Head(first.position, history.digest)
        assert store.jump(later, history.digest)
        assert store.head() == Head(later, history.digest)
        assert store.get(b"Sa") == b"1"
        history.position = later
        assert store.apply([history.commit([(b"Sa", b"2")])], verify=True)

    def test_loads_out_of_order_are_refused(self, cache: MetadataCache) -> None:
        for pairs in ([(b"Sb", b""), (b"Sa", b"")], [(b"Sa", b"1"), (b"Sa", b"2")], [(b"\0head", b"x"), (b"Sa", b"")]):
            store = cache.create()
            with pytest.raises(Damaged):
                store.load(iter(pairs))
            assert store.head().position == GENESIS
            cache.discard(store)

    def test_load_needs_an_empty_store(self, store: MetadataStore) -> None:
        assert store.apply([History().commit([(b"Sx", b"1")])], verify=True)
        with pytest.raises(ChunkstoreError):
            store.load(iter([(b"Sa", b"1")]))
        assert store.get(b"Sa") is None

    # Life

    def test_free_bytes(self, store: MetadataStore) -> None:
        found = store.free_bytes()
        assert found is None or found > 0

    def test_a_closed_store_says_so(self, cache: MetadataCache) -> None:
        store = cache.create()
        store.close(clean=True)
        store.close(clean=False)
        for call in (
            store.head,
            store.view,
            lambda: store.get(b"S"),
            lambda: store.apply([History().commit([(b"Sa", b"1")])], verify=False),
            lambda: store.jump(GENESIS, 0),
            lambda: store.load(iter([(b"Sa", b"1")])),
            lambda: store.finish_load(Head(GENESIS, 0)),
            store.free_bytes,
        ):
            with pytest.raises(Closed):
                call()

    def test_current_survives_a_clean_close_only(self, cache: MetadataCache, tmp_path: Path) -> None:
        assert cache.open_current() is None
        store = cache.create()
        assert cache.open_current() is None
        commit = History().commit([(b"Sa", b"1")])
        assert store.apply([commit], verify=True)
        cache.make_current(store)
        store.close(clean=True)
        for again, clean in ((cache, True), (self._another(tmp_path), False)):
            found = again.open_current()
            assert found is not None
            assert found.head().position == commit.position
            assert found.get(b"Sa") == b"1"
            found.close(clean=clean)
        assert cache.open_current() is self._another(tmp_path).open_current() is None
        assert cache.seen() == Head(commit.position, commit.digest or 0)

    def test_another_store_can_become_current(self, cache: MetadataCache) -> None:
        first, second = cache.create(), cache.create()
        cache.make_current(first)
        assert second.apply([History().commit([(b"Sa", b"2")])], verify=True)
        cache.make_current(second)
        assert first.head().position == GENESIS  # an open store stays usable
        first.close(clean=True)
        second.close(clean=True)
        found = cache.open_current()
        assert found is not None
        assert found.get(b"Sa") == b"2"
        cache.discard(found)
        assert cache.open_current() is None

    def test_discarding_a_store_that_is_not_current(self, cache: MetadataCache) -> None:
        current, other = cache.create(), cache.create()
        cache.make_current(current)
        cache.discard(other)
        with pytest.raises(Closed):
            other.head()
        again = cache.open_current()
        assert again is not None
        again.close(clean=False)
        current.close(clean=False)

    def _another(self, tmp_path: Path, *, role: str = "owner", address: str | None = None) -> MetadataCache:
        """Another cache object over the same stores."""
        return self.make_cache(tmp_path / "cache", self.container, address or self.address, role)

    def test_what_is_held_is_left_alone(self, cache: MetadataCache, tmp_path: Path) -> None:
        """Two cache objects never write to one store, also not in one process: the second one makes its own."""
        history, first = History(), cache.create()
        commits = [history.commit([(b"Sa", b"%d" % number)]) for number in range(4)]
        assert first.apply(commits[:2], verify=False)
        cache.make_current(first)
        second_cache = self._another(tmp_path)
        assert second_cache.open_current() is None
        second = second_cache.create()
        assert second.apply(commits[:3], verify=True)
        second_cache.make_current(second)
        assert (first.get(b"Sa"), second.get(b"Sa")) == (b"1", b"2")
        first.close(clean=False)
        assert second.apply(commits[3:], verify=True)
        second.close(clean=True)
        for other in (cache, self._another(tmp_path)):
            found = other.open_current()
            assert found is not None
            assert found.get(b"Sa") == b"3", "the one that was made last"
            found.close(clean=True)

    def test_the_end_that_was_seen_outlives_the_rows(self, cache: MetadataCache, tmp_path: Path) -> None:
        history, store = History(), cache.create()
        commits = [history.commit([(b"Sa", b"%d" % number)]) for number in range(4)]
        assert cache.seen() is None
        assert store.apply(commits[:1], verify=False)
        cache.make_current(store)
        with store.view() as view:
            assert cache.seen() == view.head
        assert store.apply(commits[1:], verify=True)
        head = store.head()
        assert self._another(tmp_path).seen() == head, "while somebody holds them"
        assert self._another(tmp_path, address="memory://another").seen() is None
        store.close(clean=True)
        found = cache.open_current()
        assert found is not None
        assert cache.seen() == head
        cache.discard(found)
        assert cache.open_current() is None
        for other in (cache, self._another(tmp_path)):
            assert other.seen() == head
        anew = cache.create()
        assert cache.seen() == head, "not current yet"
        cache.make_current(anew)
        assert cache.seen() == Head(GENESIS, 0), "whoever made it has looked at what was seen"
        anew.close(clean=True)

    def test_an_owner_of_its_store_gets_more_handles_on_it(self, cache: MetadataCache, tmp_path: Path) -> None:
        """A take-over from ourselves begins before the former epoch's handle is closed."""
        history, first = History(), cache.create()
        commits = [history.commit([(b"Sa", b"%d" % number)]) for number in range(3)]
        assert first.apply(commits[:1], verify=False)
        cache.make_current(first)
        view = first.view()
        second = cache.open_current()
        assert second is not None
        assert second.apply(commits[1:2], verify=True)
        assert first.get(b"Sa") == b"1", "one store"
        assert not first.apply(commits[1:2], verify=False)
        assert view.get(b"Sa") == b"0"
        view.close()
        first.close(clean=False)
        assert second.apply(commits[2:], verify=True)
        assert self._another(tmp_path).open_current() is None
        second.close(clean=True)

    def test_a_new_one_takes_the_place_of_all_others(self, cache: MetadataCache, tmp_path: Path) -> None:
        """Who builds one anew found the others to be of no use, however far they are."""
        history, first = History(), cache.create()
        assert first.apply([history.commit([(b"Sa", b"%d" % number)]) for number in range(3)], verify=False)
        cache.make_current(first)
        anew_cache = self._another(tmp_path)
        anew = anew_cache.create()
        assert anew.apply([History().commit([(b"Sa", b"anew")])], verify=False)
        anew_cache.make_current(anew)
        assert first.get(b"Sa") == b"2", "its owner notices nothing"
        first.close(clean=True)
        assert self._another(tmp_path).open_current() is None, "held"
        anew.close(clean=True)
        found = self._another(tmp_path).open_current()
        assert found is not None
        assert found.get(b"Sa") == b"anew"
        found.close(clean=False)

    def test_containers_roles_and_addresses_are_apart(self, cache: MetadataCache, tmp_path: Path) -> None:
        store = cache.create()
        cache.make_current(store)
        strangers = (
            self._another(tmp_path, role="replica"),
            self._another(tmp_path, address="file:///where/the/root/is copy"),
            self.make_cache(tmp_path / "cache", b"z" * 16, self.address, "owner"),
        )
        for held in (True, False):
            for other in strangers:
                assert other.open_current() is None
            if held:
                store.close(clean=True)
        for number, other in enumerate(strangers):
            made = other.create()
            assert made.apply([History().commit([(b"Sa", b"%d" % number)])], verify=True)
            other.make_current(made)
            made.close(clean=True)
        for number, other in enumerate(strangers):
            found = other.open_current()
            assert found is not None
            assert found.get(b"Sa") == b"%d" % number
            found.close(clean=True)
            other.close()
        with pytest.raises(InvalidArgument):
            self._another(tmp_path, role="follower")

    def test_a_closed_cache_says_so(self, cache: MetadataCache) -> None:
        cache.close()
        cache.close()
        with pytest.raises(Closed):
            cache.open_current()
        with pytest.raises(Closed):
            cache.create()

    def test_readers_in_threads_see_whole_commits(self, store: MetadataStore) -> None:
        history = History()
        commits = [history.commit([(b"S%d" % key, b"%d" % number) for key in range(20)]) for number in range(150)]
        assert store.apply(commits[:1], verify=False)
        done = runtime.event()
        problems: list[object] = []

        def read() -> None:
            try:
                while not done.is_set():
                    with store.view() as view:
                        values = {value for _, value in view.scan(*EVERYTHING)}
                        if values != {b"%d" % (view.head.position.lsn - 1)}:
                            problems.append(values)
                    runtime.sleep_s(0.0005)  # readers that never rest would keep the writer from the interpreter's lock
            except BaseException as error:  # noqa: BLE001  (handed to the test)
                problems.append(error)

        tasks = [runtime.spawn(read, f"reader-{number}") for number in range(3)]
        for commit in commits[1:]:
            assert store.apply([commit], verify=False)
        done.set()
        for task in tasks:
            task.join(60)
        assert problems == []
