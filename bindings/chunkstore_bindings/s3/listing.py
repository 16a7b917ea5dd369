"""Listing objects by prefix, page by page, in name order.

Promises: S3 lists keys in the order of their UTF-8 bytes, which is the order of code points that the port asks for; a page
that a server leaves short without being at its end is filled up. Leaves out: unfinished uploads (``multipart.sweep``).
"""

from __future__ import annotations

from typing import Any

from chunkstore.storage import ChunkInfo, ListPage
from chunkstore_bindings.s3.client import S3Client

__all__ = ["list_page"]

_PAGE_KEYS_MAX = 1000


def list_page(client: S3Client, prefix: str, after: str | None, limit: int) -> ListPage:
    """Up to ``limit`` objects whose name begins with ``prefix``, those above ``after`` only. Raises ``Refusal``."""
    options = client.options
    root = f"{options.prefix}/" if options.prefix else ""
    items: list[ChunkInfo] = []
    while True:
        start: dict[str, Any] = {} if after is None else {"StartAfter": root + after}
        page = client.repeat(
            "list_objects_v2", Prefix=root + prefix, MaxKeys=min(_PAGE_KEYS_MAX, limit - len(items)), **start
        )
        for item in page.get("Contents", []):
            modified_ms = int(item["LastModified"].timestamp() * 1000)
            items.append(ChunkInfo(str(item["Key"])[len(root) :], int(item["Size"]), modified_ms))
        if not page.get("IsTruncated") or not page.get("Contents"):
            return ListPage(tuple(items), None)
        # Names, not tokens: some servers lose keys behind their own continuation tokens.
        after = items[-1].name
        if len(items) >= limit:
            return ListPage(tuple(items), after)
