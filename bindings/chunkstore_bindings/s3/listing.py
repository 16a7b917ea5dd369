"""Listing objects by prefix, page by page, in name order.

Promises: S3 lists keys in the order of their UTF-8 bytes, which is the order of code points that the port asks for; a page
that a server leaves short without being at its end is filled up; names that were not asked for, or come in another order, are no
listing. Leaves out: unfinished uploads (``multipart.sweep``), and, unless asked, keys that the port for chunks cannot name.
"""

from __future__ import annotations

from typing import Any

from chunkstore.deadline import left_s
from chunkstore.errors import InvalidArgument
from chunkstore.records.names import check_object_name
from chunkstore.storage import ChunkInfo, ListPage
from chunkstore_bindings.s3.client import S3Client
from chunkstore_bindings.s3.refusals import nonsense

__all__ = ["list_page"]

_PAGE_KEYS_MAX = 1000


def list_page(client: S3Client, prefix: str, after: str | None, limit: int, *, every: bool = False) -> ListPage:
    """Up to ``limit`` objects whose name begins with ``prefix``, those above ``after`` only; ``every``: also those whose keys cannot be
    chunks'. Raises ``Refusal``."""
    options = client.options
    root, start_of_keys = options.key(""), options.key(prefix)
    items: list[ChunkInfo] = []
    token: str | None = None
    wanted = limit
    while True:
        start: dict[str, Any] = {} if after is None else {"StartAfter": root + after}
        if token is not None:
            start = {"ContinuationToken": token}
        page = client.repeat("list_objects_v2", Prefix=start_of_keys, MaxKeys=min(_PAGE_KEYS_MAX, wanted), **start)
        found = [_info(item, root) for item in page.get("Contents", [])]
        had, taken = len(items), 0
        for item in found:
            if len(items) == limit:
                break
            if not item.name.startswith(prefix) or (after is not None and item.name <= after):
                # A server that ignores the request's parameters would be listed for ever, or names of others with ours.
                raise nonsense("names out of place in a listing")
            if every or _can_be_ours(item.name):
                items.append(item)
            after = item.name
            taken += 1
        if len(items) == limit and (page["IsTruncated"] or taken < len(found)):
            return ListPage(tuple(items), after)
        if not page["IsTruncated"]:
            return ListPage(tuple(items), None)
        # Names, not tokens: some servers lose keys after their own continuation tokens. But a page may have no names, where
        # other things than objects are between the keys.
        before, token = token, None if found else page.get("NextContinuationToken")
        gained = len(items) > had
        if (not found and token in (None, before)) or (not gained and not left_s(1.0)):
            raise nonsense("a listing that continues without a name")
        # Asking for one name does not cost a request for every stray key before it.
        wanted = limit - len(items) if gained or not found else _PAGE_KEYS_MAX


def _can_be_ours(name: str) -> bool:
    try:
        check_object_name(name)
    except InvalidArgument:
        return False
    return True


def _info(item: dict[str, Any], root: str) -> ChunkInfo:
    try:
        key, length, modified = str(item["Key"]), int(item["Size"]), item["LastModified"]
    except KeyError as missing:
        raise nonsense(f"a listing without {missing}") from missing
    if not key.startswith(root) or length < 0:
        raise nonsense("names or sizes in a listing that cannot be")
    return ChunkInfo(key[len(root) :], length, int(modified.timestamp() * 1000))
