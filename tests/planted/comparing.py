"""Mistakes in what deletes, clears or writes because copies or a log were compared, and in what it must keep off."""

from __future__ import annotations

from planted.mistakes import Mistake

_RETENTION = "spark_jobs/tandem/spark_jobs/retention/retention_plan.py"
_CHECK = "sink/tandem/sink/write/vanished_keys_check.py"
_TARGETS = "sink/tandem/sink/store/chain/restore_targets.py"

MISTAKES = (
    Mistake(
        name="comparing: what an erasure stores for a kept partition is a leftover",
        file=_RETENTION,
        old="    if state.gone and state.clearing is None:\n        objects = seen.objects.get(state.number, ())\n",
        new="    if state.cleared is not None and state.clearing is None:\n"
        "        objects = [one for one in seen.objects.get(state.number, ()) if one.key not in state.objects]\n",
    ),
    Mistake(
        name="comparing: what was compacted expires once the policy deletes",
        file=_RETENTION,
        old="    return since is not None and part.last >= since[0]\n",
        new="    return False\n",
    ),
    Mistake(
        name="comparing: an erasure reads checkpoints before the chains",
        file="spark_jobs/tandem/spark_jobs/erasure/eraser.py",
        old="        self._reader.refresh()\n        known = readable_checkpoints(self._store, self._pair)\n",
        new="        known = readable_checkpoints(self._store, self._pair)\n        self._reader.refresh()\n",
    ),
    Mistake(
        name="comparing: an erasure deletes although a replacement is gone",
        file="spark_jobs/tandem/spark_jobs/erasure/eraser.py",
        old="        going = [key for key in going if key not in needed]\n",
        new="",
    ),
    Mistake(
        name="comparing: a record behind a cut is older than what vanished above it",
        file="spark_jobs/tandem/spark_jobs/restore/vanished/find.py",
        old="        return last is not None and offset >= min(last, self.partition.cut_at)\n",
        new="        return last is not None and offset >= last\n",
    ),
    Mistake(
        name="comparing: newer records of lost keys are looked for behind the last of them",
        file="spark_jobs/tandem/spark_jobs/restore/vanished/find.py",
        old="        return min(self.partition.cut_at, *self.offsets.values(), _ALL)\n",
        new="        return min(self.partition.cut_at, max(self.offsets.values()))\n",
    ),
    Mistake(
        name="comparing: of lost keys that do not fit into memory together only the first come back",
        file="spark_jobs/tandem/spark_jobs/restore/vanished/find.py",
        old="        batches=tuple(one for one in batches if one),\n",
        new="        batches=tuple(one for one in batches[:1] if one),\n",
    ),
    Mistake(
        name="intact: a moment counts whose objects a replica lacks",
        file="sink/tandem/sink/store/chain/intact_state.py",
        old="            missing |= {item.key for item in added if item.key not in there}\n",
        new="",
    ),
    Mistake(
        name="intact: a restore of a commit reads what has replaced its objects though that is missing",
        file="spark_jobs/tandem/spark_jobs/state/find_state.py",
        old="        present = then\n",
        new="        pass\n",
    ),
    Mistake(
        name="comparing: a plain object that ends early is read again for ever",
        file="sink/tandem/sink/store/encrypted_objects.py",
        old="        if len(data) != stretch.end - stretch.start:\n",
        new="        if item.envelope is not None and len(data) != stretch.end - stretch.start:\n",
    ),
    Mistake(
        name="comparing: that one copy has all keys counts for any other",
        file=_CHECK,
        old="newer is not None and newer.number != known.newer)\n",
        new="False)\n",
    ),
    Mistake(
        name="comparing: all long tasks wait for one another in the threads of the others",
        file="controller/tandem/controller/instance/task_board.py",
        old="        pool = self._long if slot[0] in _LONG else self._short\n",
        new="        pool = self._short\n",
    ),
    Mistake(
        name="comparing: a release names partitions that other generations lost",
        file="controller/tandem/controller/history/releasable.py",
        old="    group = {partition for partition, number in last.items() if number == first}\n",
        new="    group = {*last}\n",
    ),
    Mistake(
        name="comparing: a transaction stays open while nothing matches",
        file="spark_jobs/tandem/spark_jobs/restore/records/record_stream.py",
        old="                yield NO_UNIT\n",
        new="",
    ),
    Mistake(
        name="comparing: an announcement of a restore counts for ever",
        file=_TARGETS,
        old="(since is not None and info.modified < since) or ",
        new="",
    ),
    Mistake(
        name="comparing: an announcement is over once an earlier run's topic is known",
        file=_TARGETS,
        old="(named_at is not None and named_at >= info.modified)\n",
        new="(named_at is not None)\n",
    ),
    Mistake(
        name="comparing: topics of another cluster under the same names are taken",
        file="sink/tandem/sink/kafka/cluster/hedged_admin.py",
        old="        self._require_same(response.cluster_id)\n",
        new="",
    ),
    Mistake(
        name="comparing: a writer may not read the copy that it compares with",
        file="controller/tandem/controller/roles/s3.py",
        old="        get=(*_TOLD, _DATA, _PROBE),\n",
        new="        get=(*_TOLD, _OWN, _PROBE),\n        lists=(_DATA,),\n",
    ),
)
