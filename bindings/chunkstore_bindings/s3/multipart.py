"""Large chunks in parts: several connections for one object, and no traces when it fails.

Promises
* Parts are slices of the caller's buffer, sent without a copy; at most ``concurrency`` are under way. Each part is
  checksummed, and repeated by itself when it fails.
* An object appears whole or not at all, when its upload is completed. A completion whose answer is lost is asked again,
  and recognised by the token in the object's metadata.
* What fails is aborted. What could not be aborted is *stale*: ``sweep`` aborts unfinished uploads that are old by the
  server's own clock.

Exclusive as far as the server goes: completion carries ``If-None-Match: *``, which servers of before 2025 ignore; the name is
looked up beforehand in any case, and the engine never uses a name twice. Leaves out: conditions for the journal (its
objects are single PUTs).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from chunkstore import runtime
from chunkstore.checksum import BytesLike, crc32c, crc32c_extend
from chunkstore_bindings.s3.checksums import META_TOKEN, Body, crc_text, new_token, object_headers
from chunkstore_bindings.s3.client import S3Client
from chunkstore_bindings.s3.options import PARTS_MAX
from chunkstore_bindings.s3.reading import exists, head
from chunkstore_bindings.s3.refusals import Kind, Refusal, nonsense

__all__ = [
    "Upload",
    "aborted_on_failure",
    "begin",
    "complete",
    "in_parts",
    "send_part",
    "sweep",
    "unfinished",
    "upload",
]

_ABORT_TRIES: Final = 3
_SWEPT_MAX: Final = 100_000


class Upload(NamedTuple):
    """An upload under way. ``exclusive``: completing it must not replace anything."""

    name: str
    id: str
    token: str
    exclusive: bool


class Unfinished(NamedTuple):
    """An upload of a listing: its key, when it began (ms since 1970), and its age by the server's clock."""

    key: str
    id: str
    started_ms: int
    age_s: float


Send: TypeAlias = Callable[[Upload, int], dict[str, Any]]


def upload(client: S3Client, name: str, data: BytesLike, pool: runtime.Pool) -> None:
    """Write ``name`` in parts. Raises ``Refusal`` (``TAKEN``: the name exists); then nothing of it is left, or it is stale."""
    with memoryview(data) as whole, whole.cast("B") as view:
        size = max(client.options.part_size_bytes, -(-len(view) // PARTS_MAX))
        slices = [view[start : start + size] for start in range(0, len(view), size)]
        try:
            # The whole CRC is needed first: an object's metadata is fixed when its upload begins.
            whole_crc = crc32c_extend(0, view)
            sends = [partial(send_part, client, view=part) for part in slices]
            in_parts(client, name, whole_crc, sends, len(view), pool, exclusive=True)
        finally:
            for part in slices:
                part.release()


def in_parts(
    client: S3Client,
    name: str,
    crc: int | None,
    sends: Sequence[Send],
    length: int,
    pool: runtime.Pool,
    *,
    exclusive: bool,
    check: Callable[[Upload], None] | None = None,
) -> None:
    """Write ``name``, of ``length`` bytes with this CRC if it is known, in parts that ``sends`` make: each is given the upload and
    its part's number, and returns what completion has to say. ``check`` is called before the object appears.

    Raises ``Refusal`` (``TAKEN``: the name exists), and what the calls raise; then nothing of it is left, or it is stale.
    """
    if exclusive and exists(client, name):
        # Servers before 2025 do not look when an upload is completed.
        raise Refusal(Kind.TAKEN, "the name exists", status=412)
    token = new_token()
    under_way = begin(client, name, token, object_headers(client.options, crc, token), exclusive=exclusive)
    with aborted_on_failure(client, under_way):
        failures: list[BaseException] = []
        calls = [partial(_unless_failed, failures, send, under_way, number) for number, send in enumerate(sends, 1)]
        try:
            parts = pool.run_all(calls)
        finally:
            # Or an error would hold itself, and with it the caller's buffer, until some collection.
            failures.clear()
        if check is not None:
            check(under_way)
        complete(client, under_way, parts, length)


def _unless_failed(failures: list[BaseException], send: Send, upload: Upload, number: int) -> dict[str, Any]:
    """One part's work, not begun any more when another part has failed; then what that one met is raised."""
    if failures:
        raise failures[0]
    try:
        return send(upload, number)
    except BaseException as error:
        failures.append(error)
        raise


def begin(client: S3Client, name: str, token: str, headers: dict[str, Any], *, exclusive: bool) -> Upload:
    """Begin an upload whose object has these ``headers``, ``token`` in its metadata among them. Raises ``Refusal``."""
    if client.integrity.server_keeps_crc is not False:
        headers = {**headers, "ChecksumAlgorithm": "CRC32C"}
    answer = client.repeat("create_multipart_upload", Key=client.options.key(name), **headers)
    return Upload(name, str(answer["UploadId"]), token, exclusive)


def send_part(client: S3Client, upload: Upload, number: int, view: memoryview) -> dict[str, Any]:
    """Send one part, several times if need be; what completion has to say about it. Raises ``Refusal``."""
    # A CRC costs a pass over the bytes: only for servers that look at it.
    crc = None if client.integrity.server_keeps_crc is False else crc32c(view)
    checks = client.integrity.headers(view, crc)
    answer = client.repeat(
        "upload_part",
        Body=Body(view),
        Key=client.options.key(upload.name),
        UploadId=upload.id,
        PartNumber=number,
        **checks,
    )
    part = {"PartNumber": number, "ETag": answer["ETag"]}
    if crc is not None and "ChecksumCRC32C" in answer:
        part["ChecksumCRC32C"] = crc_text(crc)
    return part


@contextlib.contextmanager
def aborted_on_failure(client: S3Client, upload: Upload) -> Iterator[None]:
    """Abort the upload if the block fails. A failing abort changes nothing about the error; ``sweep`` finds the rest."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Refusal):
            client.repeat(
                "abort_multipart_upload",
                backoff=client.backoff(_ABORT_TRIES),
                Key=client.options.key(upload.name),
                UploadId=upload.id,
            )
        raise


def complete(client: S3Client, upload: Upload, parts: Sequence[dict[str, Any]], length: int) -> None:
    """Let the object appear. Raises ``Refusal``; ``TAKEN`` when the name exists and the upload is exclusive."""
    backoff = client.backoff()
    condition: dict[str, Any] = {"IfNoneMatch": "*"} if upload.exclusive else {}
    in_doubt = False
    while True:
        try:
            client.send(
                "complete_multipart_upload",
                Key=client.options.key(upload.name),
                UploadId=upload.id,
                MultipartUpload={"Parts": list(parts)},
                **condition,
            )
        except Refusal as refusal:
            if refusal.kind in (Kind.TAKEN, Kind.NO_UPLOAD, Kind.NOT_FOUND):
                try:
                    if in_doubt and _landed(client, upload, length):
                        return
                except Refusal as unseen:
                    unseen.conclude(in_doubt)
                if in_doubt and refusal.kind is Kind.NOT_FOUND:
                    # Not "no such upload", which would be the end of it: the completion before may still be under way.
                    refusal.conclude(in_doubt)
                raise
            in_doubt = in_doubt or refusal.is_doubtful
            if not refusal.may_repeat(backoff):
                refusal.conclude(in_doubt)
        else:
            return


def _landed(client: S3Client, upload: Upload, length: int) -> bool:
    """Whether the object under the name is this upload's: a completion whose answer was lost."""
    try:
        found = head(client, upload.name)
    except Refusal as refusal:
        if refusal.kind is Kind.NOT_FOUND:
            return False
        raise
    return found.metadata.get(META_TOKEN) == upload.token and found.length == length


def unfinished(client: S3Client, prefix: str = "") -> Iterator[Unfinished]:
    """The unfinished uploads of names that begin with ``prefix``. Raises ``Refusal``."""
    prefix = client.options.key(prefix)
    marker: dict[str, Any] = {}
    while True:
        page = client.repeat("list_multipart_uploads", Prefix=prefix, **marker)
        now_s = _server_time_s(page)
        before = marker
        try:
            for item in page.get("Uploads", ()):
                begun_s = item["Initiated"].timestamp()
                if item["Key"].startswith(prefix):
                    yield Unfinished(item["Key"], item["UploadId"], int(begun_s * 1000), now_s - begun_s)
            if not page["IsTruncated"]:
                return
            marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
        except KeyError as missing:
            raise nonsense(f"a list of uploads without {missing}") from missing
        if marker == before:
            raise nonsense("a list of uploads that does not continue")


def sweep(client: S3Client, older_than_s: float) -> int:
    """Abort unfinished uploads under the root that began more than ``older_than_s`` ago, by the server's clock.

    Returns how many. Raises ``Refusal``. Retry: safe. A foreign upload that is still under way and older than that fails.
    """
    aborted = 0
    for upload in islice(unfinished(client), _SWEPT_MAX):
        if upload.age_s >= older_than_s:
            with contextlib.suppress(Refusal):
                client.repeat("abort_multipart_upload", Key=upload.key, UploadId=upload.id)
                aborted += 1
    return aborted


def _server_time_s(answer: dict[str, Any]) -> float:
    """The server's clock, from its answer: ages are differences of one clock."""
    text = answer["ResponseMetadata"].get("HTTPHeaders", {}).get("date")
    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return runtime.now_ms() / 1000
