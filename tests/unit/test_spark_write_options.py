"""Options and columns of writing: what is refused, and by which name."""

from __future__ import annotations

import pytest

from chunkstore.errors import ChunkstoreError, InvalidArgument, Unsupported
from chunkstore.spark.write_options import Columns, check_columns, parse_write_options

ROOT = {"path": "file:///r"}


@pytest.mark.parametrize(
    ("given", "argument", "says"),
    [
        ({"frming": "lines"}, "frming", "did you mean 'framing'"),
        ({"zzzzzz": "1"}, "zzzzzz", "the options are path"),
        ({"path": ""}, "path", "/srv/log"),
        ({"framing": "csv"}, "framing", "lines"),
        ({"segments": "a", "topic": "b"}, "topic", "keep one"),
        ({"segments": "a" * 256}, "segments", "255"),
        ({"chunkBytes": "64m"}, "chunkBytes", "whole number"),
        ({"chunkBytes": "1" * 30}, "chunkBytes", "whole number"),
        ({"takeOver": "yes"}, "takeOver", "false or true"),
        ({"txnAppId": "a"}, "txnVersion", "together"),
        ({"txnAppId": "", "txnVersion": "1"}, "txnAppId", "255"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion", "whole number"),
        ({"sinkId": "s"}, "sinkId", "txnAppId"),
        ({"as": "rows"}, "as", "segments or ledger"),
        ({"Path": "file:///x"}, "path", "twice"),
    ],
)
def test_refused_options(given: dict[str, str], argument: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says) as caught:
        parse_write_options({**ROOT, **given}, streaming=False)
    assert caught.value.argument == argument


def test_a_sink_has_one_name() -> None:
    for name in ("sinkId", "txnAppId"):
        options = parse_write_options({**ROOT, name: "s"}, streaming=True)
        assert (options.sink_id, options.application) == ("s", None)
    for given, says in (({"sinkId": "s", "txnAppId": "t"}, "keep one"), ({"sinkId": ""}, "255")):
        with pytest.raises(InvalidArgument, match=says) as caught:
            parse_write_options({**ROOT, **given}, streaming=True)
        assert caught.value.argument == "sinkId"


@pytest.mark.parametrize(
    ("given", "streaming", "feature"),
    [
        ({"path": "memory://x"}, False, "memory"),
        ({"provider": "chunkstore"}, True, "catalog tables"),
    ],
)
def test_what_is_not_there(given: dict[str, str], streaming: bool, feature: str) -> None:
    with pytest.raises(Unsupported) as caught:
        parse_write_options({**ROOT, **given}, streaming=streaming)
    assert caught.value.feature == feature


V = ("value", "binary")
ENTRIES = [("ledger", "bigint"), ("entry", "bigint"), ("payload", "binary")]


@pytest.mark.parametrize(
    ("fields", "given", "columns"),
    [
        ([V, ("segment", "string")], {}, Columns("segment")),
        ([("value", "string"), ("topic", "string")], {}, Columns("topic")),
        ([V], {"segments": "a"}, Columns(None)),
        ([V], {"topic": "a"}, Columns(None)),
        (ENTRIES, {"topic": "a"}, Columns(None, ledgers=True)),
        (ENTRIES, {"topic": "a", "as": "ledger"}, Columns(None, ledgers=True)),
        ([V], {"segments": "a", "as": "segments"}, Columns(None)),
        ([("topic", "string"), *ENTRIES], {}, Columns("topic", ledgers=True)),
    ],
)
def test_columns(fields: list[tuple[str, str]], given: dict[str, str], columns: Columns) -> None:
    assert check_columns(fields, parse_write_options({**ROOT, **given}, streaming=False)) == columns


@pytest.mark.parametrize(
    ("fields", "given", "argument"),
    [
        ([("segment", "string")], {}, "value"),
        ([("value", "int")], {"segments": "a"}, "value"),
        ([V, V], {"segments": "a"}, "value"),
        ([V, ("segment", "binary")], {}, "segment"),
        ([V], {}, "segment"),
        ([V, ("segment", "string"), ("topic", "string")], {}, "topic"),
        ([V, ("segment", "string")], {"segments": "a"}, "segments"),
        ([V, ("segment", "string"), ("ts", "bigint")], {}, "ts"),
        ([V, ("key", "string")], {"segments": "a"}, "key"),
        (ENTRIES, {}, "topic"),
        ([("topic", "string"), *ENTRIES], {"topic": "a"}, "segments"),
        (ENTRIES, {"topic": "a" * 201}, "topic"),
        (ENTRIES, {"segments": "a"}, "segments"),
        (ENTRIES, {"topic": "a", "framing": "lines"}, "framing"),
        (ENTRIES[1:], {"topic": "a"}, "ledger"),
        (ENTRIES, {"topic": "a", "as": "segments"}, "ledger"),
        ([V], {"topic": "a", "as": "ledger"}, "value"),
        ([("topic", "string")], {"as": "ledger"}, "ledger"),
        ([V], {"segments": "a", "as": "ledger"}, "segments"),
        ([*ENTRIES[:2], V], {"topic": "a"}, "value"),
        ([("ledger", "int"), *ENTRIES[1:]], {"topic": "a"}, "ledger"),
        ([*ENTRIES, ("segment", "string")], {"topic": "a"}, "segment"),
    ],
)
def test_refused_columns(fields: list[tuple[str, str]], given: dict[str, str], argument: str) -> None:
    options = parse_write_options({**ROOT, **given}, streaming=False)
    with pytest.raises(ChunkstoreError) as caught:
        check_columns(fields, options)
    assert isinstance(caught.value, InvalidArgument)
    assert caught.value.argument == argument
