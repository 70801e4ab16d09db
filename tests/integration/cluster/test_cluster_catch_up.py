"""`tandem catch-up` on a real Spark cluster, whose executors read the store's credentials where the tasks say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from support.backups.build_backup import records
from support.clusters.standalone_spark import StandaloneSpark
from support.clusters.topics import TopicMaker
from support.pairs.instances import PairMaker
from support.pairs.outcomes import UNCLEANED, assert_all_stored
from support.restores.live_topics import write_records

from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PARTITIONS = 3
COUNT = 2_000


def test_executors_read_for_an_instance(
    standalone: StandaloneSpark, kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, tmp_path: Path
) -> None:
    """Every record is stored once. Tasks name the files of credentials: no warning says that one travels."""
    topic = make_topic(partitions=PARTITIONS, config=UNCLEANED)
    for number in range(PARTITIONS):
        write_records(kafka.bootstrap, records(topic, number, range(COUNT)))
    pair = new_pair([topic], scan={"by": "spark", "patience": "5m"})
    pair.start("a", first="a")
    pair.wait("positions are in the chain", lambda: any(state.positions for state in pair.live()))

    settings = pair.settings | {"store": dict(pair.settings["store"])}
    for key in ("access_key_id", "secret_access_key"):
        file = tmp_path / key
        file.touch(mode=0o600)
        file.write_text(settings["store"].pop(key))
        settings["store"][f"{key}_file"] = str(file)
    path = tmp_path / "tandem.yaml"
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    done = standalone.run("catch-up", "-c", str(path), "--wait", "30s", "--range", "1000", "-o", "json")
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["kind"], found["generation"], found["failed"]) == ("CatchUp", 1, 0)
    assert found["ranges"] >= 2 * PARTITIONS
    assert found["records"] == PARTITIONS * COUNT
    assert "other users can read" not in done.stderr
    assert "travels" not in done.stderr
    assert standalone.secret not in done.stderr

    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    assert_all_stored(pair, kafka.bootstrap, [topic])
