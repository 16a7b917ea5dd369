"""After a conditional put without an answer, no refusal says that nothing happened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chunkstore.errors import InvalidArgument, StorageUnavailable
from chunkstore_bindings.s3.options import S3Options
from chunkstore_bindings.s3.storage import S3ChunkStorage
from tests.support.servers.answering import Answering, http

EXPIRED = http("400 Bad Request", b"<Error><Code>ExpiredToken</Code><Message>expired</Message></Error>")
NO_ANSWER = http("500 Internal Server Error", b"<Error><Code>InternalError</Code></Error>")
TAKEN = http("412 Precondition Failed", b"<Error><Code>PreconditionFailed</Code></Error>")


@pytest.fixture
def storage(request: pytest.FixtureRequest, s3_environment: None) -> Iterator[S3ChunkStorage]:
    replies = [*request.param]
    server = Answering(lambda _: replies.pop(0) if len(replies) > 1 else replies[0])  # the last one for ever
    made = S3ChunkStorage(S3Options(bucket="bucket", endpoint_url=server.url, deadline_s=5))
    yield made
    made.close()
    server.close()


@pytest.mark.parametrize(
    "storage", [[NO_ANSWER, EXPIRED], [NO_ANSWER, TAKEN, EXPIRED]], ids=["sent again", "read back"], indirect=True
)
def test_a_token_that_expires_after_a_put_without_answer(storage: S3ChunkStorage) -> None:
    """Before, who could not read back what was taken said ``InvalidArgument``: that it had not happened."""
    with pytest.raises(StorageUnavailable, match="may still land"):
        storage.create_if_absent("a", b"mine")


@pytest.mark.parametrize("storage", [[EXPIRED]], indirect=True)
def test_a_token_that_had_expired_before(storage: S3ChunkStorage) -> None:
    with pytest.raises(InvalidArgument):
        storage.create_if_absent("a", b"mine")
