"""Mistakes in what keeps a copy that another one covers: keys that vanished, the recovery window."""

from __future__ import annotations

from planted.mistakes import Mistake

_KEYS = "avro/tandem/backup_avro/selection/vanished_keys.py"
_BACK = "spark_jobs/tandem/spark_jobs/restore/vanished/write_back.py"
_GUARD = "sink/tandem/sink/write/key_guard.py"

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="key guard: an older record of a key stands for the lost one",
        file=_KEYS,
        old="offset >= self._offsets.get(key, _MOST)",
        new="key in self._offsets",
    ),
    Mistake(
        name="key guard: a key that was deleted is a loss",
        file=_KEYS,
        old="self._offsets[key] = offset if has_value else ~offset",
        new="self._offsets[key] = offset",
    ),
    Mistake(
        name="key guard: keys are forgotten when the memory is full of them",
        file=_KEYS,
        old="                search.settle()\n",
        new="                table.clear()\n",
    ),
    Mistake(
        name="key guard: a key whose last record comes later is told of twice",
        file=_KEYS,
        old="for offset in table.values() if offset <= self.last]",
        new="for offset in table.values()]",
    ),
    Mistake(
        name="key guard: records beyond the older copy's end count as those that it has",
        file=_KEYS,
        old="return max(part.last for _, part in newer) > max(part.last for _, part in older)",
        new="return False",
    ),
    Mistake(
        name="key guard: equal counts prove equal records after a sweep",
        file=_KEYS,
        old="        key not in older.horizons\n        and not older.erased\n",
        new="        not older.erased\n",
    ),
    Mistake(
        name="key guard: equal counts prove equal records after an erasure",
        file=_KEYS,
        old="        and not older.erased\n        and not newer.erased\n",
        new="",
    ),
    Mistake(
        name="key guard: a scan long after the older copy ended proves a loss",
        file=_KEYS,
        old="    if base.end <= older.positions[key].offset:\n",
        new="    if base.end <= newer.positions[key].offset:\n",
    ),
    Mistake(
        name="key guard: tombstones that a tail may miss prove a loss",
        file=_KEYS,
        old="    if lives_ms < _BEST_EFFORT_MS:\n        return False\n",
        new="",
    ),
    Mistake(
        name="key guard: the newest copy is compared, which may lack what was deleted since",
        file=_KEYS,
        old="key=lambda g: g.number)\n    return next(",
        new="key=lambda g: -g.number)\n    return next(",
    ),
    Mistake(
        name="key guard: a covering object that is missing holds every key",
        file=_GUARD,
        old="read=partial(self._read, newer)",
        new="read=partial(self._read_what_is_left, newer)",
    ),
    Mistake(
        name="key guard: what vanished is cleared all the same",
        file="controller/tandem/controller/instance/act.py",
        old="            wanted = self._without_vanished(writer.state, wanted, generations, let_go)\n",
        new="",
    ),
    Mistake(
        name="key guard: vanished keys are covered at the next look",
        file="avro/tandem/backup_avro/selection/coverage.py",
        old=" or why.startswith(_VANISHED) else None",
        new=" else None",
    ),
    Mistake(
        name="key guard: a restore leaves out what was kept, because a log start moved past it",
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
        name="restore vanished: a transaction is committed over a newer record",
        file=_BACK,
        old="            if self._lost.left == before:\n",
        new="            if True:\n",
    ),
    Mistake(
        name="restore vanished: a key that was written since the plan is overwritten",
        file=_BACK,
        old="            self.look()\n",
        new="",
    ),
    Mistake(
        name="restore vanished: own records of a transaction count as newer ones",
        file=_BACK,
        old="                if offset not in mine:\n",
        new="                if True:\n",
    ),
    Mistake(
        name="key guard: every loss is put down to a log start that moved",
        file="controller/tandem/controller/status/health.py",
        old="        if start > kept.positions[key].base.start\n",
        new="        if start >= kept.positions[key].base.start\n",
    ),
)
