"""Mistakes in taking all records of some keys out of every copy."""

from __future__ import annotations

from planted.mistakes import Mistake

_PLAN = "spark_jobs/tandem/spark_jobs/erasure/erasure_plan.py"
_OBJECT = "spark_jobs/tandem/spark_jobs/erasure/erase_object.py"
_ERASER = "spark_jobs/tandem/spark_jobs/erasure/eraser.py"
_CHAIN = "avro/tandem/backup_avro/chain/erasure.py"

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="erasure: objects that only a checkpoint needs are forgotten",
        file=_PLAN,
        old="        if cut.state.number == state.number:\n            found |=",
        new="        if cut.state.number < state.number:\n            found |=",
    ),
    Mistake(
        name="erasure: the oldest generation is forgotten",
        file=_ERASER,
        old="        for number in [state.number for state in states if why_left(state) is None",
        new="        for number in [state.number for state in states[1:] if why_left(state) is None",
    ),
    Mistake(
        name="erasure: a sealed generation is forgotten",
        file=_PLAN,
        old="    if state.clearing is not None:\n        return",
        new="    if state.clearing is not None or state.sealed:\n        return",
    ),
    Mistake(
        name="erasure: a neighbour's record goes too",
        file=_OBJECT,
        old="span[5] >= 0 and body[span[6] : span[7]] in self.keys)",
        new="body[span[6] : span[7]][:1] in {key[:1] for key in self.keys})",
    ),
    Mistake(
        name="erasure: tombstones stay",
        file=_OBJECT,
        old="span[5] >= 0 and body[span[6] : span[7]] in self.keys)",
        new="span[8] >= 0 and body[span[6] : span[7]] in self.keys)",
    ),
    Mistake(
        name="erasure: blocks without the keys are dropped from a rewritten part",
        file=_OBJECT,
        old="                self._data += plain[block.start : block.end]\n",
        new="",
    ),
    Mistake(
        name="erasure: what came in during a run is not searched",
        file=_ERASER,
        old="_ROUNDS: Final = 10\n",
        new="_ROUNDS: Final = 1\n",
    ),
    Mistake(
        name="erasure: what was rewritten is not deleted",
        file=_ERASER,
        old="        deleted, waiting, owners = self._delete(number, errors)\n",
        new="        deleted, waiting, owners = 0, 0, ()\n",
    ),
    Mistake(
        name="erasure: what is deleted is still read",
        file=_ERASER,
        old="        if owners:\n            return 0, len(going), owners\n",
        new="",
    ),
    Mistake(
        name="erasure: what merges replaced before is left in the store",
        file=_PLAN,
        old="(key in state.replaced and key not in needed and may_hold(key, topic)):",
        new="False:",
    ),
    Mistake(
        name="erasure: what a checkpoint needs is deleted",
        file=_PLAN,
        old="key not in needed and may_hold",
        new="may_hold",
    ),
    Mistake(
        name="erasure: a checkpoint reads what was erased",
        file="spark_jobs/tandem/spark_jobs/state/find_state.py",
        old="        past, basis = without_erased(past, present), {present.number: present.seq}\n",
        new="        basis = {present.number: present.seq}\n",
    ),
    Mistake(
        name="erasure: merging deletes what a checkpoint reads in the place of its objects",
        file="sink/tandem/sink/write/merge.py",
        old="for one in (key, *before.get(key, ())))",
        new="for one in (key,))",
    ),
    Mistake(
        name="erasure: an object may gain records",
        file=_CHAIN,
        old="and not _is_rest_of(new, state.objects[old]):",
        new="and not new.parts:",
    ),
    Mistake(
        name="erasure: a second one forgets what the first one left",
        file=_CHAIN,
        old="    state.erased = followed | entry.erased\n",
        new="    state.erased = state.erased | entry.erased\n",
    ),
    Mistake(
        name="erasure: a value below its tombstone counts as one that the topic has",
        file="spark_jobs/tandem/spark_jobs/erasure/live_keys.py",
        old="        newest[key] = has_value\n",
        new="        newest[key] = newest.get(key, False) or has_value\n",
    ),
    Mistake(
        name="erasure: versions of objects that a chain names are purged",
        file="spark_jobs/tandem/spark_jobs/erasure/former_copies.py",
        old="if one.key not in needed and may_hold(one.key, topic)",
        new="if may_hold(one.key, topic)",
    ),
)
