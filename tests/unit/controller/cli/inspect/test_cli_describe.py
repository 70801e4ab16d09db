"""`tandem describe`: everything that the store knows of a generation or a topic, and what is said if there is none."""

from __future__ import annotations

import json
import re

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import EntryKind
from tandem.backup_avro.documents.release import Release
from tandem.controller.cli.inspect.describe import parse
from tandem.controller.cli.main import run
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.sink.store.chain.releases import ReleaseReader

ORDERS = TopicSpec("orders", partitions=2)
SEVEN = TopicSpec("7")


def completed(store: ObjectStore, number: int = 1, instance: str = "a") -> Backup:
    """A generation with two topics that is COMPLETE."""
    backup = Backup.begun(
        store, records("orders", 0, range(10), tombstones=[3]), topics=[ORDERS, SEVEN], number=number, instance=instance
    )
    backup.commit(records("7", 0, range(5)))
    backup.complete()
    return backup


def test_a_generation(store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Claim, chain, topics with configuration, partitions with taints, objects, pins, releases: all in the document."""
    backup = completed(store)
    backup.taint("orders", 1, 4)
    pins.put_pin(store, PAIR, generation=1, owner="restore by me", until=now_ms(store) + 60_000)
    gone = Release(
        number=0,
        pair=PAIR,
        topic="orders",
        topic_id=backup.topics["orders"].topic_id,
        partitions=(1,),
        through=1,
        at=now_ms(store),
        by="me@here",
        reason="test",
    )
    ReleaseReader(store, PAIR).append(gone)
    assert run(["describe", "1", "-c", config, "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["generation"]["state"], told["generation"]["records"]) == (
        "GenerationDescription",
        "COMPLETE",
        15,
    )
    counts = {one["kind"]: one["count"] for one in told["entries"]}
    assert counts == {"OPEN": 1, "COMMIT": 2, "CONFIRM": 1, "COMPLETE": 1, "TAINTED": 1}
    seven, orders = told["topics"]
    assert (orders["name"], orders["partitions"], orders["records"], orders["tombstones"]) == ("orders", 2, 10, 1)
    assert orders["config"] == {"cleanup.policy": "compact"}
    assert (seven["name"], seven["objects"]) == ("7", 1)
    assert [(one["topics"], one["records"]) for one in told["objects"]] == [(["7"], 5), (["orders"], 10)]
    assert [one["taintedFrom"] for one in told["generation"]["positions"]] == [None, None, 4]
    assert [one["owner"] for one in told["pins"]] == ["restore by me"]
    assert [(one["partitions"], one["by"]) for one in told["releases"]] == [([1], "me@here")]
    assert run(["describe", "generation/1", "-c", config]) == 0
    text = capsys.readouterr().out
    assert text.startswith("generation 1 of a: COMPLETE\n")
    assert "holds      15 records, 1 of them tombstones" in text
    assert re.search(r"^orders +2 +[0-2] +20\S+ \S+Z +1$", text, re.MULTILINE)
    assert "pinned by restore by me until 20" in text
    assert "release 1 of orders, partitions 1 up to generation 1: 20" in text
    assert run(["describe", "generation/1", "-c", config, "--wide"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^orders +1 +0 .* from 4: gap$", text, re.MULTILINE)
    assert text.count(".avro") == 2


def test_a_generation_that_is_wholly_cleared(
    store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its chain stays, and is told; nothing is left to be held."""
    old = completed(store)
    completed(store, 2, "b")
    old.seal()
    old.append(EntryKind.CLEARED, clearing=old.clearing())
    assert run(["describe", "1", "-c", config, "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["generation"]["state"], told["generation"]["waitsFor"], told["objects"]) == ("CLEARED", None, [])
    assert {"SEALED", "CLEARING", "CLEARED"} <= {one["kind"] for one in told["entries"]}


def test_a_topic_over_its_generations(store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each generation that holds it, with its partitions; a topic whose name is a number is asked for by its kind."""
    completed(store)
    completed(store, 2, "b")
    assert run(["describe", "orders", "-c", config, "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["topic"]) == ("TopicDescription", "orders")
    assert [(one["generation"], one["instance"], one["stored"]["records"]) for one in told["copies"]] == [
        (1, "a", 10),
        (2, "b", 10),
    ]
    assert [one["offset"] for one in told["copies"][0]["positions"]] == [10, 0]
    assert run(["describe", "topic/7", "-c", config]) == 0
    assert capsys.readouterr().out.startswith("topic 7: in 2 generations\n")
    assert run(["describe", "orders", "-c", config, "--wide"]) == 0
    objects = re.findall(r"^(\S+\.avro) .* (\S+)$", capsys.readouterr().out, re.MULTILINE)
    assert len({key for key, _ in objects}) == 2
    assert {topics for _, topics in objects} == {"orders"}


def test_more_than_a_screen_is_counted(store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Twenty lines of each table, then how many more; JSON has all."""
    wide = TopicSpec("wide", partitions=25)
    Backup.completed(store, records("wide", 0, range(3)), topics=[wide])
    assert run(["describe", "1", "-c", config, "--wide"]) == 0
    text = capsys.readouterr().out
    assert "… and 5 more partitions: -o json lists all" in text
    assert len(re.findall(r"^wide +\d", text, re.MULTILINE)) == 20
    assert run(["describe", "wide", "-c", config, "-o", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["copies"][0]["positions"]) == 25


def test_a_damaged_chain(store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, with where to look; another generation is described as if nothing were."""
    completed(store)
    completed(store, 2, "b")
    key = layout.entry_key(PAIR, 1, 2)
    store.delete([key])
    store.put_if_absent(key, b"{}")
    assert run(["describe", "1", "-c", config]) == 3
    assert "generation 1 can't be read: " in capsys.readouterr().err
    assert run(["describe", "2", "-c", config]) == 0
    assert run(["describe", "orders", "-c", config, "-o", "json"]) == 3
    printed = capsys.readouterr()
    assert "warning: generation 1 can't be read: " in printed.err
    assert [one["generation"] for one in json.loads(printed.out[printed.out.index("{") :])["copies"]] == [2]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("9", "has no generation 9"),
        ("ordesr", "nothing is stored of a topic 'ordesr' in pair shop"),
        ("generation/x", "is no generation"),
        ("0", "is no generation"),
        ("topic/", "is no topic"),
        ("pin/7", "there is no kind 'pin'"),
    ],
)
def test_what_is_not_there(
    store: ObjectStore, config: str, what: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said in one line, with what there is."""
    completed(store)
    assert run(["describe", what, "-c", config]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert "what to do: " in printed.err
    assert printed.out == ""


def test_digits_are_a_generation() -> None:
    """And everything else a topic, unless the kind is said."""
    assert [parse(what) for what in ("7", "007", "orders", "topic/7", "generation/7")] == [
        ("generation", "7"),
        ("generation", "007"),
        ("topic", "orders"),
        ("topic", "7"),
        ("generation", "7"),
    ]
