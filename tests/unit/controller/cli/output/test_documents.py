"""The contract of `-o json`: committed schemas are those of the code, every command has one, and keeps it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.requests import cut_request
from support.pages import documents
from support.pages.command_tree import commands

from tandem.controller.cli.main import ALIASES, run
from tandem.controller.cli.reference import schemas
from tandem.controller.cli.reference.documents import DOCUMENTS
from tandem.sink.store import ObjectStore, open_store
from tandem.sink.store.chain import checkpoints
from tandem.sink.store.chain.chain_writer import now_ms

ORDERS = TopicSpec("orders", partitions=2)
CAMEL = re.compile(r"[a-z]+(?:[A-Z0-9][a-z0-9]*)*")


def test_the_committed_schemas_are_those_of_the_code() -> None:
    """`python -m tandem.controller.cli.reference.schemas` would change nothing."""
    made = {name: schemas.text(schema) for name, schema in schemas.schemas().items()}
    assert {path.name: path.read_text() for path in documents.FOLDER.iterdir()} == made


def test_every_command_with_documents_has_a_schema() -> None:
    """Whoever takes `-o` is in the list; an alias is its command."""
    printing = {
        name for name, command in commands() if any("--output" in getattr(one, "opts", ()) for one in command.params)
    }
    assert printing - ALIASES.keys() == set(DOCUMENTS)


@pytest.mark.parametrize("path", sorted(documents.FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_schemas_are_valid_and_name_in_one_style(path: Path) -> None:
    """Each is a JSON Schema, asks for version and kind, and has names in camelCase alone."""
    schema = json.loads(path.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    for form in schema.get("anyOf", [schema]):
        assert form["properties"]["schemaVersion"] == {"const": 1}
        assert form["required"][:2] == ["schemaVersion", "kind"]
    for name in names(schema):
        assert CAMEL.fullmatch(name), name


def names(schema: Any) -> Iterator[str]:
    """All names of properties, at any depth."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "properties":
                yield from value
            yield from names(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from names(item)


def test_a_document_with_more_or_less_than_its_schema_is_noticed() -> None:
    """The check that all other tests go through finds a name too many, one too few, and a wrong type."""
    good = {"schemaVersion": 1, "kind": "CheckpointDeleted", "pair": "p", "id": "x", "deleted": True}
    documents.check(good)
    for wrong in (
        {**good, "more": 1},
        {name: value for name, value in good.items() if name != "id"},
        {**good, "deleted": "yes"},
        {**good, "schemaVersion": 2},
    ):
        with pytest.raises(AssertionError, match="not a CheckpointDeleted document"):
            documents.check(wrong)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent_brokers: str) -> str:
    """A configuration for a small backup in a folder: two generations, a taint, a checkpoint; no brokers."""
    for name in ("TANDEM_CONFIG", "TANDEM_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "store").mkdir()
    store = open_store((tmp_path / "store").as_uri())
    for number, instance in ((1, "a"), (2, "b")):
        backup = Backup.completed(
            store, records("orders", 0, range(10), tombstones=[3]), topics=[ORDERS], number=number, instance=instance
        )
    backup.taint("orders", 1, 0)
    checkpoint(store)
    path = tmp_path / "a.yaml"
    path.write_text(
        f"pair: {PAIR}\ntopics: {{include: [orders]}}\nkafka: {{bootstrap.servers: '{absent_brokers}'}}\n"
        f"store: {{root: '{store.url}'}}\n"
    )
    return str(path)


def checkpoint(store: ObjectStore) -> None:
    """A checkpoint that nobody has completed yet."""
    at = now_ms(store)
    request = cut_request(id="first", at=at, deadline=at + 600_000, reason="test")
    checkpoints.put_request(store, request)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["list"], 0),
        (["status", "--s3-only"], 3),
        (["status"], 3),
        (["check", "--lag-warning", "5"], 1),
        (["wait", "--for", "generation=2"], 0),
        (["wait", "--for", "steady", "--timeout", "1ms"], 4),
        (["describe", "2"], 0),
        (["describe", "orders"], 0),
        (["history"], 0),
        (["history", "--generation", "1", "--commits"], 0),
        (["keys"], 0),
        (["checkpoint", "list"], 0),
        (["checkpoint", "show", "first"], 0),
        (["checkpoint", "show", "none"], 1),
        (["checkpoint", "delete", "first", "--yes"], 0),
        (["records", "--topic", "orders", "--key", "key-3"], 0),
        (["config", "show"], 0),
        (["pause", "--for", "1h"], 0),
        (["resume"], 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_the_store_alone_can_tell(
    config: str, command: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command that needs no broker, on a real backup: JSON as its schema says, and YAML with the same content."""
    assert run([*command, "-c", config, "-o", "json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] in documents.kinds()
    documents.check(told)
    assert run([*command, "-c", config, "-o", "yaml"]) == (0 if command[1:] == ["delete", "first"] else code)
    assert yaml.safe_load(capsys.readouterr().out).keys() == told.keys()


def test_the_sandbox(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that was never started is a document too."""
    assert run(["sandbox", "status", "--dir", str(tmp_path / "none"), "-o", "json"]) == 3
    documents.check(json.loads(capsys.readouterr().out))
