"""The first region is lost, and the replica of its bucket lacks some of the newest entries and objects."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.backups.witness import consume
from support.clusters.topics import TopicMaker
from support.pairs.instances import Pair
from support.pairs.outcomes import UNCLEANED, contents, write

from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def test_a_replica_is_restored_up_to_where_it_is_whole(
    kafka: KafkaServer, make_topic: TopicMaker, topic_name: str, tmp_path: Path
) -> None:
    """`verify` names the newest moment that needs nothing of what is missing, and a restore of it has every record."""
    topic = make_topic(topic_name, config=UNCLEANED)
    (store := tmp_path / "store").mkdir()
    with Pair(tmp_path, bootstrap=kafka.bootstrap, store={"root": f"file://{store}"}, topics=[topic]) as pair:
        a = pair.start("a")
        for count in (100, 50, 50, 50):
            write(kafka.bootstrap, topic, count)
            log = consume(kafka.bootstrap, [topic])
            pair.wait("all is committed", lambda: pair.covered(log.ends))  # noqa: B023 - it is called at once
        pair.wait("generation 1 is complete", lambda: pair.complete(1))
        assert a.terminate() == 0
        pair.status()
        commits = [entry for entry in pair.entries(1) if entry.objects]
        late, gap = commits[-2], commits[-1]
        replica = tmp_path / "replica"
        shutil.copytree(store, replica)
        (replica / late.objects[0].key).unlink()
        next((replica / pair.name / "generations" / "00000001").glob(f"*{gap.seq:020}.json")).unlink()

        root = f"file://{replica}"
        refused = pair.tandem("restore", "--root", root, "--suffix", ".newest", "--dry-run")
        assert refused.returncode == 3, refused.stdout
        assert "`tandem verify` names the newest entry" in refused.stderr
        verified = pair.tandem("verify", "--root", root, "-o", "json")
        assert verified.returncode == 3, verified.stderr
        (intact,) = json.loads(verified.stdout)["intact"]
        assert intact["generation"] == 1
        assert commits[-3].seq <= intact["entry"] < late.seq
        done = pair.tandem(
            *("restore", "--root", root, "--suffix", ".replica"),
            *("--generation", "1", "--commit", str(intact["entry"]), "-o", "json"),
        )
        assert done.returncode == 0, done.stderr
        kept = [entry for entry in commits if entry.seq <= intact["entry"]]
        last = max(part.last for entry in kept for item in entry.objects for part in item.parts)
        there = [row for row in log.rows if row.offset <= last]
        assert len(there) >= 100
        assert contents(consume(kafka.bootstrap, [f"{topic}.replica"]).rows) == contents(there)
