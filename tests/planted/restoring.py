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
        old="    if newest_offset(one) < facts.starts[one.lacking] and not facts.only_compacts:\n",
        new="    if newest_offset(one) < facts.starts[one.lacking]:\n",
    ),
    Mistake(
        name="a generation that begins during an append records its settings",
        file="sink/tandem/sink/commit_draft.py",
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
        name="keys in several partitions are merged although their times overlap",
        file="spark_jobs/tandem/spark_jobs/restore/ambiguous_keys.py",
        old="        if elsewhere is not None and elsewhere[3] >= row[2]:\n",
        new="        if elsewhere is not None and elsewhere[2] > row[2]:\n",
    ),
    Mistake(
        name="records of one millisecond in two partitions are merged in any order",
        file="spark_jobs/tandem/spark_jobs/restore/ambiguous_keys.py",
        old="        if elsewhere is not None and elsewhere[3] >= row[2]:\n",
        new="        if elsewhere is not None and elsewhere[3] > row[2]:\n",
    ),
    Mistake(
        name="partitions are merged by timestamps that are wrong",
        file="spark_jobs/tandem/spark_jobs/restore/time_bounds.py",
        old="    if is_ordered(times):\n",
        new="    if is_ordered(times) or len(times) > 1:\n",
    ),
    Mistake(
        name="one of several explanations of timestamps is taken for the truth",
        file="spark_jobs/tandem/spark_jobs/restore/time_bounds.py",
        old="    np.maximum.at(greatest, levels, times[members])\n",
        new="    np.minimum.at(greatest, levels, times[members])\n",
    ),
    Mistake(
        name="merged records of one partition and millisecond lose their order",
        file="spark_jobs/tandem/spark_jobs/restore/sorted_load.py",
        old="        order = np.lexsort((offsets, partitions, lows))\n",
        new="        order = np.lexsort((-offsets, partitions, lows))\n",
    ),
    Mistake(
        name="a merge that goes on begins with what is there already",
        file="spark_jobs/tandem/spark_jobs/restore/sorted_load.py",
        old="        rest = np.flatnonzero(self._offsets >= starts[self._partitions])\n",
        new="        rest = np.flatnonzero(self._offsets >= 0 * starts[self._partitions])\n",
    ),
    Mistake(
        name="a timestamp later than the backup is believed",
        file="spark_jobs/tandem/spark_jobs/restore/merge_source.py",
        old="                if time > self.topic.latest:\n",
        new="                if time > self.topic.latest and records < 0:\n",
    ),
    Mistake(
        name="an interval over several slices is looked at in the first one only",
        file="spark_jobs/tandem/spark_jobs/restore/ambiguous_keys.py",
        old="        inside = (first <= slice_) & (slice_ <= last)\n",
        new="        inside = first == slice_\n",
    ),
    Mistake(
        name="a sweep takes tombstones that a group has not read",
        file="spark_jobs/tandem/spark_jobs/retention/sweep_plan.py",
        old="min([_settled(state, key, limit, others), *_committed([state, past, *others], key)])",
        new="_settled(state, key, limit, others)",
    ),
    Mistake(
        name="a topic that was made anew is taken for the one that is restored into",
        file="spark_jobs/tandem/spark_jobs/restore/check/check_partition.py",
        old="    if found == began:\n",
        new="    if found is not None:\n",
    ),
    Mistake(
        name="the last record of a partition goes into the last transaction",
        file="spark_jobs/tandem/spark_jobs/restore/records/record_stream.py",
        old="            yield replace(single, chunks=rest.chunks, next_offsets={source: after})\n",
        new="            yield replace(single, chunks=(*rest.chunks, *single.chunks), next_offsets={source: after})\n"
        "            self.last = None\n",
    ),
    Mistake(
        name="a last record that is there already is written again",
        file="spark_jobs/tandem/spark_jobs/restore/load/last_record.py",
        old="        there = None if wrote else self._there(end)\n",
        new="        there = None\n",
    ),
    Mistake(
        name="a last record is sent before an earlier run is fenced in its partition",
        file="spark_jobs/tandem/spark_jobs/restore/load/last_record.py",
        old="        if there is None and not wrote and self._producer.has_predecessors:\n",
        new="        if there is None and not wrote and self._producer.has_predecessors and end < 0:\n",
    ),
    Mistake(
        name="a partition gets one filler too many",
        file="spark_jobs/tandem/spark_jobs/restore/plan/offset_mode.py",
        old="    return last + 1 - records if records else 0\n",
        new="    return last + 2 - records if records else 0\n",
    ),
    Mistake(
        name="fillers are not deleted",
        file="spark_jobs/tandem/spark_jobs/restore/load/fillers.py",
        old="    log.delete_below(until)\n",
        new="",
    ),
    Mistake(
        name="fillers are written before an earlier run is fenced in their partition",
        file="spark_jobs/tandem/spark_jobs/restore/load/fillers.py",
        old="    if at < until and producer.has_predecessors:\n",
        new="    if at < until and producer.has_predecessors and at < 0:\n",
    ),
    Mistake(
        name="a batch may lie at another offset than planned",
        file="spark_jobs/tandem/spark_jobs/restore/load/exact_load.py",
        old="        if base != wanted:\n",
        new="        if base < wanted:\n",
    ),
    Mistake(
        name="what an earlier run wrote beyond its progress is not compared",
        file="spark_jobs/tandem/spark_jobs/restore/load/exact_load.py",
        old="        if found != (end - at, self._state):\n",
        new="        if found[0] > end - at:\n",
    ),
    Mistake(
        name="progress counts batches that the broker has not confirmed",
        file="spark_jobs/tandem/spark_jobs/restore/load/exact_load.py",
        old="        while self._waiting:\n            self._confirm()\n        task = self._task\n",
        new="        task = self._task\n",
    ),
    Mistake(
        name="a short gap gets one filler too few",
        file="spark_jobs/tandem/spark_jobs/restore/load/filled_stream.py",
        old="for number in range(at, offset))\n",
        new="for number in range(at + 1, offset))\n",
    ),
    Mistake(
        name="the last filler is not held back",
        file="spark_jobs/tandem/spark_jobs/restore/load/exact_load.py",
        old="is ExactStage.HOLD and self._padded >= 0\n",
        new="is ExactStage.HOLD and self._padded > self._at + 10**9\n",
    ),
    Mistake(
        name="a gap between two parts is not seen",
        file="spark_jobs/tandem/spark_jobs/restore/load/filled_stream.py",
        old="        if behind is not None and last + 1 < behind:\n",
        new="        if behind is not None and last + 4 < behind:\n",
    ),
    Mistake(
        name="the wait for the cleaner ends while a filler is left",
        file="spark_jobs/tandem/spark_jobs/restore/prepare/wait_cleaned.py",
        old="left = [one for one, keyless in found if keyless]\n",
        new="left = [one for one, keyless in found if keyless > 4]\n",
    ),
    Mistake(
        name="each worker of a restore loads NumPy",
        file="spark_jobs/tandem/spark_jobs/restore/worker_calls.py",
        old="from tandem.spark_jobs.restore.load import load\n",
        new="from tandem.spark_jobs.restore import sorted_load\nfrom tandem.spark_jobs.restore.load import load\n",
    ),
    Mistake(
        name="exact offsets for a topic that is not compacted",
        file="spark_jobs/tandem/spark_jobs/restore/plan/offset_mode.py",
        old="    if wanted is OffsetMode.EXACT and not target.compacted:\n",
        new="    if wanted is OffsetMode.EXACT and not target:\n",
    ),
    Mistake(
        name="a pair backs up what its own restores create",
        file="controller/tandem/controller/watch/guarded_cluster.py",
        old="is_created(known, info.name, info.topic_id)",
        new='info.name in known and "" not in known[info.name] and not info.topic_id',
    ),
    Mistake(
        name="a merge forgets the codecs of batches",
        file="sink/tandem/sink/write/merge.py",
        old="        codecs=codecs_of(parts),\n",
        new="        codecs=parts[-1].codecs,\n",
    ),
    Mistake(
        name="a sweep forgets the codecs of batches",
        file="spark_jobs/tandem/spark_jobs/retention/rewritten.py",
        old="        self.codecs |= of.codecs\n",
        new="        self.codecs = of.codecs\n",
    ),
    Mistake(
        name="what was not recorded is restored as zstd",
        file="spark_jobs/tandem/spark_jobs/restore/plan/target_codec.py",
        old="if codecs >> codec & 1), Compression.NONE)",
        new="if codecs >> codec & 1), Compression.ZSTD)",
    ),
    Mistake(
        name="a rate is divided by the cores that are there when the load begins",
        file="spark_jobs/tandem/spark_jobs/restore/records/load_task.py",
        old="    count = max(1, min(len(tasks), max(slots, math.ceil(rate / _FASTEST))))\n",
        new="    count = len(tasks)\n    rate = rate * count / max(1, min(count, slots))\n",
    ),
    Mistake(
        name="an error of Spark's JVM is told by the call that failed",
        file="spark_jobs/tandem/spark_jobs/spark/session.py",
        old="{last or thrown or first}",
        new="{last or first}",
    ),
    Mistake(
        name="the end of an application by its cluster is told by the call that failed",
        file="spark_jobs/tandem/spark_jobs/spark/session.py",
        old="    if _ENDED.search(text):\n",
        new="    if _ENDED.match(text):\n",
    ),
)
