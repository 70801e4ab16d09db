"""Mistakes in restores, groups and sweeps."""

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="two generations are joined by offset and epoch alone",
        file="avro/tandem/backup_avro/selection/one_history.py",
        old="            same = mine[1] == theirs[1]\n",
        new="            same = mine[0] == theirs[0]\n",
    ),
    Mistake(
        name="a join is moved to no record that both hold",
        file="avro/tandem/backup_avro/selection/one_history.py",
        old="            between = self._slices(piece, join, met.goes_on, join.at)\n",
        new="            between = self._slices(piece, join, join.at, join.at)\n",
    ),
    Mistake(
        name="a log start that moved by accident is applied to another copy",
        file="avro/tandem/backup_avro/selection/restorable_state.py",
        old="    return log_start if only_compacts(states, key) else max(log_start, other)\n",
        new="    return max(log_start, other)\n",
    ),
    Mistake(
        name="what is lost below a log start is not restored",
        file="avro/tandem/backup_avro/selection/restorable_state.py",
        old="        if whole.sound >= piece.sound and whole.log_start < piece.log_start:\n",
        new="        if whole.sound > piece.sound and whole.log_start < piece.log_start:\n",
    ),
    Mistake(
        name="verify judges nothing below a log start that moved by accident",
        file="spark_jobs/tandem/spark_jobs/verify/compare_plan.py",
        old="    if _offset(one) < facts.starts[one.lacking] and not facts.only_compacts:\n",
        new="    if _offset(one) < facts.starts[one.lacking]:\n",
    ),
    Mistake(
        name="a generation that begins during an append records its settings",
        file="sink/tandem/sink/write/commit_draft.py",
        old="before.config if before is not None else self._known_elsewhere(topic.topic_id)\n",
        new="before.config if before is not None else topic.config\n",
    ),
    Mistake(
        name="as many records are taken for the same records",
        file="spark_jobs/tandem/spark_jobs/restore/groups/restore_groups.py",
        old="        return offsets if row.digest == digest_of(stretches(offsets)) else None\n",
        new="        return offsets if row.records == len(offsets) else None\n",
    ),
    Mistake(
        name="groups are set although the restore appended",
        file="spark_jobs/tandem/spark_jobs/restore/groups/group_plan.py",
        old="    if record.append:\n",
        new="    if record.append and not starts:\n",
    ),
    Mistake(
        name="partitions are merged whatever their order",
        file="spark_jobs/tandem/spark_jobs/restore/plan/stray_keys.py",
        old="            if timestamp < newest:\n",
        new="            if timestamp < newest == NO_TIMESTAMP:\n",
    ),
    Mistake(
        name="a sweep takes tombstones that a group has not read",
        file="spark_jobs/tandem/spark_jobs/retention/sweep_plan.py",
        old="min([_settled(state, key, limit, others), *_committed([state, past, *others], key)])",
        new="_settled(state, key, limit, others)",
    ),
    Mistake(
        name="a tombstone goes although its key was left to a later pass",
        file="spark_jobs/tandem/spark_jobs/retention/sweep_partition.py",
        old="            self._found.waiting.drop(later)\n",
        new="",
    ),
    Mistake(
        name="a topic that was made anew is taken for the one that is restored into",
        file="spark_jobs/tandem/spark_jobs/restore/check/check_partition.py",
        old="    if found == began:\n",
        new="    if found is not None:\n",
    ),
    Mistake(
        name="a pair backs up what its own restores create",
        file="controller/tandem/controller/instance/guarded_cluster.py",
        old="not {info.topic_id, ANY}.isdisjoint(known.get(info.name, ()))",
        new="info.name in known and ANY not in known[info.name] and not info.topic_id",
    ),
)
