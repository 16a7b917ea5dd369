"""One exact append: how many Python calls and files it takes."""

from __future__ import annotations

from tests.support.profile_append import operations_entered, profile_append

CALLS_MAX = 98
FILES_MAX = 8


def test_an_append_enters_few_functions_and_files() -> None:
    calls = profile_append()
    assert len(calls) <= CALLS_MAX, "\n".join(calls)
    assert len(operations_entered(calls)) <= FILES_MAX, operations_entered(calls)
