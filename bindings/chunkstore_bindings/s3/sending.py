"""Objects written whole: put-if-absent with its ambiguities, unconditional puts, and the checksums that go with both.

Promises
* *Put-if-absent* is one PUT with ``If-None-Match: *`` (protocol 2.3). 412: the name is taken; if an attempt of ours had no
  answer, what is there is read back and compared (bytes, and the token of this very call). 409: nothing was decided, ask
  again. No answer: the same, frozen bytes are sent again. A 404 on the way proves nothing and is never believed.

Leaves out: what is too large for one PUT, or worth several connections (``multipart``).
"""

from __future__ import annotations

from typing import Final

from chunkstore.checksum import BytesLike, crc32c
from chunkstore_bindings.s3.checksums import META_TOKEN, Body, new_token, object_headers
from chunkstore_bindings.s3.client import S3Client
from chunkstore_bindings.s3.reading import get_range
from chunkstore_bindings.s3.refusals import Kind, Refusal

__all__ = ["put_if_absent", "put_object"]


_COPY_BYTES_MAX: Final = 1 << 20


def _frozen(data: BytesLike) -> bytes | memoryview:
    """The same bytes for every attempt, whatever the caller's other threads do to a buffer. What is too large to be copied
    is not: there the checksum that the server looks at refuses what has changed."""
    if type(data) is bytes:
        return data
    return memoryview(data).cast("B") if memoryview(data).nbytes > _COPY_BYTES_MAX else bytes(data)


def _body(body: bytes | memoryview) -> bytes | Body:
    return body if isinstance(body, bytes) and len(body) <= _COPY_BYTES_MAX else Body(memoryview(body))


def put_object(client: S3Client, name: str, data: BytesLike) -> None:
    """Write ``name`` unconditionally. Repeated while it may help. Raises ``Refusal``."""
    body = _frozen(data)
    crc = crc32c(body)
    client.repeat(
        "put_object",
        Body=_body(body),
        Key=client.options.key(name),
        **object_headers(client.options, crc, new_token()),
        **client.integrity.headers(memoryview(body), crc),
    )


def put_if_absent(client: S3Client, name: str, data: BytesLike) -> bool:
    """Create ``name`` unless it exists; True if this call did. Raises ``Refusal``: after one that leaves doubt it may exist."""
    body = _frozen(data)
    crc, token = crc32c(body), new_token()
    # Once for all attempts: what a checksum made anew would let through has not the CRC that goes with the object.
    headers = {**object_headers(client.options, crc, token), **client.integrity.headers(memoryview(body), crc)}
    backoff = client.backoff()
    in_doubt = False
    while True:
        try:
            client.send(
                "put_object",
                Key=client.options.key(name),
                Body=_body(body),
                IfNoneMatch="*",
                **headers,
            )
        except Refusal as refusal:
            if refusal.kind is Kind.TAKEN:
                if not in_doubt:
                    return False
                try:
                    return _is_ours(client, name, body, token)
                except Refusal as unread:
                    unread.conclude(in_doubt)
            in_doubt = in_doubt or refusal.is_doubtful
            if not refusal.may_repeat(backoff):
                refusal.conclude(in_doubt)
        else:
            return True


def _is_ours(client: S3Client, name: str, body: bytes | memoryview, token: str) -> bool:
    """Whether the object that holds the name came from this call. Raises ``Refusal`` where that cannot be learned."""
    try:
        found = get_range(client, name, 0, len(body) + 1)
    except Refusal as refusal:
        if refusal.kind is Kind.NOT_FOUND:
            text = "the name was taken and then not readable"
            raise Refusal(Kind.TRANSIENT, text, status=refusal.status) from refusal
        raise
    if found.data != body:
        return False
    # Equal bytes of another client are not ours; a server that keeps no metadata leaves the bytes to decide.
    kept = found.metadata.get(META_TOKEN)
    return kept is None or kept == token
