"""Joining files, and who asks for them, over the model."""

from __future__ import annotations

import logging
import os
import traceback
from pathlib import Path
from typing import Any

import pytest

from chunkstore.errors import (
    ChunkExists,
    ChunkstoreError,
    StorageUnavailable,
)
from chunkstore.storage import ChunkHandle, ChunkRange, Composed, ConcatArgument
from chunkstore_bindings.hdfs import HdfsChunkStorage
from tests.hdfs.model import made, temporaries
from tests.support.fake_webhdfs import FakeWebHdfs

# Joining


def test_concat_in_one_folder_moves_no_bytes_where_it_may_consume(fake: FakeWebHdfs) -> None:
    storage = made(fake, "?concat=consume")
    for name, data in (("f/a", b"aa"), ("f/b", b"bb"), ("f/c", b"cc"), ("g/d", b"dd")):
        storage.create(name, data)
    before = len([item for item in fake.log if item.where == "datanode"])
    assert storage.concat([ConcatArgument("f/a", 2), ConcatArgument("f/b", 2), ConcatArgument("f/c", 2)]) == 6
    assert len([item for item in fake.log if item.where == "datanode"]) == before
    assert fake.files["/root/f/a"].data == b"aabbcc"
    assert not storage.exists("f/b")
    # Elsewhere it copies, and leaves the sources where they are.
    assert storage.concat([ConcatArgument("f/a", 6), ConcatArgument("g/d", 2)]) == 8
    assert fake.files["/root/f/a"].data == b"aabbccdd"
    assert storage.exists("g/d")
    assert temporaries(fake) == []
    storage.close()


# Composing


def test_composing_streams_through_bounded_memory(fake: FakeWebHdfs) -> None:
    """Also where a concat may consume its sources: whatever is whole and in one folder."""
    storage = made(fake, "?concat=consume")
    data = bytes(range(256)) * 80_000
    for name, content in (("f/a", b"start"), ("f/b", data)):
        storage.create(name, content)
    made_of = storage.compose(
        "f/new", [ChunkRange("f/a", 0, 5), ChunkRange("f/b", 0, len(data)), ChunkRange("f/b", 1, 2)]
    )
    assert made_of == Composed(7 + len(data), 7 + len(data))
    assert fake.files["/root/f/new"].data == b"start" + data + data[1:3]
    assert (fake.files["/root/f/a"].data, fake.files["/root/f/b"].data) == (b"start", data)
    assert max(int(item.params["length"]) for item in fake.log if item.op == "OPEN") <= 8 << 20
    assert fake.asked("CONCAT") == 0
    assert temporaries(fake) == []
    storage.close()


def test_a_composed_chunk_whose_rename_has_no_answer_is_recognised(
    fake: FakeWebHdfs, storage: HdfsChunkStorage
) -> None:
    storage.create("f/a", b"aa")
    lost = fake.lose_reply("RENAME")
    assert storage.compose("f/new", [ChunkRange("f/a", 1, 1), ChunkRange("f/a", 0, 2)]).length == 3
    assert lost.fired == 1
    assert fake.files["/root/f/new"].data == b"aaa"
    # Somebody else's, of the same bytes: it is the file's number that tells them apart.
    fake.lose_request("RENAME")
    real = storage._atomic.place

    def place(*arguments: Any, **options: Any) -> bool:
        made(fake).create("f/newer", b"aaa")
        return real(*arguments, **options)

    storage._atomic.place = place  # type: ignore[method-assign]
    with pytest.raises(ChunkExists):
        storage.compose("f/newer", [ChunkRange("f/new", 0, 3)])


# Who asks, and secrets


def test_a_token_is_sent_and_never_shown(fake: FakeWebHdfs, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret, renewed = "HAAEcm9vdARzZXNhbWU", "HAAEcm9vdAhyZW5ld2Vk"
    file = tmp_path / "token"
    file.write_text(secret + "\n")
    caplog.set_level(logging.DEBUG)
    storage = made(fake, f"?token_file={file}")
    storage.create("a", b"x")
    assert {item.params.get("delegation") for item in fake.log} == {secret}
    assert not any("user.name" in item.params for item in fake.log)
    file.write_text(renewed)
    os.utime(file, (2_000_000_000, 2_000_000_000))  # it has changed, however coarse the file system's clock is
    assert storage.exists("a")
    assert fake.log[-1].params["delegation"] == renewed
    texts = [storage.url, repr(storage), caplog.text]
    failing: list[tuple[str, str]] = [("GETFILESTATUS", "namenode"), ("OPEN", "datanode"), ("OPEN", "namenode")]
    for op, where in failing:
        fake.lose_request(op, where=where, times=8)
        with pytest.raises(ChunkstoreError) as caught:
            storage.exists("a") if op == "GETFILESTATUS" else storage.read(ChunkHandle("a", False), 0, 1)
        texts.append("".join(traceback.format_exception(caught.value)))
        error: BaseException | None = caught.value
        while error is not None:
            texts.append(repr(error))
            error = error.__cause__ or error.__context__
        fake.faults.clear()
    fake.refuse("GETFILESTATUS", "InvalidToken", f"token=({secret}) is expired: /webhdfs/v1/a?delegation={renewed}&x=1")
    with pytest.raises(StorageUnavailable) as refused:
        storage.exists("a")
    texts.append("".join(traceback.format_exception(refused.value)))
    fake.close()
    storage.close()
    storage = made(fake, f"?token_file={file}")
    with pytest.raises(StorageUnavailable) as gone:
        storage.exists("a")
    texts.append("".join(traceback.format_exception(gone.value)))
    texts.append(caplog.text)
    for text in texts:
        assert secret not in text.replace(f"token=({secret})", "")
        assert renewed not in text
    assert "delegation=..." in caplog.text
    storage.close()


@pytest.mark.parametrize("content", ["", "two words", "x" * 20_000, "a/b"])
def test_a_token_file_that_holds_something_else(fake: FakeWebHdfs, tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(StorageUnavailable, match="does not hold"):
        made(fake, f"?token_file={file}")
    with pytest.raises(StorageUnavailable, match="cannot be read"):
        made(fake, f"?token_file={tmp_path}/none")
