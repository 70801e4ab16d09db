"""The right to delete fillers is asked for before any is written, and only where there are any."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.restores.restore_plans import make_plan

from tandem.sink.kafka.errors.cluster_errors import ClusterDeniedError
from tandem.sink.store import open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.restore.plan import plan as restore_plan
from tandem.spark_jobs.restore.plan.plan import TargetTopic, TopicNaming, TopicPlan
from tandem.spark_jobs.restore.prepare import filling
from tandem.spark_jobs.restore.records.record_changes import NOTHING

_TARGET = TargetTopic(name="orders", topic_id="i", replication_factor=1, config={}, starts={0: 3}, ends={0: 3})


class Admin:
    """Deletes records, or may not."""

    def __init__(self, *, allowed: bool) -> None:
        self.allowed = allowed
        self.asked: list[tuple[str, int, int]] = []

    def delete_records(self, topic: str, partition: int, *, below: int) -> None:
        """Keep the request."""
        self.asked.append((topic, partition, below))
        if not self.allowed:
            raise ClusterDeniedError("not allowed", code="TDM-X001", remedy="ask for it")


def _topic(folder: Path, first: int) -> TopicPlan:
    backup = Backup.claim(open_store(f"file://{folder}"), topics=[TopicSpec("orders")])
    backup.commit(records("orders", 0, range(first, first + 5)))
    backup.complete()
    plan = make_plan(ChainReader(backup.store, PAIR).refresh(), pair=PAIR, naming=TopicNaming())
    [topic] = restore_plan.shaped(plan, NOTHING, {}).topics
    return topic


def test_nothing_is_asked_where_nothing_is_filled(tmp_path: Path) -> None:
    """Then the right is not needed."""
    admin = Admin(allowed=False)
    cluster: Any = SimpleNamespace(admin=admin)
    assert filling.obstacle(cluster, _topic(tmp_path, 0), _TARGET, chosen=True) is None
    assert admin.asked == []


@pytest.mark.parametrize("chosen", [True, False])
def test_the_right_is_asked_for(tmp_path: Path, chosen: bool) -> None:
    """Without it the offsets are dense, and a note says so; with a mode that the user chose it is an error."""
    topic = _topic(tmp_path, 10)
    allowed, denied = Admin(allowed=True), Admin(allowed=False)
    cluster: Any = SimpleNamespace(admin=allowed)
    assert filling.obstacle(cluster, topic, _TARGET, chosen=chosen) is None
    assert allowed.asked == [("orders", 0, 3)]
    cluster.admin = denied
    if chosen:
        with pytest.raises(ClusterDeniedError):
            filling.obstacle(cluster, topic, _TARGET, chosen=True)
    else:
        note = filling.obstacle(cluster, topic, _TARGET, chosen=False)
        assert note is not None
        assert "grant Delete" in note
