"""What is said of a plan in the progress topic: by one at a time, and only on top of what he knows.

Tasks are fenced by their transactional ids; so is whoever speaks of a plan. To say something he opens the plan's own
id, which ends everybody who was about to speak, reads what was said last, and speaks if that is what he expects. A run
that was taken over, ended or given up meanwhile finds out at its next word, which comes before each step that counts.

Each word is true when it is sent. So readers need not wait until it is committed. That goes for words, not for what
they need: the parts of one that lies in several records are committed before it is sent, and those of the word before
are deleted when it is committed. A run may be killed anywhere, and of what it leaves open the broker's cleaner removes
some records, in closed segments, while others stay where they can be read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tandem.backup_avro.errors import RefusedError
from tandem.spark_jobs.restore.lease import progress as marks
from tandem.spark_jobs.restore.lease.other_restores import short
from tandem.spark_jobs.restore.lease.progress import PlanState, RestoreProgress
from tandem.spark_jobs.restore.load.batch_producer import BatchProducer, fence
from tandem.spark_jobs.restore.plan import plan as restore_plan
from tandem.spark_jobs.restore.prepare.target_cluster import TargetCluster

#: Key and value.
Record = tuple[str, bytes | None]


class OvertakenError(RefusedError):
    """Something else was said of the plan meanwhile."""


def write_phase(target: TargetCluster, before: PlanState | None, word: PlanState) -> None:
    """Say `word`, if the last one is `before`. Raises OvertakenError if it is not, ProduceError, ClusterDeniedError."""
    _swap(target, word.plan, before, word)


def refuse_if_overtaken(target: TargetCluster, plan: str, words: Collection[PlanState | None]) -> None:
    """Raise OvertakenError if the last thing that was said of a plan is none of `words`."""
    _refuse_unless_last(target.plans(), plan, words)


def _refuse_unless_last(now: RestoreProgress, plan: str, words: Collection[PlanState | None]) -> None:
    if now.plans.get(plan) not in words:
        raise OvertakenError(
            f"another run of restore {short(plan)} has gone on with it, ended it or given it up meanwhile",
            remedy="`tandem restore list` shows what has become of it",
        )


def forget_plan(target: TargetCluster, last: PlanState) -> None:
    """Let a plan be forgotten, if the last word is `last`. Raises as `write_phase`."""
    _swap(target, last.plan, last, None)


def _swap(target: TargetCluster, plan: str, before: PlanState | None, word: PlanState | None) -> None:
    def speak(producer: BatchProducer) -> None:
        now = target.plans()
        # A try that nobody knows the outcome of may have said it.
        _refuse_unless_last(now, plan, [before, word])
        said: list[Record] = [(plan, None)] if word is None else [*marks.records_of(word)]
        over: list[Record] = [(key, None) for key in now.parts_of(plan) if all(key != name for name, _ in said)]
        producer.know(marks.TOPIC)
        # Each rests on the one before it, and would outlive it if both were aborted together.
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
