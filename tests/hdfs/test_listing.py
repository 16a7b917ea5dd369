"""Listings of large folders, and of the folders of buckets."""

from __future__ import annotations

from chunkstore.buckets import open_bucket
from tests.hdfs.model import made
from tests.support.fake_webhdfs import FakeWebHdfs


def test_a_page_of_a_large_folder_is_read_from_near_its_start() -> None:
    with FakeWebHdfs(page=10) as fake:
        storage = made(fake)
        fake.make_folders("/root/d/x")
        for number in range(400):
            fake.new_file(f"/root/d/{number:05d}").open = False
        fake.new_file("/root/d/00100;0é").open = False
        seen: list[str] = []
        after: str | None = None
        for pages in range(1, 100):
            page = storage.list("d/", after=after, limit=50)
            seen += [item.name for item in page.items]
            after = page.next_after
            assert fake.asked("LISTSTATUS_BATCH") <= 8 * pages
            if after is None:
                break
        assert seen == [f"d/{number:05d}" for number in range(400)], "what escape never makes is left out"
        assert pages == 8
        storage.close()


def test_a_buckets_keys_are_paths_as_they_are() -> None:
    with FakeWebHdfs(page=3) as fake, open_bucket(fake.root()) as bucket:
        keys = ["a", "a-b", "b/;0", "b/~", "z", "é/x", "\U0001f40d"]
        for key in reversed(keys):
            bucket.put(key, key.encode())
        assert set(fake.files) == {f"/root/{key}" for key in keys}
        assert [item.key for item in bucket.list()] == keys
        assert [item.key for item in bucket.list("b/", after="b/;0")] == ["b/~"]
        assert bucket.read("é/x", 0, 9) == "é/x".encode()
