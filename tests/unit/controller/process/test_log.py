"""Logs: form, levels, what every line carries, vendors' lines, exceptions, and what is hidden."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import pytest
import stamina
import structlog
from pydantic import SecretStr

from tandem.backup_avro.errors import DamagedError
from tandem.sink.process import log, safe_text

CANARY = 'canary "7f3a9"/\\x'


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Claim to be one."""
        return True


class Reason(Enum):
    """An enum of the test."""

    DUE = "rotation due"


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    """The log is the process's: leave none of this behind."""
    log.reset()
    yield
    log.reset()


def _fail(password: str) -> None:
    """Fail for a cause, with a secret in a local variable."""
    try:
        {"": 0}[password[:1]]
    except KeyError as error:
        raise ValueError("broken") from error


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """Return what was logged: each line is one JSON document."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_one_json_document_per_event() -> None:
    """When, how bad, what, who, in this order, then the rest."""
    stream = io.StringIO()
    log.configure(fmt="json", stream=stream)
    log.bind(pair="p", instance="a", incarnation="i-1")
    structlog.get_logger("tandem.controller.runner").info("claimed", generation=7, reason=Reason.DUE)
    (line,) = lines(stream)
    assert list(line)[:4] == ["timestamp", "level", "event", "logger"]
    assert datetime.fromisoformat(line.pop("timestamp")).utcoffset() == timedelta(0)
    assert line == {
        "level": "info",
        "event": "claimed",
        "logger": "tandem.controller.runner",
        "generation": 7,
        "reason": "rotation due",
        "pair": "p",
        "instance": "a",
        "incarnation": "i-1",
    }


def test_values_of_all_kinds_have_a_form() -> None:
    """A log line must never fail, whatever is put into it."""
    stream = io.StringIO()
    log.configure(fmt="json", stream=stream)
    structlog.get_logger("tandem.sink").info(
        "kinds",
        at=datetime(2026, 1, 1, tzinfo=UTC),
        span=timedelta(seconds=2),
        names=frozenset({"b", "a"}),
        positions={("topic", 0): 5},
        raw=b"\xff",
        secret=None,
    )
    (line,) = lines(stream)
    assert line["at"] == "2026-01-01T00:00:00+00:00"
    assert line["span"] == 2.0
    assert line["names"] == ["a", "b"]
    assert line["positions"] == {"('topic', 0)": 5}
    assert line["raw"] == "b'\\xff'"
    assert line["secret"] is None


def test_a_bound_value_can_be_overridden_and_dropped() -> None:
    """A line's own value wins; None takes a bound one away."""
    stream = io.StringIO()
    log.configure(fmt="json", stream=stream)
    log.bind(pair="p", generation=1)
    structlog.get_logger("tandem.sink").info("own", generation=2)
    log.bind(generation=None)
    structlog.get_logger("tandem.sink").info("dropped")
    assert [line.get("generation") for line in lines(stream)] == [2, None]


def test_bound_values_reach_all_threads_and_vendors() -> None:
    """Uploads log from threads, and Kafka's client from its own."""
    stream = io.StringIO()
    log.configure(fmt="json", stream=stream)
    log.bind(instance="b")
    thread = threading.Thread(target=lambda: structlog.get_logger("tandem.sink").info("from a thread"))
    thread.start()
    thread.join()
    logging.getLogger("kafka.client").warning("from %s", "kafka")
    assert [(line["event"], line["instance"]) for line in lines(stream)] == [
        ("from a thread", "b"),
        ("from kafka", "b"),
    ]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", {"tandem.controller.debug", "tandem.controller.info", "tandem.controller.warning", "kafka.warning"}),
        ("info", {"tandem.controller.info", "tandem.controller.warning", "kafka.warning"}),
        ("warning", {"tandem.controller.warning", "kafka.warning"}),
        ("error", set()),
    ],
)
def test_levels_are_ours_and_vendors_start_at_warning(level: str, expected: set[str]) -> None:
    """A debug log of Tandem is readable: clients stay quiet unless something is wrong."""
    stream = io.StringIO()
    log.configure(level=level, fmt="json", stream=stream)
    structlog.get_logger("tandem.controller.x").debug("tandem.controller.debug")
    structlog.get_logger("tandem.controller.x").info("tandem.controller.info")
    structlog.get_logger("tandem.controller.x").warning("tandem.controller.warning")
    for name in ("kafka.conn", "botocore.retries", "confluent_kafka"):
        logging.getLogger(name).debug("no")
        logging.getLogger(name).info("no")
    logging.getLogger("kafka.conn").warning("kafka.warning")
    assert {line["event"] for line in lines(stream)} == expected


def test_an_exception_is_one_line_with_its_cause_and_no_locals() -> None:
    """Type, message, frames and what caused it; a local variable may hold a secret and is left out."""
    stream = io.StringIO()
    log.configure(fmt="json", stream=stream)
    try:
        _fail("a-local-" + "password")
    except ValueError:
        structlog.get_logger("tandem.sink").exception("failed")
        logging.getLogger("botocore").exception("vendor failed")
    ours, theirs = lines(stream)
    for line in (ours, theirs):
        assert line["level"] == "error"
        assert line["exception"]["type"] == "ValueError"
        assert line["exception"]["message"] == "broken"
        assert line["exception"]["frames"][-1].endswith(" _fail")
        assert line["exception"]["cause"]["type"] == "KeyError"
    assert "a-local-password" not in stream.getvalue()


@pytest.mark.parametrize("configured", [True, False])
def test_an_error_is_a_text_and_a_code(*, configured: bool) -> None:
    """Of the product's own errors; any other error is a text alone, and a code that the caller gives stays."""
    stream = io.StringIO()
    if configured:
        log.configure(fmt="json", stream=stream)
    else:
        log.configure_unless_done(stream)
    logger = structlog.get_logger("tandem.sink")
    damaged = DamagedError("a is damaged", code="TDM-X001", remedy="look")
    logger.warning("failed", error=damaged)
    logger.warning("failed", error=damaged, code=7)
    logger.warning("failed", error=OSError("b"))
    logger.warning("failed", error="c")
    assert [(line["error"], line.get("code")) for line in lines(stream)] == [
        ("a is damaged (look)", "TDM-X001"),
        ("a is damaged (look)", 7),
        ("b", None),
        ("c", None),
    ]
    assert log.describe(damaged)["code"] == "TDM-X001"


def test_groups_and_endless_causes_end() -> None:
    """Exception groups are unfolded; a cycle of causes does not hang the log."""
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    described = log.describe(ExceptionGroup("both", [first, OSError("third")]))
    group = described["group"]
    assert isinstance(group, list)
    assert [inner["message"] for inner in group] == ["first", "third"]
    assert len(json.dumps(described)) < 10_000


def test_a_thread_that_dies_is_logged() -> None:
    """Not a bare traceback on stderr between two JSON lines."""
    stream = io.StringIO()
    log.configure(fmt="json", stream=stream)

    def die() -> None:
        raise ZeroDivisionError("oops")

    thread = threading.Thread(target=die, name="uploader")
    thread.start()
    thread.join()
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["thread"]) == ("thread died", "critical", "uploader")
    assert line["exception"]["message"] == "oops"


def test_warnings_are_log_lines() -> None:
    """A deprecation in a library is a line like any other."""
    stream = io.StringIO()
    log.configure(fmt="json", stream=stream)
    warnings.showwarning("old thing", UserWarning, "library.py", 7)
    (line,) = lines(stream)
    assert line["logger"] == "py.warnings"
    assert "old thing" in line["event"]


@pytest.mark.parametrize("fmt", ["json", "console"])
def test_secrets_are_hidden_by_key_and_by_value(fmt: Any) -> None:
    """In nested data, in messages, in exceptions, in vendors' lines, and encoded."""
    stream = io.StringIO()
    log.configure(level="debug", fmt=fmt, stream=stream)
    safe_text.register_secrets([CANARY, "abc"])
    logger = structlog.get_logger("tandem.controller")
    logger.info(
        "connect",
        password="by-key-1",
        nested={"sasl.password": "by-key-2", "list": [{"secret_access_key": "by-key-3"}], "ssl.key.pem": "by-key-4"},
        session_token="by-key-5",
        Authorization="by-key-6",
        wrapped=SecretStr(CANARY),
        url="https://h/?p=canary%20%227f3a9%22%2F%5Cx",
    )
    event = f"is {CANARY}"
    logger.info(event)
    logging.getLogger("kafka").error("login with %s failed", CANARY)
    try:
        int(f"rejected {CANARY}")
    except ValueError:
        logger.exception("failed")
    text = stream.getvalue()
    assert "canary" not in text
    assert "by-key" not in text
    assert text.count("********") >= 10
    assert "login with ******** failed" in text
    assert "rejected ********" in text


def test_harmless_keys_are_shown() -> None:
    """Hiding too much makes a log useless."""
    stream = io.StringIO()
    log.configure(fmt="json", stream=stream)
    structlog.get_logger("tandem.sink").info("x", key="orders/1", tokens=3, tombstones=1, keys=["a"])
    (line,) = lines(stream)
    assert (line["key"], line["tokens"], line["tombstones"], line["keys"]) == ("orders/1", 3, 1, ["a"])


def test_very_short_secrets_do_not_garble_everything() -> None:
    """A secret of one letter is hidden by its key, not by replacing that letter everywhere."""
    safe_text.register_secrets(["a", ""])
    assert safe_text.redact("a banana") == "a banana"


def test_longer_secrets_are_hidden_before_their_parts() -> None:
    """No tail of a long secret stays because a shorter one was replaced first."""
    safe_text.register_secrets(["hunter"])
    safe_text.register_secrets(["hunter-and-more"])
    assert safe_text.redact("hunter-and-more hunter") == "******** ********"


@pytest.mark.parametrize(
    ("stream", "fmt", "is_json", "coloured"),
    [
        (io.StringIO, "auto", True, False),
        (Terminal, "auto", False, True),
        (Terminal, "json", True, False),
        (io.StringIO, "console", False, False),
    ],
)
def test_auto_is_console_on_a_terminal_only(
    stream: type[io.StringIO], fmt: Any, is_json: bool, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And colours need a terminal."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    target = stream()
    log.configure(fmt=fmt, stream=target)
    structlog.get_logger("tandem.controller").info("hello")
    text = target.getvalue()
    assert text.startswith("{") is is_json
    assert ("\x1b" in text) is coloured


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain text on a terminal if the user asks for it."""
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    log.configure(stream=terminal)
    structlog.get_logger("tandem.controller").info("hello")
    assert "\x1b" not in terminal.getvalue()


def test_console_exceptions_show_no_locals() -> None:
    """The console's traceback is Python's own, not one that prints variables."""
    stream = io.StringIO()
    log.configure(fmt="console", stream=stream)
    try:
        _fail("a-local-" + "password")
    except ValueError:
        structlog.get_logger("tandem.controller").exception("failed")
    assert "Traceback (most recent call last)" in stream.getvalue()
    assert "a-local-password" not in stream.getvalue()


def test_configuring_again_replaces_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    """First the command line's quiet default, then what the configuration says: each line comes once, in one place."""
    first, second = io.StringIO(), io.StringIO()
    log.configure(level="warning", fmt="json", stream=first)
    logger = structlog.get_logger("tandem.controller")
    logger.warning("one")
    log.configure(level="info", fmt="json", stream=second)
    logger.info("two")
    assert [line["event"] for line in lines(first)] == ["one"]
    assert [line["event"] for line in lines(second)] == ["two"]
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


@pytest.mark.parametrize(
    ("fmt", "level", "short"), [("auto", "info", True), ("auto", "debug", False), ("console", "info", False)]
)
def test_an_instance_on_a_terminal_has_short_lines(
    monkeypatch: pytest.MonkeyPatch, fmt: log.Format, level: str, short: bool
) -> None:
    """Time, event, place, few fields; all fields of a warning; what all lines have in common is left out."""
    monkeypatch.setattr("sys.stderr", shown := Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    log.configure_instance(level=level, fmt=fmt)
    log.bind(pair="shop", instance="a", incarnation="0123")
    logger = structlog.get_logger("tandem.controller")
    logger.info("read through", topic="orders", partition=3, **{f"n{number}": number for number in range(6)})
    logger.warning("no answer", error="gone\x1b[2J", password="hunter22", n=1, m=2, o=3, code="TDM-X001")
    first, second = shown.getvalue().splitlines()
    assert ("shop" not in first) == short
    if short:
        assert re.fullmatch(r"\d\d:\d\d:\d\d  read through  orders-3  n0=0 n1=1 n2=2 n3=3", first)
        assert second[10:].startswith("warning: no answer  error=gone\\x1b[2J password=********")
        assert "TDM-X001" in second


def test_retries_of_the_store_are_counted() -> None:
    """Each try after the first, whether the log tells of retries or not; an instance's log does not."""
    before = stamina.instrumentation.get_on_retry_hooks()
    counted: list[int] = []

    @stamina.retry(on=OSError, attempts=3, wait_initial=0.001, wait_jitter=0.001)
    def fail() -> None:
        raise OSError("away")

    try:
        log.configure_instance(level="info", fmt="json")
        log.count_retries(lambda: counted.append(1))
        with pytest.raises(OSError, match="away"):
            fail()
    finally:
        stamina.instrumentation.set_on_retry_hooks(before)
    assert len(counted) == 2


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_names_from_others_do_not_steer_the_terminal(stream: type[io.StringIO]) -> None:
    """No part of a line brings escapes, lines of its own, or reversed text from a broker, a store or a peer."""
    evil = "x\x1b]0;owned\x07\x1b[2J\r\n2026-01-01 [info] all is well\u202e\x9b31m"
    out = stream()
    log.configure(fmt="console", stream=out)
    log.bind(pair=evil)
    structlog.get_logger("tandem.controller").warning(evil, topic=evil, names=[evil], of={evil: evil}, **{evil: 1})
    logging.getLogger("kafka").error("from a vendor: %s", evil)
    try:
        _fail(evil)
    except ValueError as error:
        error.args = (evil,)
        structlog.get_logger("tandem.controller").exception("failed", stack_info=True)
    text = re.sub(r"\x1b\[[0-9;]{1,4}m", "", out.getvalue())  # the renderer's own colours
    assert all(char.isprintable() or char == "\n" for char in text)
    assert text.count("\\x1b]0;owned") >= 9
    stamped = [line for line in text.split("\n") if line.startswith("20")]
    assert [line.split()[1] for line in stamped] == ["[warning", "[error", "[error"]
