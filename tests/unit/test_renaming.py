"""Names of what is imported, against a plain model: every segment gets one name that it may have, or the plan is refused."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.backup.merging import merge_id
from chunkstore.backup.renaming import NamePlan, plan_names
from chunkstore.errors import InvalidArgument, SegmentNotFound
from chunkstore.metadata.importing import Origin, hidden_name

LETTERS = "ab/"
names = st.text(LETTERS, min_size=1, max_size=3)
choices = st.builds(lambda name, star: name + "*" * star, names, st.booleans())


def model(there: set[str], chosen: list[str], rename: dict[str, str], prefix: str) -> dict[str, str] | None:
    """Old names and new ones; None: refused."""
    picked = set[str]()
    for item in chosen or ["*"]:
        found = {name for name in there if (name.startswith(item[:-1]) if item[-1] == "*" else name == item)}
        if not found and chosen:
            return None
        picked |= found
    if not set(rename) <= picked:
        return None
    mapped = {name: rename.get(name, prefix + name) for name in picked}
    return mapped if len(set(mapped.values())) == len(mapped) else None


@given(
    st.sets(names, max_size=8),
    st.lists(choices, max_size=3),
    st.dictionaries(names, names, max_size=3),
    st.text(LETTERS, max_size=2),
)
def test_the_plan_is_the_models(there: set[str], chosen: list[str], rename: dict[str, str], prefix: str) -> None:
    expected = model(there, chosen, rename, prefix)
    found: dict[str, str] | None
    try:
        plan = plan_names(chosen, rename, prefix)
        plan.check(iter(sorted(there)), there.__contains__)
        found = {name: plan.target(name) for name in there if plan.takes(name)}
    except (InvalidArgument, SegmentNotFound):
        found = None
    assert found == expected


@given(
    st.tuples(st.lists(choices, max_size=2), st.dictionaries(names, names, max_size=2), st.text(LETTERS, max_size=2)),
    st.tuples(st.lists(choices, max_size=2), st.dictionaries(names, names, max_size=2), st.text(LETTERS, max_size=2)),
)
def test_digests_tell_plans_apart(
    one: tuple[list[str], dict[str, str], str], other: tuple[list[str], dict[str, str], str]
) -> None:
    digests = [NamePlan(tuple(sorted(set(item[0]))), item[1], item[2]).digest() for item in (one, other)]
    same = (sorted(set(one[0])), one[1], one[2]) == (sorted(set(other[0])), other[1], other[2])
    assert (digests[0] == digests[1]) == same
    assert (digests[0] == b"") == (one == ([], {}, ""))


def test_names_that_a_segment_cannot_have_are_refused() -> None:
    for bad in ({"a": ""}, {"a": "x" * 256}, {"a": "\0"}, {"": "a"}, {"a": "c", "b": "c"}):
        with pytest.raises(InvalidArgument):
            plan_names(rename=bad)
    for prefix in ("\0", "x" * 255, "\ud800"):
        with pytest.raises(InvalidArgument):
            plan_names(prefix=prefix)
    with pytest.raises(InvalidArgument):
        plan_names(prefix="x" * 254).check(iter(["ab"]), {"ab"}.__contains__)


def test_bytes_by_which_an_import_is_known_again() -> None:
    """What FORMAT.md of the metadata says of merges: a program of another version goes on with them."""
    plan = plan_names(["b", "a*"], {"b": "c"}, "p/")
    assert plan.digest() == blake2b(b"a*\0b\0\0b\0c\0\0p/\0", digest_size=16).digest()
    assert plan.digest().hex() == "a8bfd61acff0261395e7dba979d4d360"
    identity = merge_id(Origin(b"u" * 16, 1 << 40, b"h" * 16))
    assert identity.hex() == "ee5ed79494ddd6e7ad9751ba0841f11e"
    assert hidden_name(identity, "a") == f"\0import/{identity.hex()}/{blake2b(b'a', digest_size=16).hexdigest()}"
