"""Mistakes in what keeps a copy that another one covers: keys that vanished, the recovery window."""

from __future__ import annotations

from planted.mistakes import Mistake

_KEYS = "avro/tandem/backup_avro/selection/vanished_keys.py"
_SIGNS = "controller/tandem/controller/decision/loss_detector.py"
_LOSSES = "avro/tandem/backup_avro/selection/losses.py"
_GUARD = "sink/tandem/sink/write/vanished_keys_check.py"

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="vanished keys: what was found of a partition keeps it though it was released since",
        file=_GUARD,
        old="for key in asked if key in results)",
        new="for key in results)",
    ),
    Mistake(
        name="vanished keys: an older record of a key stands for the lost one",
        file=_KEYS,
        old="offset >= self._offsets.get(key, _MOST)",
        new="key in self._offsets",
    ),
    Mistake(
        name="vanished keys: a record behind a taint stands for the lost one",
        file=_GUARD,
        old="                newer.sound_offset(key),\n",
        new="                newer.positions[key].offset,\n",
    ),
    Mistake(
        name="vanished keys: a block that a taint cuts counts as a whole",
        file=_GUARD,
        old="            if part.last < end:\n",
        new="            if part.first < end:\n",
    ),
    Mistake(
        name="vanished keys: a key that was deleted is a loss",
        file=_KEYS,
        old="self._offsets[key] = offset if has_value else ~offset",
        new="self._offsets[key] = offset",
    ),
    Mistake(
        name="vanished keys: keys are forgotten when the memory is full of them",
        file=_KEYS,
        old="                yield search.settle()\n",
        new="                table.clear()\n",
    ),
    Mistake(
        name="vanished keys: a key whose last record comes later is told of twice",
        file=_KEYS,
        old="<= offset <= self.last)",
        new="<= offset)",
    ),
    Mistake(
        name="vanished keys: records beyond the older copy's end count as those that it has",
        file=_KEYS,
        old="        max(part.last for part in there),\n",
        new="",
    ),
    Mistake(
        name="vanished keys: equal counts prove equal records after a sweep",
        file=_KEYS,
        old="    return not swept and not erased",
        new="    return not erased",
    ),
    Mistake(
        name="vanished keys: equal counts prove equal records of another replica",
        file=_KEYS,
        old="    return _totals(older) != _totals(newer)\n",
        new="    return False\n",
    ),
    Mistake(
        name="vanished keys: equal counts prove equal records after an erasure",
        file=_KEYS,
        old="    return not swept and not erased",
        new="    return not swept",
    ),
    Mistake(
        name="vanished keys: a scan long after the older copy ended proves a loss",
        file=_KEYS,
        old="    if base.end <= end:\n",
        new="    if base.end <= newer.positions[key].offset:\n",
    ),
    Mistake(
        name="vanished keys: tombstones that a tail may miss prove a loss",
        file=_KEYS,
        old="    if lives_ms < _BEST_EFFORT_MS:\n        return False\n",
        new="",
    ),
    Mistake(
        name="vanished keys: the newest copy is compared, which may lack what was deleted since",
        file=_KEYS,
        old="key=lambda g: g.number)\n    return next(",
        new="key=lambda g: -g.number)\n    return next(",
    ),
    Mistake(
        name="vanished keys: a covering object that is missing holds every key",
        file=_GUARD,
        old="read=partial(self._read, newer)",
        new="read=partial(self._read_what_is_left, newer)",
    ),
    Mistake(
        name="vanished keys: what vanished is cleared all the same",
        file="controller/tandem/controller/instance/act.py",
        old="            wanted = self._without_vanished(writer.state, wanted, generations, let_go)\n",
        new="",
    ),
    Mistake(
        name="vanished keys: vanished keys are covered at the next look",
        file=_LOSSES,
        old=" or why.startswith(_VANISHED) or (why",
        new=" or (why",
    ),
    Mistake(
        name="vanished keys: a restore leaves out what was kept, because a log start moved past it",
        file="avro/tandem/backup_avro/selection/restorable_state.py",
        old="        log_start = min(log_start, position.base.start)\n",
        new="        log_start = max(log_start, position.base.start)\n",
    ),
    Mistake(
        name="recovery window: half of it is kept",
        file="avro/tandem/backup_avro/selection/coverage.py",
        old="now - g.sealed_at < window_ms)",
        new="now - g.sealed_at < window_ms // 2)",
    ),
    Mistake(
        name="recovery window: a copy goes before it was sealed for so long",
        file="avro/tandem/backup_avro/selection/coverage.py",
        old="now - g.sealed_at < window_ms)",
        new="now - g.claim.at < window_ms)",
    ),
    Mistake(
        name="recovery window: nobody asks for it before a copy is cleared",
        file="controller/tandem/controller/decision/decide.py",
        old="    if generation.number in seen.held or generation.number in kept:\n",
        new="    if generation.number in seen.held:\n",
    ),
    Mistake(
        name="recovery window: moments between two copies count as restorable",
        file="avro/tandem/backup_avro/selection/moments.py",
        old=" or (start is not None and state.sealed_at is not None and state.sealed_at < start)",
        new="",
    ),
    Mistake(
        name="recovery window: a sweep ends moments that were promised",
        file="controller/tandem/controller/cli/maintain/retention.py",
        old="    if back < loaded.recovery.window:\n",
        new="    if back < loaded.recovery.window / 2:\n",
    ),
    Mistake(
        name="restore points: a moment is listed under an older generation than the one that restores it",
        file="controller/tandem/controller/decision/restore_points.py",
        old="            end = min(end, newer_from)\n",
        new="",
    ),
    Mistake(
        name="loss signs: log starts of topics that delete count, too",
        file=_SIGNS,
        old="    return topic is not None and topic.policies == _COMPACT\n",
        new="    return topic is not None and topic.compacted\n",
    ),
    Mistake(
        name="loss signs: a series names the moment before its last event",
        file=_SIGNS,
        old="            good, at = min(good, known.last_good), max(at, known.at)\n",
        new="            at = max(at, known.at)\n",
    ),
    Mistake(
        name="loss signs: records that merging wrote again are a flush",
        file=_SIGNS,
        old="part.scan is None and was is not None and part.first >= was.offset and topic",
        new="part.scan is None and was is not None and topic",
    ),
    Mistake(
        name="loss signs: hours in which nobody looked count as silent",
        file=_SIGNS,
        old="        elif hour != self._hour:\n            self._hours.clear()\n",
        new="",
    ),
    Mistake(
        name="loss signs: a state is compared with itself",
        file="controller/tandem/controller/watch/store_watch.py",
        old="        generations, grown, before = [], set(), dict(self._snapshots)\n",
        new="        generations, grown, before = [], set(), self._snapshots\n",
    ),
    Mistake(
        name="vanished keys: every loss is put down to a log start that moved",
        file=_KEYS,
        old="    if other.log_start > begin:\n",
        new="    if other.log_start >= begin:\n",
    ),
    Mistake(
        name="vanished keys: a copy from a spell of a policy that deletes is not compared",
        file=_KEYS,
        old=" or guarded_from(newer, older, key) is None:\n",
        new=" or not only_compacts((older, newer), key):\n",
    ),
    Mistake(
        name="vanished keys: a policy that deletes has taken no tombstones from a log that nobody read",
        file=_KEYS,
        old="    if newer.positions[key].log_start > end and not only_compacts((older, newer), key):\n",
        new="    if False:\n",
    ),
    Mistake(
        name="vanished keys: what retention took before the topic was compacted is a loss",
        file=_KEYS,
        old="if self.older.begin <= offset <= self.last)",
        new="if offset <= self.last)",
    ),
    Mistake(
        name="vanished keys: a log that a policy empties beyond the older copy's end is taken for covered",
        file="avro/tandem/backup_avro/selection/coverage.py",
        old="        if known is None or known[0] >= begin:\n",
        new="        if begin:\n",
    ),
    Mistake(
        name="vanished keys: a generation that has seen no other policy than one that deletes is compared with nothing",
        file="avro/tandem/backup_avro/chain/generation.py",
        old="        return self.compacted_before.get(key) if key in self.positions else None\n",
        new="        return None\n",
    ),
    Mistake(
        name="vanished keys: what was released is guarded for ever against the policy that somebody wanted",
        file="controller/tandem/controller/instance/act.py",
        old="if not any(r.names(since[1], key) for r in let_go)}",
        new="if True}",
    ),
    Mistake(
        name="vanished keys: where a topic began to be compacted moves with its log start",
        file="avro/tandem/backup_avro/chain/generation.py",
        old="        return key not in self.compacted_from and topic is not None",
        new="        return topic is not None",
    ),
    Mistake(
        name="vanished keys: partitions that are all kept for a log start that moved are named nowhere",
        file="controller/tandem/controller/decision/decide.py",
        old=" or any(map(losses.is_of_keys, goes.stays.values()))):\n",
        new="):\n",
    ),
    Mistake(
        name="vanished keys: the cause of a loss is not read back",
        file=_LOSSES,
        old="LossCause(cause) if said and cause in set(LossCause) else LossCause.NOT_KNOWN",
        new="LossCause.NOT_KNOWN",
    ),
    Mistake(
        name="vanished keys: check says nothing of what only an older copy still has",
        file="controller/tandem/controller/status/check.py",
        old="        *_kept_copies(found),\n",
        new="",
    ),
    Mistake(
        name="vanished keys: what was found in a copy that is kept is not told before it is cleared",
        file="controller/tandem/controller/status/health.py",
        old="    return [loss for of, loss in said.vanished if",
        new="    return [loss for of, loss in () if",
    ),
    Mistake(
        name="expiring topics: what has expired is a loss",
        file=_KEYS,
        old="    return max(0, *starts, 0 if expired is None else expired.offset)\n",
        new="    return 0 if starts else expired\n",
    ),
    Mistake(
        name="expiring topics: what has expired from the newer copy itself is a loss",
        file=_KEYS,
        old="0 if expired is None else expired.offset)",
        new="0)",
    ),
    Mistake(
        name="expiring topics: they are compared with nothing",
        file=_KEYS,
        old="    if newer.compacted_since(key) is not None or any(",
        new="    if topics or any(",
    ),
    Mistake(
        name="expiring topics: log starts of before a policy that only compacts are taken to be known",
        file=_KEYS,
        old="    if newer.compacted_since(key) is not None or any(",
        new="    if any(",
    ),
    Mistake(
        name="expiring topics: the log start that a scan meets is not recorded",
        file="sink/tandem/sink/read/scan/local_ranges.py",
        old="                progress.begins_at(fault.log_start)\n",
        new="",
    ),
    Mistake(
        name="expiring topics: the log start that a worker meets is not recorded",
        file="sink/tandem/sink/read/scan/accept_ranges.py",
        old="        progress.begins_at(read.log_start)\n",
        new="",
    ),
    Mistake(
        name="expiring topics: a catch-up job reads the lowest range, which tells of no log start",
        file="sink/tandem/sink/read/scan/spark_ranges.py",
        old="                if progress.expires and next_offer.range.low == progress.scan.base.start:\n",
        new="                if False:\n",
    ),
    Mistake(
        name="expiring topics: the log start at which a scan begins again is not recorded",
        file="sink/tandem/sink/pipeline.py",
        old="            progress.begins_at(bounds.start)\n",
        new="",
    ),
    Mistake(
        name="expiring topics: the log start that a scan meets moves where the policy only compacts",
        file="sink/tandem/sink/read/progress/partition_progress.py",
        old="        if self.expires:\n            self.log_start = max(self.log_start, min(log_start, self.offset))\n",
        new="        self.log_start = max(self.log_start, min(log_start, self.offset))\n",
    ),
    Mistake(
        name="expiring topics: what has expired since is brought back with what vanished",
        file="spark_jobs/tandem/spark_jobs/restore/vanished/find.py",
        old="(partition.missing_in, *newest)\n",
        new="(partition.missing_in,)\n",
    ),
    Mistake(
        name="expiring topics: a copy that is kept for lost keys is restored with what has expired",
        file=_LOSSES,
        old="    return kept and state.compacted_since(key) is not None\n",
        new="    return kept\n",
    ),
    Mistake(
        name="expiring topics: lost keys are put down to a policy that changed",
        file=_KEYS,
        old="    if known is not None:\n        begin = known[0]\n",
        new="    if True:\n        begin = 0 if known is None else known[0]\n",
    ),
)
