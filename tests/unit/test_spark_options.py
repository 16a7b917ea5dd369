"""The options of the Spark format, and errors that cross the JVM as text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chunkstore.errors import ChunkstoreError, Damaged, InvalidArgument, Unsupported
from chunkstore.spark.errors import annotated, original_error
from chunkstore.spark.options import EARLIEST, LATEST, OPTIONS, parse_options

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


def test_streams_have_options_of_their_own() -> None:
    stream = {**ROOT, "segments": "a", "maxBytesPerTrigger": "5", "maxoffsetspertrigger": "6"}
    options = parse_options(stream, stream=True)
    assert (options.trigger_bytes, options.trigger_rows) == (5, 6)
    assert options.starting == LATEST
    assert parse_options({**ROOT, "segments": "a"}).starting == EARLIEST
    assert parse_options(stream, stream=None) == replace(options, starting=EARLIEST), "a schema is the same for both"
    with pytest.raises(InvalidArgument, match="batch reads"):
        parse_options({**ROOT, "segments": "a", "endingOffsets": "latest"}, stream=True)


def test_positions_and_moments() -> None:
    given = {**ROOT, "segments": "b,a", "startingOffsets": '{"a": -1, "b": 7}', "endingOffsets": "12"}
    options = parse_options({**given, "timestampAsOf": "1970-01-01T01:00:01.5+01:00"})
    assert (options.starting, options.ending, options.as_of_ms) == ({"a": LATEST, "b": 7}, 12, 1500)
    assert parse_options({**given, "timestampAsOf": "1234"}).as_of_ms == 1234
    assert parse_options({**given, "lsnAsOf": "9"}).as_of_lsn == 9


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
        ({"segments": "a", "segmentsPattern": "a"}, "segments"),
        ({"segmentsPattern": ""}, "segmentsPattern"),
        ({"segmentsPattern": "("}, "segmentsPattern"),
        ({"segments": "a", "framing": "line"}, "framing"),
        ({"segments": "a", "failOnDataLoss": "no"}, "failOnDataLoss"),
        ({"segments": "a", "startingOffsets": "oldest"}, "startingOffsets"),
        ({"segments": "a", "startingOffsets": "-3"}, "startingOffsets"),
        ({"segments": "a", "startingOffsets": '{"a": -3}'}, "startingOffsets"),
        ({"segments": "a", "startingOffsets": '{"a": true}'}, "startingOffsets"),
        ({"segments": "a", "startingOffsets": '{"a": {"0": 1}}'}, "startingOffsets"),
        ({"segments": "a,b", "startingOffsets": '{"a": 1}'}, "startingOffsets"),
        ({"segments": "a", "endingOffsets": '{"a": 1, "c": 2}'}, "endingOffsets"),
        ({"topic": "t", "startingOffsets": "earliest"}, "startingOffsets"),
        ({"topic": "t", "framing": "lines"}, "framing"),
        ({"topic": "t", "maxRecordBytes": "5"}, "maxRecordBytes"),
        ({"segments": "a", "maxRecordBytes": "5"}, "maxRecordBytes"),
        ({"segments": "a", "framing": "lines", "maxRecordBytes": "0"}, "maxRecordBytes"),
        ({"segments": "a", "lsnAsOf": "1", "timestampAsOf": "1"}, "lsnAsOf"),
        ({"segments": "a", "timestampAsOf": "2026-11-20T08:00:00"}, "timestampAsOf"),
        ({"segments": "a", "timestampAsOf": "yesterday"}, "timestampAsOf"),
        ({"segments": "a", "maxBytesPerTrigger": "5"}, "maxBytesPerTrigger"),
        ({"segments": "a", "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger"),
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
