"""The index of a connector's files that is kept: what did not change is not read again, and a wrong one is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.backups.old_files import avro, put, rows, sink_key

from tandem.backup_avro.documents.connector_layout import ConnectorReading
from tandem.backup_avro.errors import ConfigError, DamagedError
from tandem.sink.store import StoreAccess, StoreTransientError
from tandem.spark_jobs.connector import connector_reader, file_index
from tandem.spark_jobs.connector.connector_reader import ConnectorReader
from tandem.spark_jobs.connector.verify_files import verify_files
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two files of one partition."""
    put(tmp_path / "old", sink_key("orders", 0, 0), avro(rows("orders", 0, range(9))))
    put(tmp_path / "old", sink_key("orders", 0, 9), avro(rows("orders", 0, range(9, 20))))
    return tmp_path / "old"


def planned(root: Path, index: Path | None, **reading: Any) -> tuple[str, int]:
    """The hash of a plan, and how many records it has."""
    address = StoreAddress(root=root.as_uri(), settings=StoreAccess(), connector=ConnectorReading(**reading))
    plan = plan_of(ConnectorReader(address, index=index), RestoreOptions())
    return plan.hash, plan.records


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of files that were read."""
    keys: list[str] = []
    whole = connector_reader.examine_one

    def look(address: StoreAddress, item: Any) -> Any:
        keys.append(item.key)
        return whole(address, item)

    monkeypatch.setattr(connector_reader, "examine_one", look)
    return keys


def test_files_are_read_once(root: Path, tmp_path: Path, read: list[str]) -> None:
    """The plan is the same with an index and without; a file that is new or changed is read, and no other."""
    index = tmp_path / "index"
    first = planned(root, index)
    assert len(read) == 2
    assert planned(root, index) == first
    assert len(read) == 2
    assert planned(root, None) == first
    read.clear()
    new = put(root, sink_key("orders", 0, 20), avro(rows("orders", 0, range(20, 24))))
    old = put(root, sink_key("orders", 0, 9), avro(rows("orders", 0, range(9, 19))))
    assert planned(root, index)[1] == 9 + 10 + 4
    assert sorted(read) == sorted([new, old])


def test_a_read_that_is_interrupted_is_not_lost(
    root: Path, tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before an error of the store is known the next time."""
    whole = connector_reader.examine_one
    last = sink_key("orders", 0, 9)

    def fail(address: StoreAddress, item: Any) -> Any:
        if item.key == last:
            raise StoreTransientError("no answer", code="TDM-X001")
        return whole(address, item)

    monkeypatch.setattr(connector_reader, "_KEPT_EVERY_S", -1.0)
    monkeypatch.setattr(connector_reader, "examine_one", fail)
    with pytest.raises(StoreTransientError):
        planned(root, tmp_path / "index")
    monkeypatch.setattr(connector_reader, "examine_one", whole)
    read.clear()
    assert planned(root, tmp_path / "index")[1] == 20
    assert read == [last]


def test_a_verification_reads_all_and_keeps_what_is_known_of_other_files(
    root: Path, tmp_path: Path, read: list[str]
) -> None:
    """What it does not look at, of other topics, is not read again for the next plan."""
    small = put(root, sink_key("small", 0, 0), avro(rows("small", 0, range(3))))
    index = tmp_path / "index"
    first = planned(root, index)
    read.clear()
    address = StoreAddress(root=root.as_uri(), settings=StoreAccess(), connector=ConnectorReading())
    assert verify_files(address, ConnectorReader(address, index=index), topics={"small"}).clean
    assert read == [small]
    assert planned(root, index) == first
    assert read == [small]
    put(root, small, b"")
    assert not verify_files(address, ConnectorReader(address, index=index), topics={"small"}).clean
    assert len(file_index.load(index, root=address.root, empty_as_null=False)) == 2


@pytest.mark.parametrize("cluster", [False, True])
def test_large_files_are_read_by_the_cluster_if_there_is_one(
    root: Path, cluster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in a task of its own, and overlapping ones too; in threads of one process one after the other."""
    monkeypatch.setattr(connector_reader, "_LARGE", 1)
    put(root, sink_key("orders", 0, 19), avro(rows("orders", 0, range(15, 30))))
    address = StoreAddress(root=root.as_uri(), settings=StoreAccess(), connector=ConnectorReading())
    reader = ConnectorReader(address)
    sizes: list[int] = []

    def run(work: Any, tasks: Any) -> Any:
        sizes.extend(len(task) for task in tasks)
        return [work(task) for task in tasks]

    reader.run = run
    if not cluster:
        monkeypatch.setattr(connector_reader, "in_threads", run)
    assert plan_of(reader, RestoreOptions()).records == 30
    assert sizes == ([1, 1, 1, 2] if cluster else [])


def test_what_is_wrong_with_a_file_is_never_kept(root: Path, tmp_path: Path, read: list[str]) -> None:
    """It is looked at again each time."""
    key = put(root, sink_key("orders", 1, 0), b"")
    for _ in range(2):
        with pytest.raises(DamagedError, match="it is empty"):
            planned(root, tmp_path / "index")
    assert read.count(key) == 2
    assert len(read) == 4


def test_an_index_of_something_else_is_refused(root: Path, tmp_path: Path) -> None:
    """Another root, another reading, damage, another file: each is told."""
    index = tmp_path / "index"
    planned(root, index)
    with pytest.raises(ConfigError, match="TDM-P017"):
        planned(root, index, empty_as_null=True)
    put(tmp_path / "other", sink_key("orders", 0, 0), avro(rows("orders", 0, range(9))))
    with pytest.raises(ConfigError, match="TDM-P017"):
        planned(tmp_path / "other", index)
    index.write_text(index.read_text()[:-20])
    with pytest.raises(ConfigError, match="is damaged"):
        planned(root, index)
    for text in ("", "{}", "not JSON", "[" * 100_000):
        index.write_text(text)
        with pytest.raises(ConfigError, match=r"is no index of files|is damaged"):
            planned(root, index)
    with pytest.raises(ConfigError, match="can't be"):
        planned(root, tmp_path)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, 7),  # the key
        (0, ["topics/orders/partition=0/x.avro"]),
        (1, "1"),  # size and time, by which a file is known again
        (2, None),
        (3, "ab"),  # its hash
        (3, 5),
        (4, True),  # its size, which is that of the listing
        (5, 1 << 40),  # where its first block is
        (6, "9"),  # records
        (6, -9),
        (6, 10),  # more than there are offsets
        (7, 10),  # more tombstones than records
        (10, [0]),  # first and last
        (11, 1 << 63),
        (12, 0.5),  # times
        (13, {}),
    ],
)
def test_a_line_that_no_file_can_have_is_damage(root: Path, tmp_path: Path, at: int, value: object) -> None:
    """Plans are made of it unseen, so what has another type or cannot be is told, with the way out."""
    index = tmp_path / "index"
    planned(root, index)
    head, line, *rest = index.read_text().splitlines()
    columns = json.loads(line)
    columns[at] = value
    index.write_text("\n".join([head, json.dumps(columns), *rest, ""]))
    with pytest.raises(ConfigError, match=f"{index} is damaged") as caught:
        planned(root, index)
    assert caught.value.remedy == "remove it: the files are read again"


def test_a_file_beside_the_index_is_left_alone(tmp_path: Path) -> None:
    """No name that can be foretold is written through: a link there would have another file overwritten."""
    path, victim = tmp_path / "index", tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f"index.{os.getpid()}").symlink_to(victim)
    file_index.save(path, [], root="s3://bucket", empty_as_null=False)
    assert file_index.load(path, root="s3://bucket", empty_as_null=False) == {}
    assert victim.read_text() == "mine"
