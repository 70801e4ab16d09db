"""What is said of a restore of very many topics, on a real broker with the limits that brokers have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.restores.records import plan_state

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.spark_jobs.restore.lease import lease_record, progress_topic
from tandem.spark_jobs.restore.progress import task_progress as marks
from tandem.spark_jobs.restore.progress.task_progress import PlanPhase
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster

pytestmark = pytest.mark.integration

_TOPICS = 14_000


def test_a_plan_of_fourteen_thousand_topics(kafka: KafkaServer, topic_name: str) -> None:
    """It is said, said anew, followed, and forgotten without a trace; no one record is larger than brokers take."""
    target = TargetCluster({"bootstrap.servers": kafka.bootstrap})
    progress_topic.ensure_topic(target.admin, brokers=1, largest=0)
    names = [f"{topic_name}.of-usual-length.{number:05}" for number in range(_TOPICS)]
    state = plan_state(
        plan=topic_name.encode().hex(),
        state=PlanPhase.BEGUN,
        targets=dict.fromkeys(names, ""),
        sources={f"id-of-the-{name}": 1 for name in names},
        spread=16,
    )
    assert len(marks.encode_state(state)) > 1_048_588
    lease_record.write_phase(target, None, state)
    assert target.plans().plans[state.plan] == state
    loading = replace(state, state=PlanPhase.LOADING, targets={name: f"id-on-the-target-{name}" for name in names})
    lease_record.write_phase(target, state, loading)
    there = target.plans()
    assert there.plans[state.plan] == loading
    assert set(there.parts_of(state.plan)) == {key for key, _ in marks.records_of(loading)} - {state.plan}
    assert target.progress(settled=True).plans[state.plan] == loading
    with marks.following(target.props, marks.ProgressView.PLANS, partitions=[0], only="another") as other:
        assert other.catch_up().parts == {}
    lease_record.forget_plan(target, loading)
    there = target.plans()
    assert state.plan not in there.plans
    assert there.parts_of(state.plan) == []
