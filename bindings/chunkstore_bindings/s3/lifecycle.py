"""What the bucket's own rules would do to a container: rules that may expire its keys are refused, by their id (protocol A15).

Promises: a rule counts if it is enabled, expires current objects, and its prefix and the root's overlap in either
direction; rules for tagged objects do not count, because no object here has a tag. A bucket whose rules cannot be seen
(no permission, or a server without them) is not refused; what was seen goes into FORMAT.
Leaves out: rules that are added later, until the next open; rules on old versions and unfinished uploads (harmless);
transitions to archive classes (reads then say so).
"""

from __future__ import annotations

from typing import Any

from chunkstore.errors import Unsupported
from chunkstore_bindings.s3.client import S3Client
from chunkstore_bindings.s3.refusals import Kind, Refusal

__all__ = ["check_lifecycle", "expiring_rule"]


def expiring_rule(rules: list[dict[str, Any]], prefix: str) -> str | None:
    """The id of the first rule that may expire keys below ``prefix`` ("" or ending with a slash); None: no such rule."""
    for rule in rules:
        expiration = rule.get("Expiration", {})
        if rule.get("Status") != "Enabled" or not ("Days" in expiration or "Date" in expiration):
            continue
        condition = rule.get("Filter", {})
        both = condition.get("And", {})
        if "Tag" in condition or both.get("Tags"):
            continue
        ruled = str(condition.get("Prefix") or both.get("Prefix") or rule.get("Prefix") or "")
        if ruled.startswith(prefix) or prefix.startswith(ruled):
            return str(rule.get("ID") or "(a rule without an id)")
    return None


def check_lifecycle(client: S3Client) -> str:
    """What was seen, for FORMAT: "none" or "unseen". Raises ``Unsupported`` naming a rule that may expire keys here, ``Refusal``."""
    options = client.options
    try:
        answer = client.repeat("get_bucket_lifecycle_configuration")
    except Refusal as refusal:
        if refusal.code == "NoSuchLifecycleConfiguration":
            return "none"
        if refusal.code == "NoSuchBucket" or refusal.may_pass:
            raise
        # Only a server's word: what the SDK refuses by itself was never asked.
        if refusal.status and refusal.kind in (Kind.DENIED, Kind.UNSUPPORTED, Kind.NOT_FOUND, Kind.INVALID):
            return "unseen"
        raise
    rule = expiring_rule(answer.get("Rules", []), options.key(""))
    if rule is not None:
        raise Unsupported(
            f"{options.url}: lifecycle rule {rule!r} of bucket {options.bucket!r} may expire objects under this root; an expired "
            "journal object is damage. Disable the rule or take the root out of its prefix; until then, open it read-only",
            feature="lifecycle",
        )
    return "none"
