"""After a conditional put without an answer, no refusal says that nothing happened."""

from __future__ import annotations

import pytest

from chunkstore.errors import InvalidArgument, StorageUnavailable
from chunkstore_bindings.s3.storage import S3ChunkStorage
from tests.s3.conftest import Serve
from tests.support.servers.answering import http

MISTAKEN = http("400 Bad Request", b"<Error><Code>InvalidRequest</Code><Message>mistaken</Message></Error>")
EXPIRED = http("400 Bad Request", b"<Error><Code>ExpiredToken</Code><Message>expired</Message></Error>")
NO_ANSWER = http("500 Internal Server Error", b"<Error><Code>InternalError</Code></Error>")
TAKEN = http("412 Precondition Failed", b"<Error><Code>PreconditionFailed</Code></Error>")


@pytest.fixture
def storage(request: pytest.FixtureRequest, serve: Serve) -> S3ChunkStorage:
    replies = [*request.param]
    # The last one for ever.
    return serve(lambda _: replies.pop(0) if len(replies) > 1 else replies[0], tries_max=4)


@pytest.mark.parametrize(
    "storage",
    [[NO_ANSWER, *before, refusal] for refusal in (EXPIRED, MISTAKEN) for before in ([], [TAKEN])],
    ids=["expired-sent again", "expired-read back", "mistaken-sent again", "mistaken-read back"],
    indirect=True,
)
def test_a_refusal_after_a_put_without_answer(storage: S3ChunkStorage) -> None:
    """Before, who could not read back what was taken said ``InvalidArgument``: that it had not happened."""
    with pytest.raises(StorageUnavailable, match="may still land"):
        storage.create_if_absent("a", b"mine")


@pytest.mark.parametrize("storage", [[MISTAKEN]], indirect=True)
def test_a_refusal_before_anything_happened(storage: S3ChunkStorage) -> None:
    with pytest.raises(InvalidArgument):
        storage.create_if_absent("a", b"mine")


@pytest.mark.parametrize("storage", [[EXPIRED]], indirect=True)
def test_a_token_that_had_expired_before(storage: S3ChunkStorage) -> None:
    """The arguments are right: a fresh token makes the same call succeed."""
    with pytest.raises(StorageUnavailable, match=r"ExpiredToken.*check credentials") as caught:
        storage.create_if_absent("a", b"mine")
    assert "may still land" not in str(caught.value)
