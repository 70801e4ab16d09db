"""Durations, sizes and names: what is read, what is refused, and that writing gives back what was read."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tandem.controller.config.values import (
    Name,
    Regex,
    TopicName,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("12h", timedelta(hours=12)),
        ("7d", timedelta(days=7)),
        ("1w", timedelta(days=7)),
        ("90", timedelta(seconds=90)),
        ("1.5h", timedelta(minutes=90)),
        (" 5 m ", timedelta(minutes=5)),
        (90, timedelta(seconds=90)),
        (0.25, timedelta(milliseconds=250)),
        ("0", timedelta(0)),
        (timedelta(hours=1), timedelta(hours=1)),
    ],
)
def test_durations_are_read(text: object, expected: timedelta) -> None:
    """Every unit of the documentation, plain seconds, and ready-made durations."""
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "d", "7 days", "1h30m", "-5s", "5M", "1e3", "٣s", "nan", None, True, [], "9" * 400, 1e300, -1, "11000d"],
)
def test_other_durations_are_refused(text: object) -> None:
    """What is no duration, negative or endless is a ValueError, never an overflow or a silent zero."""
    with pytest.raises(ValueError, match=r"duration|negative|ten years"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=3650 * 86400 * 1000))
def test_durations_survive_being_written(milliseconds: int) -> None:
    """What `config show` prints means the same when it is read again."""
    duration = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64MiB", 64 * 1024**2),
        ("1GB", 10**9),
        ("512KiB", 512 * 1024),
        ("1kB", 1000),
        ("2TiB", 2 * 1024**4),
        ("1.5MiB", 1536 * 1024),
        ("100", 100),
        ("100B", 100),
        (4096, 4096),
    ],
)
def test_sizes_are_read(text: object, expected: int) -> None:
    """Binary and decimal units, and plain bytes."""
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "MiB", "64 megs", "-1", "1.5", "0.3B", None, True, 2**70, "9999999TiB", 1.5])
def test_other_sizes_are_refused(text: object) -> None:
    """What is no whole number of bytes that a file can have is a ValueError."""
    with pytest.raises(ValueError, match=r"size|bytes|negative"):
        parse_size(text)


@pytest.mark.parametrize("text", ["64M", "1k", "3 g"])
def test_an_ambiguous_unit_is_refused_with_both_readings(text: str) -> None:
    """`64M` could be either: the message offers both."""
    with pytest.raises(ValueError, match=r"ambiguous; write [KMG]iB .* or [KMG]B"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_sizes_survive_being_written(size: int) -> None:
    """What `config show` prints means the same when it is read again."""
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize("name", ["a", "orders.v1", "_schemas", "A-b_c.9", "x" * 249])
def test_topic_names(name: str) -> None:
    """Kafka's own rule for legal topic names."""
    assert TypeAdapter(TopicName).validate_python(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ü", "x" * 250, "a\n"])
def test_illegal_topic_names(name: str) -> None:
    """Names that no Kafka topic can have."""
    with pytest.raises(ValidationError, match="topic name"):
        TypeAdapter(TopicName).validate_python(name)


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "-x", "a/b", "a+b", "a b", "ä", "x" * 101])
def test_names_that_would_break_paths_are_refused(name: str) -> None:
    """Pair and instance become parts of keys in the store: nothing there may climb, hide or split."""
    with pytest.raises(ValidationError, match="not a name"):
        TypeAdapter(Name).validate_python(name)


def test_a_broken_expression_says_what_is_wrong() -> None:
    """The expression is compiled when it is read, not when the first topic comes by."""
    with pytest.raises(
        ValidationError, match=re.escape("not a regular expression: missing ), unterminated subpattern")
    ):
        TypeAdapter(Regex).validate_python("orders-(.*")
