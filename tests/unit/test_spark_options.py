"""The options of the Spark format, and errors that cross the JVM as text."""

from __future__ import annotations

import pytest

from chunkstore.errors import BadOffset, ChunkstoreError, Damaged, InvalidArgument, Unsupported
from chunkstore.spark.errors import annotated, original_error
from chunkstore.spark.options import OPTIONS, parse_options

ROOT = {"path": "file:///srv/log"}


def refusal(kind: type[ChunkstoreError], **options: str) -> ChunkstoreError:
    with pytest.raises(kind) as caught:
        parse_options({**ROOT, **options})
    return caught.value


def test_names_are_case_insensitive_and_defaults_are_sensible() -> None:
    options = parse_options({"PATH": "file:///x", "Segments": "a, b", "minpartitions": "7"})
    assert options.path == "file:///x"
    assert options.container == "default"
    assert options.segments == ("a", "b")
    assert options.min_partitions == 7
    assert options.columns == ("segment", "offset", "value")
    assert options.topic is None


def test_a_topic_and_its_ledgers() -> None:
    options = parse_options({**ROOT, "topic": "t/n/x", "ledgers": "8, 3", "columns": "payload,entry"})
    assert (options.topic, options.ledgers, options.columns) == ("t/n/x", (8, 3), ("payload", "entry"))
    assert parse_options({**ROOT, "topic": "x"}).ledgers is None
    assert parse_options({**ROOT, "topic": "x", "ledgers": "[9223372036854775807]"}).ledgers == ((1 << 63) - 1,)


def test_an_unknown_option_is_refused_by_name() -> None:
    error = refusal(InvalidArgument, segments="a", colums="value")
    assert error.to_fields() == {"argument": "colums"}
    assert "'colums'" in error.message
    assert all(name in error.message for name in OPTIONS)


def test_names_with_commas_are_written_as_json() -> None:
    assert parse_options({**ROOT, "segments": '["a,b", "[c", " d"]'}).segments == ("a,b", "[c", " d")


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({}, "segments"),
        ({"segments": "a", "topic": "t"}, "segments"),
        ({"segments": "a", "ledgers": "1"}, "ledgers"),
        ({"segments": ""}, "segments"),
        ({"segments": "a,,b"}, "segments"),
        ({"segments": "a,b,a"}, "segments"),
        ({"segments": "[1]"}, "segments"),
        ({"segments": "[]"}, "segments"),
        ({"segments": "["}, "segments"),
        ({"segments": "x" * 256}, "segments"),
        ({"topic": ""}, "topic"),
        ({"topic": "t", "ledgers": "1,x"}, "ledgers"),
        ({"topic": "t", "ledgers": "-1"}, "ledgers"),
        ({"topic": "t", "ledgers": "1,01"}, "ledgers"),
        ({"topic": "t", "ledgers": "[true]"}, "ledgers"),
        ({"topic": "t", "ledgers": "9223372036854775808"}, "ledgers"),
        ({"topic": "t", "ledgers": "[]"}, "ledgers"),
        ({"segments": "a", "columns": "value,nix"}, "columns"),
        ({"segments": "a", "columns": "payload"}, "columns"),
        ({"segments": "a", "columns": "value,value"}, "columns"),
        ({"segments": "a", "columns": ""}, "columns"),
        ({"segments": "a", "columns": "[]"}, "columns"),
        ({"segments": "a", "minPartitions": "0"}, "minPartitions"),
        ({"segments": "a", "minPartitions": "many"}, "minPartitions"),
        ({"segments": "a", "minPartitions": "100001"}, "minPartitions"),
        ({"segments": "a", "SEGMENTS": "b"}, "segments"),
        ({"segments": "a", "container": "../up"}, "container"),
        ({"segments": "a", "path": ""}, "path"),
    ],
)
def test_wrong_values_name_their_option(options: dict[str, str], argument: str) -> None:
    assert refusal(InvalidArgument, **options).to_fields() == {"argument": argument}


def test_what_spark_cannot_do_is_said() -> None:
    assert refusal(Unsupported, path="memory://x", segments="a").to_fields() == {"feature": "memory"}
    assert refusal(Unsupported, provider="chunkstore", segments="a").to_fields() == {"feature": "catalog tables"}


def test_an_error_survives_as_text() -> None:
    import traceback

    with pytest.raises(Damaged) as caught, annotated(segment="outer"), annotated(segment="s", offset=7):
        raise Damaged("torn\ninto two", object="d/00/x", position=12, segment="s", start=5, stop=9)
    text = "".join(traceback.format_exception(caught.value))
    found = original_error(RuntimeError("Job aborted: " + text))
    assert type(found) is Damaged
    assert found.to_fields() == {"object": "d/00/x", "position": 12, "segment": "s", "start": 5, "stop": 9}
    assert found.message == caught.value.message
    assert '"where": {"segment": "s", "offset": 7}' in text
    assert text.count("chunkstore error: ") == 1


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(KeyError), annotated(segment="s"):
        raise KeyError("x")
    assert original_error(RuntimeError("no such thing")) is None
    assert original_error(RuntimeError('chunkstore error: {"type": "os", "message": "", "fields": {}}')) is None
    assert original_error(RuntimeError('chunkstore error: {"type": "Damaged"')) is None
    with pytest.raises(BadOffset) as caught, annotated():
        raise BadOffset("s", expected=1, given=2)
    found = original_error(RuntimeError("\n".join(caught.value.__notes__)))
    assert isinstance(found, BadOffset)
    assert (found.expected, found.given) == (1, 2)
