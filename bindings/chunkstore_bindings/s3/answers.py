"""Telling an answer of S3 from what a portal, a proxy or another service says with a friendly status.

Promises: a document counts only if its root is the one that the operation has, an answer only if it says what S3 never
leaves out; everything else raises ``ResponseParserError``, as the SDK does for what it cannot parse.
Leaves out: whether what is said is true.
"""

from __future__ import annotations

import re
from typing import Any, Final

from botocore.parsers import ResponseParserError

__all__ = ["check_answer", "check_document"]

_ROOTS: Final = {
    "ListObjectsV2": b"ListBucketResult",
    "ListMultipartUploads": b"ListMultipartUploadsResult",
    "GetBucketLifecycleConfiguration": b"LifecycleConfiguration",
}
"""The SDK reads any document as the one that it expects: what is not there is left out, and a page is an empty listing.
(Parts are compared with what was sent, and moto calls their list by another name.)"""
_ROOT: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?.*?\?>\s*|<!--.*?-->\s*)*<(?:[\w.-]+:)?(\w+)", re.DOTALL)
_ROOT_WITHIN_BYTES: Final = 4096

_LENGTH: Final = re.compile(r"\d{1,19}\Z")

_ALWAYS_THERE: Final = {
    "put_object": ("ETag",),
    "upload_part": ("ETag",),
    "upload_part_copy": ("CopyPartResult",),
    "get_object": ("ETag", "ContentLength"),
    "head_object": ("LastModified", "ContentLength"),
    "create_multipart_upload": ("UploadId",),
    "complete_multipart_upload": ("ETag",),
    "list_objects_v2": ("IsTruncated",),
    "list_multipart_uploads": ("IsTruncated",),
    "list_parts": ("IsTruncated",),
}
"""What S3 never leaves out. Something else that says 200, a portal that wants a login, has stored nothing and lists nothing."""


def check_document(operation_model: Any, response_dict: dict[str, Any], **_: object) -> None:
    """For the SDK's event ``before-parse``. Raises ``ResponseParserError``."""
    if response_dict["status_code"] >= 300:
        return
    if operation_model.name == "GetObject":
        # Where the SDK fails on a header, nothing else can reach the body and its connection to close them.
        headers = response_dict["headers"]
        headers.pop("Last-Modified", None)
        if _LENGTH.match(headers.get("Content-Length", "")) is None:
            headers.pop("Content-Length", None)
    expected = _ROOTS.get(operation_model.name)
    if expected is None:
        return
    found = _ROOT.match(response_dict["body"][:_ROOT_WITHIN_BYTES])
    if found is None or found[1] != expected:
        raise ResponseParserError(f"no {expected.decode()}")


def check_answer(operation: str, answer: dict[str, Any]) -> None:
    """Raises ``ResponseParserError``; then the body, if it has one, is closed."""
    missing = [name for name in _ALWAYS_THERE.get(operation, ()) if name not in answer]
    if missing or answer.get("ContentLength", 0) < 0:
        if "Body" in answer:
            answer["Body"].close()
        raise ResponseParserError(f"without {', '.join(missing)}" if missing else "with a negative length")
