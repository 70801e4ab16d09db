"""What runs of a restore write and hand to their tasks: a test names the fields that it is about."""

from __future__ import annotations

from typing import Any

from support.backups.chains import PAIR
from tandem.sink.store import StoreAccess
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.progress.restore_record import RestoreRecord
from tandem.spark_jobs.restore.progress.task_progress import PlanPhase, PlanState, TargetStrand, TaskProgress
from tandem.spark_jobs.restore.records.load_task import LoadTask, SourcePartition
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress


def plan_state(**how: Any) -> PlanState:
    """A run that loads generation 1."""
    fields: dict[str, Any] = {
        "plan": "ab" * 32,
        "run": "run-1",
        "state": PlanPhase.LOADING,
        "generation": 1,
        "basis": {1: 7},
        "targets": {},
        "sources": {},
        "merged": (),
        "at": 0,
    }
    return PlanState(**(fields | how))


def task_progress(**how: Any) -> TaskProgress:
    """A task that has loaded seven records of partition 0."""
    fields: dict[str, Any] = {
        "plan": "ab" * 32,
        "topic_id": "id-1",
        "task": 0,
        "target": "t",
        "target_topic_id": "id-2",
        "next_offsets": {0: 7},
        "strands": {0: TargetStrand(records=7, hash="00" * 32, first=0, last=6)},
        "tombstones": 0,
        "null_keys": 0,
        "left_out": 0,
        "page": None,
        "rows": (),
    }
    return TaskProgress(**(fields | how))


def load_task(**how: Any) -> LoadTask:
    """A task that loads nothing from nowhere into partition 0."""
    fields: dict[str, Any] = {
        "plan": "ab" * 32,
        "run": "r",
        "pair": PAIR,
        "restore": None,
        "topic": "t",
        "topic_id": "id-s",
        "sources": (SourcePartition(partition=0, slices=()),),
        "target": "t",
        "target_topic_id": "id-t",
        "transactional_id": "x",
        "spread": 16,
        "store": StoreAddress(root="memory:///", settings=StoreAccess()),
        "cluster": ClusterAddress(props={}),
    }
    return LoadTask(**(fields | how))


def restore_record(**how: Any) -> RestoreRecord:
    """A restore of generation 1 that brought nothing."""
    fields: dict[str, Any] = {
        "id": "ab12",
        "pair": PAIR,
        "plan": "hash",
        "generation": 1,
        "seq": 1,
        "as_of": None,
        "at": 0,
        "target_cluster": "c",
        "topics": (),
        "groups": {},
    }
    return RestoreRecord(**(fields | how))
