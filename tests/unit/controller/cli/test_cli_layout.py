"""`--layout connector`: what its commands take and refuse, each in one clear line with a documented exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.backups.old_files import GOLDEN_FOLDER

from tandem.backup_avro.documents.connector_layout import ConnectorReading, OverlapPreference
from tandem.backup_avro.errors import ConfigError
from tandem.controller.cli.main import run
from tandem.controller.cli.options.layout_options import FileLayout, LayoutArguments, reading, source_options
from tandem.spark_jobs.state.read_options import parse_options

ROOT = ("--layout", "connector", "--root", GOLDEN_FOLDER.as_uri())
TARGET = ("--target-bootstrap-servers", "localhost:1")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("restore", *ROOT, *TARGET, "--at", "2026-05-04T10:00:00Z"), "--at is not allowed with --layout connector"),
        (("restore", *ROOT, *TARGET, "--commit", "3"), "--commit is not allowed with --layout connector"),
        (("restore", *ROOT, *TARGET, "--checkpoint", "x"), "--checkpoint is not allowed with --layout connector"),
        (("restore", *ROOT, *TARGET, "--generation", "1"), "--generation is not allowed with --layout connector"),
        (("restore", *ROOT, *TARGET, "--until", "orders:0=5"), "--until is not allowed with --layout connector"),
        (("restore", *ROOT, "groups", "--restore", "x"), "groups is not allowed with --layout connector"),
        (("restore", *ROOT, *TARGET, "--pair", "x"), "--pair is not allowed with --layout connector"),
        (("restore", *ROOT, *TARGET, "--prefer", "larger"), "Invalid value for '--prefer'"),
        (("restore", *ROOT, *TARGET, "--instance", "a", "--instance", "b"), "--instance names a and b for all topics"),
        (("restore", *ROOT, *TARGET, "--instance", "t=a", "--instance", "t=b"), "--instance names a and b for t"),
        (("restore", *ROOT, *TARGET, "--instance", "=b"), "--instance '=b' is neither NAME nor TOPIC=NAME"),
        (("restore", *ROOT, *TARGET, "--topic-config", "compact"), "--topic-config 'compact' is not KEY=VALUE"),
        (("restore", "--root", "file:///x", "--pair", "x", *TARGET, "--empty-as-null"), "--empty-as-null requires"),
        (
            ("restore", "--root", "file:///x", "--pair", "x", *TARGET, "--topic-config", "a=b", "--append"),
            "--topic-config is not allowed with --append",
        ),
        (("restore", "--root", "file:///x", "--pair", "x", *TARGET, "--offset-map"), "--offset-map requires"),
        (
            ("records", "--root", "file:///x", "--pair", "x", "--topic", "t", "--key", "k", "--index", "f"),
            "--index requires",
        ),
        (("verify", *ROOT, "--index", "/nowhere/f"), "/nowhere/f can't be written"),
        (("restore", "--root", GOLDEN_FOLDER.as_uri(), "--pair", "x", *TARGET), "there are a connector's files"),
        (("restore", "--layout", "conector", *TARGET), "Invalid value for '--layout'"),
        (("verify", *ROOT, "--sample", "5%"), "--sample is not allowed with --layout connector"),
        (("verify", *ROOT, "--against-topic"), "--against-topic is not allowed with --layout connector"),
        (("verify", *ROOT, "--repair"), "--repair is not allowed with --layout connector"),
        (("verify", *ROOT, "--pair", "x"), "--pair is not allowed with --layout connector"),
        (("verify", *ROOT, "--topics", "order"), "holds no files of the topics that are asked for"),
        (("verify", *ROOT, "--topics", "orders,ordres"), "holds no files of the topics that are asked for: ordres"),
        (("verify", *ROOT, "--topics", "orders,"), "--topics 'orders,' holds an empty name"),
        (("records", *ROOT, "--topic", "orders", "--key", "k", "--generation", "1"), "--generation is not allowed"),
        (("export", *ROOT, "--format", "jsonl", "--to", "/x", "--at", "2026-05-04T10:00:00Z"), "--at is not allowed"),
        (("retention", *ROOT), "No such option: --layout"),
    ],
)
def test_what_is_refused(command: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Usage errors, before anything is touched."""
    assert run(list(command)) == 2
    assert words in capsys.readouterr().err


def test_verify_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """No Spark on a local master; what can't be proven is always said."""
    assert run(["verify", *ROOT, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["clean"], document["layout"]) == (True, "connector")
    assert document["choices"]["orders"] == "topics"
    assert "b was taken" in document["choices"]["customers"]
    orders = next(copy for copy in document["copies"] if copy["topic"] == "orders")
    assert (orders["records"], orders["twice"], orders["emptyValues"]) == (18, 4, 2)
    assert document["notProven"]
    assert run(["verify", *ROOT, "--topics", "customers"]) == 0
    shown = capsys.readouterr().out
    assert "what can't be proven" in shown
    assert "orders" not in shown


def test_records_of_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    """Two files have two of them twice: each is shown once."""
    assert run(["records", *ROOT, "--topic", "orders", "--key", "key-0", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(item["partition"], item["offset"]) for item in document["records"]] == [(0, 0), (0, 14), (0, 28)]
    assert "partition=0" in document["records"][0]["object"]


def test_options_and_those_of_the_data_source_say_the_same() -> None:
    """What a command was told reaches the data source that it starts."""
    found = reading(
        LayoutArguments(
            layout=FileLayout.CONNECTOR,
            empty_as_null=True,
            instance=["a", "orders=b"],
            prefer=OverlapPreference.OLDER,
            leave_out=["y.avro", "x.avro"],
        )
    )
    assert found is not None
    assert found == ConnectorReading(
        empty_as_null=True,
        instance="a",
        instances=(("orders", "b"),),
        prefer=OverlapPreference.OLDER,
        left_out=frozenset({"x.avro", "y.avro"}),
    )
    assert parse_options({"root": "file:///x", **source_options(found, None)}).address.connector == found
    assert parse_options({"root": "file:///x", **source_options(found, Path("/x"))}).index == Path("/x")
    assert reading(LayoutArguments(layout=FileLayout.TANDEM)) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layout": "conector", "pair": "p"}, "layout 'conector' is unknown"),
        ({"layout": "connector", "pair": "p"}, "pair is not allowed with layout"),
        ({"pair": "p", "emptyAsNull": "true"}, "emptyAsNull requires layout"),
        ({"layout": "connector", "prefer": "larger"}, "prefer 'larger' is unknown"),
        ({"layout": "connector", "emptyAsNull": "yes"}, "emptyAsNull 'yes' is neither true nor false"),
        ({"layout": "connector", "at": "2026-05-04T10:00:00Z"}, "at is not allowed with the layout connector"),
        ({"layout": "tandem"}, "option 'pair' is missing"),
    ],
)
def test_options_of_the_data_source(options: dict[str, str], words: str) -> None:
    """Mistakes are named as the user wrote them."""
    with pytest.raises(ConfigError, match=words):
        parse_options({"root": "file:///x", **options})
