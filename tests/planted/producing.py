"""Mistakes in errors of brokers while a restore loads."""

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="a transaction that the broker aborted for its age is another run's takeover",
        file="spark_jobs/tandem/spark_jobs/restore/progress/batch_producer.py",
        old="        case ErrorMeaning.FENCED if open_s >= TRANSACTION_TIMEOUT_MS / 1000:\n",
        new="        case ErrorMeaning.FENCED if open_s < 0:\n",
    ),
    Mistake(
        name="a time limit that the brokers refuse is asked for again and again",
        file="sink/tandem/sink/kafka/errors/error_codes.py",
        old="        50,\n        _M.RUN,\n",
        new="        50,\n        _M.TRANSIENT,\n",
    ),
    Mistake(
        name="what was appended is checked behind other people's transactions",
        file="spark_jobs/tandem/spark_jobs/restore/check/check_partition.py",
        old="        return not self.among_others\n",
        new="        return True\n",
    ),
    Mistake(
        name="a position inside of a log is taken for one that was cut off",
        file="sink/tandem/sink/read/tail.py",
        old="case FaultKind.OUT_OF_RANGE if fault.log_end is not None and fault.log_end < progress.offset:\n",
        new="case FaultKind.OUT_OF_RANGE if fault.log_end is not None:\n",
    ),
    Mistake(
        name="builds that are spoilt follow one another without a rest",
        file="controller/tandem/controller/decision/decide.py",
        old="    if seen.spoilt.must_wait(seen.at):\n        return [], Reason.RESTING\n",
        new="",
    ),
    Mistake(
        name="a generation that was cleared is forgotten to have been spoilt",
        file="controller/tandem/controller/decision/spoilt_builds.py",
        old="        if generation.complete and not generation.taints:\n",
        new="        if generation.gone or (generation.complete and not generation.taints):\n",
    ),
    Mistake(
        name="what a policy deletes in time is a taint",
        file="sink/tandem/sink/read/tail.py",
        old="        if progress.expires:\n",
        new="        if progress.expires and progress.frozen:\n",
    ),
    Mistake(
        name="a config that somebody set back is not looked at before a restore hands over",
        file="spark_jobs/tandem/spark_jobs/restore/prepare/loading_config.py",
        old="        changed = self._changed()\n        if changed:\n            what",
        new="        changed: dict[str, dict[str, str | None]] = {}\n        if changed:\n            what",
    ),
    Mistake(
        name="what a restore sets while it adds to a topic is recorded as its own config",
        file="sink/tandem/sink/commit_draft.py",
        old="            topic = replace(topic, config=own_config(topic.config, known))\n",
        new="            topic = replace(topic)\n",
    ),
    Mistake(
        name="what begins later stands for what a log lost that only compacts",
        file="avro/tandem/backup_avro/selection/coverage.py",
        old="    return lowest if lowest > begin else None\n",
        new="    return None\n",
    ),
    Mistake(
        name="a restore leaves out what a log lost that only compacts",
        file="sink/tandem/sink/read/tail.py",
        old="        if progress.expires:  # else what was read stays: the policy does not delete it\n",
        new="        if progress.topic:\n",
    ),
    Mistake(
        name="a repair replaces the only copy of what a topic has lost",
        file="controller/tandem/controller/cli/maintain/verify.py",
        old="        mends, why = False, only_copy(result)\n",
        new="        why = only_copy(result)\n",
    ),
    Mistake(
        name="what a topic has lost is taken for what it has deleted",
        file="spark_jobs/tandem/spark_jobs/verify/compare_plan.py",
        old="    return one.kind is KeyFault.DIFFERENT or (one.kind is KeyFault.GONE and one.lacking == 1)\n",
        new="    return one.kind is KeyFault.DIFFERENT or (one.kind is KeyFault.GONE and one.second is not None)\n",
    ),
)
