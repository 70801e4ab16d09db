"""Writing a plan's state to the progress topic: one writer at a time, as a compare-and-swap on the last state.

Tasks are fenced by their transactional ids; so is the writer of a plan's state. It opens the plan's own transactional
id, which fences every other writer of this plan, reads the last state, and writes the new one if the last state is the
expected one. A run that was taken over, ended or given up meanwhile finds out at its next write, which comes before
each step that changes the target.

Each state is true when it is sent. So readers need not wait until it is committed. That holds for the plan's record,
not for its parts: the parts of a state that is cut into several records are committed before the plan's record is sent,
and the parts of the state before are deleted when it is committed. A run may be killed anywhere, and of a transaction
that it leaves open the broker's cleaner removes some records, in closed segments, while others stay readable.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tandem.backup_avro.errors import RefusedError
from tandem.spark_jobs.restore.lease.fencing import fence
from tandem.spark_jobs.restore.lease.other_restores import short
from tandem.spark_jobs.restore.plan import plan as restore_plan
from tandem.spark_jobs.restore.progress import task_progress as marks
from tandem.spark_jobs.restore.progress.batch_producer import BatchProducer
from tandem.spark_jobs.restore.progress.task_progress import PlanState, RestoreProgress
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster

#: Key and value of a record of the progress topic.
Record = tuple[str, bytes | None]


class OvertakenError(RefusedError):
    """The last state of the plan is not the expected one: another run has written since."""


def write_phase(target: TargetCluster, before: PlanState | None, word: PlanState) -> None:
    """Write the state `word` if the plan's last state is `before`.

    Raises OvertakenError if it is not, ProduceError, ClusterDeniedError.
    """
    _swap(target, word.plan, before, word)


def refuse_if_overtaken(target: TargetCluster, plan: str, words: Collection[PlanState | None]) -> None:
    """Raise OvertakenError if the last state of a plan is none of `words`."""
    _refuse_unless_last(target.plans(), plan, words)


def _refuse_unless_last(now: RestoreProgress, plan: str, words: Collection[PlanState | None]) -> None:
    if now.plans.get(plan) not in words:
        raise OvertakenError(
            f"another run of restore {short(plan)} has gone on with it, ended it or abandoned it meanwhile",
            code="TDM-R026",
            remedy="`tandem restore list` shows what has become of it",
        )


def forget_plan(target: TargetCluster, last: PlanState) -> None:
    """Write a tombstone for a plan if its last state is `last`. Raises as `write_phase`."""
    _swap(target, last.plan, last, None)


def _swap(target: TargetCluster, plan: str, before: PlanState | None, word: PlanState | None) -> None:
    def speak(producer: BatchProducer) -> None:
        now = target.plans()
        # An earlier try with an unknown outcome may have written it.
        _refuse_unless_last(now, plan, [before, word])
        said: list[Record] = [(plan, None)] if word is None else [*marks.records_of(word)]
        over: list[Record] = [(key, None) for key in now.parts_of(plan) if all(key != name for name, _ in said)]
        producer.know(marks.TOPIC)
        # One transaction each: a record that names parts must not stay readable when an abort removes the parts.
        for records in (said[:-1], said[-1:], over):
            _commit(producer, records)

    fence(target.props, restore_plan.plans_transactional_id(plan), speak)


def _commit(producer: BatchProducer, records: Sequence[Record]) -> None:
    if not records:
        return
    producer.begin()
    for key, value in records:
        producer.send(marks.TOPIC, marks.PLANS_PARTITION, key=key.encode(), value=value)
    producer.commit()
