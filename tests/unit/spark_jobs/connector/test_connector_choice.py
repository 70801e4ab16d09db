"""What a restore and readers take of a connector's files: rules, refusals, and a plan that comes out the same again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.backups.old_files import GOLDEN, GOLDEN_FOLDER, avro, pair_key, put, row, rows, sink_key, today

from tandem.backup_avro.documents.connector_layout import ConnectorReading, OverlapPreference
from tandem.backup_avro.errors import ConfigError, DamagedError, RefusedError, TandemError
from tandem.backup_avro.record.current import Record, decode_body
from tandem.sink.store import StoreAccess
from tandem.spark_jobs.connector.choose_files import NO_GENERATION, topic_id_of
from tandem.spark_jobs.connector.connector_reader import ConnectorReader
from tandem.spark_jobs.connector.file_findings import FileFault
from tandem.spark_jobs.connector.verify_files import FilesResult, verify_files
from tandem.spark_jobs.reading.object_reader import StoreAddress, require_pair
from tandem.spark_jobs.reading.wanted_state import StateRequest
from tandem.spark_jobs.restore.plan.options import ExactPlan, RestoreOptions, plan_again, plan_of
from tandem.spark_jobs.restore.plan.plan import RestorePlan
from tandem.spark_jobs.restore.plan.plan_document import describe_topic


def reader(root: Path, *topics: str, **reading: Any) -> ConnectorReader:
    """What reads the files below a folder."""
    address = StoreAddress(root=root.as_uri(), settings=StoreAccess(), connector=ConnectorReading(**reading))
    return ConnectorReader(address, wants=lambda topic: not topics or topic in topics)


def read(root: Path, *topics: str, **reading: Any) -> dict[str, list[Record]]:
    """All records that are taken, by topic."""
    found = reader(root, *topics, **reading)
    selection = found.find(StateRequest()).select(wanted=lambda _: True, removed=False)
    address = StoreAddress(root=root.as_uri(), settings=StoreAccess(), connector=found.reading)
    objects = address.reader()
    records: dict[str, list[Record]] = {}
    for item in selection.partitions:
        for piece in item.slices:
            for body in objects.bodies(piece):
                records.setdefault(item.topic.name, []).extend(decode_body(body.body, body.records))
    return records


def notes(root: Path, *topics: str, **reading: Any) -> str:
    """What is said of the files."""
    return "\n".join(reader(root, *topics, **reading).find(StateRequest()).notes)


def plan(root: Path, *topics: str, **reading: Any) -> RestorePlan:
    return plan_of(reader(root, *topics, **reading), RestoreOptions())


def verified(root: Path, **reading: Any) -> FilesResult:
    """What a verification says."""
    address = StoreAddress(root=root.as_uri(), settings=StoreAccess(), connector=ConnectorReading(**reading))
    return verify_files(address, ConnectorReader(address), topics=None)


@pytest.mark.parametrize("empty_as_null", [False, True])
def test_golden_files_of_both_layouts(empty_as_null: bool) -> None:
    """Every record once, as it was written, wherever files overlap; of two copies the one that reaches further."""
    found = read(GOLDEN_FOLDER, empty_as_null=empty_as_null)
    wanted: dict[tuple[str, int], dict[int, Record]] = {}
    for key, (_, records) in GOLDEN.items():
        if "/a/" not in key:
            for old in records:
                new = today(old, empty_as_null=empty_as_null)
                headers = tuple(sorted(new.headers, key=lambda pair: pair[0]))
                wanted.setdefault((new.topic, new.partition), {}).setdefault(new.offset, new)
                assert len(headers) == len(new.headers)
    expected: dict[str, list[Record]] = {}
    for (topic, _), by_offset in sorted(wanted.items()):
        expected.setdefault(topic, []).extend(by_offset[offset] for offset in sorted(by_offset))
    assert found == expected


def test_the_plan_of_golden_files() -> None:
    """Partitions up to the highest that was seen, compacted topics, exact figures, and what to know."""
    made = plan(GOLDEN_FOLDER)
    orders = next(topic for topic in made.topics if topic.source.name == "orders")
    assert (orders.source.partitions, orders.count, dict(orders.source.config)) == (3, 3, {"cleanup.policy": "compact"})
    assert [(item.key.partition, item.records, item.end) for item in orders.partitions] == [(0, 15, 29), (2, 3, 11)]
    assert (made.generation, made.basis, made.groups, made.recorded) == (NO_GENERATION, {}, {}, False)
    said = "\n".join(made.warnings())
    assert "orders: 2 empty values and 1 empty key as stored; the connector wrote that where a record had null" in said
    assert "orders: 4 records in more than one file" in said
    assert "orders: 1 of 3 partitions have no record and stay empty: 1" in said
    assert "b was taken" in said
    described = [describe_topic(topic, None, now=0, compression=None) for topic in made.topics]
    assert [item.exact for topic in described for item in topic.partitions] == [True] * 3
    assert "they become null" in notes(GOLDEN_FOLDER, empty_as_null=True)


def test_the_same_files_are_the_same_plan(tmp_path: Path) -> None:
    """Listed and read again, a run is resumed; another file, other bytes or another reading are another plan."""
    key = put(tmp_path, sink_key("orders", 0, 0), avro(rows("orders", 0, range(9))))
    first = plan(tmp_path)
    assert plan(tmp_path).hash == first.hash
    exactly = ExactPlan(hash=first.hash, generation=first.generation, basis=first.basis)
    again = plan_again(reader(tmp_path), RestoreOptions(), exactly)
    assert again is not None
    assert again.hash == first.hash
    assert plan(tmp_path, empty_as_null=True).hash != first.hash
    put(tmp_path, key, avro(rows("orders", 0, range(9)), sync=b"fedcba9876543210"))
    assert plan(tmp_path).hash != first.hash
    assert plan_again(reader(tmp_path), RestoreOptions(), exactly) is None
    put(tmp_path, key, avro(rows("orders", 0, range(9))))
    put(tmp_path, sink_key("orders", 0, 9), avro(rows("orders", 0, range(9, 12))))
    assert plan(tmp_path).hash != first.hash


def two_copies(root: Path, a: dict[int, range], b: dict[int, range]) -> None:
    """Write a topic as two instances have it."""
    for instance, parts in (("a", a), ("b", b)):
        for number, offsets in parts.items():
            put(root, pair_key("orders", instance, number, 0), avro(rows("orders", number, offsets)))


def test_one_copy_is_taken_whole(tmp_path: Path) -> None:
    """What only the other copy has is not added: it may have been deleted since."""
    two_copies(tmp_path, {0: range(20), 1: range(5)}, {0: range(10, 30), 1: range(5)})
    assert [item.offset for item in read(tmp_path)["orders"]] == [*range(10, 30), *range(5)]
    assert [item.offset for item in read(tmp_path, instance="a")["orders"]] == [*range(20), *range(5)]
    assert "b was taken" in notes(tmp_path)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({0: range(20)}, {0: range(20)}),
        ({0: range(20)}, {0: range(5, 20)}),
        ({0: range(20), 1: range(5)}, {0: range(30), 1: range(4)}),
        ({0: range(20), 1: range(5)}, {0: range(30)}),
        ({0: range(5, 20), 1: range(0)}, {0: range(20)}),
        ({0: range(20)}, {0: range(5, 20), 1: range(0)}),
    ],
)
def test_copies_of_which_none_leads_are_for_a_person(tmp_path: Path, a: dict[int, range], b: dict[int, range]) -> None:
    """Neither a tie nor a lead here and a lag there is decided by a guess."""
    two_copies(tmp_path, a, b)
    with pytest.raises(RefusedError, match=r"orders lies there 2 times, a .*, b ") as error:
        read(tmp_path)
    assert "--instance orders=NAME" in str(error.value)
    assert read(tmp_path, instances=(("orders", "b"),))
    assert "--instance" in verified(tmp_path).choices["orders"]


def test_a_copy_without_a_folder_is_one_of_its_own(tmp_path: Path) -> None:
    """A key that it has seen deleted does not come back from the copy below topics/."""
    put(tmp_path, sink_key("orders", 0, 0), avro(rows("orders", 0, range(5))))
    put(tmp_path, "orders/partition=0/x.avro", avro(rows("orders", 0, range(3, 9))))
    assert [item.offset for item in read(tmp_path)["orders"]] == [*range(3, 9)]
    assert ". was taken" in notes(tmp_path)
    assert [item.offset for item in read(tmp_path, instance="topics")["orders"]] == [*range(5)]
    assert read(tmp_path, instances=(("orders", "."),)) == read(tmp_path)


def test_an_instance_that_is_not_there(tmp_path: Path) -> None:
    """A typing mistake, or a topic that only the other one has, leaves nothing out in silence."""
    two_copies(tmp_path, {0: range(20)}, {0: range(30)})
    put(tmp_path, pair_key("customers", "a", 0, 0), avro(rows("customers", 0, range(3))))
    with pytest.raises(ConfigError, match="customers has no files of instance b"):
        read(tmp_path, instance="b")
    found = read(tmp_path, instance="b", instances=(("customers", "a"),))
    assert (len(found["orders"]), len(found["customers"])) == (30, 3)
    with pytest.raises(ConfigError, match="names topic order, of which there are no files"):
        read(tmp_path, instances=(("order", "a"),))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """Nothing is read until somebody says to go without it, and that is said each time."""
    put(tmp_path, sink_key("orders", 0, 0), avro(rows("orders", 0, range(9))))
    whole = avro(rows("orders", 0, range(9, 40)))
    key = put(tmp_path, sink_key("orders", 0, 9), whole[:-7])
    put(tmp_path, sink_key("customers", 0, 0), avro(rows("customers", 0, range(3))))
    with pytest.raises(DamagedError, match=r"orders\+0\+0000000009\.avro: .*sync marker|claims") as error:
        read(tmp_path)
    assert "--leave-out" in str(error.value)
    assert [finding.where for finding in verified(tmp_path).findings] == [key]
    assert len(read(tmp_path, "customers")["customers"]) == 3
    assert len(read(tmp_path, left_out=frozenset({key}))["orders"]) == 9
    assert f"{key} is left out" in notes(tmp_path, left_out=frozenset({key}))
    with pytest.raises(ConfigError, match=r"no file orders\.avro"):
        read(tmp_path, left_out=frozenset({"orders.avro"}))


def test_a_conflict_names_both_files_until_one_is_preferred(tmp_path: Path) -> None:
    """Different records under one offset are for a person to settle; the store's clock says which file is newer."""
    one = put(tmp_path, sink_key("orders", 0, 0), avro(rows("orders", 0, range(9), value=b"old")))
    other = put(tmp_path, sink_key("orders", 0, 5), avro(rows("orders", 0, range(5, 12), value=b"new")))
    os.utime(tmp_path / one, (1_600_000_000, 1_600_000_000))
    with pytest.raises(DamagedError, match="another record here") as error:
        read(tmp_path)
    assert one in str(error.value)
    assert other in str(error.value)
    assert error.value.code == "TDM-P008"
    newer = [item.value for item in read(tmp_path, prefer=OverlapPreference.NEWER)["orders"]]
    assert newer == [b"old"] * 5 + [b"new"] * 7
    older = [item.value for item in read(tmp_path, prefer=OverlapPreference.OLDER)["orders"]]
    assert older == [b"old"] * 9 + [b"new"] * 3
    assert plan(tmp_path, prefer=OverlapPreference.NEWER).hash != plan(tmp_path, prefer=OverlapPreference.OLDER).hash
    found = verified(tmp_path)
    assert {finding.fault for finding in found.findings} == {FileFault.CONFLICT}
    assert len(found.findings) == 4


def test_null_and_empty_agree_if_empty_means_null(tmp_path: Path) -> None:
    """One release of the connector wrote null where another one wrote empty bytes."""
    put(tmp_path, sink_key("orders", 0, 0), avro([row("orders", 0, 1, value=b"")]))
    put(tmp_path, sink_key("orders", 0, 1), avro([row("orders", 0, 1, value=None), row("orders", 0, 2)]))
    with pytest.raises(DamagedError):
        read(tmp_path)
    assert [item.value for item in read(tmp_path, empty_as_null=True)["orders"]] == [None, b"v"]


def test_nothing_is_skipped_in_silence(tmp_path: Path) -> None:
    """Files in other places, of other kinds, without records, or twice the same are all told."""
    whole = avro(rows("orders", 0, range(9)))
    put(tmp_path, sink_key("orders", 0, 0), whole)
    put(tmp_path, sink_key("orders", 0, 1), whole)
    put(tmp_path, sink_key("orders", 3, 0), avro([]))
    put(tmp_path, "topics/orders/stray.avro", whole)
    put(tmp_path, "README.txt", b"x")
    put(tmp_path, "connector/restores/1f/restore.json", b"{}")
    said = notes(tmp_path)
    assert "orders: 1 file of the same bytes" in said
    assert "orders: 1 file without any record" in said
    assert "1 Avro file in no folder of a partition, not read: topics/orders/stray.avro" in said
    assert "1 file of other kinds, not read" in said
    found = verified(tmp_path)
    assert [(finding.fault, finding.where) for finding in found.findings] == [
        (FileFault.PLACE, "topics/orders/stray.avro")
    ]
    [copy] = found.copies
    assert (copy.files, copy.records, [part.partition for part in copy.partitions]) == (3, 9, [0, 3])
    [topic] = plan(tmp_path).topics
    assert topic.source.partitions == 4


def test_a_folder_that_is_no_partitions(tmp_path: Path) -> None:
    """A topic of twenty million partitions is not made."""
    put(tmp_path, sink_key("orders", 20_261_122, 0), avro(rows("orders", 20_261_122, range(3))))
    with pytest.raises(RefusedError, match="files of a partition 20261122"):
        plan(tmp_path)


def test_a_file_that_changes_under_the_plan_is_noticed(tmp_path: Path) -> None:
    """What was read twice must be the same twice."""
    key = put(tmp_path, sink_key("orders", 0, 0), avro(rows("orders", 0, range(9))))
    found = reader(tmp_path)
    [item] = found.find(StateRequest()).select(wanted=lambda _: True, removed=False).partitions
    address = StoreAddress(root=tmp_path.as_uri(), settings=StoreAccess(), connector=found.reading)
    put(tmp_path, key, avro(rows("orders", 0, range(10))))
    with pytest.raises(DamagedError, match="TDM-P062"):
        list(address.reader().bodies(item.slices[0]))
    (tmp_path / key).unlink()
    with pytest.raises(DamagedError, match="TDM-P058"):
        list(address.reader().bodies(item.slices[0]))


@pytest.mark.parametrize(
    "state_request",
    [
        StateRequest(at=1),
        StateRequest(generation=1, commit=1),
        StateRequest(checkpoint="x"),
        StateRequest(generation=3),
    ],
    ids=str,
)
def test_states_that_only_chains_tell_are_refused(state_request: StateRequest) -> None:
    """There is one state, the newest."""
    with pytest.raises(ConfigError, match="TDM-P012"):
        reader(GOLDEN_FOLDER).find(state_request)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ([], "holds no file topics/<topic>"),
        (["deep/er/topics/orders/partition=0/x.avro"], "but deep/er/topics/orders/partition=0/x.avro"),
        (["acme/generations/00000001.json"], "the backup of pair acme"),
    ],
)
def test_a_root_without_files_says_what_is_there(tmp_path: Path, keys: list[str], words: str) -> None:
    """A root that is too high, or one of Tandem's own."""
    for key in keys:
        put(tmp_path, key, b"{}")
    with pytest.raises(ConfigError, match=words):
        reader(tmp_path).find(StateRequest())


def test_a_root_without_a_pair_names_the_layout() -> None:
    """Who forgets --layout is told of it."""
    address = StoreAddress(root=GOLDEN_FOLDER.as_uri(), settings=StoreAccess())
    with pytest.raises(ConfigError, match="a connector's files, of customers") as error:
        require_pair(address, "acme")
    assert "--layout connector" in str(error.value)


def test_topics_that_are_asked_for() -> None:
    """Files of other topics are not even read, and a name that nothing has is an error."""
    assert {topic.source.name for topic in plan(GOLDEN_FOLDER, "orders").topics} == {"orders"}
    with pytest.raises(TandemError, match="TDM-P013"):
        plan(GOLDEN_FOLDER, "order")


def test_what_stands_for_the_topics_id() -> None:
    """The same name gives the same id for ever: transactional ids are made of it."""
    assert topic_id_of("orders") == "eOsZwU9LSsiy6abAmZoRmQ"
