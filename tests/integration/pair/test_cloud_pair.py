"""Pairs on Azure's and Google's emulators: backup, kill -9, a turn, and every job of Spark, as commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from support.backups.witness import consume, stored
from support.clusters.topics import TopicMaker
from support.emulators.servers import BUCKET, azure_settings, gcs_settings
from support.pairs.instances import Pair
from support.pairs.outcomes import UNCLEANED, assert_all_stored, write

from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.spark]


@pytest.fixture(params=["az", "gs"])
def pair(request: pytest.FixtureRequest, kafka: KafkaServer, tmp_path: Path) -> Iterator[Pair]:
    """A pair on one of the emulators, without topics yet; Azure's key is in a file."""
    if request.param == "az":
        section = azure_settings(request.getfixturevalue("azurite"))
        key = tmp_path / "account.key"
        key.write_text(section["account_key"])
        key.chmod(0o600)
    else:
        section = gcs_settings(request.getfixturevalue("gcs_url"), tmp_path)
    root = f"{request.param}://{BUCKET}/{tmp_path.name}"
    with Pair(tmp_path, bootstrap=kafka.bootstrap, store={"root": root, **section}) as pair:
        if request.param == "az":
            assert pair.store.url == root  # opened with the key itself; the processes find it in the file
            pair.settings["store"] = {
                name: value for name, value in pair.settings["store"].items() if name != "account_key"
            } | {"account_key_file": str(key)}
        yield pair


def test_a_pair_and_its_jobs(kafka: KafkaServer, make_topic: TopicMaker, pair: Pair, tmp_path: Path) -> None:
    """What a consumer read is stored, exported and restored; nothing is lost or doubled by a writer that is killed."""
    topic, restored = make_topic(partitions=2, config=UNCLEANED), f"{tmp_path.name}.restored"
    write(kafka.bootstrap, topic, 200)
    pair.settings["topics"] = {"include": [topic]}
    a, b = pair.start("a", first="a"), pair.start("b", first="a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    for _ in range(3):
        write(kafka.bootstrap, topic, 100)
        a.kill()
        a = pair.start("a", first="a")
    assert_all_stored(pair, kafka.bootstrap, [topic])

    done = pair.tandem("failover", "--yes", "--wait", "--timeout", "80s")
    assert done.returncode == 0, done.stderr
    pair.wait("the one before is cleared", lambda: (found := pair.generation(1)) and found.cleared)
    assert pair.objects_of("a") == []
    write(kafka.bootstrap, topic, 50)
    log = assert_all_stored(pair, kafka.bootstrap, [topic])
    assert [instance.terminate() for instance in (a, b)] == [0, 0]

    assert _document(pair, "verify")["findings"] == []
    done = pair.tandem("export", "--topics", topic, "--to", str(tmp_path / "export"), "--format", "parquet")
    assert done.returncode == 0, done.stderr
    assert parquet.read_table(tmp_path / "export").num_rows == len(log.rows)
    _document(pair, "--set", "grace.rewrite=0s", "retention", "--horizon", "0s", "--execute")
    newest = {row.key: row.value for row in sorted(log.rows, key=lambda row: (row.partition, row.offset))}
    assert {row.key: row.value for row in stored(pair.store, pair.name)} == newest
    done = pair.tandem("restore", topic, "--to", restored, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row.key: row.value for row in consume(kafka.bootstrap, [restored]).rows} == newest
    words = (file.read_text(errors="replace") for file in tmp_path.glob("*.log"))
    assert not any("tandemtests:" in text or "account_key" in text for text in words)


def _document(pair: Pair, *arguments: str) -> Any:
    done = pair.tandem(*arguments, "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)
