"""Wrong commands, wrong arguments, missing things: the exit code and one clear line, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Call

ROOTLESS = [
    (),
    ("nonsense",),
    ("ls",),
    ("cat", "file:///nowhere"),
    ("ls", "file:///nowhere", "--nonsense"),
    ("truncate", "file:///nowhere", "a", "ten"),
]


@pytest.mark.parametrize("arguments", ROOTLESS, ids=" ".join)
def test_misuse_exits_2_and_says_so(call: Call, arguments: tuple[str, ...]) -> None:
    result = call(*arguments, code=2)
    assert result.out == b""
    assert result.err
    assert b"Traceback" not in result.err
    if arguments:
        result = call(*arguments, "--json", code=2)
        assert result.out == b""
        assert result.error["error"] == "InvalidArgument"
        assert result.error["message"]


@pytest.mark.parametrize("bad_root", ["", "file://host/path", "file:relative", "ftp://x/y", "memory://", "s3://b?x=y"])
def test_a_bad_root_is_misuse(call: Call, bad_root: str) -> None:
    assert call("ls", bad_root, "--json", code=2).error["error"] == "InvalidArgument"


@pytest.mark.parametrize(
    "arguments",
    [
        ("put", "memory://x", "a", __file__),
        ("seal", "memory://x", "a"),
        ("gc", "memory://x"),
        ("serve", "memory://x"),
        ("backup", "{root}", "memory://x"),
        ("restore", "{root}", "memory://x"),
        ("import", "memory://x", "{root}"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_change_that_would_end_with_the_command_is_refused(call: Call, root: str, arguments: tuple[str, ...]) -> None:
    call("put", root, "a", __file__)
    error = call(*(item.format(root=root) for item in arguments), "--json", code=2).error
    assert error["error"] == "InvalidArgument" and "nothing would be stored" in error["message"]


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        (("ls", "x"), b"no segment begins with 'x'"),
        (("pins", "ls"), b"nothing is pinned"),
        (("retention", "ls"), b"no policies"),
        (("retention", "set", "x*", "--age-s-max", "9"), b"no segment 'x*' exists yet"),
        (("sessions", "ls"), b"no session is open"),
        (("sessions", "end", "--older-than", "9"), b"nothing ended"),
        (("ledger", "ls"), b"no ledgers"),
    ],
    ids=lambda item: " ".join(item) if isinstance(item, tuple) else "",
)
def test_a_choice_of_nothing_is_noted(call: Call, root: str, arguments: tuple[str, ...], note: bytes) -> None:
    call("put", root, "a", __file__)
    verb = arguments[:1] if arguments[0] == "ls" else arguments[:2]
    assert note in call(*verb, root, *arguments[len(verb) :]).err
    assert call("ls", root).err == b"", "where there is something, nothing is noted"


@pytest.mark.parametrize("container", ["default", "none"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("ls",),
        ("stat", "a"),
        ("layout", "a"),
        ("cat", "a"),
        ("check",),
        ("journal",),
        ("owner",),
        ("seal", "a"),
        ("unseal", "a"),
        ("rm", "a"),
        ("rm", "a", "--dry-run"),
        ("truncate", "a", "1"),
        ("concat", "a", "b"),
        ("snapshot",),
        ("gc",),
        ("gc", "--dry-run"),
    ],
    ids=" ".join,
)
def test_only_put_creates_a_container(
    call: Call, root: str, tmp_path: Path, arguments: tuple[str, ...], container: str
) -> None:
    """The others tell what can be done here."""
    verb, *rest = arguments
    error = call(verb, root, *rest, "--container", container, "--json", code=1).error
    assert error["error"] == "ContainerNotFound"
    assert error["fields"]["container"] == container
    message = str(error["message"])
    assert "the folder is missing" in message and "chunkstore put" in message
    assert "create=True" not in message
    assert not (tmp_path / "store" / container).exists()


def test_what_is_not_there(call: Call, root: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    call("put", root, "a", tmp_path / "file")
    for verb in ("stat", "layout", "cat"):
        assert call(verb, root, "b", "--json", code=1).error == {
            "error": "SegmentNotFound",
            "message": "segment 'b' does not exist (or the handle's segment was deleted)",
            "fields": {"segment": "b"},
        }
    assert call("cat", root, "a", "--offset", "6", "--json", code=1).error["fields"] == {
        "segment": "a",
        "expected": 5,
        "given": 6,
    }
    assert call("ls", root, "--container", "c", "--json", code=1).error["error"] == "ContainerNotFound"


def test_help_and_version(call: Call) -> None:
    assert b"truncate" in call("--help").out
    assert b"--resume" in call("put", "--help").out
    assert call("--version").out.startswith(b"chunkstore ")
