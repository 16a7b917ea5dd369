"""What else a server does with conditions: recorded in FORMAT when a container is made, required nowhere (protocol A15).

Promises: uses one name below the given prefix and removes it; an unexpected answer, or none, is recorded as such.
Leaves out: put-if-absent itself, on which everything rests (``chunkstore_bindings.probe``).
"""

from __future__ import annotations

import contextlib
from typing import Any

from chunkstore_bindings.s3.checksums import Integrity, new_token
from chunkstore_bindings.s3.client import S3Client
from chunkstore_bindings.s3.refusals import Kind, Refusal

__all__ = ["observe"]


def observe(client: S3Client, integrity: Integrity, name_prefix: str) -> dict[str, str]:
    """``if_match`` ("works", "unquoted", "ignored", "refused ...", "unknown": no answer), ``checksum`` ("crc32c", "md5")."""
    name = f"{name_prefix}observe-{new_token()}"
    key = client.options.key(name)
    found = {"if_match": "unknown"}
    try:
        etag = str(client.repeat("put_object", Key=key, Body=b"1")["ETag"])
        found["if_match"] = _if_match(client, key, etag)
    except Refusal:
        pass  # a container is not refused for the sake of a note
    finally:
        with contextlib.suppress(Refusal):
            client.repeat("delete_object", Key=key)
    found["checksum"] = "crc32c" if integrity.server_keeps_crc else "md5"
    return found


def _if_match(client: S3Client, key: str, etag: str) -> str:
    stale = '"0123456789abcdef0123456789abcdef"'
    if _answer(client, Key=key, Body=b"2", IfMatch=stale) == "":
        return "ignored"
    for form, text in (("works", etag), ("unquoted", etag.strip('"'))):
        if _answer(client, Key=key, Body=b"3", IfMatch=text) == "":
            return form
    return f"refused {_answer(client, Key=key, Body=b'4', IfMatch=etag)}"


def _answer(client: S3Client, **parameters: Any) -> str:
    """Empty for success, else the server's code."""
    try:
        client.send("put_object", **parameters)
    except Refusal as refusal:
        if refusal.kind in (Kind.TRANSIENT, Kind.UNSENT, Kind.THROTTLED):
            raise
        return refusal.code or str(refusal.status)
    return ""
