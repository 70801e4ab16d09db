"""`tandem coordination tail`, the pure part: what a record says, and how a message reads on one line."""

from __future__ import annotations

import json

import pytest
from support.backups.build_backup import PAIR
from support.pairs.sights import message

from tandem.backup_avro.documents.coordination_message import CoordinationEvent, encode, message_key
from tandem.controller.cli.inspect.coordination import _show
from tandem.controller.cli.main import run
from tandem.controller.cli.output.output import OutputFormat
from tandem.controller.coordination.topic_reader import TopicRecordDocument, open_topic_record

GOOD = message(CoordinationEvent.ACTIVATE, instance="cli", at=1_000, target="b", generation=7, reason="drill")


def topic_record(*, key: bytes | None = message_key(GOOD), value: bytes | None = encode(GOOD)) -> TopicRecordDocument:
    """A record at offset 5, written at the epoch's first second."""
    return open_topic_record(partition=0, offset=5, at=1_000, key=key, value=value)


def test_a_message() -> None:
    """What was encoded comes out again."""
    found = topic_record()
    assert (found.message, found.undecodable, found.key) == (GOOD, None, f"{PAIR}/cli/ACTIVATE")


@pytest.mark.parametrize(
    ("key", "value", "trouble"),
    [
        (message_key(GOOD), None, "a tombstone"),
        (None, encode(GOOD), "it has no key"),
        (message_key(GOOD), b"hello, world", "single-object encoding"),
        (message_key(GOOD), encode(GOOD)[:-3], "is damaged"),
        (message_key(GOOD), encode(GOOD)[:3] + b"12345678" + encode(GOOD)[11:], "unknown fingerprint"),
        (b"shop/a/ACTIVATE", encode(GOOD), "disagree: the value is ACTIVATE of shop/cli"),
        (b"what", encode(GOOD), "key"),
        (b"\xff\xfe", encode(GOOD), "key"),
    ],
)
def test_what_is_no_message(key: bytes | None, value: bytes | None, trouble: str) -> None:
    """Whatever the topic holds, it is told why it is no message, and nothing is raised."""
    found = topic_record(key=key, value=value)
    assert found.message is None
    assert trouble in (found.undecodable or "")


def printed(
    found: TopicRecordDocument, form: OutputFormat, capsys: pytest.CaptureFixture[str], *, all_pairs: bool = False
) -> str:
    """What is printed for one record."""
    _show(found, form, all_pairs=all_pairs)
    return capsys.readouterr().out


def test_one_line_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    """Time, offset, event, sender, and what it says; the pair only where several are shown."""
    assert printed(topic_record(), OutputFormat.TABLE, capsys) == (
        "1970-01-01 00:00:01Z         5  ACTIVATE     cli  to b  generation 7  (drill)\n"
    )
    assert "  shop/cli  to b" in printed(topic_record(), OutputFormat.TABLE, capsys, all_pairs=True)


def test_a_heartbeat_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """State, place in the chain, lag and details in the order they were sent."""
    beat = message(
        at=0,
        state="Active",
        generation=2,
        chain_seq=9,
        lag_records=3,
        details={"reason": "nothing to do", "phase": "x"},
    )
    found = topic_record(key=message_key(beat), value=encode(beat))
    assert printed(found, OutputFormat.TABLE, capsys).endswith(
        "PROGRESS     a  Active  generation 2 entry 9  lag 3  reason=nothing to do  phase=x\n"
    )


def test_json_is_one_document_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Every field of the message, times in ISO 8601, beside where the record is."""
    text = printed(topic_record(), OutputFormat.JSON, capsys)
    assert text.count("\n") == 1
    told = json.loads(text)
    assert (told["kind"], told["offset"], told["at"]) == ("CoordinationMessage", 5, "1970-01-01T00:00:01Z")
    assert (told["undecodable"], told["message"]["event"], told["message"]["target"]) == (None, "ACTIVATE", "b")
    assert told["message"]["at"] == "1970-01-01T00:00:01Z"


def test_what_is_no_message_is_shown_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    """With its offset and key, without letting its bytes steer the terminal."""
    found = topic_record(key=b"\x1b[31mred", value=b"junk")
    text = printed(found, OutputFormat.TABLE, capsys)
    assert text.startswith("1970-01-01 00:00:01Z         5  not a message (key \\x1b[31mred): ")
    told = json.loads(printed(found, OutputFormat.JSON, capsys))
    assert told["message"] is None
    assert "single-object" in told["undecodable"]


def test_a_record_without_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Old brokers and odd tools leave the time out."""
    found = open_topic_record(partition=0, offset=5, at=None, key=None, value=None)
    assert printed(found, OutputFormat.TABLE, capsys).startswith("no time                      5  not a message: ")


@pytest.mark.parametrize("command", [["coordination", "tail", "--since", "soon"], ["failover", "--timeout", "soon"]])
def test_wrong_durations_are_usage_errors(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The option and the forms that it takes are named."""
    assert run(command) == 2
    text = capsys.readouterr().err
    assert f"{command[-2]} soon is not a duration; write" in text


@pytest.mark.parametrize("command", ["status", "history", "failover", "coordination tail"])
def test_every_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Help ends with lines that can be copied."""
    assert run([*command.split(), "--help"]) == 0
    lines = capsys.readouterr().out.split("Examples:\n")[1].splitlines()
    assert all(line.strip().startswith(f"tandem {command}") for line in lines if line.strip())
    assert len(lines) >= 2
